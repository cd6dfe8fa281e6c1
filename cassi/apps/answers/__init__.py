"""The questions of `answers=`, and the files of their answers."""
