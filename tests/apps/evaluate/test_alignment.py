"""What the rows of a table know of the camera."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cassi.apps.evaluate import rows
from cassi.apps.evaluate.problems import load_benchmark, preparation
from cassi.apps.evaluate.rows import CameraView, make_rows
from cassi.apps.reconstructors import Recipe, compose_settings
from cassi.apps.settings import Evaluate
from cassi.apps.snapshot import prepare
from cassi.evaluation import Problem, Twin
from cassi.methods import auto
from cassi.pipeline.fit import FixedMethod, fit
from cassi.pipeline.snapshot import Camera, Snapshot
from cassi.systems import SDCassi

CPU = torch.device("cpu")


def test_rows_that_know_more_are_not_aligned(monkeypatch):
    moved = []
    monkeypatch.setattr(rows, "align_snapshot", lambda snapshot: moved.append(snapshot) or snapshot)
    cube, system = torch.rand(1, 3, 8, 9), SDCassi(torch.rand(8, 9), bands=3, step=1)
    snapshot = Snapshot(system(cube), Camera(system), cube)
    problem = Problem("one", snapshot, "", Twin().true_camera(system))
    for known, count in [("told", 0), ("ideal", 0), ("nominal", 1)]:
        seen = CameraView(known, align=True)(problem)
        assert len(moved) == count
        assert torch.allclose(seen.y, problem.y)


def test_each_row_has_a_hash_of_what_it_knows():
    told = {"auto": FixedMethod(auto())}, {"auto": "1"}, ["nominal", "told"]
    rows, hashes, views = make_rows(*told, align=True, has_guide=False)
    assert list(rows) == ["auto", "auto (told)"]
    assert views["auto"] == CameraView("nominal", align=True)
    other = make_rows(*told, align=False, has_guide=False)[1]
    assert len({*hashes.values(), *other.values(), "1"}) == 5
    taken = (
        {"auto": FixedMethod(auto()), "auto (told)": FixedMethod(auto())},
        {"auto": "1", "auto (told)": "2"},
    )
    with pytest.raises(ValueError, match=r"two rows are called 'auto \(told\)'"):
        make_rows(*taken, ["nominal", "told"], align=True, has_guide=False)


def test_alignment_is_a_setting_of_both_commands():
    assert compose_settings().align
    assert not compose_settings().calibrate
    assert not compose_settings(["align=false"], kind=Evaluate).align


def test_a_raw_frame_has_the_camera_that_reconstruct_gives_it(tmp_path):
    random = torch.Generator().manual_seed(0)
    mask = torch.rand(24, 30, generator=random)
    system = SDCassi(mask, bands=3, offsets=[0.0, 2.3, 5.1])
    y = system(torch.rand(1, 3, 24, 30, generator=random))[0, 0] + 0.1
    np.save(tmp_path / "mask.npy", mask.numpy())
    (tmp_path / "frames").mkdir()
    np.save(tmp_path / "frames" / "one.npy", y.numpy())
    camera = [f"mask={tmp_path}/mask.npy", "system.offsets=[0.0,2.3,5.1]", "align=false"]
    told = compose_settings([*camera, f"measurement={tmp_path}/frames/one.npy", "dark=0.1"])
    recipe = Recipe(told, CPU)
    wanted, method = prepare(told, recipe)
    data = ["data=folder", "data.root=null", f"data.measurements={tmp_path}/frames"]
    data += ["data.evaluation.dark=0.1", "data.wavelengths=[450.0,520.0,640.0]"]
    settings = compose_settings([*camera, *data], kind=Evaluate)
    problem = preparation({"": settings}, load_benchmark(settings), CPU)("", "one")
    found = CameraView()(problem).snapshot
    assert torch.equal(found.y, wanted.y)
    assert found.camera.grid == wanted.camera.grid is not None
    assert found.camera.system.is_broadband
    assert found.camera.system.base_camera.measured_mask
    assert isinstance(fit(found, recipe)[1], type(method))
