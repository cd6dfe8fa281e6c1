"""From a measurement to a cube that is judged: read, find the camera, reconstruct, judge.

Objects in, objects out. A `Snapshot` is a measurement and the `Camera` that took it (`snapshot`).
`find_camera` returns it by the camera that is found (`find`), and `fit` with a method for that
camera. `reconstruct` makes a `Result` of both, and `judge` says what speaks for and against it.
Nothing here reads settings or prints.
"""
