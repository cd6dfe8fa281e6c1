"""The toolbox of MST from end to end: its folder of data, its recipes, and what is said of them."""

import pytest
import torch
from shared import write_toolbox

from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Train
from cassi.apps.train.files import add_earlier_options, save_options
from cassi.apps.train.inputs import build_simulator, load_data
from cassi.data.mst import ToolboxBatches
from cassi.data.scenes import load_scene
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS

TINY = (
    *("data.crop=32", "data.workers=0", "trainer.max_steps=2", "trainer.accelerator=cpu"),
    *("trainer.enable_progress_bar=false", "trainer.log_every_n_steps=1", "logger=csv"),
)


CROPS = "data.simulator.masks._target_=cassi.data.simulation.MaskCrops"


@pytest.fixture
def root(tmp_path):
    return write_toolbox(tmp_path / "datasets", side=40, crop=32)


@pytest.fixture
def refused(train):
    """Return the one line of the error."""
    return lambda *options: train(*TINY, *options).refusal


def test_a_recipe_trains_on_the_folder_and_is_evaluated(train, evaluate, results, data_dir, root):
    """On real scenes, small ones."""
    names = ("balloons", "beads", "cd")
    scenes = [load_scene(data_dir / f"cave_train/{n}.tif", BENCHMARK_WAVELENGTHS) for n in names]
    cubes = [scene.values(100, 100, 40, 40).permute(1, 2, 0).numpy() for scene in scenes]
    write_toolbox(root, side=40, crop=32, cubes=cubes)
    out = train("recipe=paper/mst_s", f"data.root={root}", *TINY).ok().out
    assert "3 training and 10 validation scenes, 28 bands" in out
    assert "mst_s: 0.92 M parameters" in out
    assert {float(row["lr-Adam"]) for row in results("metrics.csv") if row["lr-Adam"]} == {4e-4}
    small = ("data.evaluation.shape=null", "data.evaluation.mask_checksum=null")
    evaluate(
        *("data=mst", f"data.root={root}", *small, "preset=torch-256", "report=false"),
        *("figures=false", "reconstructors=[run/model.safetensors]", "hydra.run.dir=scores"),
    ).ok()
    names = [row["scene"] for row in results("results.csv", "scores")]
    assert {f"scene{number:02}" for number in range(1, 11)} <= set(names)


def settings_of(*options):
    return compose_settings(["folder=here", *options], kind=Train)


def test_samples_and_camera_are_those_of_the_settings(root):
    settings = settings_of("recipe=paper/dgsmp", f"data.root={root}", "data.crop=32", "seed=4")
    data = load_data(settings)
    assert isinstance(data.samples, ToolboxBatches)
    assert (data.samples.batch_size, data.samples.seed, len(data.scenes)) == (2, 4, 10)
    _, system = build_simulator(settings.data.simulator, BENCHMARK_WAVELENGTHS)(
        data.samples[0][None], torch.Generator()
    )
    # The camera makes what mask_3d_shift.mat holds, of mask.mat.
    from scipy.io import loadmat

    shifted = loadmat(root / "TSA_simu_data" / "mask_3d_shift.mat")["mask_3d_shift"]
    ones = torch.eye(28)[:, :, None, None].expand(28, 28, 32, 32)
    torch.testing.assert_close(
        system(ones)[:, 0], torch.from_numpy(shifted.transpose(2, 0, 1)).float()
    )


def test_the_folder_for_real_captures(root):
    settings = settings_of("data=mst_real", f"data.root={root}", "data.crop=24", "noise=shot")
    data = load_data(settings)
    assert [scene.name for scene in data.samples.scenes] == ["scene1", "scene2", "1", "2"]
    assert settings.data.simulator["noise"]["bits"] == 11
    y, _ = build_simulator(settings.data.simulator, BENCHMARK_WAVELENGTHS)(
        data.samples[0][None], torch.Generator()
    )
    assert y.shape == (1, 1, 24, 24 + 54)


def test_captures_are_evaluated_under_their_published_names(evaluate, results, root):
    evaluate(
        *("data=mst_real", f"data.root={root}", "data.evaluation.mask_checksum=null"),
        *("~data.evaluation.checksums", "data.evaluation.measurement_shape=null"),
        *("data.evaluation.dark=0", "report=false", "figures=false", "system.step=2"),
        "reconstructors=[{method: gap_tv, overrides: {solver.iterations: 1}}]",
    ).ok()
    names = {row["scene"] for row in results("results.csv")}
    assert {f"scene{number}" for number in range(1, 6)} <= names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["data.root=nowhere"], "no folder nowhere/cave_1024_28; data.root=DIR is the folder"),
        (["data.crop=40", CROPS], "size: expected less than 40"),
        (["data.crop=40"], "take MaskCrops with data.simulator.masks._target_="),
        (["data.crop=30"], "take MaskCrops with data.simulator.masks._target_="),
        (["data.scale=65536"], "data.scale: expected auto, data=mst has scales of its own"),
        (["data.augment.mix=0.5"], "data.augment is null"),
        (["recipe=saunet"], "give data.samples=null to vary them by data.augment"),
    ],
)
def test_wrong_values(refused, root, options, said):
    assert said in refused("data=mst", "model=gap_net", f"data.root={root}", *options)


def test_a_training_by_a_recipe_can_be_resumed(tmp_path):
    save_options(tmp_path, ["recipe=paper/mst_s", "data.root=a/b"])
    resumed = ["ckpt=last", f"hydra.run.dir={tmp_path}"]
    assert add_earlier_options(resumed)[:2] == ["recipe=paper/mst_s", "data.root=a/b"]
    save_options(tmp_path, ["recipe=paper/../mst_s"])
    with pytest.raises(ValueError, match="is none"):
        add_earlier_options(resumed)
