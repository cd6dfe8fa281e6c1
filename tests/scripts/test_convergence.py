"""The script that runs methods for long says what happened."""

from __future__ import annotations

import csv
import math

import pytest

from cassi.solvers import Iteration, Solution
from scripts.benchmarks import convergence as script


def solution(residuals, objectives, reason="iterations"):
    pairs = enumerate(zip(residuals, objectives, strict=True), 1)
    return Solution(None, [Iteration(i, r, 0.1, 1.0, 0.2, o) for i, (r, o) in pairs], reason)


def test_two_iterations_of_two_methods(tmp_path):
    arguments = ["--methods", "gap_tv", "twist", "--iterations", "2", "--out", str(tmp_path)]
    rows = script.main(arguments)
    assert [row["verdict"] for row in rows] == ["ok", "ok"]
    assert all(row["objective_last"] > 0 for row in rows)
    with (tmp_path / "courses.csv").open() as stream:
        courses = list(csv.DictReader(stream))
    assert [row["index"] for row in courses] == ["1", "2"] * 2
    with (tmp_path / "convergence.csv").open() as stream:
        assert [row["method"] for row in csv.DictReader(stream)] == ["gap_tv", "twist"]


def test_growth_and_what_is_not_finite_are_marked():
    calm = script.summarize(solution([0.4, 0.1, 0.15], [3.0, 2.0, 1.0]), 3, 2.0)
    assert (calm["verdict"], calm["residual_least"]) == ("ok", 0.1)
    assert calm["residual_growth"] == pytest.approx(1.5)
    assert script.summarize(solution([0.4, 0.1, 0.3], [None] * 3), 3, 2.0)["verdict"] == "grew"
    assert script.summarize(solution([0.4], [1.0], "diverged"), 3, 2.0)["verdict"] == "not finite"
    infinite = script.summarize(solution([0.4, 0.3], [1.0, math.inf]), 2, 2.0)
    assert infinite["verdict"] == "not finite"
