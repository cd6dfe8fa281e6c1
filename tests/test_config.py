"""Every config file composes and builds; every method and data set runs one small step."""

import hashlib
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hydra import compose
from omegaconf import OmegaConf

from cassi.apps.camera.file import load_camera
from cassi.apps.camera.system import build_camera
from cassi.apps.inputs import load_snapshot
from cassi.apps.reconstructors import build_method, build_solver, compose_settings, config_search
from cassi.apps.settings import Evaluate
from cassi.config import build
from cassi.solvers import Constant, Geometric

CONF = Path(__file__).resolve().parents[1] / "conf"
# tests/apps/train/test_configs.py covers these.
TRAINING = {
    "data",
    "recipe",
    "optimizer",
    "scheduler",
    "loss",
    "task",
    "trainer",
    "logger",
    "callbacks",
}
# tests/apps/evaluate/test_configs.py and tests/apps/test_inputs.py cover these.
EVALUATION = {"benchmark", "figure", "noise", "twin"}
GROUPS = sorted(
    entry.name for entry in CONF.iterdir() if entry.is_dir() and entry.name[0] != "_"
    if entry.name not in TRAINING | EVALUATION | {"camera", "hydra"}
)  # fmt: skip
OPTIONS = [(group, file.stem) for group in GROUPS for file in sorted((CONF / group).glob("*.yaml"))]
PLACES = {"schedule": "schedule@solver.sigma", "dispersion": "dispersion@system.offsets"}
EXPERIMENTS = [name for group, name in OPTIONS if group == "experiment"]
METHODS = [name for group, name in OPTIONS if group == "method"]
CAMERAS = sorted(file.stem for file in (CONF / "camera").glob("*.yaml"))


@pytest.fixture(scope="session")
def networks(tmp_path_factory):
    """Options that give a config the files that its prior asks for: untrained networks."""
    folder = tmp_path_factory.mktemp("networks")

    def complete(name):
        with config_search():
            node = compose("reconstruct", overrides=[f"prior={name}"]).prior
            missing = {key.rpartition(".")[2] for key in OmegaConf.missing_keys(node)}
        if "network" in missing:
            file = folder / "network.pt"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                torch.jit.save(torch.jit.script(Blur()), file)
            return [f"prior.network={file}", "prior.weights=null"]
        if "weights" in missing:
            network = OmegaConf.to_container(node.network)
            file = folder / f"{hashlib.sha256(repr(network).encode()).hexdigest()[:16]}.pth"
            if not file.exists():
                torch.save(build(network).state_dict(), file)
            return [f"prior.weights={file}"]
        return []

    return complete


@cache
def settings_of(*options):
    """Compose a config, once for all tests; nobody changes it."""
    return compose_settings(options)


def build_short(settings):
    """Build the method of settings for two iterations."""
    return build_method(replace(settings, solver=settings.solver | {"iterations": 2}))


class Blur(torch.nn.Module):
    def forward(self, x, sigma):
        return torch.nn.functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_file_composes_and_builds(group, name, networks):
    place = PLACES.get(group, group)
    more = networks(name) if group == "prior" else []
    more = ["solver=admm"] if group == "schedule" else more
    settings = settings_of(f"{place}={name}", *more)
    build_method(settings)
    system = build_camera(settings.system, torch.ones(4, 5), 3, (500.0, 550.0, 600.0))
    assert system.cube_shape == (3, 4, 5)


@pytest.mark.parametrize("name", CAMERAS)
def test_every_camera_is_one_of_every_command(name):
    given = [f"camera={name}", "paths.data_dir=here"]
    settings, evaluation = settings_of(*given), compose_settings(given, kind=Evaluate)
    assert settings.camera == name
    assert settings.mask == evaluation.mask is not None
    assert settings.system["step"] == evaluation.system["step"]
    if isinstance(settings.mask, str):
        assert settings.mask == f"here/{load_camera(name)['mask']}"
        nm = tuple(OmegaConf.load(CONF / "data" / "_28_bands.yaml").wavelengths)
        assert settings.given_wavelengths == evaluation.data.given_wavelengths
        assert name == "smem" or settings.given_wavelengths == nm


