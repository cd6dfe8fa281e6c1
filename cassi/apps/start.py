"""What every command does first."""

import os
import sys


def print_version() -> None:
    """Print the version of the package, and end the process."""
    import cassi

    print(f"cassi {cassi.__version__}")
    sys.exit()


def distrust_current_folder() -> None:
    """Keep processes that a command starts from importing files of the current folder.

    `python -c` and `python -m` search it before Python's own modules, and it may be a stranger's: a
    `types.py` there would run. Every Python that is started below this process reads the variable.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
