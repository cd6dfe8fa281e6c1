"""cassi-train: train a network on cubes and on snapshots that are simulated from them."""

import sys

from cassi.apps.command import run_command
from cassi.apps.settings import Train
from cassi.apps.train.files import add_earlier_options


def main() -> None:
    """Run the command."""
    # Hydra refuses flags that it does not know, so the flag becomes a setting.
    sys.argv[1:] = ["dry_run=true" if word == "--dry-run" else word for word in sys.argv[1:]]
    run_command("cassi-train", Train, "cassi.apps.train.job:train", add_earlier_options)