def test_every_file_is_reached():
    reached = {CONF / group / f"{name}.yaml" for group, name in OPTIONS}
    reached |= set((CONF / "hydra").rglob("*.yaml"))
    commands = ("calibrate", "camera", "export", "reconstruct", "train", "evaluate")
    reached |= {CONF / f"{name}.yaml" for name in commands}
    reached |= {file for group in TRAINING | EVALUATION for file in (CONF / group).glob("*.yaml")}
    reached |= set((CONF / "recipe").rglob("*.yaml"))  # tests/apps/train has them
    reached |= {CONF / "camera" / f"{name}.yaml" for name in CAMERAS}
    assert set(CONF.rglob("*.yaml")) == reached


PRIORS = [name for group, name in OPTIONS if group == "prior" and not name.startswith("_")]
SOLVERS = [name for group, name in OPTIONS if group == "solver" and not name.startswith("_")]
# Every solver and every prior, and of their pairs those that a stride through the table meets.
PAIRS = sorted({(SOLVERS[i % len(SOLVERS)], PRIORS[i % len(PRIORS)]) for i in range(24)})


@pytest.mark.parametrize(("solver", "prior"), PAIRS)
def test_solvers_run_with_priors(solver, prior, networks):
    settings = settings_of(f"solver={solver}", f"prior={prior}", *networks(prior))
    solver = build_short(settings)
    system = build(settings.system, mask=torch.rand(6, 7) + 0.1, bands=3)
    x = solver(system(torch.rand(1, 3, 6, 7)), system)
    assert x.shape == (1, 3, 6, 7)
    assert x.isfinite().all()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_a_step_on_its_data(name, data_dir):
    options = [f"experiment={name}", f"paths.data_dir={data_dir}", "solver.iterations=1"]
    settings = settings_of(*options)
    snapshot = load_snapshot(settings, torch.device("cpu"))
    if settings.system["step"] != 0:  # frames of a video have no wavelengths
        assert len(snapshot.camera.wavelengths) == snapshot.camera.system.cube_shape[0]
    solution = build_method(settings).run(snapshot.y, snapshot.camera.system)
    assert solution.x.isfinite().all()
    assert solution.history[0].residual < 0.6


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_on_a_small_scene(name):
    settings = settings_of(f"method={name}")
    if "steps" in (settings.prior or {}):
        settings = replace(settings, prior=settings.prior | {"steps": 1})
    solver = build_short(settings)
    system = build(settings.system, mask=torch.rand(6, 7) + 0.1, bands=3)
    solution = solver.run(system(torch.rand(1, 3, 6, 7)), system, objective=True)
    assert solution.x.isfinite().all()


def test_auto_is_the_default():
    default, named = settings_of(), settings_of("method=auto")
    assert (named.solver, named.prior) == (default.solver, default.prior)


@pytest.mark.parametrize("schedule", ["0.3", "{_target_: cassi.solvers.Constant, value: 0.3}"])
def test_rho_is_a_number_or_a_schedule(schedule):
    solver = build_solver(settings_of("solver=admm", f"solver.rho={schedule}"))
    assert solver.rho in (0.3, Constant(0.3))
    solver = build_solver(
        settings_of("solver=admm", "schedule@solver.rho=geometric", "solver.rho.start=0.1")
    )
    assert solver.rho == Geometric(0.1, 0.1)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"a": 1}, "_target_"),
        ({"_target_": "subprocess.run"}, "not allowed"),
        ({"_target_": "cassi_evil.thing"}, "not allowed"),
        ({"_target_": "cassi.config.build"}, "not allowed"),
        ({"_target_": "cassi.apps.results.write_table", "path": "x", "rows": []}, "not allowed"),
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


def test_build_names_what_has_no_value():
    settings = settings_of("prior=drunet")
    with pytest.raises(ValueError, match=r"prior\.weights has no value; give it one"):
        build_solver(settings)
    with pytest.raises(OSError, match=r"weights: no file nowhere\.pth"):
        build(settings.prior | {"weights": "nowhere.pth"})


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
