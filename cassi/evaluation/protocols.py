"""Published comparisons of the cost of a wrong camera, as a table of four columns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cassi.data.formats.cells import csv_text, strict_json
from cassi.evaluation import tables
from cassi.evaluation.records import Record

COLUMNS = {"I": "ideal", "II": "nominal", "III": "told", "IV": "calibrated"}
"""What a method knows in each: of a perfect camera; of nothing, all, what it finds, of a wrong one.
"""
SHARES = ("rho", "regained")
LEAST = 0.1
"""Fewer dB than this are no gain of which a share could be told."""

Row = dict[str, Any]


def shares(row: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the shares of the loss that the true and the found camera give back.

        ρ = (III − II) / (I − II),   regained = (IV − II) / (III − II)

    None where a column is unknown, or the denominator is less than 0.1 dB.

    Source: InverseNet, arXiv 2603.04538, for ρ.

    >>> shares({"I": 24.0, "II": 20.0, "III": 22.0, "IV": 21.5})
    {'rho': 0.5, 'regained': 0.75}
    """
    first, second, third, fourth = (row.get(column) for column in COLUMNS)

    def share(part: float | None, whole: float | None) -> float | None:
        if second is None or part is None or whole is None or whole - second < LEAST:
            return None
        return (part - second) / (whole - second)

    return {"rho": share(third, first), "regained": share(fourth, third)}


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
        folder: where they go.
        records: one per case, row and scene.
        points: case → point of its records.
        methods: method → column → name of the row that has its records.
        protocol: its name; `cases`, what each changes; `published`, rows that others report with
            `case`, `method` and columns in dB; their `source`.
        preset: of the PSNR in the columns.
        settings: of the evaluation.
    """
    rows: list[Row] = []
    for case, point in points.items():
        here = [record for record in records if record.point == point]
        for method, columns in methods.items():
            means = tables.average(here, list(columns.values()))
            psnr = {c: means[row].get(f"psnr/{preset}") for c, row in columns.items()}
            rows.append({"case": case, "method": method, **psnr, **shares(psnr)})
    others: list[Row] = [
        {"case": row["case"], "method": row["method"]}
        | {column: row.get(column) for column in COLUMNS}
        | shares(row)
        for row in protocol["published"]
    ]
    text = _markdown(protocol["name"], preset, rows, others, protocol["source"])
    value: Row = {"benchmark": protocol["name"], "preset": preset, "settings": settings}
    value |= {"cases": protocol["cases"], "source": protocol["source"]}
    value |= {"rows": rows, "published": others}
    marked = [row | {"published": False} for row in rows]
    marked += [row | {"published": True} for row in others]
    texts = {"benchmark.md": text, "benchmark.csv": csv_text(marked)}
    tables.write_texts(folder, texts | {"benchmark.json": strict_json(value)})
    return text


def _markdown(
    name: str, preset: str, rows: Sequence[Row], published: Sequence[Row], source: str
) -> str:
    several = len({row["case"] for row in (*rows, *published)}) > 1
    head = [*(["case"] if several else []), "method", *COLUMNS, "ρ (%)", "regained (%)"]

    def line(row: Row, mark: str = "") -> list[str]:
        values = [tables.number(row[column], 2) for column in COLUMNS]
        values += [tables.number(None if row[key] is None else 100 * row[key], 0) for key in SHARES]
        return [*([row["case"]] if several else []), row["method"] + mark, *values]

    body = [*map(line, rows), *(line(row, " (published)") for row in published)]
    legend = (
        f"PSNR in dB, preset {preset}, mean over scenes. I: an ideal frame, the nominal camera; of "
        "a frame of the wrong camera, II: the nominal camera, III: the true one, IV: the one that "
        "is found in the frame. ρ = (III − II)/(I − II), regained = (IV − II)/(III − II)."
    )
    text = f"# {name}\n\n{tables.markdown([head, *body], 1 + several)}\n{legend}\n"
    return f"{text}Published: {source}.\n\n" if source else f"{text}\n"
