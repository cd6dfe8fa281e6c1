"""Write tables as CSV that is safe in a spreadsheet, and values as strict JSON."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cassi.checks import printable

Json = dict[str, Any]
"""An object of JSON: values by name."""


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV; the columns are the keys of all rows, with `error` last."""
    names = list(dict.fromkeys(key for row in rows for key in row if key != "error"))
    names += ["error"] if any(row.get("error") for row in rows) else []
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({key: plain_cell(value) for key, value in row.items()} for row in rows)
    return stream.getvalue()


def plain_cell(value: object) -> object:
    """Return a cell; a text that a spreadsheet would run as a formula gets a ' before it.

    Characters that control a terminal, or end a line, are written out as escapes.

    >>> plain_cell("=cmd|' /c calc'!A1"), plain_cell("-1.5"), plain_cell(-1.5)
    ("'=cmd|' /c calc'!A1", '-1.5', -1.5)
    """
    if not isinstance(value, str):
        return value
    text = printable(value)
    if not text.startswith(("=", "+", "-", "@")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def strict_json(value: object) -> str:
    """Return JSON with sorted keys; an infinite or undefined number becomes null."""
    return json.dumps(strict(value), indent=2, sort_keys=True, allow_nan=False) + "\n"


def strict(value: object) -> object:
    """Return a value that strict JSON can hold: a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
