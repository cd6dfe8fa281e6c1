"""`cassi COMMAND …`: all commands behind one name; `python -m cassi` is the same."""

import importlib
import sys

from cassi.apps.start import print_version
from cassi.checks import did_you_mean

COMMANDS = {
    "reconstruct": ("cassi.apps.reconstruct", "a cube from a measurement and a mask"),
    "train": ("cassi.apps.train", "a network, on scenes of yours"),
    "evaluate": ("cassi.apps.evaluate", "methods on a data set, in one table"),
    "calibrate": ("cassi.apps.calibrate", "where mask and bands really fall"),
    "export": ("cassi.apps.export", "a method as a file that runs without cassi"),
    "live": ("cassi.apps.live.command", "frames as they come, in the browser"),
    "camera": ("cassi.apps.camera.command", "what a camera's file comes to"),
    "view": ("cassi.apps.view.command", "snapshots and results in the browser"),
}
"""Each with its module, whose `main` is the command, and what it makes."""
_USAGE_ERROR = 2


def main() -> None:
    """Run the command that the first argument names, with the others, as `cassi-COMMAND` does."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("--version", "-V"):
        print_version()
    if name in ("--help", "-h", "help"):
        width = max(map(len, COMMANDS))
        print("Usage: cassi COMMAND [KEY=VALUE …], or cassi-COMMAND; cassi --version\n")
        print(*(f"  {key:{width}}  {about}" for key, (_, about) in COMMANDS.items()), sep="\n")
        print("\ncassi COMMAND --help says what it takes.")
        return
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f"; there is {', '.join(COMMANDS)}"
        print(f"cassi: error: no command {name!r}{hint}", file=sys.stderr)
        sys.exit(_USAGE_ERROR)
    sys.argv = [f"cassi-{name}", *rest]
    importlib.import_module(COMMANDS[name][0]).main()


if __name__ == "__main__":
    main()
