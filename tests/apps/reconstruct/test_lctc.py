"""method=lctc: a network that is fitted to the snapshot while the command runs."""

import pytest

import cassi

LCTC = "method=lctc"


def test_reconstructs_and_repeats_itself(reconstruct, camera, results, tmp_path):
    for run in ("one", "two"):
        given = (*camera.given(), LCTC, "solver.iterations=3", f"hydra.run.dir={run}")
        reconstruct(*given, "output.pictures=false").ok()
    one, two = (cassi.read_cube(tmp_path / run / "cube.tif") for run in ("one", "two"))
    assert one.equal(two)
    assert one.shape == (1, *camera.system.cube_shape)
    assert len(results("convergence.csv", "one")) == 3
    y = cassi.read_measurement(camera.measurement)
    method = {"method": "lctc", "overrides": {"solver.iterations": 3}}
    assert cassi.reconstruct(y, camera.system, method).equal(one)


def test_info_does_not_do_it_all(reconstruct, camera):
    done = reconstruct(*camera.given(), LCTC, "--info").ok()
    assert "method    Untrained with NoPrior, at most 6000 iterations" in done.out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("solver.algorithm.rat=1", "solver.algorithm.rat"),
        ("precision=16-mixed", "Untrained precision: expected 32-true or bf16-mixed"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(reconstruct, camera, option, message):
    assert message in reconstruct(*camera.given(), LCTC, option).refusal
