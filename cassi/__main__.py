"""The command `cassi COMMAND …`, which runs all commands; `python -m cassi` is the same."""

import importlib
import sys

from cassi.apps.start import print_version
from cassi.checks import did_you_mean

COMMANDS = {
    "reconstruct": ("cassi.apps.reconstruct", "reconstruct cubes from measurements and a mask"),
    "train": ("cassi.apps.train", "train a network on your own scenes"),
    "evaluate": ("cassi.apps.evaluate", "compare methods on a data set, in one table"),
    "calibrate": ("cassi.apps.calibrate", "estimate mask and dispersion from frames"),
    "export": ("cassi.apps.export", "write a method to a file that runs without cassi"),
    "live": ("cassi.apps.live.command", "reconstruct frames as they come, in the browser"),
    "camera": ("cassi.apps.camera.command", "show where a camera's bands fall on the detector"),
    "view": ("cassi.apps.view.command", "reconstruct and look at results in the browser"),
}
"""For each command, first: its module, whose `main` runs it; second: what the command does."""
_USAGE_ERROR = 2


def main() -> None:
    """Run the command that the first argument names, with the other arguments."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--version", "-V"):
        print_version()
    if name in ("--help", "-h", "help"):
        width = max(map(len, COMMANDS))
        print("Usage: cassi COMMAND [KEY=VALUE …], or cassi-COMMAND; cassi --version\n")
        for command, (_, description) in COMMANDS.items():
            print(f"  {command:{width}}  {description}")
        print("\ncassi COMMAND --help lists the options of a command.")
        return
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f"; there is {', '.join(COMMANDS)}"
        print(f"cassi: error: no command {name!r}{hint}", file=sys.stderr)
        sys.exit(_USAGE_ERROR)
    # The command's own `main` reads sys.argv, and messages name the program by it.
    sys.argv = [f"cassi-{name}", *arguments]
    importlib.import_module(COMMANDS[name][0]).main()


if __name__ == "__main__":
    main()
