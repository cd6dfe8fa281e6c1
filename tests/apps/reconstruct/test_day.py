"""All cubes of a day in one Zarr store, opened by xarray."""

import os
import signal

import numpy as np
import pytest
from shared import stamps, wait_until, workers_of

import cassi
from cassi.apps.reconstruct import many
from cassi.data.store import Store

xarray = pytest.importorskip("xarray", reason="needs the extra xarray")
pytest.importorskip("zarr", reason="needs the extra xarray")
NM = [450, 500, 550, 600, 650]


@pytest.fixture
def day(write_day):
    """Write snapshots of these names; return the options for them."""
    listed = f"wavelengths=[{','.join(map(str, NM))}]"
    return lambda names: (*write_day(names, 2), listed)


def test_one_store_has_the_cubes_of_all(reconstruct, day, tmp_path):
    options = day("bcd")
    reconstruct(*options, f"hydra.run.dir={tmp_path / 'each'}").ok()
    store = tmp_path / "run" / "day.zarr"
    reconstruct(*options, "output.cube=day.zarr", "uncertainty=true").ok()
    with xarray.open_zarr(store, consolidated=False) as opened:
        assert opened.cube.dims == ("time", "wavelength", "y", "x")
        assert not opened.cube.variable._in_memory  # it is lazy
        assert list(opened.wavelength.values) == NM
        assert list(opened.name.values) == ["b", "c", "d"]
        changed = (tmp_path / "day" / "b.npy").stat().st_mtime
        assert opened.time.values[0].astype("datetime64[s]").astype(float) == int(changed)
        assert opened.preview.shape == (3, 12, 17, 3)
        assert bool((opened.uncertainty > 0).all())
        for place, name in enumerate("bcd"):
            alone = cassi.read_cube(tmp_path / "each" / name / "cube.tif")
            assert np.array_equal(opened.cube[place].values, alone[0].numpy())
    left = {path.name for path in (tmp_path / "run" / "b").iterdir()}
    assert left == {"convergence.csv", "metrics.json"}


def test_new_ones_come_after_those_that_are_there(reconstruct, day, tmp_path, monkeypatch):
    monkeypatch.setattr(many, "MAX_FOLDERS", 1)
    store = tmp_path / "run" / "day.zarr"
    reconstruct(*day("bcd"), "output.cube=day.zarr").ok()
    first = stamps(store / "cube" / "c", "**/0")
    assert not (tmp_path / "run" / "b").exists()
    (store / "cube" / "c" / "1" / "0" / "0" / "0").unlink()
    (tmp_path / "day" / "d.npy").unlink()
    outcome = reconstruct(*day("a"), "output.cube=day.zarr").ok()
    assert "3 snapshots, 1 of them done before" in outcome.out
    with xarray.open_zarr(store, consolidated=False) as opened:
        assert list(opened.name.values) == ["b", "c", "d", "a"]
        assert np.isfinite(opened.cube.values).all()
    kept = store / "cube" / "c" / "0" / "0" / "0" / "0"
    assert kept.stat().st_mtime_ns == first[kept]
    other = reconstruct(*day("a"), "output.cube=day.zarr", "uncertainty=true").refusal
    assert "is for other cubes" in other


@pytest.mark.release
def test_many_frames_from_two_workers_of_which_one_is_killed(start, tmp_path):
    (tmp_path / "day").mkdir()
    mask = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    np.save(tmp_path / "mask.npy", mask)
    for index in range(200):
        np.save(tmp_path / "day" / f"{index:04}.npy", np.full((64, 68), 1 + index, np.float32))
    options = (f"measurement={tmp_path / 'day'}", f"mask={tmp_path / 'mask.npy'}", "solver=gap")
    options += ("prior=tv", "solver.iterations=2", "output.pictures=false", "system.step=1")
    options += ("output.cube=day.zarr", f"hydra.run.dir={tmp_path / 'run'}")
    options += ("processes=2", "align=false")
    process = start("reconstruct", *options)
    store = Store(tmp_path / "run" / ".done")
    wait_until(lambda: len(store.read_all()) >= 20, process)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    with xarray.open_zarr(tmp_path / "run" / "day.zarr", consolidated=False) as opened:
        assert list(opened.name.values) == [f"{index:04}" for index in range(200)]
        levels = opened.cube.mean(("wavelength", "y", "x")).values
    assert np.isfinite(levels).all()
    assert (np.diff(levels) > 0).all()  # each in its place
