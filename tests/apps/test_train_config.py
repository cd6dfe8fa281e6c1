"""Every config of a training composes and builds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cassi.apps.networks import build_model, model_node, rewrite_model_path, store_models
from hydra import compose, initialize_config_module

from cassi.apps import train, training_inputs
from cassi.config import build
from cassi.models.load import create_model
from cassi.models.registry import list_models

CONF = Path(__file__).resolve().parents[2] / "conf"
GROUPS = ("data", "optimizer", "scheduler", "loss", "task", "trainer", "logger", "callbacks")
OPTIONS = [
    (group, file.stem)
    for group in GROUPS
    for file in sorted((CONF / group).glob("*.yaml"))
    if not file.stem.startswith("_")
    # Data sets without a simulator are for cassi-evaluate alone.
    and (group != "data" or "_simulated" in file.read_text())
]
RECIPES = sorted(file.stem for file in (CONF / "experiment").glob("train_*.yaml"))


@pytest.fixture(autouse=True)
def config_module():
    store_models()
    with initialize_config_module("cassi.conf", version_base="1.3"):
        yield


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Compose, and build every part that needs no data."""
    mask = tmp_path / "mask.pt"
    monkeypatch.setattr(
        training_inputs, "load_mask", lambda *_, **__: type("Loaded", (), {"data": MASK})
    )

    def compose_and_build(*overrides):
        config = compose("train", overrides=[*overrides, f"folder={tmp_path}"])
        if "data=folder" in overrides:
            config.data.root = str(tmp_path)
            config.data.simulator.masks.mask = str(mask)
        wavelengths = training_inputs.data_wavelengths(config)
        bands = len(wavelengths)
        judge = config.data.validation.simulator
        for node in filter(None, (config.data.simulator, judge)):
            y, _ = training_inputs.build_simulator(node, bands)(CUBE, torch.Generator())
            assert y.isfinite().all()
        build(config.data.augment)
        optimizer = build(config.optimizer, [torch.nn.Parameter(torch.zeros(1))])
        build(config.scheduler, optimizer)
        assert build(config.loss)(CUBE, CUBE).isfinite()
        if "model=gap_net" not in overrides:  # which has neither a prior nor a start of its own
            train.make_module(config, create_model("cassi_net", stages=1), wavelengths)
        callbacks = training_inputs.build_callbacks(config)
        loggers = training_inputs.build_loggers(config, None)
        config.trainer.accelerator = "cpu"
        build(config.trainer, callbacks=callbacks, logger=loggers)
        return config

    return compose_and_build


CUBE = torch.rand(1, 28, 16, 16)
MASK = torch.rand(1, 1, 16, 16)


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_file_composes_and_builds(group, name, make):
    make(f"{group}={name}")


def test_test_scenes_are_no_training_data():
    config = compose("train", overrides=["data=cave_test"])
    with pytest.raises(ValueError, match="data=cave_test cannot train"):
        training_inputs.data_wavelengths(config)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_composes_and_builds(name, make):
    config = make(f"experiment={name}")
    assert config.data.manifest == "cave"
    # What is given on the command line wins over the recipe.
    config = make(f"experiment={name}", "trainer.max_steps=7000", "model=gap_net")
    assert (config.trainer.max_steps, config.model.name) == (7000, "gap_net")


@pytest.mark.parametrize("name", list_models())
def test_every_network_is_an_option(name):
    config = compose("train", overrides=[f"model={name}"])
    assert config.model == model_node(name)
    config.model = {key: 1 if v == "???" else v for key, v in model_node(name).items()}
    with torch.device("meta"):
        network, card = build_model(config.model, 28)
    assert (network.bands, card.name) == (28, name)


def test_settings_of_a_network_are_values():
    config = compose("train", overrides=["model=dauhst_2stg", "model.stages=1"])
    network, card = build_model(config.model, 5)
    assert (network.stages, network.bands) == (1, 5)
    assert card.settings["size"] == (256, 320)


def test_a_path_is_an_option_of_the_group():
    arguments = ["model=a b/it's.safetensors", "model=gap_net", "-m", "x=y.safetensors"]
    rewritten = rewrite_model_path(arguments)
    assert rewritten[2:] == arguments[1:]
    config = compose("train", overrides=rewritten[:2])
    assert config.model == {"path": "a b/it's.safetensors"}
