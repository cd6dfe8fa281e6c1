"""The steps from a measurement to a judged cube: find the camera, fit, reconstruct, judge.

Every step takes objects and returns objects. A `Snapshot` is a measurement and the `Camera` that
took it (`snapshot`). `find_camera` returns it with the estimated camera (`find`). `fit` returns the
method for that camera. `reconstruct` makes a `Result`, and `judge` adds the findings for and
against the camera. Nothing here reads settings or prints.
"""
