"""cassi-reconstruct on a folder of snapshots: what is written, skipped, continued, shared."""

import errno
import json
import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from shared import cubes_in, read_rows, snapshots_in, stamps, wait_until

import cassi
from cassi.apps.reconstruct import batch as together
from cassi.apps.reconstruct.batch import batch_size
from cassi.apps.reconstructors import compose_settings, fingerprint_settings, identity
from cassi.data.store import Store
from cassi.models.load import Card, create_model, save_model

NAMES = ("a", "b", "c")


@pytest.fixture
def day(camera, write_day, tmp_path):
    """Three snapshots and a note, truths of them, in folders `day` and `truths`."""
    options = write_day(NAMES)
    (tmp_path / "truths").mkdir()
    for index, name in enumerate(NAMES):
        cube = camera.cube.roll(index, -1)
        cassi.write_cube(tmp_path / "truths" / f"{name}.npz", cube, [450, 500, 550, 600, 650])
    (tmp_path / "day" / "readme.txt").write_text("taken on a rainy day")
    return options


def done(folder):
    return Store(folder / ".done").read_all().keys()


def test_each_is_as_if_it_were_the_only_one(reconstruct, day, tmp_path):
    outcome = reconstruct(*day, f"truth={tmp_path / 'truths'}", "output.pictures=true").ok()
    assert "measurement: skipped 1 that cannot be one: readme.txt" in outcome.out
    one = (*day[1:], f"measurement={tmp_path / 'day' / 'b.npy'}", "output.pictures=true")
    one = (*one, f"truth={tmp_path / 'truths' / 'b.npz'}", f"hydra.run.dir={tmp_path / 'one'}")
    reconstruct(*one).ok()
    many = tmp_path / "run"
    assert cubes_in(many)["b"] == (tmp_path / "one" / "cube.tif").read_bytes()
    for name in NAMES:
        found = {path.name for path in (many / name).iterdir()}
        expected = {path.name for path in (tmp_path / "one").iterdir()} - {".hydra"}
        assert found == expected
    numbers = json.loads((many / "b" / "metrics.json").read_text())
    alone = json.loads((tmp_path / "one" / "metrics.json").read_text())
    assert numbers["metrics"] == alone["metrics"]
    table = snapshots_in(many)
    assert list(table) == list(NAMES)
    assert {row["status"] for row in table.values()} == {"done"}
    assert float(table["b"]["relative_residual"]) == alone["relative_residual"]
    assert float(table["b"]["psnr"]) == alone["metrics"]["matlab-uint8"]["psnr"]


def test_one_that_fails_is_named_and_made_up_for(reconstruct, day, camera, tmp_path):
    bad = tmp_path / "day" / "bad.npy"
    bad.write_text("no array")
    outcome = reconstruct(*day)
    assert outcome.status == 1
    lines = outcome.err.splitlines()
    assert lines[0].startswith("cassi-reconstruct: bad failed: cannot read ")
    assert lines[-1].startswith("cassi-reconstruct: 1 of 4 snapshots failed")
    folder = tmp_path / "run"
    assert snapshots_in(folder)["bad"]["status"] == "failed"
    assert "cannot read" in snapshots_in(folder)["bad"]["error"]
    first = stamps(folder)
    assert len(first) == 3
    np.save(bad, camera.system(camera.cube)[0, 0].numpy())
    outcome = reconstruct(*day).ok()
    assert "4 snapshots, 3 of them done before" in outcome.out
    assert first.items() < stamps(folder).items()
    assert "error" not in snapshots_in(folder)["bad"]


def test_what_results_depend_on_decides_what_is_done_again(reconstruct, day, camera, tmp_path):
    folder = tmp_path / "run"
    reconstruct(*day).ok()
    first = stamps(folder)
    reconstruct(*day, "threads=1", "batch=2").ok()
    assert stamps(folder) == first
    np.save(tmp_path / "day" / "b.npy", camera.system(2 * camera.cube)[0, 0].numpy())
    (
        folder / "c" / "metrics.json"
    ).unlink()  # as if the process had been killed before the last file
    assert "1 of them done before" in reconstruct(*day).out
    assert {p.parent.name for p, at in stamps(folder).items() if at != first[p]} == {"b", "c"}
    reconstruct(*day, "solver.iterations=4").ok()
    assert all(row["iterations"] == "4" for row in snapshots_in(folder).values())


