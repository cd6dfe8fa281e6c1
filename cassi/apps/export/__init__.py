"""cassi-export: write a method for one camera as a file that runs without this package."""

from cassi.apps.command import run_command
from cassi.apps.settings import Export


def main() -> None:
    """Run the command."""
    run_command("cassi-export", Export, "cassi.apps.export.job:export_method")
