"""The file by which cassi-view lets the browser in that it starts."""

import hmac
import os
import secrets
import shutil
import tempfile
import time
from html import escape
from pathlib import Path

SECONDS = 120.0
"""For which a link counts: a browser that has to start takes long."""
_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>cassi-view</title>
<form method="post" action="{address}">
  <input type="hidden" name="code" value="{code}">
  <button>Open cassi-view</button>
</form>
<script>document.forms[0].submit()</script>
</html>
"""


class OneTimeLink:
    """A file of HTML that lets in the first browser that opens it, for two minutes.

    All users of a machine can read the command lines of its processes. So the browser is not given
    the token but the name of this file, which its owner alone can read.

    Args:
        output: folder of the results. The file lies there if no other user can change the folder:
            browsers in a sandbox see no hidden folders and no folder of temporary files. Else it
            lies among the temporary files.
        address: that the code is sent to.

    Attributes:
        path: of the file.
        code: that it sends.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, output: Path, address: str) -> None:
        self.code = secrets.token_urlsafe(24)
        self._end = time.monotonic() + SECONDS
        self._folder = _make_private_folder(output)
        self.path = self._folder / "cassi-view.html"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(self.path, flags, 0o600), "w", encoding="utf-8") as stream:  # noqa: PTH123
            stream.write(_PAGE.format(address=escape(address), code=self.code))

    def redeem(self, given: str) -> bool:
        """Tell whether a code is the one of this link, in time and for the first time."""
        counts = hmac.compare_digest(given.encode(), self.code.encode())
        if not counts or time.monotonic() >= self._end:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Remove the file; its code counts no longer."""
        self._end = 0.0
        shutil.rmtree(self._folder, ignore_errors=True)


def _make_private_folder(output: Path) -> Path:
    found = output.stat()
    if found.st_uid == os.getuid() and not found.st_mode & 0o022:
        folder = Path(tempfile.mkdtemp(prefix=".open-", dir=output))
        if not folder.stat().st_mode & 0o077:
            return folder
        folder.rmdir()  # a file system without permissions
    return Path(tempfile.mkdtemp(prefix="cassi-view-"))
