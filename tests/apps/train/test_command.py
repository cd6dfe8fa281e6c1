"""cassi-train from end to end on the bundled scene, with the smallest network there is."""

import gc
import re
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.io import savemat
from shared import before_a_push

from cassi.apps.train import dry_run
from cassi.apps.train.files import add_earlier_options, read_checkpoint, select_network_weights
from cassi.apps.train.inputs import build_simulator
from cassi.data.datasets import TrainingCrops
from cassi.models.load import create_model, load_model, read_card

CONF = Path(__file__).resolve().parents[3] / "conf"
RECIPES = sorted(file.stem for file in (CONF / "recipe").glob("[!_]*.yaml"))
# The others of MST differ from these in numbers, which tests of configs compare.
RECIPES += [f"paper/{n}" for n in ("mst_s", "tsa_net", "lambda_net", "gap_net", "dgsmp", "bisrnet")]
TINY = (
    *("model=gap_net", "model.stages=1", "data.crop=16", "data.validation.crop=32"),
    *("trainer.enable_progress_bar=false", "trainer.accelerator=cpu", "logger=csv"),
)


def equal(a, b):
    """Compare what two checkpoints hold, paths aside."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        paths = {"dirpath", "best_model_path", "kth_best_model_path", "best_k_models"}
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a.keys() - paths)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def test_end_to_end(train, results, tmp_path):
    outcome = train(
        *TINY, "data.crop=32", "data.batch_size=4", "data.steps_per_epoch=10", "optimizer.lr=5e-3",
        "trainer.max_steps=40", "trainer.log_every_n_steps=1", "callbacks=ema", "logger=default",
    ).ok()  # fmt: skip
    folder = tmp_path / "run"
    assert {file.name for file in folder.iterdir()} == {
        *("checkpoints", "tensorboard", "metrics.csv", "model.safetensors", "model.yaml"),
        *("ema.safetensors", ".hydra"),
    }
    table = results("metrics.csv")
    seen = [float(row["loss"]) for row in table if row["loss"]]
    assert len(seen) == 40
    assert np.mean(seen[-10:]) < 0.9 * np.mean(seen[:10])

    scores = [float(row["val_psnr"]) for row in table if row["val_psnr"]]
    assert len(scores) == 4
    network, card = load_model(folder / "model.safetensors")
    assert not network.training
    assert (card.name, card.settings["stages"], card.bands) == ("gap_net", 1, 28)
    assert card.wavelengths[0] == 453.5
    assert card.training["val_psnr"] == pytest.approx(max(scores), abs=1e-3)
    assert f"{max(scores):.2f} dB" in outcome.out

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    pictures = {"validation (estimate, truth)", "validation spectra"}
    assert set(events.Tags()["images"]) == pictures
    assert all(len(events.Images(name)) == 4 for name in pictures)
    assert {"loss", "val_psnr", "lr-Adam"} <= set(events.Tags()["scalars"])


def test_highlights_of_validation_scenes_are_told(train, tmp_path):
    cube = 0.8 * torch.rand(28, 32, 32, generator=torch.Generator().manual_seed(0))
    for split, name, top in (
        ("train", "a", 0.5),
        ("validation", "bright", 4),
        ("validation", "dim", 1),
    ):
        (tmp_path / "scenes" / split).mkdir(parents=True, exist_ok=True)
        scene = cube * (0.5 if name == "dim" else 1)
        scene[:, 3, 4] = top
        np.save(tmp_path / "scenes" / split / f"{name}.npy", scene.numpy())
    np.save(tmp_path / "mask.npy", (cube[0] > 0.4).float().numpy())
    outcome = train(
        *TINY, "data=folder", "data.root=scenes", "data.simulator.masks.mask=mask.npy",
        "data.batch_size=1", "data.workers=0", "trainer.max_steps=1",
    ).ok()  # fmt: skip
    assert "validation: bright has highlights up to 4; its PSNR is computed" in outcome.out
    assert "validation: 99 % of the values of dim lie below half of the peak" in outcome.out


@pytest.mark.parametrize("launched", [pytest.param("by Lightning", marks=pytest.mark.thorough), ""])
def test_two_processes_give_the_gradient_of_one(train, start, tmp_path, ranks, launched):
    # One step of plain descent at rate 1 moves the weights by the gradient.
    np.save(tmp_path / "mask.npy", np.random.default_rng(0).random((16, 16)).astype(np.float32))
    options = (
        *TINY, "data.batch_size=4", "trainer.max_steps=1", "optimizer._target_=torch.optim.SGD",
        "optimizer.lr=1", "~optimizer.betas", "scheduler=constant", "data.validation.crop=16",
        "data.simulator.masks._target_=cassi.data.simulation.FixedMask",
        f"data.simulator.masks.mask={tmp_path / 'mask.npy'}",
    )  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    train(*options, f"hydra.run.dir={one}").ok()
    options = ("train", *options, "trainer=ddp_cpu", f"hydra.run.dir={two}")
    running = [start(*options, fork=False)] if launched else [start(*options, **r) for r in ranks]
    for process in running:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    a, b = (load_file(folder / "model.safetensors") for folder in (one, two))
    assert max((a[key] - b[key]).abs().max() for key in a) <= 1e-6


def test_a_folder_that_holds_a_training_is_not_overwritten(train, tmp_path):
    train(*TINY, "trainer.max_steps=1").ok()
    assert "go on with ckpt=last" in train(*TINY, "trainer.max_steps=1").refusal
    # It has not touched the options either: those of the first run still hold.
    assert add_earlier_options(["ckpt=last", f"hydra.run.dir={tmp_path / 'run'}"]) == [
        *TINY, "trainer.max_steps=1", "ckpt=last", f"hydra.run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    # A finished training gives its result again, a longer one goes on.
    assert "1 steps" in train("ckpt=last").out
    assert "3 steps" in train("ckpt=last", "trainer.max_steps=3").out


STILL = (*TINY, "optimizer.lr=0", "scheduler=constant", "data.steps_per_epoch=1", "data.workers=0")
"""No step is better than the first."""


def test_a_moved_training_keeps_its_best_checkpoint(train, tmp_path):
    """Also one that is only copied."""
    train(*STILL, "trainer.max_steps=2", f"hydra.run.dir={tmp_path / 'a'}").ok()
    card = read_card(tmp_path / "a" / "model.safetensors")
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    train("ckpt=last", f"hydra.run.dir={tmp_path / 'copy'}").ok()
    assert read_card(tmp_path / "copy" / "model.safetensors") == card
    (tmp_path / "a").rename(tmp_path / "b")
    train("ckpt=last", "trainer.max_steps=4", f"hydra.run.dir={tmp_path / 'b'}").ok()
    further = read_card(tmp_path / "b" / "model.safetensors").training
    assert further == card.training | {"steps": 4}
    assert further["step"] == 1


def test_a_checkpoint_of_another_folder_goes_on_there_or_says_that_it_is_done(train, tmp_path):
    train(*STILL, "trainer.max_steps=2", f"hydra.run.dir={tmp_path / 'a'}").ok()
    last = tmp_path / "a" / "checkpoints" / "last.ckpt"
    line = train(*STILL, "trainer.max_steps=2", f"ckpt={last}").refusal
    assert "trainer.max_steps: expected more than the 2 steps of" in line
    train(*STILL, "trainer.max_steps=3", f"ckpt={last}").ok()
    assert read_card(tmp_path / "run" / "model.safetensors").training["step"] == 3


def test_the_last_training_needs_its_folder(train, tmp_path):
    line = train("ckpt=last", "hydra.run.dir=outputs/train/${now:%Y}/a").refusal
    assert line.endswith(
        "ckpt=last: expected the folder of a training, got none; give hydra.run.dir=DIR"
    )
    place = "outputs/train/2026-01-02/03-04-05"
    train(*STILL, "trainer.max_steps=1", f"hydra.run.dir={place}").ok()
    line = train(*STILL, "ckpt=last", "hydra.run.dir=outputs/train/${now:%Y}/b").refusal
    assert line.endswith(f"got none; give hydra.run.dir={tmp_path / place}")


def test_the_bar_shows_the_steps_of_the_whole_training(train, tmp_path):
    """A resumed one begins where the earlier ended."""
    shown = ("trainer.enable_progress_bar=true", "callbacks.progress.refresh_rate=1")
    lines = train(*STILL, "trainer.max_steps=2", *shown).ok().out.replace("\r", "\n")
    resumed = ("ckpt=last", "trainer.max_steps=4", f"hydra.run.dir={tmp_path / 'run'}")
    lines += train(*resumed).ok().out.replace("\r", "\n")
    steps = [int(done) for done in re.findall(r"steps: .* (\d)/[24] \[", lines)]
    assert steps == sorted(steps)
    assert set(steps) == {0, 1, 2, 3, 4}
    assert re.search(r"\d/4 \[\d\d:\d\d<\d\d:\d\d, .*loss=0\.\d+, val_psnr=[\d.]{4,5}\]", lines)


def test_an_error_has_a_line_of_its_own_behind_the_bar(train):
    shown = ("trainer.enable_progress_bar=true", "optimizer.lr=1e30", "trainer.max_steps=9")
    outcome = train(*TINY, "data.steps_per_epoch=3", *shown)
    assert "not finite" in outcome.refusal
    assert outcome.out.endswith("]\n")


def test_early_stopping_as_the_guide_has_it(train):
    guide = (CONF.parent / "docs" / "guides" / "training.md").read_text()
    option = re.search(r"'(\+callbacks\.stop=.*)'", guide)[1].replace("patience: 10", "patience: 2")
    assert "\n3 steps, best" in train(*STILL, "trainer.max_steps=9", option).ok().out


def test_what_the_files_of_a_moving_average_hold(train, tmp_path):
    options = ("callbacks=ema", "callbacks.ema.decay=0.5", "optimizer.lr=1e-3")
    train(*STILL, *options, "trainer.max_steps=3").ok()
    folder = tmp_path / "run"
    last, best = (read_checkpoint(folder / "checkpoints" / f"{n}.ckpt") for n in ("last", "best"))
    average, plain = (
        select_network_weights(last[k]) for k in ("state_dict", "current_model_state")
    )
    assert not equal(average, plain)
    for ema, weights in ((None, average), (False, plain)):
        file = folder / "checkpoints" / "last.ckpt"
        net = create_model("gap_net", bands=28, stages=1, weights=file, ema=ema)
        assert equal(dict(net.state_dict()), weights)
    assert equal(load_file(folder / "ema.safetensors"), average)
    assert equal(
        load_file(folder / "model.safetensors"), select_network_weights(best["state_dict"])
    )


def test_a_training_without_validation_has_no_score(train, tmp_path):
    out = train(*STILL, "trainer.max_steps=1", "+trainer.limit_val_batches=0").ok().out
    assert "1 steps, not validated -> " in out
    assert "val_psnr" not in read_card(tmp_path / "run" / "model.safetensors").training


def test_training_goes_on_from_exported_weights(train, tmp_path):
    train(*TINY, "trainer.max_steps=1", f"hydra.run.dir={tmp_path / 'a'}").ok()
    file = tmp_path / "a" / "model.safetensors"
    others = [option for option in TINY if not option.startswith("model")]
    train(f"model={file}", *others, "trainer.max_steps=1", "optimizer.lr=0",
                    "scheduler=constant").ok()  # fmt: skip
    assert equal(load_file(file), load_file(tmp_path / "run" / "model.safetensors"))


def test_weights_in_half_precision(train, tmp_path):
    options = (*TINY, "trainer.max_steps=1", "data.workers=0")
    for half in ("false", "true"):
        train(*options, f"half={half}", f"hydra.run.dir={tmp_path / half}").ok()
    whole, half = (load_file(tmp_path / h / "model.safetensors") for h in ("false", "true"))
    assert {value.dtype for value in half.values()} == {torch.float16}
    assert all(torch.equal(half[key], whole[key].half()) for key in whole)
    network, _ = load_model(tmp_path / "true" / "model.safetensors")
    assert {value.dtype for value in network.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (("gap_net", "model.stages=1"), "channels_last: GAPNet loses it by aten.stack in GAPNet"),
        (("mst_s", "model.blocks=[1,1,1]"), None),
    ],
)
def test_what_loses_channels_last_is_named(train, model, said):
    options = (f"model={model[0]}", *model[1:], *TINY[2:], "trainer.max_steps=1")
    outcome = train(*options, "channels_last=true").ok()
    warnings = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == (said is not None)
    assert all(said in line for line in warnings)


def test_masks_of_several_cameras(train, tmp_path):
    np.save(tmp_path / "a.npy", np.eye(40, dtype=np.float32))
    masks = {
        "_target_": "cassi.data.simulation.MaskCrops",
        "mask": [str(tmp_path / "a.npy"), "random"],
    }
    made = build_simulator({"_target_": "cassi.data.simulation.Simulator", "masks": masks}, (500,))
    drawn = made.masks.draw(40, 8, 8, torch.Generator().manual_seed(0))
    # A line of the diagonal has at most 8 open pixels of 64; random masks have more.
    assert 10 < (drawn.sum((1, 2, 3, 4)) <= 8).sum() < 30
    train(*TINY, "trainer.max_steps=1", "data.simulator.masks.mask=random").ok()


def test_a_lesson_without_a_camera_needs_no_mask_of_its_size(train):
    model = ("model=cassi_net", "model.stages=1", "model.widths=[8,8,8]", "model.blocks=[1,1,1]")
    whole = "data.simulator.masks={_target_: cassi.data.simulation.FixedMask, mask: null}"
    options = (*model, *TINY[2:], whole, "task=denoising", "trainer.max_steps=1")
    train(*options, "data.batch_size=1", "channels_last=true").ok()


def test_a_dry_run_of_a_sweep_leaves_nothing(train, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = f"hydra.sweep.dir={tmp_path / 'sweep'}"
    outcome = train("--dry-run", "--multirun", *TINY, "trainer.max_steps=2", "seed=0,1", place).ok()
    assert outcome.out.count("nothing was written\n") == 2
    assert list(tmp_path.iterdir()) == []


def _plan(whole, seconds_of_a_cube, first=1.0):
    done = []
    while (size := dry_run.choose_batch_size(done, whole)) is not None:
        seconds = size * seconds_of_a_cube * (1.0 if done else first)
        done.append(dry_run.Step(size, 0.5, seconds, 100 + 10 * size))
    return [step.n_cubes for step in done], dry_run.estimate_whole_batch(done, whole)


@pytest.mark.parametrize(
    ("whole", "seconds", "sizes"),
    [
        (1, 1.0, [1, 1, 1]),
        (2, 1.0, [2, 2, 2]),
        (8, 0.1, [1, 1, 8, 8, 8]),
        (8, 1.0, [1, 1, 2]),
        (8, 6.0, [1, 2]),
        (2, 6.0, [2]),
    ],
)
def test_a_dry_run_tries_batches_that_take_seconds(whole, seconds, sizes):
    """Its estimate is that of a whole batch, where cost and memory are in proportion."""
    tried, (took, peak) = _plan(whole, seconds)
    assert tried == sizes
    assert took == pytest.approx(0.5 + whole * seconds)
    assert peak == 100 + 10 * whole
    if len(sizes) > 2:  # the first step counts only alone
        assert _plan(whole, seconds, first=1.2)[1][0] == pytest.approx(took)


@pytest.mark.release
def test_a_dry_run_tells_the_memory_of_a_whole_batch(train, monkeypatch):
    options = ("--dry-run", "model=gap_net", "model.stages=1", "data.crop=128", "data.batch_size=8")
    options = (*options, "data.workers=0", "trainer.accelerator=cpu", "threads=1")
    said = []
    for enough in (0.0, 100.0):
        monkeypatch.setattr(dry_run, "ENOUGH_SECONDS", enough)
        gc.collect()  # the memory of a CPU is that of the whole process
        out = train(*options).ok().out
        assert ("extrapolated from batches of 1 and 2" in out) == (enough == 0)
        said.append(float(re.findall(r"([\d.]+) GiB", out)[0]))
    assert said[0] == pytest.approx(said[1], rel=0.2)


@pytest.mark.parametrize(
    "name", before_a_push(RECIPES, ["cassi_net_spectra", "saunet", "paper/mst_s"])
)
def test_every_recipe_makes_a_step(train, name, tmp_path, monkeypatch):
    """Of its own network, on the bundled scene; masks and spectra that recipes read are drawn."""
    monkeypatch.setattr(dry_run, "MAX_TIMED_STEPS", 1)
    (tmp_path / "tsa").mkdir()
    (tmp_path / "spectra").mkdir()
    for kind in ("sur", "spd"):
        drawn = np.random.default_rng(0).random((41, 3)) / 2 + 0.2
        samples = {f"{kind}_drawn": drawn, "S_drawn": [[380, 10, 41]]}
        savemat(tmp_path / "spectra" / f"{kind}_drawn.mat", samples)
    mask = np.random.default_rng(0).random((64, 64), np.float32)
    savemat(tmp_path / "tsa" / "mask.mat", {"mask": mask})
    small = ("data=bundled", "data.crop=32", "data.validation.crop=64", "data.batch_size=2")
    options = (*small, "data.workers=0", *TINY[4:], f"paths.data_dir={tmp_path}")
    outcome = train("--dry-run", f"recipe={name}", *options).ok()
    assert "steps of 2 crops of 32×32" in outcome.out
    assert sorted(file.name for file in tmp_path.iterdir()) == ["spectra", "tsa"]


def test_a_training_in_sittings(train, results, tmp_path, monkeypatch):
    """One command begins and goes on, and all ends as if nothing had happened."""
    options = (*TINY, "data.steps_per_epoch=3", "trainer.max_steps=9", "data.workers=0")
    options += ("callbacks=ema", "threads=1")  # sums round differently with another number
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(*options, f"hydra.run.dir={whole}").ok()
    ends, draw = [(4, "SIGTERM"), (10, "SIGINT"), (14, "SIGTERM")], TrainingCrops.__getitem__

    def end(crops, index):
        if ends and index >= ends[0][0]:
            signal.raise_signal(signal.Signals[ends.pop(0)[1]])  # as timeout does, and Ctrl+C
        return draw(crops, index)

    monkeypatch.setattr(TrainingCrops, "__getitem__", end)
    outcomes = [train("ckpt=last", *options, f"hydra.run.dir={parts}")]
    # All other options are those of the first run.
    outcomes += [train("ckpt=last", f"hydra.run.dir={parts}") for _ in range(3)]
    assert [outcome.status for outcome in outcomes] == [143, 130, 143, 0]
    for outcome in outcomes[:3]:
        assert f"go on with: cassi-train ckpt=last hydra.run.dir={parts}" in outcome.err
        assert "Traceback" not in outcome.err
    assert "going on after step" in outcomes[-1].out
    assert equal(*(read_checkpoint(f / "checkpoints" / "last.ckpt") for f in (whole, parts)))
    for name in ("model.safetensors", "ema.safetensors"):
        assert equal(load_file(whole / name), load_file(parts / name))
    tables = [results("metrics.csv", folder) for folder in (whole, parts)]
    scores = [[row["val_psnr"] for row in table if row["val_psnr"]] for table in tables]
    assert scores[0] == scores[1]


def test_a_dry_run_says_what_a_training_takes_and_writes_nothing(train, tmp_path):
    small = ("model=cassi_net", "model.widths=[4,4,4]", "model.stages=1", "data.crop=16")
    options = (*small, *TINY[3:], "data.steps_per_epoch=1000", "data.batch_size=2")
    outcome = train("--dry-run", *options, "trainer.max_steps=300000", "data.workers=0").ok()
    scenes, work, cost, parts, last = outcome.out.splitlines()
    assert "1 training scenes, 0.0" in scenes
    assert work == "300000 steps of 2 crops of 16×16, 300 epochs of 1000"
    assert "s on cpu (" in cost
    assert "GiB at its peak: " in cost
    assert str(tmp_path / "run") in last
    assert list(tmp_path.iterdir()) == []
    shares, advice = re.fullmatch(
        r"parts of a step: (.*); to speed up the first: (.*)", parts
    ).groups()
    names = re.findall(r"(\w+) (\d+) %", shares)
    assert {name for name, _ in names} == set(dry_run.ADVICE)
    assert names[0][0] == "start"
    assert "task.starts" in advice
    assert sum(int(share) for _, share in names) == pytest.approx(100, abs=4)
