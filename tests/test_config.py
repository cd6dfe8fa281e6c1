"""Every config file composes and builds; every experiment runs one small step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from cassi.config import build

CONF = Path(__file__).resolve().parents[1] / "conf"
GROUPS = sorted(
    entry.name for entry in CONF.iterdir() if entry.is_dir() and entry.name not in ("hydra",)
    if not entry.name.startswith("_")
)  # fmt: skip
OPTIONS = [(group, file.stem) for group in GROUPS for file in sorted((CONF / group).glob("*.yaml"))]
# Files whose names begin with an underscore are parts of others.
EXPERIMENTS = [n for group, n in OPTIONS if group == "experiment" and not n.startswith("_")]


@pytest.fixture(autouse=True)
def config_module():
    with initialize_config_module("cassi.conf", version_base="1.3"):
        yield


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_file_composes_and_builds(group, name):
    config = compose("reconstruct", overrides=[f"{group}={name}"])
    build(config.solver, prior=build(config.prior))
    mask = torch.ones(4, 5)
    system = build(config.system, mask=mask, bands=3)
    assert system.cube_shape == (3, 4, 5)


def test_every_file_is_reached():
    reached = {CONF / group / f"{name}.yaml" for group, name in OPTIONS}
    reached |= set((CONF / "hydra").rglob("*.yaml")) | {CONF / "reconstruct.yaml"}
    assert set(CONF.rglob("*.yaml")) == reached


@pytest.mark.parametrize("name", [name for group, name in OPTIONS if group == "prior"])
@pytest.mark.parametrize("solver", [name for group, name in OPTIONS if group == "solver"])
def test_every_solver_runs_with_every_prior(solver, name):
    config = compose("reconstruct", overrides=[f"solver={solver}", f"prior={name}"])
    solver = build(config.solver, prior=build(config.prior), iterations=2)
    system = build(config.system, mask=torch.rand(6, 7) + 0.1, bands=3)
    y = system(torch.rand(1, 3, 6, 7))
    x = solver(y, system)
    assert x.shape == (1, 3, 6, 7)
    assert x.isfinite().all()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_a_step_on_its_data(name, data_dir, tmp_path):
    from cassi.apps.inputs import load_inputs

    overrides = [f"experiment={name}", f"paths.data_dir={data_dir}", "solver.iterations=1"]
    config = compose("reconstruct", overrides=overrides)
    inputs = load_inputs(config, torch.device("cpu"))
    assert inputs.wavelengths is not None
    assert len(inputs.wavelengths) == inputs.system.cube_shape[0]
    solution = build(config.solver, prior=build(config.prior)).run(
        inputs.measurement, inputs.system
    )
    assert solution.x.isfinite().all()
    assert solution.history[0].residual < 0.5


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_do_not_hide_later_overrides(name):
    config = compose("reconstruct", overrides=[f"experiment={name}", "system.step=3", "scene=x"])
    assert config.system.step == 3
    assert config.scene == "x"


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"a": 1}, "_target_"),
        ({"_target_": "subprocess.run"}, "not allowed"),
        ({"_target_": "cassi_evil.thing"}, "not allowed"),
        ({"_target_": "cassi.config.build"}, "not allowed"),
        ({"_target_": "cassi.apps.outputs.write_table", "path": "x", "rows": []}, "not allowed"),
        ({"_target_": "cassi.systems.dot_test"}, "not a class"),
        ({"_target_": "cassi.solvers.Solver.run"}, "not a class"),
        ({"_target_": "cassi.solvers.loop.time.sleep"}, "not a class"),
        ({"_target_": "torch.nn.modules.module.register_module_forward_hook"}, "not a class"),
        ({"_target_": "cassi.solvers.Constant", "value": {"_target_": "os.getcwd"}}, "not allowed"),
        (
            {"_target_": "cassi.solvers.Constant", "value": [{"_target_": "os.getcwd"}]},
            "not allowed",
        ),
        ({"_target_": "cassi.solvers.Constan"}, "does not exist"),
        ({"_target_": "cassi.priors.TV", "weight": -1}, "weight"),
        ({"_target_": "cassi.priors.TV", "wait": 1}, "wait"),
        ({"_target_": 3}, "not allowed"),
    ],
)
def test_build_refuses(node, said):
    with pytest.raises(ValueError, match=said):
        build(OmegaConf.create(node))


def test_build_takes_objects_and_inner_nodes():
    node = OmegaConf.create(
        {
            "_target_": "cassi.solvers.Solver",
            "sigma": {"_target_": "cassi.solvers.Constant", "value": 0.5},
        }
    )
    prior = build({"_target_": "cassi.priors.TV"})
    solver = build(node, prior=prior, iterations=7)
    assert solver.prior is prior
    assert solver.iterations == 7
    assert solver.sigma(0, 1) == 0.5
