"""`cassi-evaluate`: compare reconstructors on scenes; write tables, pictures and a report."""

from cassi.apps.command import run_command
from cassi.apps.settings import Evaluate


def main() -> None:
    """Run the command."""
    run_command("cassi-evaluate", Evaluate, "cassi.apps.evaluate.job:evaluate")
