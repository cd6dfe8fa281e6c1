"""cassi-reconstruct with cameras that are solved by conjugate gradients."""

from __future__ import annotations

import csv
import json

import pytest

QUICK = ("solver=gap", "solver.iterations=3", "output.pictures=false", "output.progress=false")


@pytest.mark.parametrize("system", ["blurred", "warped"])
def test_the_solve_is_reported(system, reconstruct, camera, tmp_path):
    more = {"blurred": "system.line_spread=[0.3,0.3,0.4,0.4,0.5]", "warped": "system.smile=0.5"}
    done = reconstruct(
        *(f"system={system}", "system.step=-1", f"mask={camera.mask}", f"truth={camera.truth}"),
        *(more[system], *QUICK),
    )
    assert done.status == 0, done.err
    results = json.loads((tmp_path / "run" / "metrics.json").read_text())
    solve = results["conjugate_gradients"]
    assert 0 < solve["iterations"] <= 10
    assert 0 < solve["relative_residual"] < 0.1
    assert solve["converged"] == (solve["relative_residual"] <= 1e-3)
    with (tmp_path / "run" / "convergence.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3
    assert all(0 < int(row["inner_iterations"]) <= 10 for row in rows)
    assert all(float(row["inner_residual"]) < 0.1 for row in rows)


def test_a_closed_form_has_nothing_to_report(reconstruct, camera, tmp_path):
    done = reconstruct("system.step=-1", f"mask={camera.mask}", f"truth={camera.truth}", *QUICK)
    assert done.status == 0, done.err
    assert "conjugate_gradients" not in json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert "inner" not in (tmp_path / "run" / "convergence.csv").read_text()
