"""`cassi-camera`: show where the bands of a camera fall on its detector."""

from cassi.apps.command import run_command
from cassi.apps.settings import Camera


def main() -> None:
    """Run the command."""
    run_command("cassi-camera", Camera, "cassi.apps.camera.job:show_camera")
