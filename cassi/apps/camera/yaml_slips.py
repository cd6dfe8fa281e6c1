"""Find two common slips in YAML: a tab, and a missing blank after a colon."""

import re

from yaml import MarkedYAMLError

_TAB = re.compile(r"[^#'\"]*\t")
_NO_BLANK = re.compile(r"(?:^|(?<!\$)[{,])\s*([A-Za-z_][\w.]*):([^\s:/,}][^\s,}]*)")


def find_slip(text: str, error: BaseException) -> str | None:
    """Return the line of the slip that led to an error, and its remedy; None without a slip.

    Args:
        text: content of the file.
        error: the error that the parser or a check of the values raised.
    """
    # `key:value` is valid YAML: a text. So it counts as a slip only if the error quotes it, or if
    # the file is no YAML. The parser reports a slip at its own line or at a later line.
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    lines = text.splitlines()[: None if mark is None else mark.line + 1]
    for number, line in reversed(list(enumerate(lines, 1))):
        if mark is not None and _TAB.match(line):
            return f"line {number}: there is a tab; write blanks"
        for name, value in _NO_BLANK.findall(line):
            if mark is not None or f"{name}:{value}" in str(error):
                return f"line {number}: a blank is missing after ':'; write {name}: {value}"
    return None
