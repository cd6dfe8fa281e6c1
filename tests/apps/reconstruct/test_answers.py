"""samples=N and answers=FILE of one snapshot."""

import csv

import numpy as np
import pytest
import yaml

import cassi

QUIET = ("output.progress=false", "output.report=false", "method=gap_tv", "solver.iterations=4")


def write(folder, **questions):
    (folder / "questions.yaml").write_text(yaml.safe_dump(questions))
    return "answers=questions.yaml"


@pytest.mark.usefixtures("own_plugins")
def test_answers_of_one(reconstruct, camera, results, tmp_path):
    bands = len(camera.cube[0])
    nm = np.linspace(450, 650, bands)
    (tmp_path / "paints.csv").write_text(
        "nm,red,blue\n" + "\n".join(f"{x},{x / 650},{450 / x}" for x in nm) + "\n"
    )
    (tmp_path / "own.py").write_text(
        "import cassi\n\n@cassi.register_answer('level', unit='a.u.')\n"
        "def level(x):\n    return x.mean()\n"
    )
    height, width = camera.cube.shape[-2:]
    option = write(
        tmp_path,
        redness={"kind": "index", "formula": "(w640 - w500) / (w640 + w500)"},
        paints={"kind": "abundance", "library": "paints.csv"},
        red={"kind": "target", "library": "paints.csv", "spectrum": "red"},
        patch={"kind": "region", "window": [0, 0, height // 2, width // 2]},
        area={"kind": "area", "formula": "w640 / w500", "above": 1},
        shade={"kind": "color", "reference": [50, 0, 0]},
        level={"kind": "function", "name": "level"},
    )
    given = (*camera.given(), f"wavelengths={nm.round(3).tolist()}", "plugins=[own.py]")
    reconstruct(*given, *QUIET, option, "samples=4").ok()
    folder, numbers = tmp_path / "run", results()
    with (folder / "answers.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["question"] for row in rows if row["label"] != ""][:2] == ["paints", "paints"]
    assert len([row for row in rows if row["question"] == "patch"]) == bands
    level = next(row for row in rows if row["question"] == "level")
    assert float(level["low 90%"]) <= float(level["value"]) <= float(level["high 90%"])
    assert level["unit"] == "a.u."
    assert len(numbers["answers"]) == len(rows)
    value, low, high, withheld = cassi.read_cube(folder / "answer_paints_red.tif")[0]
    is_answer = withheld == 0
    assert (low <= value)[is_answer].all()
    assert (value <= high)[is_answer].all()
    assert {"sample_03.tif", "answers.csv", "answer_redness.png", "uncertainty.tif"} <= set(
        numbers["files"]
    )
    samples = [cassi.read_cube(folder / f"sample_{index:02d}.tif") for index in range(4)]
    assert samples[0].shape == camera.cube.shape
    assert not (samples[0] == samples[1]).all()


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"kind": "indx", "formula": "w500"}, "kind: expected index"),
        ({"kind": "index"}, "expected formula for kind index"),
        ({"kind": "index", "formula": "w500 +"}, "expected a formula such as"),
        ({"kind": "index", "formula": "w900"}, "expected wavelengths from 450 to 650 nm"),
        ({"kind": "index", "formula": "__import__('os')"}, "expected numbers"),
        ({"kind": "region", "window": [0, 0, 999, 1]}, "window: expected [top, left"),
        ({"kind": "region"}, "expected window=[top, left, height, width] or mask: FILE"),
        ({"kind": "abundance", "library": "none.csv"}, "no file"),
        ({"kind": "function", "name": "none"}, "expected a registered answer"),
        ({"formula": "w500"}, "expected {kind: …}"),
    ],
)
def test_refused_questions(reconstruct, camera, tmp_path, question, message):
    nm = np.linspace(450, 650, len(camera.cube[0])).round(3).tolist()
    option = write(tmp_path, one=question)
    refusal = reconstruct(*camera.given(), f"wavelengths={nm}", *QUIET, option).refusal
    assert message in refusal
    assert not (tmp_path / "run" / "cube.tif").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("samples=3", "samples: expected an even number"),
        ("samples=-2", "samples: expected an even number"),
        ("answers=none.yaml", "answers: no file none.yaml"),
    ],
)
def test_refused(reconstruct, camera, option, message):
    assert message in reconstruct(*camera.given(), *QUIET, option).refusal


def test_of_many(reconstruct, camera, tmp_path):
    (tmp_path / "day").mkdir()
    for name in "ab":
        np.save(tmp_path / "day" / f"{name}.npy", camera.system(camera.cube)[0, 0].numpy())
    option = write(tmp_path, patch={"kind": "region", "window": [0, 0, 4, 4]})
    reconstruct(*camera.given("mask"), "measurement=day", *QUIET, option).ok()
    assert all((tmp_path / "run" / name / "answers.csv").exists() for name in "ab")
