"""Tables and numbers as text that other programs read: CSV, and JSON without infinite numbers."""

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
    """Return rows as CSV, with the keys of all of them as columns."""
    names = list(dict.fromkeys(key for row in rows for key in row if key != "error"))
    names += ["error"] if any(row.get("error") for row in rows) else []
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({key: plain_cell(value) for key, value in row.items()} for row in rows)
    return stream.getvalue()


def plain_cell(value: object) -> object:
    """Return a cell that a spreadsheet takes for text, where it would take a text for a formula.

    Characters that steer a terminal, or end a line, are written out.

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
    """Return a value that strict JSON can hold: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
