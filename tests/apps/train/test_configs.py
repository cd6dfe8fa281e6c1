"""Every config of a training composes and builds."""

import math
from pathlib import Path

import pytest
import torch
from shared import every_network

from cassi.apps.arguments import spell
from cassi.apps.reconstructors import (
    build_network,
    compose_settings,
    model_node,
)
from cassi.apps.settings import Train
from cassi.apps.train import inputs
from cassi.apps.train import job as train
from cassi.config import build
from cassi.data.synthetic import spectra
from cassi.models.load import create_model

CONF = Path(__file__).resolve().parents[3] / "conf"
GROUPS = ("data", "optimizer", "scheduler", "loss", "task", "trainer", "logger", "callbacks")
OPTIONS = [
    (group, file.stem)
    for group in GROUPS
    for file in sorted((CONF / group).glob("*.yaml"))
    if not file.stem.startswith("_")
    # Data sets without a simulator are for cassi-evaluate alone.
    and (group != "data" or "_simulated" in file.read_text())
]
RECIPES = sorted(file.stem for file in (CONF / "recipe").glob("[!_]*.yaml"))


def cosine(epochs):
    """Half a cosine from 4e-4 to 1e-6, by the equation of torch's CosineAnnealingLR."""
    return lambda epoch: 1e-6 + (4e-4 - 1e-6) * (1 + math.cos(math.pi * epoch / epochs)) / 2


