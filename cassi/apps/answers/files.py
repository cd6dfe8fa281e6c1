"""Answer the questions of a file, and write the answers."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import torch

from cassi.apps.answers.questions import read_questions
from cassi.data.formats.cells import Json
from cassi.data.io import write_cube
from cassi.pipeline.snapshot import Result
from cassi.uncertainty.answers import ANSWER_LEVELS, Answer, answer

COLUMNS = (
    *("question", "label", "unit", "value"),
    *(f"{end} {level:.0%}" for end in ("low", "high") for level in ANSWER_LEVELS),
    *("withheld", "reason"),
)
"""Columns of answers.csv. `withheld` is the share of a map without an answer, or 0 or 1."""


def answer_questions(file: Path, result: Result) -> dict[str, Answer]:
    """Answer the questions of a file about a result with samples."""
    assert result.errors is not None
    assert result.errors.samples is not None
    camera = result.snapshot.camera
    unit = None if camera.unit is None else camera.unit.name
    cube = result.cube[0].cpu()
    wavelengths = camera.wavelengths
    if wavelengths is None and camera.unit is not None:
        wavelengths = None if camera.unit.wavelengths is None else tuple(camera.unit.wavelengths)
    return answer(result.errors.samples, read_questions(file, cube, wavelengths, unit))


def write_answers(folder: Path, answers: Mapping[str, Answer]) -> None:
    """Write answers.csv, and for each map a file of four planes and a picture.

    The planes are the value, the ends of the 90 % interval, and 1 where there is no answer. The
    names are answer_NAME.tif, and answer_NAME_LABEL.tif if the answer has several maps.
    """
    from cassi.viz.answers import save_answer

    with (folder / "answers.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=COLUMNS)
        writer.writeheader()
        writer.writerows(row for name, each in answers.items() for row in describe_rows(name, each))
    for name, each in answers.items():
        if each.value.ndim < 2:
            continue
        planes = torch.stack([each.value, each.low[-1], each.high[-1], each.abstained.float()])
        for index, part in enumerate(planes.reshape(4, -1, *each.value.shape[-2:]).unbind(1)):
            label = f"_{each.labels[index]}" if each.labels else ""
            stem = "answer_" + "".join(c if c.isalnum() else "_" for c in name + label)
            write_cube(folder / f"{stem}.tif", part.cpu(), None)
            value, low, high, abstained = (plane.cpu().numpy() for plane in part)
            half_width = (high - low) / 2
            save_answer(
                folder / f"{stem}.png", name + label, value, half_width, abstained > 0, each.unit
            )


def describe_rows(name: str, each: Answer) -> list[Json]:
    """Return the rows of answers.csv: a row for each number, and for each map its mean.

    The mean of a map is over the pixels with an answer. It has no interval, because errors of
    neighbours are correlated; a region has one.
    """
    has_maps = each.value.ndim > 1
    count = len(each.labels) or (each.value.shape[0] if each.value.ndim in (1, 3) else 1)
    value, abstained = each.value.reshape(count, -1), each.abstained.reshape(count, -1)
    ends = torch.cat([each.low, each.high]).reshape(4, count, -1)
    rows = []
    for index, label in enumerate(each.labels or ("",) * count):
        withheld = float(abstained[index].double().mean())
        answered = value[index][~abstained[index]]
        cells = [name, label, each.unit, float(answered.mean()) if len(answered) else None]
        cells += [None] * 4 if has_maps else ends[:, index, 0].tolist()
        cells += [withheld, each.reason if withheld else ""]
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows
