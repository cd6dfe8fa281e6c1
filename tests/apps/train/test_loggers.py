"""What loggers keep, several at once: numbers, settings, and pictures of a validation scene."""

import numpy as np
import pytest

from cassi.training.loggers import taker_of

TINY = (
    *("model=gap_net", "model.stages=1", "data.crop=16", "data.validation.crop=16"),
    *("data.steps_per_epoch=1", "trainer.max_steps=2", "trainer.enable_progress_bar=false"),
    *("trainer.accelerator=cpu", "trainer.log_every_n_steps=1"),
)
NAMES = ("validation (estimate, truth)", "validation spectra")


def test_wandb_offline(train, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train(*TINY, "logger=[csv,wandb]", "logger.wandb.offline=true").ok()
    wandb.finish()
    runs = list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert len(runs) == 1
    assert list(runs[0].glob("run-*.wandb"))
    pictures = [file.name for file in (runs[0] / "files/media/images").glob("*.png")]
    assert len(pictures) == 4
    assert all(any(name.startswith(known) for name in pictures) for known in NAMES)
    assert (tmp_path / "run" / "metrics.csv").exists()
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_mlflow_in_files(train, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", exc_type=ImportError)
    pytest.importorskip("sqlparse")  # of its file store
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    train(*TINY, "logger=[csv,mlflow]").ok()
    store = tmp_path / "run" / "mlruns"
    assert list(store.rglob("metrics/val_psnr"))
    assert list(store.rglob("params/model*name"))
    assert len(list(store.rglob("artifacts/*/*.png"))) == 4


def test_how_each_kind_takes_a_picture():
    """The clients of TensorBoard and MLflow, and Lightning's logger of Weights & Biases."""
    seen = []

    class Service:
        def log_image(self, *given):
            seen.append(given)

    class Client:
        run_id = "7"
        experiment = Service()

    picture = np.zeros((2, 2, 3), np.uint8)
    taker_of(Service())("validation spectra", picture, 3)
    taker_of(Client())("validation (estimate, truth)", picture, 3)
    assert seen[0][0] == "validation spectra"
    assert seen[0][1][0] is picture
    assert seen[1] == ("7", picture, "validation_estimate_truth/00000003.png")
    assert taker_of(object()) is None


def test_a_library_that_is_missing_is_named(train, monkeypatch):
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", False)
    line = train(*TINY, "logger=wandb").refusal
    assert "wandb needs a library; install it with pip install 'cassi[wandb]'" in line
