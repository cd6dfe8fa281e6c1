"""What those write who do not know YAML: tabs, and names without a blank behind the colon."""

import re

from yaml import MarkedYAMLError

_TAB = re.compile(r"[^#'\"]*\t")
_NO_BLANK = re.compile(r"(?:^|(?<!\$)[{,])\s*([A-Za-z_][\w.]*):([^\s:/,}][^\s,}]*)")


def find_slip(text: str, error: BaseException) -> str | None:
    """Return the line of a text that an error is about, and what is wrong there; None if unknown.

    `key:value` is a valid text, so it counts only where the error quotes it, or where the rest is
    no YAML. A parser notices that in the same line or below it.
    """
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    lines = text.splitlines()[: None if mark is None else mark.line + 1]
    for number, line in reversed(list(enumerate(lines, 1))):
        if mark is not None and _TAB.match(line):
            return f"line {number}: there is a tab; write blanks"
        for name, value in _NO_BLANK.findall(line):
            if mark is not None or f"{name}:{value}" in str(error):
                return f"line {number}: a blank is missing after ':'; write {name}: {value}"
    return None
