"""Scenes block by block: as good as whole, resumed, within the budget."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from shared import damage_record

import cassi
from cassi import metrics
from cassi.apps.memory import peak_of
from cassi.apps.reconstruct import blocks as in_blocks
from cassi.apps.reconstruct.journal import Journal
from cassi.apps.reconstruct.plan import lines_that_fit, parse_size, plan_blocks
from cassi.apps.reconstruct.scene import score_bands
from cassi.uncertainty import score

METHOD = ("method=gap_tv", "solver.iterations=15", "output.pictures=false", "system.step=1")
BLOCKS = ("memory_budget=1GiB", "halo=24")
NM = (450, 500, 550, 600)


@pytest.fixture
def scene(tmp_path):
    """Files of a scene of 112 × 40 pixels, 4 bands, with plain parts and edges."""
    generator = torch.Generator().manual_seed(5)
    mask = (torch.rand(112, 40, generator=generator) > 0.5).float()
    cells = torch.rand(1, 4, 14, 5, generator=generator)
    cube = torch.nn.functional.interpolate(cells, size=(112, 40))
    np.save(tmp_path / "mask.npy", mask)
    np.save(tmp_path / "y.npy", cassi.SDCassi(mask, bands=4, step=1)(cube)[0, 0])
    np.save(tmp_path / "mask-turned.npy", mask.T)
    turned = cassi.SDCassi(mask.T, bands=4, step=1, axis=-2)(cube.mT)
    np.save(tmp_path / "y-turned.npy", turned[0, 0])
    cassi.write_cube(tmp_path / "truth.tif", cube, wavelengths=NM)
    return tmp_path, ("measurement=y.npy", "mask=mask.npy", "wavelengths=[450,500,550,600]")


@pytest.fixture
def few_lines(monkeypatch):
    """Let 104 lines fit, whatever the budget: three blocks."""
    monkeypatch.setattr(in_blocks, "lines_that_fit", lambda *_: 104)


@pytest.fixture
def computed(monkeypatch):
    """Indices of the blocks that were computed."""
    seen, compute_block = [], in_blocks.compute_block

    def compute(settings, blocks, probed, estimates, index, callback):
        seen.append(index)
        return compute_block(settings, blocks, probed, estimates, index, callback)

    monkeypatch.setattr(in_blocks, "compute_block", compute)
    return seen


@contextmanager
def stopped_after_two_blocks(monkeypatch):
    write = Journal.write

    def stop_after_two(journal, name, *rest):
        if name == "block-2":
            raise KeyboardInterrupt
        return write(journal, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", stop_after_two)
        yield


def assert_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert found[name] is None
        else:
            assert found[name] == pytest.approx(value, rel=tolerance), name


@pytest.mark.usefixtures("few_lines")
@pytest.mark.parametrize("turned", [False, True])
def test_blocks_equal_the_whole(reconstruct, scene, results, turned):
    folder, files = scene
    if turned:
        files = ("measurement=y-turned.npy", "mask=mask-turned.npy", "system.axis=-2")
    whole = reconstruct(*files, *METHOD, "hydra.run.dir=whole")
    parts = reconstruct(*files, *METHOD, *BLOCKS, "hydra.run.dir=parts")
    assert whole.status == parts.status == 0, parts.err
    assert "blocks: 3" in parts.out
    a, b = (cassi.read_cube(folder / name / "cube.tif") for name in ("whole", "parts"))
    assert (a - b).abs().max() < 1e-4
    one, other = (results(folder=name) for name in ("whole", "parts"))
    assert other["relative_residual"] == pytest.approx(one["relative_residual"], rel=1e-3)
    assert [block["lines"] for block in other["blocks"]][-1][1] == 112
    assert other["files"] == one["files"]
    rows = results("convergence.csv", "parts")
    assert [row["block"] for row in rows[::15]] == ["1", "2", "3"]


@pytest.mark.slow
@pytest.mark.usefixtures("few_lines")
def test_other_processes_compute_the_same_blocks(reconstruct, scene):
    folder, files = scene
    for name, more in (("one", ()), ("two", ("processes=2",))):
        into = f"hydra.run.dir={name}"
        reconstruct(*files, *METHOD, *BLOCKS, "threads=1", "uncertainty=true", *more, into).ok()
    for name in ("cube.tif", "uncertainty.tif"):
        one, two = (cassi.read_cube(folder / run / name) for run in ("one", "two"))
        assert torch.equal(one, two)


def test_what_fits_is_one_block_with_the_same_bits(reconstruct, scene):
    folder, files = scene
    reconstruct(*files, *METHOD, "hydra.run.dir=whole")
    reconstruct(*files, *METHOD, "memory_budget=2GiB", "hydra.run.dir=parts").ok()
    a, b = (cassi.read_cube(folder / name / "cube.tif") for name in ("whole", "parts"))
    assert torch.equal(a, b)


@pytest.mark.usefixtures("few_lines")
@pytest.mark.parametrize("cube", ["cube.tif", "cube.zarr"])
def test_a_stopped_run_goes_on_at_the_next_block(reconstruct, scene, computed, monkeypatch, cube):
    folder, files = scene
    given = (*files, *METHOD, *BLOCKS)
    reconstruct(*given, "hydra.run.dir=straight").ok()
    straight = cassi.read_cube(folder / "straight" / "cube.tif")
    given += (f"output.cube={cube}",)
    with stopped_after_two_blocks(monkeypatch):
        assert reconstruct(*given).status == 130
    hidden = folder / "run" / f".{cube}.blocks"
    assert not (folder / "run" / cube).exists()
    assert (hidden / cube).exists()
    computed.clear()
    outcome = reconstruct(*given).ok()
    assert "2 finished already" in outcome.out
    assert computed == [2]
    assert torch.equal(cassi.read_cube(folder / "run" / cube), straight)
    assert not hidden.exists()
    # Again, over what is there, with another setting.
    reconstruct(*given, "solver.iterations=5").ok()
    assert not torch.equal(cassi.read_cube(folder / "run" / cube), straight)


@pytest.mark.usefixtures("few_lines")
@pytest.mark.parametrize("damage", ["cube", "tail", "record", "config"])
def test_what_is_damaged_or_of_another_run_is_computed_again(
    reconstruct, scene, computed, monkeypatch, damage
):
    folder, files = scene
    given = (*files, *METHOD, *BLOCKS, "hydra.run.dir=run")
    with stopped_after_two_blocks(monkeypatch):
        assert reconstruct(*given).status == 130
    hidden = folder / "run" / ".cube.tif.blocks"
    if damage == "cube":
        with (hidden / "cube.tif").open("r+b") as file:
            file.seek(-4 * 40 * 60, 2)  # in the second block
            file.write(b"damage")
    elif damage == "tail":
        (hidden / "tail-1.npy").write_bytes(b"damage")
    elif damage == "record":
        damage_record(hidden, "block-0", '"block": 0', '"block": 7')
    else:
        given = (*given, "solver.iterations=16")
    computed.clear()
    reconstruct(*given).ok()
    expected = {"cube": [1, 2], "tail": [1, 2], "record": [0, 1, 2], "config": [0, 1, 2]}
    assert computed == expected[damage]


@pytest.mark.usefixtures("few_lines")
def test_a_truth_is_read_in_parts(reconstruct, scene, results):
    folder, files = scene
    given = (*files[:2], "truth=truth.tif", *METHOD)
    reconstruct(*given, "hydra.run.dir=whole").ok()
    outcome = reconstruct(*given, *BLOCKS, "hydra.run.dir=parts").ok()
    assert "truth.tif" not in outcome.out  # not loaded
    assert cassi.data.io.load_cube(folder / "parts" / "cube.tif").wavelengths == NM
    one, other = (results(folder=name)["metrics"] for name in ("whole", "parts"))
    for preset, scores in one.items():
        assert_close(other[preset], scores, 1e-3)


@pytest.mark.usefixtures("few_lines")
def test_error_bars_in_blocks(reconstruct, scene, results):
    folder, files = scene
    np.save(folder / "truth.npy", cassi.read_cube(folder / "truth.tif")[0])
    given = (*files[:2], "truth=truth.npy", "system.bands=4", *METHOD, "uncertainty=true")
    reconstruct(*given, "hydra.run.dir=whole").ok()
    reconstruct(*given, *BLOCKS).ok()
    names = ("whole/uncertainty.tif", "run/uncertainty.tif", "run/cube.tif", "truth.tif")
    whole, parts, cube, truth = (cassi.read_cube(folder / name)[0] for name in names)
    assert float((whole - parts).abs().mean()) < 0.15 * float(whole.mean())
    numbers = results()["uncertainty"]
    assert numbers["mean"] == pytest.approx(float(parts.mean()), rel=1e-4)
    assert numbers["scores"]["coverage/90"] > 0.5
    ause = score(cube, parts, truth)["ause"]
    assert numbers["scores"]["ause"] == pytest.approx(ause, rel=1e-4)


def test_scores_by_parts_are_those_of_the_whole():
    random = torch.Generator().manual_seed(0)
    truth = torch.rand(5, 100, 30, generator=random)
    cube = truth + 0.1 * torch.randn(truth.shape, generator=random)
    scores = score_bands(cube, truth)
    for preset in metrics.list_presets():
        assert_close(scores[preset], metrics.evaluate(cube, truth, preset), 1e-6)


@pytest.mark.usefixtures("few_lines")
def test_pictures_of_a_scene_in_blocks(reconstruct, scene):
    folder, files = scene
    pictures = ("output.pictures=true", "output.points=[[3,4],[100,20]]")
    reconstruct(*files, *METHOD, *BLOCKS, *pictures).ok()
    names = {file.name for file in (folder / "run").iterdir()}
    assert {"rgb.png", "bands.png", "spectra.png", "report.html", "cube.tif"} <= names


def test_the_budget_decides_the_blocks():
    y = torch.zeros(1, 1, 4096, 4294)
    per_line = 3.2 * 4 * 4096 * 100
    rows = [lines_that_fit(parse_size(size), y, per_line) for size in ("2GiB", "4GiB", "8GiB")]
    assert rows == sorted(rows)
    assert rows[1] * per_line < 4 * 2**30
    counts = [len(plan_blocks(4096, lines, 40)) for lines in rows]
    assert counts[0] > counts[1] > counts[2] > 1
    blocks = plan_blocks(4096, rows[1], 40)
    assert [b.start for b in blocks] == [0, *(b.stop for b in blocks[:-1])]
    assert blocks[-1].stop == blocks[-1].last == 4096
    assert all(b.last - b.first <= rows[1] for b in blocks)
    assert plan_blocks(100, 100, 40)[0].last == 100
    with pytest.raises(ValueError, match="memory_budget: expected at least 1"):
        lines_that_fit(parse_size("500MiB"), y, per_line)
    with pytest.raises(ValueError, match="smaller halo"):
        plan_blocks(4096, 100, 40)


def test_memory_at_the_peak_is_counted():
    def run():
        a = torch.ones(1000)
        b = a + 1
        c = (b * 2).view(10, 100)
        del a, b
        return c + 1

    assert peak_of(run) == 3 * 4000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("memory_budget=lots", "memory_budget: expected a size such as 4GiB"),
        ("memory_budget=1MiB", "memory_budget: expected at least 0.3"),
        ("output.cube=cube.mat", "expected .tif .tiff .npy .zarr, got cube.mat"),
        ("halo=-1", "halo: expected a whole number"),
    ],
)
def test_refusals(reconstruct, scene, given, message):
    folder, files = scene
    assert message in reconstruct(*files, *METHOD, *BLOCKS, given).refusal
    assert not (folder / "run" / "cube.tif").exists()
