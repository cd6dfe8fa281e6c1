"""Every example runs, at small size, and shows what it says."""

import importlib.util
import math
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs/examples"
SMALLER = {
    "own_camera": {"size": 48, "method": "gap_tv"},
    "several_shots": {"size": 32, "shots": (1, 4)},
    "video": {"size": 48},
    "training": {"size": 32, "steps": 12, "bands": 4},
    "bad_pixels": {"size": 48, "method": "gap_tv"},
    "uncertainty": {"size": 48, "method": "gap_tv"},
    "answers": {"size": 48, "count": 4},
    "custom_prior": {"size": 48, "iterations": 20},
    "custom_camera": {"size": 48},
}


def run(name, **options):
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(**options)


@pytest.mark.parametrize("name", SMALLER)
def test_it_runs(name, capsys):
    found = run(name, **SMALLER[name])
    numbers = found if isinstance(found, tuple | list) else [found]
    assert all(math.isfinite(number) for number in numbers)
    assert capsys.readouterr().out.strip()
    if name in ("several_shots", "bad_pixels"):
        assert numbers[-1] > numbers[0] + 0.3
    if name == "training":
        assert numbers[1] < numbers[0]


def test_calibration_finds_the_shift(capsys):
    nominal, calibrated = run("calibration", size=64)
    assert calibrated > nominal + 0.5


def test_all_are_listed():
    scripts = {file.stem for file in FOLDER.glob("*.py")}
    assert scripts == set(SMALLER) | {"calibration"}
    text = (FOLDER / "index.md").read_text()
    assert all(f"({name}.py)" in text for name in scripts)