def test_a_pattern_over_folders(reconstruct, day, tmp_path):
    (tmp_path / "night").mkdir()
    (tmp_path / "day" / "a.npy").rename(tmp_path / "night" / "a.npy")
    (tmp_path / "truths" / "c.npz").unlink()
    outcome = reconstruct(
        *day[1:], "measurement='*/[a-c].npy'", f"truth='{tmp_path}/truths/*.npz'"
    ).ok()
    assert "truth: none for 1 of 3: c" in outcome.out
    table = snapshots_in(tmp_path / "run")
    assert list(table) == ["day/b", "day/c", "night/a"]
    assert (tmp_path / "run" / "night" / "a" / "cube.tif").exists()
    assert table["day/b"]["psnr"]
    assert not table["day/c"]["psnr"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["measurement=empty"], "measurement: no snapshot in empty; expected files .tif"),
        (["measurement='day/*.tif'"], "measurement: no snapshot in day/*.tif"),
        (["truth=empty"], "truth: no cube in empty"),
        (["truth=others"], "truth: no file in others has the name of a snapshot, such as a"),
        (["batch=0"], "batch: expected a whole number from 1"),
        (["solver.iterations=0"], "iterations"),
        (["measurement=double"], "measurement: 2 files are called x; expected different names"),
        (["measurement=table"], "results.csv is the table of all results; rename "),
        (["measurement=linked"], "a.npy (its link leads out of linked)"),
    ],
)
def test_what_is_wrong_with_all_is_one_line(reconstruct, day, tmp_path, options, said):
    for name in ("empty", "others", "double", "table", "linked"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "table" / "results.csv.npy", np.ones((12, 21)))
    (tmp_path / "linked" / "a.npy").symlink_to(tmp_path / "table" / "results.csv.npy")
    np.save(tmp_path / "others" / "x.npy", np.ones((5, 12, 17)))
    np.save(tmp_path / "double" / "x.npy", np.ones((12, 21)))
    np.savez(tmp_path / "double" / "x.npz", y=np.ones((12, 21)))
    outcome = reconstruct(*day, *options)
    assert said in outcome.refusal
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {".hydra"}


def test_links_and_pages_below_the_folder_count(reconstruct, day, camera, tmp_path):
    hidden = tmp_path / "day" / ".store"
    hidden.mkdir()
    (tmp_path / "day" / "a.npy").rename(hidden / "a.npy")
    (tmp_path / "day" / "a.npy").symlink_to(hidden / "a.npy")
    (tmp_path / "truths" / "a.npz").unlink()
    mask = camera.mask.rename(tmp_path / "day" / "mask.npy")  # none of them
    pages = tmp_path / "truths" / "a"
    pages.mkdir()
    for band, page in enumerate(255 * camera.cube[0].numpy()):
        Image.fromarray(page.round().astype(np.uint8)).save(pages / f"{band}.png")
    outcome = reconstruct(*day, f"truth={tmp_path / 'truths'}", f"mask={mask}").ok()
    skipped = "mask.npy (named elsewhere), readme.txt (unknown suffix '.txt')"
    assert f"skipped 2 that cannot be one: {skipped}" in outcome.out
    table = snapshots_in(tmp_path / "run")
    assert list(table) == list(NAMES)
    assert {name: bool(row["psnr"]) for name, row in table.items()} == dict.fromkeys(NAMES, True)


@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_asked_of_one_is_asked_of_many(reconstruct, camera, results, tmp_path, batch):
    frame = np.load(camera.measurement)
    bad = np.zeros(frame.shape)
    bad[3, 4:9] = 1
    np.save(tmp_path / "bad.npy", bad)
    (tmp_path / "day").mkdir()
    for number, value in enumerate((np.nan, 0.3)):
        np.save(tmp_path / "day" / f"{number}.npy", np.where(bad, value, frame).astype(np.float32))
    given = (*camera.given("mask"), "measurement=day", "bad_pixels=bad.npy", f"batch={batch}")
    given += ("method=gap_tv", "solver.iterations=4", "output.pictures=false", "solver.heldout=0")
    asked = (*given, "heldout=0.1", "uncertainty=true")
    reconstruct(*asked).ok()
    first, second = (results(folder=f"run/{n}") for n in range(2))
    assert first["heldout"] == second["heldout"]
    assert first["uncertainty"]["mean"] == pytest.approx(second["uncertainty"]["mean"], rel=1e-5)
    cubes = cubes_in(tmp_path / "run")
    assert cubes["0"] == cubes["1"]
    assert "2 of them done before" in reconstruct(*asked).out
    assert "done before" not in reconstruct(*given).out  # other files: done anew


