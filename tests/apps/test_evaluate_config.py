"""Every config of an evaluation composes; every data set and reconstructor builds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from cassi.apps.evaluate import sweep_points
from cassi.apps.evaluate.data import load_benchmark
from cassi.apps.evaluate.methods import make_methods
from cassi.apps.evaluate.problems import find_bands, preparation
from cassi.apps.evaluate_names import list_experiments
from cassi.apps.reconstructors import store_models
from cassi.config import build
from cassi.evaluation import Mismatch

CONF = Path(__file__).resolve().parents[2] / "conf"
DATA = sorted(f.stem for f in (CONF / "data").glob("*.yaml") if not f.stem.startswith("_"))
SWEEPS = sorted(file.stem for file in (CONF / "sweep").glob("*.yaml"))
NOISES = sorted(file.stem for file in (CONF / "noise").glob("*.yaml"))
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def config_module():
    store_models()
    with initialize_config_module("cassi.conf", version_base="1.3"):
        yield


@pytest.mark.parametrize("name", DATA)
def test_every_data_set_is_found_or_said_to_be_missing(name, data_dir):
    config = compose("evaluate", overrides=[f"data={name}", f"paths.data_dir={data_dir}"])
    if name == "folder":
        with pytest.raises(ValueError, match=r"give data\.root=DIR"):
            load_benchmark(config)
        config.data.root, config.mask = str(data_dir / "cave_test"), str(data_dir / "tsa/mask.mat")
    if name == "kaist" and not (data_dir / "kaist").exists():
        with pytest.raises(FileNotFoundError, match=r"no cubes at .*kaist nor at .*Truth"):
            load_benchmark(config)
        return
    benchmark = load_benchmark(config)
    item = benchmark.load(benchmark.scenes[0])
    prepare = preparation({"": config}, benchmark, CPU)
    assert find_bands(prepare, "", benchmark.scenes) == 28
    assert (item.truth is None) == (name in ("kaist_snapshot", "tsa_real"))
    assert item.mask.shape[0] == 1
    assert item.wavelengths is not None
    assert len(item.wavelengths) == 28


@pytest.mark.parametrize("name", DATA)
def test_every_missing_folder_is_a_line(name, tmp_path):
    if name in ("bundled", "folder"):
        pytest.skip("lies elsewhere")
    config = compose("evaluate", overrides=[f"data={name}", f"paths.data_dir={tmp_path / 'none'}"])
    with pytest.raises(FileNotFoundError, match=r"set paths\.data_dir=DIR"):
        load_benchmark(config)


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_points(name):
    config = compose("evaluate", overrides=[f"sweep={name}"])
    points = sweep_points(config)
    assert len(points) == len(config.sweep["values"])
    for value, here in zip(config.sweep["values"], points.values(), strict=True):
        assert OmegaConf.select(here, config.sweep.parameter) == value
        Mismatch(**OmegaConf.to_container(here.mismatch))
        assert here.get("noise") is None or build(here.noise)


@pytest.mark.parametrize("name", NOISES)
def test_every_noise_builds(name):
    noise = build(compose("evaluate", overrides=[f"noise={name}"]).noise)
    y = torch.rand(1, 1, 8, 9)
    assert not torch.equal(noise(y, 3, torch.Generator()), y)


def test_methods_are_the_experiments_without_a_scene():
    names = list_experiments()
    assert {"gap_tv", "admm_tv", "auto", "twist", "desci", "dip", "pnp_gap"} <= set(names)
    assert not {"cave_test", "tsa_real", "train_mst", "_28_bands"} & set(names)


def make(*reconstructors, **more):
    config = compose("evaluate")
    config.reconstructors = list(reconstructors)
    for key, value in more.items():
        OmegaConf.update(config, key, value, force_add=True)
    return make_methods(config, 5, CPU)


def test_reconstructors_mix():
    methods = make(
        "gap_tv",
        {"name": "short", "method": "gap_tv", "overrides": ["solver.iterations=3"]},
        {"name": "same", "method": "gap_tv", "overrides": {"solver.iterations": 3}},
        {"model": "gap_net", "weights": "random", "overrides": {"model.stages": 1}},
    )
    assert list(methods) == ["gap_tv", "short", "same", "gap_net"]
    assert methods["short"].iterations == 3
    assert methods["short"].identity == methods["same"].identity
    assert methods["short"].identity != methods["gap_tv"].identity
    assert methods["gap_tv"].parameters is None
    assert methods["gap_net"].parameters > 0


def test_random_weights_do_not_depend_on_the_others():
    spec = {"model": "gap_net", "weights": "random", "overrides": {"model.stages": 1}}
    alone = make(spec)["gap_net"].network
    beside = make("gap_tv", {**spec, "name": "x"}, spec)["gap_net"].network
    pairs = zip(alone.parameters(), beside.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_overrides_of_the_data_reach_methods():
    config = compose("evaluate", overrides=["data=tsa_real", "reconstructors=[auto]"])
    method = make_methods(config, 28, CPU)["auto"]
    assert method.identity["solver"]["noise"] == 0.1


@pytest.mark.parametrize(
    ("reconstructors", "said"),
    [
        (["gap_tw"], "did you mean gap_tv"),
        (["gap_tv", "gap_tv"], "two are called 'gap_tv'"),
        (
            ["gap_net"],
            r"gap_net: expected weights, got none: write \{model: gap_net, ",
        ),
        (
            [{"method": "pnp_gap", "overrides": ["prior=drunet"]}],
            r"pnp_gap: config: .*weights has no value",
        ),
        ([{"method": "gap_tv", "wieghts": 1}], "no key 'wieghts'"),
        ([{"name": "x"}], "a mapping with method or model"),
        ([{"method": "gap_tv", "weights": "w"}], "expected with model only"),
        ([], "expected a list of names"),
        (["none.safetensors"], "no file none"),
    ],
)
def test_refusals(reconstructors, said):
    with pytest.raises((ValueError, OSError), match=said):
        make(*reconstructors)
