"""Records as tables: CSV, Markdown, JSON, LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from cassi.checks import printable
from cassi.data.atomic import atomic_path
from cassi.evaluation.records import Record, Values
from cassi.plugins import parts

MEAN = "mean"

_COLUMNS = (  # heading, unit, digits, where the value is
    ("PSNR", "dB", 2, "psnr/{preset}"),
    ("SSIM", "", 4, "ssim/{preset}"),
    ("SAM", "°", 2, "sam"),
    ("RMSE", "", 4, "rmse"),
    ("ERGAS", "%", 2, "ergas"),
    ("residual", "", 4, "residual"),
    *((f"in {level} % bars", "%", 1, f"coverage/{level}") for level in (50, 80, 90, 95)),
    ("width", "", 4, "width"),
    ("NLL", "", 2, "nll"),
    ("AUSE", "", 2, "ause"),
    ("time", "s", 2, "seconds"),
    ("least time", "s", 2, "least_seconds"),
    ("memory", "MiB", 0, "peak_memory_bytes"),
    ("parameters", "M", 2, "parameters"),
    ("operations", "GFLOP", 2, "flops"),
)
_UNITS = {f"coverage/{level}": 0.01 for level in (50, 80, 90, 95)}
_UNITS |= {"peak_memory_bytes": 2**20, "parameters": 1e6, "flops": 1e9}


def values_of(record: Record) -> Values:
    """Return all values of a record as one flat table row."""
    return {**record.metrics, **record.timing, **record.about}


def average(records: Sequence[Record], methods: Sequence[str]) -> dict[str, Values]:
    """Average the results of each method over scenes.

    The mean is None where a scene has no value, because it failed for instance: means over
    different scenes cannot be compared.
    """
    result: dict[str, Values] = {}
    for method in methods:
        rows = [values_of(record) for record in records if record.method == method]
        failed = any(record.error for record in records if record.method == method)
        names = list(dict.fromkeys(name for row in rows for name in row))
        result[method] = {
            name: None if failed else _mean([row.get(name) for row in rows]) for name in names
        }
    return result


def write_results(
    folder: Path,
    records: Sequence[Record],
    scenes: Sequence[str],
    methods: Sequence[str],
    *,
    preset: str,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> str:
    """Write results.csv, .md, .tex, results.json and timing.json.

    results.json holds what is the same in every run; seconds, memory and the machine are in
    timing.json.

    Args:
        folder: where they go.
        records: one per method and scene.
        scenes: in the order of the tables.
        methods: in the order of the tables.
        preset: the one that Markdown and LaTeX show; the others have all.
        settings: of the evaluation, written into results.json.
        environment: device, versions, ….

    Returns:
        The Markdown table of the means.
    """
    order = {name: index for index, name in enumerate(methods)}
    place = {name: index for index, name in enumerate(scenes)}
    records = sorted(records, key=lambda record: (order[record.method], place[record.scene]))
    means = average(records, methods)
    summary = markdown_means(means, preset)
    texts = {
        "results.csv": _csv(records, means),
        "results.md": f"{_heading(preset)}\n\n{summary}\n{_markdown_scenes(records, preset)}",
        "results.tex": _latex(means, preset),
        "timing.json": strict_json(
            {"environment": environment, "timing": _tree(records, means, timed=True)}
        ),
        "results.json": strict_json(
            {
                "preset": preset,
                "settings": settings,
                "metrics": _tree(records, means, timed=False),
                "about": {record.method: record.about for record in records if record.about},
                "errors": errors_of(records, "method", "scene"),
            }
        ),
    }
    write_texts(folder, texts)
    return summary


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files, name → content, into a folder."""
    for name, text in texts.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def errors_of(records: Sequence[Record], *names: str) -> list[dict[str, str]]:
    """Return the reasons of failures, with the attributes of records that name the jobs."""
    names = (*names, "error")
    return [{name: getattr(r, name) for name in names} for r in records if r.error]


def strict_json(value: Any) -> str:
    """Return JSON with sorted keys; an infinite or undefined number becomes null."""
    return json.dumps(strict(value), indent=2, sort_keys=True, allow_nan=False) + "\n"


def markdown_means(means: Mapping[str, Values], preset: str) -> str:
    """Return a Markdown table, one row per method."""
    columns = _used(means.values(), preset)
    rows = [[name, *(_cell(values, column, preset) for column in columns)] for name, values in
            means.items()]  # fmt: skip
    return markdown([["method", *map(_title, columns)], *rows])


def _heading(preset: str) -> str:
    return (
        f"PSNR and SSIM by the preset `{preset}`; the others are in results.csv. Operations count "
        "two per multiply-add; publications mostly count one."
    )


