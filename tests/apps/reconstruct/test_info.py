"""--info says what would be done and writes nothing."""

import re

import pytest
import torch

import cassi
from cassi.apps.arguments import asks_for_info, suppress_output
from cassi.apps.reconstruct.info import estimate, name_method
from cassi.pipeline.snapshot import Camera, Snapshot
from cassi.solvers import Function


def test_says_what_would_be_done(reconstruct, camera, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    done = reconstruct(
        *camera.given(), "method=gap_tv", "solver.iterations=7", "heldout=0.1", "--info"
    ).ok()
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert len(lines) <= 11
    assert lines["camera"] == str(camera.system)
    assert lines["cube"] == "5 bands of 12 x 17 pixels"
    assert lines["method"] == "GAP with TV, at most 7 iterations"
    assert re.match(r"about [\d.]+ s to reconstruct", lines["time"])
    assert re.match(r"about [\d.]+ GiB of [\d.]+ GiB", lines["memory"])
    assert lines["besides"] == "withholds 0.1 of the pixels in one more reconstruction"
    assert lines["writes"].startswith("cube.tif, metrics.json, convergence.csv, rgb.png")
    assert sorted(tmp_path.rglob("*")) == before


def test_names_folder_and_budget(reconstruct, camera, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes.txt").write_text("mine")
    given = (*camera.given(), "method=gap_tv", "memory_budget=2GiB", "output.pictures=false")
    done = reconstruct(*given, "--info", "hydra.run.dir=run")
    assert "writes    cube.tif, metrics.json, convergence.csv into run\n" in done.out
    assert "at most 2GiB, block by block" in done.out
    assert "run is not empty" in done.out
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_many_snapshots(reconstruct, write_day):
    done = reconstruct(*write_day("abc"), "--info", "hydra.run.dir=all").ok()
    assert re.search(r"snapshots 3, of which the first is .*a\.npy", done.out)
    assert "into all/NAME" in done.out


def test_a_word_of_hydra_is_hydras():
    known = ("all", "plugins")
    assert asks_for_info(["a=1", "--info"], known)
    assert asks_for_info(["--info", "a=1"], known)
    assert not asks_for_info(["--info", "plugins"], known)
    assert not asks_for_info(["a=1"], known)
    arguments, into = suppress_output(["--info", "a=1", "hydra.run.dir=x"])
    assert into == "x"
    assert arguments == ["a=1", "hydra.run.dir=.", "hydra.output_subdir=null"]


@pytest.mark.parametrize("cut", [True, False])
def test_the_estimate_grows_with_the_scene(cut):
    """A reconstructor that costs 2 ms a row, or an iteration of one that cannot be cut."""
    import time

    mask = torch.ones(400, 8)
    system = cassi.SDCassi(mask, 2, 1) if cut else cassi.BlurredCassi(mask, 2, 1, line_spread=0.5)
    y = torch.ones(1, *system.measurement_shape)

    class Slow:
        iterations, halo, shares_batch, network = 50, 0, True, None

        def run(self, y, system, *, callback, **_):
            for _ in range(50):
                time.sleep(y.shape[-2] * 4e-5)
                if callback(None, None):
                    break

    seconds, size = estimate(Snapshot(y, Camera(system)), Slow())
    assert 0.6 < seconds < 2.4  # 50 · 400 · 4e-5 s = 0.8 s, and whatever sleeping takes
    assert size >= 0


def test_methods_have_names():
    solver = cassi.Solver(cassi.TV(), iterations=3)
    assert name_method(solver) == "GAP with TV, at most 3 iterations"
    assert name_method(Function(lambda y, system: system.pinv(y))) == "Function"
    network = cassi.models.inference.prepare(cassi.create_model("dauhst_2stg", bands=4))
    assert re.fullmatch(r"network \w+, [\d.]+ million weights", name_method(network))
