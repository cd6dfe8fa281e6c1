"""uncertainty=true of one snapshot, and of an evaluation."""

import numpy as np
import pytest

import cassi

QUIET = ("output.progress=false", "uncertainty=true", "method=gap_tv", "solver.iterations=8")


def test_of_one(reconstruct, camera, results, tmp_path):
    outcome = reconstruct(*camera.given(), f"truth={camera.truth}", *QUIET).ok()
    assert "90 % within ±" in outcome.out
    numbers = results()
    told = numbers["uncertainty"]
    std = cassi.read_cube(tmp_path / "run" / "uncertainty.tif")
    assert std.shape == camera.cube.shape
    assert told["mean"] == pytest.approx(float(std.mean()), rel=1e-4)
    assert set(told["sources"]) == {"noise", "model", "unseen"}
    assert 0 <= told["scores"]["coverage/90"] <= 1
    assert {"uncertainty.tif", "uncertainty.png"} <= set(numbers["files"])
    cube = (tmp_path / "run" / "cube.tif").read_bytes()
    plain = [option for option in QUIET if "uncertainty" not in option]
    given = (*camera.given(), f"truth={camera.truth}", "output.report=false")
    reconstruct(*given, *plain, "hydra.run.dir=plain").ok()
    assert (tmp_path / "plain" / "cube.tif").read_bytes() == cube


def test_the_dark_of_a_sensor_is_doubted(reconstruct, camera, results, tmp_path):
    dim = camera.cube.clone()
    dim[..., :9] *= 0.01
    np.save(tmp_path / "dim.npy", camera.system(dim)[0, 0].numpy() + 0.125)
    given = (*camera.given("mask"), "measurement=dim.npy", "output.pictures=false", *QUIET)
    reconstruct(*given, "dark=0.125").ok()
    doubts = [each["message"] for each in results()["warnings"] if each["about"] == "uncertainty"]
    assert any("% of the frame has less than a twentieth" in message for message in doubts)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("uncertainty=perhaps", "uncertainty"),
        ("output.cube=uncertainty.tif", "output.cube: expected another name than uncertainty.tif"),
    ],
)
def test_refused(reconstruct, camera, option, said):
    assert said in reconstruct(*camera.given(), *QUIET, option).refusal


def test_evaluation_tables_bars(evaluate, results, tmp_path):
    given = ("reconstructors=[{name: short, method: gap_tv, overrides: {solver.iterations: 3}}]",)
    more = ("uncertainty=true", "report=false", "figures=false", "progress=false")
    evaluate(*given, *more).ok()
    row = results("results.csv")[0]
    assert 0 < float(row["coverage/90"]) <= 1
    assert {"width", "nll", "ause", "uncertainty_seconds"} <= row.keys()
    assert "in 90 % bars" in (tmp_path / "run" / "results.md").read_text()
