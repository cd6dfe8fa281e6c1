"""Every config of an evaluation composes; every data set and reconstructor builds."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from cassi.apps.evaluate.problems import find_bands, find_cases, load_benchmark, preparation
from cassi.apps.evaluate.rows import make_recipes, read_reconstructors
from cassi.apps.reconstructors import compose_settings, list_methods
from cassi.apps.settings import Evaluate
from cassi.config import build
from cassi.evaluation import Twin

CONF = Path(__file__).resolve().parents[3] / "conf"
DATA = sorted(f.stem for f in (CONF / "data").glob("*.yaml") if not f.stem.startswith("_"))
TWINS = sorted(file.stem for file in (CONF / "twin").glob("*.yaml"))
BENCHMARKS = sorted(file.stem for file in (CONF / "benchmark").glob("*.yaml"))
CPU = torch.device("cpu")
# Not among our data: a folder that tells, and what is said without it.
ABSENT = {
    "kaist": ("kaist", r"no cubes at .*kaist nor at .*Truth"),
    "mst": ("TSA_simu_data", r"no cubes at .*Truth"),
    "mst_real": ("TSA_real_data", r"no measurements at .*Measurements"),
}


def settings_of(*options):
    return compose_settings(options, kind=Evaluate)


@pytest.mark.parametrize("name", DATA)
def test_every_data_set_is_found_or_said_to_be_missing(name, data_dir):
    options = [f"data={name}", f"paths.data_dir={data_dir}"]
    if name == "folder":
        with pytest.raises(ValueError, match=r"give data\.root=DIR"):
            settings_of(*options)
        options += [f"data.root={data_dir / 'cave_test'}", f"mask={data_dir / 'tsa/mask.mat'}"]
    settings = settings_of(*options)
    folder, said = ABSENT.get(name, ("", ""))
    if not (data_dir / folder).exists():
        with pytest.raises(FileNotFoundError, match=said):
            load_benchmark(settings)
        return
    benchmark = load_benchmark(settings)
    item = benchmark.load(benchmark.scenes[0])
    prepare = preparation({"": settings}, benchmark, CPU)
    assert find_bands(prepare, "", benchmark.scenes) == 28
    assert (item.truth is None) == (name in ("kaist_snapshot", "tsa_real", "mst_real"))
    assert item.mask.shape[0] == 1
    assert len(item.wavelengths) == 28


@pytest.mark.parametrize("name", sorted({*DATA} - {"bundled", "folder"}))  # which lie elsewhere
def test_every_missing_folder_is_a_line(name, tmp_path):
    settings = settings_of(f"data={name}", f"paths.data_dir={tmp_path / 'none'}")
    with pytest.raises(FileNotFoundError, match=r"set paths\.data_dir=DIR"):
        load_benchmark(settings)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_makes_its_reconstructors_and_cases(name):
    settings = settings_of(f"benchmark={name}")
    assert make_recipes(read_reconstructors(settings), 28, CPU)[0]
    protocol = settings.benchmark
    if protocol is None:
        return
    assert protocol.name == name
    points = find_cases(settings)
    assert len(points) == len(protocol.cases)
    assert all(here.noise is None or build(here.noise) for here in points.values())
    assert all(here.mask is None or build(here.mask) for here in points.values())
    assert bool(protocol.source) == bool(protocol.published)
    if protocol.source:
        assert {row["case"] for row in protocol.published} == {*protocol.cases}
    assert all({*row} <= {"case", "method", "I", "II", "III", "IV"} for row in protocol.published)


@pytest.mark.parametrize("name", TWINS)
def test_every_twin_takes_a_frame(name):
    settings = settings_of(f"twin={name}", "data.evaluation.crop=32")
    benchmark = load_benchmark(settings)
    problem = preparation({"": settings}, benchmark, CPU)("", benchmark.scenes[0])
    assert problem.true is not None
    assert problem.y.isfinite().all()
    assert set(asdict(settings.twin)) == set(OmegaConf.load(CONF / "twin/none.yaml"))
    changed = settings.twin != Twin()
    assert changed == (name != "none")


def test_methods_are_those_of_the_group():
    names = list_methods()
    assert {"gap_tv", "admm_tv", "auto", "twist", "desci", "pnp_gap"} <= set(names)
    assert not {"cave_test", "tsa_real", "train_mst", "_28_bands"} & set(names)


def make(*reconstructors, options=(), bands=5):
    settings = replace(settings_of(*options), reconstructors=list(reconstructors))
    recipes, identities = make_recipes(read_reconstructors(settings), bands, CPU)
    return {name: recipe.make(bands)[0] for name, recipe in recipes.items()}, identities


def test_reconstructors_mix():
    made, identities = make(
        "gap_tv",
        {"name": "short", "method": "gap_tv", "overrides": ["solver.iterations=3"]},
        {"name": "same", "method": "gap_tv", "overrides": {"solver.iterations": 3}},
        {"model": "gap_net", "weights": "random", "overrides": {"model.stages": 1}},
    )
    assert list(made) == ["gap_tv", "short", "same", "gap_net"]
    assert made["short"].iterations == 3
    assert identities["short"] == identities["same"] != identities["gap_tv"]
    assert made["gap_tv"].network is None
    assert sum(p.numel() for p in made["gap_net"].network.parameters()) > 0


def test_random_weights_do_not_depend_on_the_others():
    spec = {"model": "gap_net", "weights": "random", "overrides": {"model.stages": 1}}
    alone = make(spec)[0]["gap_net"].network
    beside = make("gap_tv", {**spec, "name": "x"}, spec)[0]["gap_net"].network
    pairs = zip(alone.parameters(), beside.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_overrides_of_the_data_reach_methods():
    made, _ = make("auto", options=["data=tsa_real"], bands=28)
    assert made["auto"].noise == 0.1


@pytest.mark.parametrize(
    ("reconstructors", "said"),
    [
        (["gap_tw"], "did you mean gap_tv"),
        (["gap_tv", "gap_tv"], "two are called 'gap_tv'"),
        (["gap_net"], r"gap_net: expected weights, got none: write \{model: gap_net, "),
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
