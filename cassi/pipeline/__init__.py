"""From a measurement to a cube that is judged: read, find the camera, reconstruct, judge.

Objects in, objects out. A `Snapshot` is a measurement and the `Camera` that took it (`snapshot`).
`find_camera` returns it with the estimated camera (`find`). `fit` returns the method for that
camera. `reconstruct` makes a `Result`, and `judge` adds the findings for and against the camera.
Nothing here reads settings or prints.
"""
