"""What is said of the camera beside every reconstruction."""

import numpy as np
import pytest
import torch

import cassi
from cassi.apps import snapshot as way
from cassi.apps.reconstructors import compose_settings
from cassi.models.pretrained import list_differences_from_training
from cassi.pipeline.judge import check_wavelengths
from cassi.pipeline.snapshot import Camera, Snapshot
from cassi.systems import SDCassi
from tests.shared import uniform

QUICK = ("solver=gap", "prior=tv", "solver.iterations=2", "output.progress=false")


@pytest.fixture
def files(tmp_path):
    """A frame of 96×110 pixels, its mask, and the mask mirrored."""
    mask = uniform(96, 96, seed=1)
    y = SDCassi(mask, 8, step=2)(torch.ones(1, 8, 96, 96) * uniform(96, 96, seed=2).round() + 0.5)
    np.save(tmp_path / "mask.npy", mask.numpy())
    np.save(tmp_path / "mirrored.npy", mask.flip(-1).numpy())
    (tmp_path / "day").mkdir()
    for name in "ab":
        np.save(tmp_path / "day" / f"{name}.npy", y[0, 0].numpy())
    return tmp_path


def test_a_right_camera(reconstruct, files, results):
    outcome = reconstruct("measurement=day/a.npy", "mask=mask.npy", *QUICK).ok()
    assert "warning" not in outcome.err
    assert "camera check: mask pattern found" in outcome.out
    assert "Direction: cannot be measured in a frame" in outcome.out
    numbers = results()
    assert numbers["warnings"] == []
    assert numbers["camera_check"]["step"] == pytest.approx(2, abs=0.05)
    page = (files / "run" / "report.html").read_text()
    assert 'class="warning"' not in page
    assert "camera check: nothing found against the camera. mask pattern found" in page


@pytest.mark.parametrize("budget", [(), ("memory_budget=4GB",)], ids=["whole", "blocks"])
def test_a_wrong_camera(reconstruct, files, results, budget):
    outcome = reconstruct("measurement=day/a.npy", "mask=mirrored.npy", *QUICK, *budget).ok()
    assert "warning: mask: the frame shows it mirrored left to right" in outcome.err
    (warning,) = results()["warnings"]
    assert warning["about"] == "mask"
    page = (files / "run" / "report.html").read_text()
    assert page.count('<p class="warning" role="note">mask: the frame shows it mirrored') == 1


def test_a_mask_that_was_moved_far_is_warned_of(reconstruct, files, results):
    np.save(files / "moved.npy", np.roll(np.load(files / "mask.npy"), 2, 0))
    given = ("measurement=day/a.npy", *QUICK, "output.pictures=false")
    outcome = reconstruct("mask=moved.npy", *given).ok()
    assert "camera: the mask moved" in outcome.out
    (warning,) = results()["warnings"]
    assert warning["about"] == "shift"
    assert "warning: shift: the mask was -2.0 px down and" in outcome.err


def test_a_wrong_camera_of_many(reconstruct, files, results):
    outcome = reconstruct(
        "measurement=day", "mask=mirrored.npy", *QUICK, "output.pictures=false"
    ).ok()
    assert "warning: b: mask: the frame shows it mirrored" in outcome.err
    assert [row["warnings"] for row in results("results.csv")] == ["mask", "mask"]


def test_what_the_weights_have_not_seen(reconstruct, camera, results):
    known = cassi.SDCassi(uniform(32, 32), 10, step=2)
    assert list_differences_from_training(known, 0.01) == []
    assert list_differences_from_training(known, 0.2) == ["20% of noise (trained with up to 6%)"]
    assert len(list_differences_from_training(cassi.SDCassi(uniform(32, 32), 32, step=5), 0.0)) == 2
    mask, y = uniform(32, 32, seed=1), uniform(32, 32 + 6 * 5, seed=2)
    for name, value in (("wide", mask), ("snapshot", y)):
        np.save(camera.mask.with_name(f"{name}.npy"), value.numpy())
    given = ("measurement=snapshot.npy", "mask=wide.npy", "system.step=5", "model=pretrained")
    more = ("model.size=small", "output.pictures=false", "output.progress=false")
    outcome = reconstruct(*given, *more).ok()
    assert "weights" in [each["about"] for each in results()["warnings"]]
    assert "5 pixels per band (trained with 1 to 3)" in outcome.err


@pytest.mark.parametrize(
    ("level", "errors", "warned"),
    [(9, (0, 11.0, 0), True), (0, (0, 11.0, 0), False), (9, (0, 1.5, 0), False), (9, None, False)],
)
def test_names_that_nobody_gave_and_a_raw_frame_does_not_show(level, errors, warned):
    system = SDCassi(uniform(48, 48), 20, step=2)
    camera = Camera(system, tuple(range(450, 650, 10)), errors)
    snapshot = Snapshot(torch.ones(1), camera, corrections={"dark": {"level": level}})
    found = check_wavelengths(snapshot)
    assert bool(found.warnings) is warned
    assert not warned or "up to 22 nm off" in found.warnings[0].message
    assert not warned or "{file: FILE, wavelength: 550}" in found.warnings[0].message


def test_a_step_alone_is_a_line_that_nobody_gave(tmp_path):
    files = {"mask": uniform(48, 48), "measurement": uniform(48, 48 + 38)}
    for name, values in files.items():
        np.save(tmp_path / f"{name}.npy", values.numpy())
    given = [f"{name}={tmp_path / name}.npy" for name in files]
    given += [f"wavelengths={list(range(450, 650, 10))}", "light=all"]
    for offsets, error in (("null", 12.0), ("{_target_: cassi.systems.Linear, step: 2}", None)):
        settings = compose_settings([*given, f"system.offsets={offsets}"])
        snapshot = way.read(settings, way.make_recipe(settings))
        errors = snapshot.camera.wavelengths_error
        assert (errors and max(errors)) == pytest.approx(error, abs=0.05)
    settings = compose_settings([*given, "light=lines"])
    assert way.read(settings, way.make_recipe(settings)).camera.wavelengths_error is None
    settings = compose_settings([*given, "wavelengths_error=2"])
    snapshot = way.read(settings, way.make_recipe(settings))
    assert snapshot.camera.wavelengths_error == (2.0,) * 20
