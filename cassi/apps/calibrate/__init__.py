"""cassi-calibrate: estimate the true camera from measurements and the nominal camera."""

from cassi.apps.command import run_command
from cassi.apps.settings import Calibrate


def main() -> None:
    """Run the command."""
    run_command("cassi-calibrate", Calibrate, "cassi.apps.calibrate.job:calibrate_camera")