def _markdown_scenes(records: Sequence[Record], preset: str) -> str:
    methods = list(dict.fromkeys(record.method for record in records))
    scenes = list(dict.fromkeys(record.scene for record in records))
    found = {(record.method, record.scene): record for record in records}
    rows = [["scene", *methods]]
    for scene in scenes:
        cells = []
        for method in methods:
            record = found.get((method, scene))
            values = {} if record is None else values_of(record)
            name = f"psnr/{preset}" if f"psnr/{preset}" in values else "residual"
            cells.append(
                "failed"
                if record and record.error
                else number(values.get(name), 4 if name == "residual" else 2)
            )
        rows.append([scene, *cells])
    known = any(f"psnr/{preset}" in record.metrics for record in records)
    text = f"\n{'PSNR (dB)' if known else 'Relative residual'} by scene\n\n{markdown(rows)}"
    failed = [f"- {r.method}, {r.scene}: {r.error}" for r in records if r.error]
    return text + ("\n" + "\n".join(["Failed:", "", *failed]) + "\n" if failed else "")


def _csv(records: Sequence[Record], means: Mapping[str, Values]) -> str:
    rows: list[dict[str, Any]] = [
        {"method": r.method, "scene": r.scene, **values_of(r), "error": r.error} for r in records
    ]
    rows += [{"method": name, "scene": MEAN, **values} for name, values in means.items()]
    return csv_text(rows)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with the keys of all of them as columns."""
    names = list(dict.fromkeys(key for row in rows for key in row if key != "error"))
    names += ["error"] if any(row.get("error") for row in rows) else []
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({key: plain_cell(value) for key, value in row.items()} for row in rows)
    return stream.getvalue()


def plain_cell(value: Any) -> Any:
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


def _latex(means: Mapping[str, Values], preset: str) -> str:
    columns = _used(means.values(), preset)
    best = {
        column: _best([values.get(column[3].format(preset=preset)) for values in means.values()],
                      largest=column[0] in ("PSNR", "SSIM"))
        for column in columns
        if column[0] in ("PSNR", "SSIM", "SAM", "RMSE", "ERGAS")
    }  # fmt: skip
    lines = [f"% {' & '.join(['method', *map(_title, columns)])}; preset {preset}"]
    for name, values in means.items():
        cells = [_escaped(name)]
        for column in columns:
            value, text = values.get(column[3].format(preset=preset)), _cell(values, column, preset)
            shown = "--" if text == "–" else text
            bold = value is not None and best.get(column) == value and len(means) > 1
            cells.append(f"\\textbf{{{shown}}}" if bold else shown)
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "#$%&_{}" else c) for c in text)


def _best(values: Sequence[float | None], largest: bool) -> float | None:
    known = [value for value in values if value is not None]
    return (max(known) if largest else min(known)) if known else None


def _used(rows: Any, preset: str) -> list[tuple[str, str, int, str]]:
    rows = list(rows)
    return [
        column
        for column in _columns()
        if any(row.get(column[3].format(preset=preset)) is not None for row in rows)
    ]


def _columns() -> list[tuple[str, str, int, str]]:
    """Return every column; the user's own metrics stand before the residual."""
    own = [(n, p.about["unit"], p.about["digits"], n) for n, p in parts("metric").items()]
    place = [column[0] for column in _COLUMNS].index("residual")
    return [*_COLUMNS[:place], *own, *_COLUMNS[place:]]


def _title(column: tuple[str, str, int, str]) -> str:
    return f"{column[0]} ({column[1]})" if column[1] else column[0]


def _cell(values: Values, column: tuple[str, str, int, str], preset: str) -> str:
    value = values.get(column[3].format(preset=preset))
    return number(None if value is None else value / _UNITS.get(column[3], 1), column[2])


def number(value: float | None, digits: int) -> str:
    """Format a number; a dash where it is unknown."""
    return "–" if value is None else f"{value:.{digits}f}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; the first row is the heading."""
    head, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    align = ["left", *["right"] * (len(head) - 1)]
    return tabulate(body, head, "pipe", colalign=align, disable_numparse=True) + "\n"


def _tree(
    records: Sequence[Record], means: Mapping[str, Values], timed: bool
) -> dict[str, dict[str, Any]]:
    tree: dict[str, dict[str, Any]] = {}
    for method, mean in means.items():
        rows = [record for record in records if record.method == method]
        names = {name for r in rows for name in (r.timing if timed else r.metrics)}
        tree[method] = {
            MEAN: {name: value for name, value in mean.items() if name in names},
            "scenes": {r.scene: r.timing if timed else r.metrics for r in rows if not r.error},
        }
    return tree


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    # fsum is exact: the order of the scenes does not matter.
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def strict(value: Any) -> Any:
    """Return a value that strict JSON can hold: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