def test_a_batch_gives_what_each_alone_gives(reconstruct, day, tmp_path):
    truth = f"truth={tmp_path / 'truths'}"
    np.save(tmp_path / "day" / "d.npy", np.ones((1, 1)))  # another shape, which fits no camera
    assert reconstruct(*day, truth, f"hydra.run.dir={tmp_path / 'alone'}").status == 1
    assert reconstruct(*day, truth, "batch=4").status == 1
    for name in NAMES:
        both = [cassi.read_cube(tmp_path / run / name / "cube.tif") for run in ("run", "alone")]
        torch.testing.assert_close(*both, rtol=1e-5, atol=1e-6)
        files = [tmp_path / run / name / "convergence.csv" for run in ("run", "alone")]
        batch, alone = map(read_rows, files)
        for mine, other in zip(batch, alone, strict=True):
            for key in ("iteration", "residual", "psnr", "sigma"):
                known, expected = (float(row[key] or "nan") for row in (mine, other))
                assert known == pytest.approx(expected, rel=1e-4, nan_ok=True)
        assert [bool(row["psnr"]) for row in alone] == [True, False, True]
    found = json.loads((tmp_path / "run" / "a" / "metrics.json").read_text())
    assert found["batch"] == 3
    assert snapshots_in(tmp_path / "run").keys() == snapshots_in(tmp_path / "alone").keys()


def test_what_cannot_share_a_batch_goes_alone(reconstruct, day, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("one of a batch diverged")

    monkeypatch.setattr(together, "recover_together", fail)
    reconstruct(*day, "batch=3").ok()
    monkeypatch.undo()
    reconstruct(*day, "batch=3", "solver.tol=1e-9").ok()
    found = json.loads((tmp_path / "run" / "a" / "metrics.json").read_text())
    assert "batch" not in found


def test_a_network_takes_them_together(reconstruct, day, tmp_path, monkeypatch):
    torch.manual_seed(0)
    network = create_model("gap_net", bands=5, stages=1)
    save_model(tmp_path / "m.safetensors", network.state_dict(), Card("gap_net", 5, {"stages": 1}))
    options = [item for item in day if not item.startswith(("solver", "prior"))]
    model = f"model={tmp_path / 'm.safetensors'}"
    reconstruct(*options, model, f"hydra.run.dir={tmp_path / 'alone'}").ok()
    reconstruct(*options, model, "batch=3").ok()
    for name in NAMES:
        both = [cassi.read_cube(tmp_path / run / name / "cube.tif") for run in ("run", "alone")]
        torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)
    gpu = torch.device("cuda")
    assert batch_size("auto", True, gpu) > 1
    assert batch_size("auto", False, gpu) == 1


