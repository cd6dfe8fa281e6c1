"""A reconstruction in several passes goes on after a stop."""

import pytest
import torch
from shared import damage_record

import cassi
from cassi.apps.reconstruct.journal import Passes
from cassi.apps.reconstructors import compose_settings, identity_of, recipe

METHOD = ("method=self_supervised", "solver.start=gap_tv", "solver.noise=0")
FEW = (*METHOD, "solver.passes=3", "solver.iterations=6", "output.pictures=false")


@pytest.fixture
def stopped(monkeypatch):
    """Stop a run when its second pass is finished."""
    write = Passes.write

    def stop(passes, name, done):
        write(passes, name, done)
        if done.passes == 2:
            raise KeyboardInterrupt

    def in_run(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(Passes, "write", stop)
            return in_run.reconstruct(*arguments)

    return in_run


def test_a_stopped_run_goes_on_at_the_next_pass(reconstruct, camera, stopped, results, tmp_path):
    given = (*camera.given("measurement", "mask", "truth"), *FEW)
    reconstruct(*given, "hydra.run.dir=straight").ok()
    straight = cassi.read_cube(tmp_path / "straight" / "cube.tif")
    stopped.reconstruct = reconstruct
    assert stopped(*given).status == 130
    hidden = tmp_path / "run" / ".passes"
    kept = {"results.sqlite", "start-0.npy", "pass-2.npy"}
    assert {file.name for file in hidden.iterdir()} == kept
    outcome = reconstruct(*given).ok()
    assert "passes: 2 finished already" in outcome.out
    assert not hidden.exists()
    assert torch.equal(cassi.read_cube(tmp_path / "run" / "cube.tif"), straight)
    rows, expected = results("convergence.csv"), results("convergence.csv", "straight")
    assert [row["psnr"] for row in rows] == [row["psnr"] for row in expected]
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert results()["iterations"] == 6


@pytest.mark.filterwarnings("ignore:.* it is damaged")
@pytest.mark.parametrize("damage", ["cube", "record", "config", "measurement"])
def test_what_is_damaged_or_of_another_run_is_computed_again(
    reconstruct, camera, stopped, tmp_path, damage
):
    given = (*camera.given(), *FEW)
    stopped.reconstruct = reconstruct
    assert stopped(*given).status == 130
    hidden = tmp_path / "run" / ".passes"
    if damage == "cube":
        with (hidden / "pass-2.npy").open("r+b") as file:
            file.seek(-40, 2)
            file.write(b"damage")
    elif damage == "record":
        damage_record(hidden, "pass", '"passes": 2', '"passes": 1')
    elif damage == "config":
        given = (*given, "solver.blend=0.4")
    else:
        cassi.write_cube(tmp_path / "other.npy", 2 * camera.system(camera.cube))
        given = (*given, f"measurement={tmp_path / 'other.npy'}")
    outcome = reconstruct(*given).ok()
    assert "finished already" not in outcome.out


def test_a_network_is_the_start_of_a_solver_that_has_one(reconstruct, camera, results):
    network = ("model=gap_net", "model.weights=random", "model.stages=1")
    few = ("solver.passes=2", "solver.iterations=2", "output.pictures=false")
    given = (*camera.given(), *METHOD, *few, *network)
    reconstruct(*given, "solver.start=auto").ok()
    assert results()["iterations"] == 2
    refusal = reconstruct(*given).refusal
    assert "solver.start: expected auto beside model=…, whose cube is the first one" in refusal


def test_adapt_puts_a_network_before_passes(reconstruct, camera, monkeypatch, tmp_path):
    passes = (*METHOD, "solver.passes=2", "solver.iterations=2", "solver.start=auto")
    monkeypatch.setattr(recipe, "ADAPT_OPTIONS", passes)
    network = ("model=gap_net", "model.weights=random", "model.stages=1", "output.pictures=false")
    given = (*camera.given(), *network)
    reconstruct(*given, "solver.noise=0", "adapt=true").ok()
    reconstruct(*given, *passes, "hydra.run.dir=passes").ok()
    cubes = [cassi.read_cube(tmp_path / name / "cube.tif") for name in ("run", "passes")]
    assert torch.equal(*cubes)


def test_adapt_is_as_its_experiment_and_for_networks_only(reconstruct, camera):
    adapt = compose_settings(["model=pretrained", "adapt=true"])
    spelled = compose_settings(["model=pretrained", *recipe.ADAPT_OPTIONS])
    alone = compose_settings(["model=pretrained"])
    cpu = torch.device("cpu")
    identities = [identity_of(each, 28, cpu) for each in (adapt, spelled, alone)]
    assert identities[0] == identities[1] != identities[2]
    outcome = reconstruct(*camera.given(), "adapt=true")
    assert "adapt: expected false without a network; give model=pretrained" in outcome.refusal
