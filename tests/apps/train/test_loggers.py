"""What loggers keep, several at once: numbers, settings, and pictures of a validation scene."""

import pytest

TINY = (
    *("model=gap_net", "model.stages=1", "data.crop=16", "data.validation.crop=16"),
    *("data.steps_per_epoch=1", "trainer.max_steps=2", "trainer.enable_progress_bar=false"),
    *("trainer.accelerator=cpu", "trainer.log_every_n_steps=1"),
)
NAMES = ("validation (estimate, truth)", "validation spectra")


def test_wandb_offline(train, tmp_path, monkeypatch):
    """Each sitting is a folder of its own, which `wandb sync` sends to the run of their name."""
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
    begun, init = [], wandb.init
    monkeypatch.setattr(wandb, "init", lambda **given: begun.append(given) or init(**given))
    resumed = ("ckpt=last", "trainer.max_steps=3", f"hydra.run.dir={tmp_path / 'run'}")
    train(*resumed, "logger=[csv,wandb]", "logger.wandb.offline=true").ok()
    wandb.finish()
    (name,) = {f.name.rpartition("-")[2] for f in (tmp_path / "run/wandb").glob("offline-run-*")}
    assert [(given["id"], given["resume"]) for given in begun] == [(name, "allow")]


def test_what_a_service_refuses_is_one_line(train, monkeypatch):
    wandb = pytest.importorskip("wandb")

    def refuse(**_):
        raise wandb.errors.UsageError("no API key\nconfigured")

    monkeypatch.setattr(wandb, "init", refuse)
    assert train(*TINY, "logger=wandb").refusal.endswith("WandbLogger: no API key configured")


def test_mlflow_without_a_server(train, tmp_path, monkeypatch):
    """A resumed training goes on in the same run."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    train(*TINY, "logger=[csv,mlflow]").ok()
    folder = tmp_path / "run"
    resumed = ("ckpt=last", f"hydra.run.dir={folder}", "logger=[csv,mlflow]")
    train(*resumed, "trainer.max_steps=3").ok()
    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlruns/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'cassi'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["model/name"] == "gap_net"
    scores = client.get_metric_history(run.info.run_id, "val_psnr")
    assert len({score.step for score in scores}) == len(scores) == 3
    assert len(list((folder / "mlruns").rglob("artifacts/*/*.png"))) == 6
    assert {file.name for file in tmp_path.iterdir()} == {"run"}
    line = train(*TINY, "logger=mlflow", "logger.mlflow.tracking_uri=file:x", "hydra.run.dir=b")
    assert "logger: mlflow: The filesystem tracking backend" in line.refusal


def test_a_library_that_is_missing_is_named(train, monkeypatch):
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", False)
    line = train(*TINY, "logger=wandb").refusal
    assert "wandb needs a library; install it with pip install 'cassi[wandb]'" in line
