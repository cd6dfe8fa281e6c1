"""Tables of a published protocol: the loss by a wrong camera, and how much a method regains."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cassi.data.formats.cells import csv_text, strict_json
from cassi.evaluation import tables
from cassi.evaluation.records import Record

COLUMNS = {"I": "ideal", "II": "nominal", "III": "told", "IV": "calibrated"}
"""The four columns, each with the camera that a method uses.

I: the nominal camera took the measurement, and the method reconstructs it with this camera.
II to IV: a camera that differs from the nominal one took the measurement. II reconstructs it with
the nominal camera, III with the true one, and IV with one that is estimated from the frame.
"""
SHARES = ("rho", "regained")
MIN_LOSS_DB = 0.1
"""A smaller loss is rounding and noise, so no share of it is computed."""

Row = dict[str, Any]


def compute_shares(row: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return which share of the loss the true camera regains, and which the estimated one.

        ρ = (III − II) / (I − II),   regained = (IV − II) / (III − II)

    Args:
        row: PSNR in dB of each of the `COLUMNS`.

    Returns:
        ρ and the regained share. A share is None if a column is unknown, or if the denominator is
        less than 0.1 dB.

    Source: InverseNet, arXiv 2603.04538, for ρ.

    >>> compute_shares({"I": 24.0, "II": 20.0, "III": 22.0, "IV": 21.5})
    {'rho': 0.5, 'regained': 0.75}
    """
    ideal, nominal, with_true, with_estimate = (row.get(column) for column in COLUMNS)
    return {
        "rho": _compute_share(nominal, with_true, ideal),
        "regained": _compute_share(nominal, with_estimate, with_true),
    }


def _compute_share(low: float | None, level: float | None, high: float | None) -> float | None:
    """Return the position of a level between `low` (0) and `high` (1)."""
    if low is None or level is None or high is None or high - low < MIN_LOSS_DB:
        return None
    return (level - low) / (high - low)


def write_benchmark(
    folder: Path,
    records: Sequence[Record],
    points: Mapping[str, str],
    methods: Mapping[str, Mapping[str, str]],
    protocol: Mapping[str, Any],
    preset: str,
    settings: Mapping[str, object],
) -> str:
    """Write benchmark.csv, .md and .json, the same in every run; return the Markdown table.

    Args:
        folder: the folder of the files.
        records: one per case, row and scene.
        points: case → `point` of its records.
        methods: method → column → `method` of the records of this column.
        protocol: `name` of the protocol; `cases`, the settings that each case changes; `published`,
            rows of a publication with `case`, `method` and the `COLUMNS` in dB; `source`, the
            publication.
        preset: metric preset of the PSNR.
        settings: the settings of the evaluation.
    """
    rows: list[Row] = []
    for case, point in points.items():
        case_records = [record for record in records if record.point == point]
        for method, columns in methods.items():
            means = tables.average(case_records, list(columns.values()))
            psnr = {c: means[row].get(f"psnr/{preset}") for c, row in columns.items()}
            rows.append({"case": case, "method": method, **psnr, **compute_shares(psnr)})
    # The shares of published rows are computed from their PSNR, not copied from the publication.
    published_rows: list[Row] = [
        {"case": row["case"], "method": row["method"]}
        | {column: row.get(column) for column in COLUMNS}
        | compute_shares(row)
        for row in protocol["published"]
    ]
    text = _format_page(protocol["name"], preset, rows, published_rows, protocol["source"])
    value: Row = {"benchmark": protocol["name"], "preset": preset, "settings": settings}
    value |= {"cases": protocol["cases"], "source": protocol["source"]}
    value |= {"rows": rows, "published": published_rows}
    csv_rows = [row | {"published": False} for row in rows]
    csv_rows += [row | {"published": True} for row in published_rows]
    texts = {"benchmark.md": text, "benchmark.csv": csv_text(csv_rows)}
    tables.write_texts(folder, texts | {"benchmark.json": strict_json(value)})
    return text


def _format_page(
    name: str, preset: str, rows: Sequence[Row], published_rows: Sequence[Row], source: str
) -> str:
    # The column of cases is left out where there is only one.
    has_cases = len({row["case"] for row in (*rows, *published_rows)}) > 1
    head = [*(["case"] if has_cases else []), "method", *COLUMNS, "ρ (%)", "regained (%)"]

    def format_row(row: Row, mark: str = "") -> list[str]:
        values = [tables.format_number(row[column], 2) for column in COLUMNS]
        values += [
            tables.format_number(None if row[key] is None else 100 * row[key], 0) for key in SHARES
        ]
        return [*([row["case"]] if has_cases else []), row["method"] + mark, *values]

    body = [*map(format_row, rows), *(format_row(row, " (published)") for row in published_rows)]
    legend = (
        f"PSNR in dB, preset {preset}, mean over scenes. I: a frame of the nominal camera, "
        "reconstructed with the nominal camera. II to IV: a frame of a camera that differs, "
        "reconstructed with the nominal camera (II), the true camera (III) and the camera that is "
        "estimated from the frame (IV). ρ = (III − II)/(I − II), regained = (IV − II)/(III − II)."
    )
    text = f"# {name}\n\n{tables.format_markdown([head, *body], 1 + has_cases)}\n{legend}\n"
    return f"{text}Published: {source}.\n\n" if source else f"{text}\n"