def test_a_full_disk_ends_all(reconstruct, day, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cube.tif")

    monkeypatch.setattr("cassi.apps.snapshot.write_cube", fail)
    assert "No space left on device" in reconstruct(*day).refusal
    assert not list((tmp_path / "run").glob("*/metrics.json"))


def test_a_defect_says_where_it_is(reconstruct, day, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("half of nothing")

    monkeypatch.setattr(together, "reconstruct_and_judge", fail)
    outcome = reconstruct(*day)
    assert outcome.status == 1
    error = snapshots_in(tmp_path / "run")["a"]["error"]
    assert error.startswith("ZeroDivisionError: half of nothing (")
    assert "test_many.py:" in error


def test_a_memory_budget_holds_for_each(reconstruct, day, camera, tmp_path):
    np.save(tmp_path / "day" / "bad.npy", np.ones((2, 2)))
    assert reconstruct(*day, f"hydra.run.dir={tmp_path / 'whole'}").status == 1
    outcome = reconstruct(*day, "memory_budget=1GiB")
    assert outcome.status == 1
    assert list(snapshots_in(tmp_path / "run")) == ["a", "b", "bad", "c"]
    for name in NAMES:
        both = [cassi.read_cube(tmp_path / run / name / "cube.tif") for run in ("run", "whole")]
        torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)
    np.save(tmp_path / "day" / "bad.npy", camera.system(camera.cube)[0, 0].numpy())
    outcome = reconstruct(*day, "memory_budget=1GiB").ok()
    assert "3 of them done before" in outcome.out
    assert "done before" not in reconstruct(*day).out  # whole and in blocks are not mixed


def test_a_killed_run_goes_on(reconstruct, start, day, tmp_path):
    options = (*day, "solver.iterations=400")
    folder = tmp_path / "killed"
    process = start("reconstruct", *options, f"hydra.run.dir={folder}")
    wait_until(lambda: "a" in done(folder), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    kept = [folder / name / "metrics.json" for name in done(folder)]
    before = stamps(folder)
    reconstruct(*options, f"hydra.run.dir={folder}").ok()
    assert all(stamps(folder)[path] == before[path] for path in kept)
    reconstruct(*options, f"hydra.run.dir={tmp_path / 'whole'}").ok()
    assert cubes_in(folder) == cubes_in(tmp_path / "whole")


def test_results_of_other_shipped_weights_are_done_again(monkeypatch, tmp_path):
    settings = compose_settings(["model=pretrained"])
    before = fingerprint_settings(settings)
    assert fingerprint_settings(settings) == before
    (tmp_path / "other.safetensors").write_bytes(b"other weights")
    files = [tmp_path / "other.safetensors"]
    monkeypatch.setattr(identity, "weight_files", lambda name: files * (name == "pretrained"))
    assert fingerprint_settings(settings) != before


@pytest.mark.release
def test_a_multirun_makes_one_table(reconstruct, day, tmp_path):
    folder = tmp_path / "day"  # whole paths: joblib's processes may be those of an earlier test
    (folder / "bad.npy").write_text("no array")
    outcome = reconstruct(
        "--multirun", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *day[1:], "threads=1",
        f"measurement='{folder}/a*.npy','{folder}/b*.npy'", f"hydra.sweep.dir={tmp_path / 'sweep'}",
        "hydra.sweep.subdir=job${hydra.job.num}",
    )  # fmt: skip
    assert outcome.status == 1
    table = read_rows(tmp_path / "sweep" / "results.csv")
    found = [(row["job"], row["name"], row["status"]) for row in table]
    assert found == [("job0", "a", "done"), ("job1", "b", "done"), ("job1", "bad", "failed")]


def test_a_sequence_follows_its_scene(reconstruct, camera, tmp_path):
    folder = tmp_path / "row"
    folder.mkdir()
    for index in range(3):
        np.save(folder / f"{index}.npy", camera.system(camera.cube.roll(index, -2))[0, 0].numpy())
    (folder / "1b.npy").write_bytes(b"broken")
    given = (f"measurement={folder}", *camera.given("mask"), "output.pictures=false")
    run = tmp_path / "out"
    outcome = reconstruct(*given, "sequence=true", f"hydra.run.dir={run}")
    assert "1b failed" in outcome.err
    found = snapshots_in(run)
    assert [found[name]["iterations"] for name in ("0", "1", "2")] == ["100", "36", "36"]
    for option, said in (
        ("processes=2", "with processes"),
        ("method=gap_tv", "such as solver=auto"),
        ("uncertainty=true", "with uncertainty"),
    ):
        assert said in reconstruct(*given, "sequence=true", option).refusal


def test_snapshots_of_a_video_do_not_follow_each_other(reconstruct, tmp_path):
    masks = (torch.rand(3, 24, 26, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    (tmp_path / "row").mkdir()
    np.save(tmp_path / "masks.npy", masks.numpy())
    for name in "ab":
        np.save(tmp_path / "row" / f"{name}.npy", masks.sum(0).numpy())
    given = ("measurement=row", "mask=masks.npy", "system.step=0", "output.pictures=false")
    reconstruct(*given, "sequence=true", f"hydra.run.dir={tmp_path}/out").ok()
    assert [row["iterations"] for row in snapshots_in(tmp_path / "out").values()] == ["30", "30"]