def powers(rate, gamma=0.5, every=50):
    return lambda epoch: rate * gamma ** (epoch // every)


# Batch, batches of an epoch, epochs, learning rate of an epoch; of the templates in MST's code.
PAPER = {
    **dict.fromkeys(("mst_s", "mst_m", "mst_l", "tsa_net"), (5, 1000, 300, powers(4e-4))),
    "lambda_net": (5, 1000, 300, powers(1.5e-4)),
    **dict.fromkeys(("gap_net", "admm_net"), (5, 1000, 300, powers(1e-3, 0.9, 30))),
    "dgsmp": (2, 2500, 300, powers(1e-4, 1)),
    **dict.fromkeys(("mst_plus_plus", "bisrnet"), (5, 1000, 300, cosine(300))),
    **{f"dauhst_{stages}stg": (5, 1000, 300, cosine(300)) for stages in (2, 3, 5, 9)},
    "cst_l_plus": (5, 1000, 500, cosine(500)),
}


def settings_of(*options):
    return compose_settings(["folder=here", *options], kind=Train)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Compose, and build every part that needs no data."""
    loaded = type("Loaded", (), {"data": MASK})
    monkeypatch.setattr(inputs, "load_mask", lambda *_, **__: loaded)
    monkeypatch.setattr(spectra, "_read_spectra", lambda *_: CUBE[0, :, 0].T)
    folder = f"data.root={tmp_path}", f"data.simulator.masks.mask={tmp_path / 'mask.pt'}"

    def compose_and_build(*options):
        more = folder if "data=folder" in options else ()
        settings = settings_of(*options, f"folder={tmp_path}", *more, "trainer.accelerator=cpu")
        data = settings.data
        wavelengths = inputs.data_wavelengths(data)
        for node in filter(None, (data.simulator, data.validation.simulator)):
            y, _ = inputs.build_simulator(node, wavelengths)(CUBE, torch.Generator())
            assert y.isfinite().all()
        if data.augment is not None:
            build(data.augment)
        optimizer = build(settings.optimizer, [torch.nn.Parameter(torch.zeros(1))])
        build(settings.scheduler, optimizer)
        assert build(settings.loss)(CUBE, CUBE).isfinite()
        if "model=gap_net" not in options:  # which has neither a prior nor a start of its own
            train.make_module(settings, create_model("cassi_net", stages=1), wavelengths)
        callbacks = inputs.build_callbacks(settings)
        loggers = inputs.build_loggers(settings, None, tmp_path)
        build(settings.trainer, callbacks=callbacks, logger=loggers)
        return settings

    return compose_and_build


CUBE = torch.rand(1, 28, 16, 16)
MASK = torch.rand(1, 1, 16, 16)


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_file_composes_and_builds(group, name, make):
    if group == "logger" and name in ("wandb", "mlflow"):  # extras
        pytest.importorskip(name, exc_type=ImportError)
    make(f"{group}={name}")


def test_test_scenes_are_no_training_data():
    with pytest.raises(ValueError, match="data=cave_test cannot train"):
        inputs.data_wavelengths(settings_of("data=cave_test").data)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_composes_and_builds(name, make):
    settings = make(f"recipe={name}")
    assert settings.data.manifest == "cave"


@pytest.mark.parametrize("name", PAPER)
def test_the_recipes_are_those_of_the_code_of_mst(name):
    batch_size, steps, epochs, rate = PAPER[name]
    settings = settings_of(f"recipe=paper/{name}")
    data = settings.data
    assert settings.model["name"] == name
    assert (data.name, data.batch_size, data.steps_per_epoch) == ("mst", batch_size, steps)
    assert (settings.trainer["max_steps"], data.crop) == (steps * epochs, 256)
    assert settings.loss == {"_target_": "cassi.training.RMSE", "batch": True}
    assert settings.optimizer["_target_"] == "torch.optim.Adam"
    assert settings.trainer["gradient_clip_val"] is None
    assert settings.task["preset"] == "torch-256"

    optimizer = build(settings.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    # An epoch of one step: the schedule is one of epochs.
    node = settings.scheduler
    schedule = build(node | {"steps": 1} if "steps" in node else node, optimizer)
    rates = []
    for _ in range(epochs):
        rates += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([rate(epoch) for epoch in range(epochs)], rel=1e-9)


def test_every_recipe_of_mst_is_tested():
    files = (CONF / "recipe" / "paper").glob("[!_]*.yaml")
    assert {file.stem for file in files} == set(PAPER)


def test_what_is_given_on_the_command_line_wins_over_the_recipe():
    settings = settings_of("recipe=dernn", "trainer.max_steps=7000", "model=gap_net")
    assert (settings.trainer["max_steps"], settings.model["name"]) == (7000, "gap_net")


@every_network
def test_every_network_is_an_option(name):
    settings = settings_of(f"model={name}")
    settings = {key: 1 if v == "???" else v for key, v in settings.model.items()}
    assert settings.keys() == model_node(name).keys()
    with torch.device("meta"):
        network, card = build_network(settings, 28)
    assert (network.bands, card.name) == (28, name)


def test_a_path_is_an_option_of_the_group():
    arguments = ["model=a b/it's.safetensors", "model=gap_net", "-m", "x=y.safetensors"]
    rewritten = spell(arguments)
    assert rewritten[2:] == arguments[1:]
    assert settings_of(*rewritten[:2]).model == {"path": "a b/it's.safetensors"}


def test_a_training_needs_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if "tens" in name else name)
    with pytest.raises(ValueError, match=r"needs tensorboard; .* pip install cassi\[train\]"):
        train.train(settings_of(), None)


@pytest.mark.parametrize(
    ("options", "bits", "read"),
    [
        (["+noise@data.simulator.noise=sensor"], 12, 2.5),
        (["noise=shot"], 11, 0.0),
        (["camera=camera.yaml"], 12, 7.0),
        (["camera=camera.yaml", "noise=shot"], 11, 0.0),
        (["camera=camera.yaml", "noise.bits=10"], 10, 7.0),
    ],
)
def test_noise_of_the_simulated_frames(options, bits, read, tmp_path, monkeypatch):
    """The command line wins over the file of a camera, which wins over none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "camera.yaml").write_text("mask: bundled:mask.tif\nnoise: {read: 7.0}\n")
    noise = settings_of(*options).data.simulator["noise"]
    assert (noise["bits"], noise["read"]) == (bits, read)


def test_no_noise():
    assert settings_of("noise=null").data.simulator["noise"] is None
