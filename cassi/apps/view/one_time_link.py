"""The file by which a command with a page lets the browser in that it starts."""

import os
import shutil
import tempfile
from html import escape
from pathlib import Path

SECONDS = 120.0
"""For which the file lies there: a browser that has to start takes long."""
_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{name}</title>
<meta http-equiv="refresh" content="0; url={address}">
<a href="{address}">Open {name}</a>
</html>
"""


class OneTimeLink:
    """A file of HTML that leads to the address of a server.

    All users of a machine can read the command lines of its processes. So the browser is not given
    the address, which has a code, but the name of this file, which its owner alone can read.

    Args:
        output: folder of the results. The file lies there if no other user can change the folder:
            browsers in a sandbox see no hidden folders and no folder of temporary files. Else it
            lies among the temporary files.
        address: that the file leads to.
        name: of the command.

    Attributes:
        path: of the file.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, output: Path, address: str, name: str) -> None:
        self._folder = _make_private_folder(output)
        self.path = self._folder / f"{name}.html"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(self.path, flags, 0o600), "w", encoding="utf-8") as stream:  # noqa: PTH123
            stream.write(_PAGE.format(address=escape(address), name=name))

    def close(self) -> None:
        """Remove the file."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _make_private_folder(output: Path) -> Path:
    found = output.stat()
    if found.st_uid == os.getuid() and not found.st_mode & 0o022:
        folder = Path(tempfile.mkdtemp(prefix=".open-", dir=output))
        if not folder.stat().st_mode & 0o077:
            return folder
        folder.rmdir()  # a file system without permissions
    return Path(tempfile.mkdtemp(prefix="cassi-view-"))
