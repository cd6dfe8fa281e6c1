"""`cassi-reconstruct`: write a cube, pictures and numbers for each measurement."""

import sys

from cassi.apps.arguments import HYDRA_INFO, asks_for_info, suppress_output
from cassi.apps.command import run_command
from cassi.apps.settings import Reconstruct


def main() -> None:
    """Run the command."""
    job = "cassi.apps.reconstruct.job"
    if asks_for_info(sys.argv[1:], HYDRA_INFO):
        sys.argv[1:], folder = suppress_output(sys.argv[1:])
        run_command("cassi-reconstruct", Reconstruct, f"{job}:show", output_folder=folder)
    else:
        run_command("cassi-reconstruct", Reconstruct, f"{job}:reconstruct")
