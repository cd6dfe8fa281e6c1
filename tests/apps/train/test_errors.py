"""Bad input to cassi-train: one clear line, exit status 2."""

import numpy as np
import pytest

from cassi.apps.train import inputs

TINY = (
    *("model=gap_net", "model.stages=1", "data.crop=16", "data.validation.crop=16"),
    *("trainer.max_steps=1", "trainer.enable_progress_bar=false", "trainer.accelerator=cpu"),
)


@pytest.fixture
def refused(train, tmp_path):
    """Return the one line of the error."""

    def run(*overrides):
        line = train(*TINY, *overrides).refusal
        assert not (tmp_path / "run" / "model.safetensors").exists()
        return line

    return run


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.wavelengths=[400,500]"], "cover the wanted 400-500 nm"),
        (["data.wavelengths=null"], "data.wavelengths"),
        (["data.batch_size=0"], "data.batch_size"),
        (["data.workers=-1"], "data.workers"),
        (["data.steps_per_epoch=0"], "data.steps_per_epoch"),
        (["data.simulator.step=[]"], "step"),
        (["data.simulator.masks.mask=none.mat"], "none.mat"),
        (
            ["data.simulator.masks._target_=cassi.data.simulation.FixedMask"],
            "take MaskCrops with data.sim",
        ),
        (["data.step_per_epoch=3"], "data.steps_per_epoch"),
        (["data=folder"], "data.root"),
        (["data.simulator.masks.mask=[random,none.mat]"], "none.mat"),
        (["data=cave", "paths.data_dir=nowhere"], "no folder nowhere; give data.root=DIR"),
        (["data=cave", "paths.data_dir=nowhere"], "of MST give data=mst data.root=DIR"),
        (["model.stages=0"], "stages"),
        (["model.stage=2"], "model.stages"),
        (["model.weights=none.pth"], "no file none.pth"),
        (["loss=multi"], "did you mean multi_stage"),
        (["optimizer.lr=fast"], "got lr=fast"),
        (["scheduler.warmup=9"], "0 <= warmup < steps"),
        (["trainer.max_steps=-1"], "set trainer.max_steps"),
        (["trainer.precision=3"], "Precision 3"),
        (["trainer.accumulate_grad_batches=3"], "data.steps_per_epoch: expected a multiple of"),
        (["callbacks.last._target_=os.system"], "not allowed"),
        (["callbacks.last.every_n_train_steps=3"], "callbacks.last.every_minutes=null"),
        (["model=xyz"], "tsa_net; one of your own needs plugins=FILE.py"),
        (["model=dauhst_2st"], "did you mean dauhst_2stg or dauhst_9stg or dauhst_5stg?"),
        (["logger.csv._target_=lightning.pytorch.loggers.CometLogger"], "not allowed"),
        (
            ["+logger.x={_target_: cassi.priors.Denoiser, network: a.pt}"],
            "config nodes without cassi.priors",
        ),
        (["ckpt=none.ckpt"], "no file none.ckpt"),
        (["experiment=paper/mst_s"], "it is recipe=paper/mst_s now"),
        (["recipe=paper/mst"], "did you mean paper/mst_s"),
        (["crop=64"], "did you mean data.crop"),
        (["lr=1e-3"], "did you mean optimizer.lr"),
    ],
)
def test_wrong_values(refused, overrides, said):
    assert said in refused(*overrides)


@pytest.mark.parametrize("option", ["data.crop=30", "data.validation.crop=30"])
def test_a_crop_that_the_mask_does_not_fit_is_refused_before_scenes_are_read(
    refused, monkeypatch, option
):
    def read(*_):
        raise AssertionError("scenes are read")

    monkeypatch.setattr(inputs, "load_scenes", read)
    whole = "data.simulator.masks._target_=cassi.data.simulation.FixedMask"
    assert "(30, 30); take MaskCrops with data.sim" in refused("data.crop=256", whole, option)


def test_options_of_a_stranger(refused, tmp_path):
    option = "--experimental-rerun=last.ckpt"
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "options.yaml").write_text(f"- {option}\n")
    line = refused("ckpt=last", f"hydra.run.dir={tmp_path / 'run'}")
    assert f"{option!r} is none" in line


def test_a_checkpoint_of_another_network(train, refused, tmp_path):
    train(*TINY, "hydra.run.dir=first").ok()
    line = refused("model.stages=2", f"ckpt={tmp_path / 'first' / 'checkpoints' / 'last.ckpt'}")
    assert "last.ckpt is not of this GAPNet: " in line


def test_what_is_no_checkpoint(refused, tmp_path):
    (tmp_path / "a.ckpt").write_text("words")
    assert "is no checkpoint of cassi-train" in refused("ckpt=a.ckpt")
    (tmp_path / "a.ckpt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\n")
    assert "a.ckpt: expected the file, got a pointer of Git LFS" in refused("ckpt=a.ckpt")


@pytest.mark.parametrize(
    ("train_name", "validation_name", "broken", "said"),
    [
        ("a", "b", "train", "a.npz"),
        ("a", "b", "validation", "b.npz"),
        ("apples", "apples", None, "apples"),  # a validation scene in the training data
    ],
)
def test_scenes_that_teach_nothing(refused, tmp_path, train_name, validation_name, broken, said):
    for split, name in (("train", train_name), ("validation", validation_name)):
        (tmp_path / split).mkdir()
        seed = 0 if broken is None else len(split)
        cube = np.random.default_rng(seed).random((3, 20, 20)).astype(np.float32)
        cube[1, 2, 3] = np.nan if split == broken else cube[1, 2, 3]
        np.savez(tmp_path / split / f"{name}.npz", img=cube)
    line = refused(
        "data=folder", f"data.root={tmp_path}", "data.wavelengths=[500,550,600]",
        "data.simulator.masks.mask=null",
    )  # fmt: skip
    assert said in line
    assert ("NaN" in line) == (broken is not None)
