"""Answer the questions of a file, and write the answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from cassi.apps.answers.questions import read_questions
from cassi.apps.results import write_table
from cassi.data.formats.cells import Json
from cassi.data.io import write_cube
from cassi.pipeline.snapshot import Camera, Result
from cassi.uncertainty.answers import ANSWER_LEVELS, Answer, answer
from cassi.uncertainty.questions import Question

_COLUMNS = (
    *("question", "label", "unit", "value"),
    *(f"{end} {level:.0%}" for end in ("low", "high") for level in ANSWER_LEVELS),
    # The share of a map without an answer; 0 or 1 for a number.
    "withheld",
    "reason",
)


def answer_questions(file: Path, result: Result) -> dict[str, Answer]:
    """Answer the questions of a file about a result with samples."""
    assert result.errors is not None
    assert result.errors.samples is not None
    questions = questions_for(file, result.snapshot.camera, result.cube[0].cpu())
    return answer(result.errors.samples, questions)


def questions_for(file: Path, camera: Camera, cube: Tensor) -> dict[str, Question]:
    """Read the questions of a file for a cube `(C, H, W)` of a camera.

    Raises:
        OSError: a file is missing.
        ValueError: a question is not valid, or does not fit the cube.
    """
    unit, wavelengths = camera.unit, camera.wavelengths
    if unit is not None and wavelengths is None and unit.wavelengths is not None:
        wavelengths = tuple(unit.wavelengths)
    return read_questions(file, cube, wavelengths, None if unit is None else unit.name)


def write_answers(folder: Path, answers: Mapping[str, Answer], pictures: bool = True) -> None:
    """Write answers.csv, and for each map a file of four planes and a picture.

    The planes are the value, the ends of the 90 % interval, and 1 where there is no answer. The
    names are answer_NAME.tif, and answer_NAME_LABEL.tif if the answer has several maps.
    """
    write_table(folder / "answers.csv", describe_answers(answers))
    for name, result in answers.items():
        if result.value.ndim < 2:
            continue
        planes = torch.stack(
            [result.value, result.low[-1], result.high[-1], result.abstained.float()]
        )
        for index, part in enumerate(planes.reshape(4, -1, *result.value.shape[-2:]).unbind(1)):
            title = f"{name} {result.labels[index]}" if result.labels else name
            stem = "answer_" + re.sub(r"\W+", "_", title)
            if (folder / f"{stem}.tif").exists():  # two labels differ in a sign only
                stem += f"_{index + 1}"
            write_cube(folder / f"{stem}.tif", part.cpu(), None)
            if pictures:
                _draw(folder / f"{stem}.png", title, part, result.unit)


def _draw(path: Path, title: str, planes: Tensor, unit: str) -> None:
    from cassi.viz.answers import save_answer

    value, low, high, is_withheld = (plane.cpu().numpy() for plane in planes)
    save_answer(path, title, value, (high - low) / 2, is_withheld > 0, unit)


def describe_answers(answers: Mapping[str, Answer]) -> list[Json]:
    """Return the rows of answers.csv."""
    return [row for item in answers.items() for row in _describe_answer(*item)]


def _describe_answer(name: str, result: Answer) -> list[Json]:
    """Return the rows of answers.csv: a row for each number, and for each map its mean.

    The mean of a map is over the pixels with an answer. It has no interval, because errors of
    neighbours are correlated; a region has one.
    """
    has_maps = result.value.ndim > 1
    count = len(result.labels) or (result.value.shape[0] if result.value.ndim in (1, 3) else 1)
    value, is_withheld = (tensor.reshape(count, -1) for tensor in (result.value, result.abstained))
    ends = torch.cat([result.low, result.high]).reshape(4, count, -1)
    rows = []
    for index, label in enumerate(result.labels or ("",) * count):
        withheld = float(is_withheld[index].double().mean())
        answers = value[index][~is_withheld[index]]
        cells = [name, label, result.unit, float(answers.mean()) if len(answers) else None]
        cells += [None] * 4 if has_maps else ends[:, index, 0].tolist()
        cells += [withheld, result.reason if withheld else ""]
        rows.append(dict(zip(_COLUMNS, cells, strict=True)))
    return rows
