"""The first steps of every command: `--version`, and no imports from the current folder."""

import os
import sys


def print_version() -> None:
    """Print the version of the package, and end the process."""
    import cassi

    print(f"cassi {cassi.__version__}")
    sys.exit()


def distrust_current_folder() -> None:
    """Keep processes that a command starts from importing files of the current folder.

    `python -c` and `python -m` search the current folder before Python's own modules. If the folder
    came from somebody else, a `types.py` in it would run. Every Python process that is started from
    this one reads the environment variable.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
