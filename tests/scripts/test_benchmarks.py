"""The operator benchmark runs, and every implementation it compares gives the same numbers."""

import contextlib
import csv
import dataclasses
import io
import sys

import pytest
import torch

from scripts.benchmarks import operator_workloads as workloads
from scripts.benchmarks import ops as benchmark
from scripts.benchmarks import results as tables
from scripts.benchmarks import timing

TINY = ["--shapes", "2x3x6x8", "--rounds", "1"]


@pytest.fixture(scope="module", autouse=True)
def _torch():
    """Restore what the script sets; its compiled loop runs uncompiled, compilers take minutes."""
    threads, algorithms = torch.get_num_threads(), torch.backends.cudnn.benchmark
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda function, **options: function)
        yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = algorithms


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Results, printed text and CSV of one run of all workloads."""
    path = tmp_path_factory.mktemp("benchmark") / "ops.csv"
    with contextlib.redirect_stdout(io.StringIO()) as text:
        results = benchmark.main([*TINY, "--csv", str(path)])
    return results, text.getvalue(), path


def test_all_workloads(everything):
    results, printed, path = everything
    assert not results.left_out
    found = {(row.operator, row.implementation) for row in results.rows}
    for kind in [*workloads.IMPLEMENTATIONS, workloads.Ours]:
        for operator in kind.operators:
            assert (operator, kind.name) in found
            assert (f"{operator} + backward", kind.name) in found
    assert {row.workload for row in results.rows} == set(benchmark.WORKLOADS)
    assert all(row.ms > 0 for row in results.rows)
    errors = [row.error for row in results.rows if row.workload == "original"]
    assert len(errors) == 4
    assert max(errors) < 1e-6

    assert f"torch: {torch.__version__}" in printed
    assert "### goals" in printed
    with path.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(results.rows)
    assert {"device", "torch", "threads", "date", "kernels", "case", "ms"} <= set(rows[0])
    assert all(row["device"] and row["torch"] == torch.__version__ for row in rows)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("layout", [[], ["--channels-last"]])
def test_dtypes_and_layouts(dtype, layout):
    results = benchmark.main(["--workload", "operators", *TINY, "--dtype", dtype, *layout])
    assert not results.left_out


def test_a_wrong_implementation_is_not_timed(monkeypatch):
    def forward(self, x, mask):
        return self.new_measurement(x)

    monkeypatch.setattr(workloads.Scatter, "forward", forward)
    with pytest.raises(workloads.Mismatch, match="scatter_add_"):
        benchmark.main(["--workload", "operators", *TINY])


def test_what_does_not_run_is_left_out_with_a_note(monkeypatch, capsys):
    def compile_nothing(function, **options):
        def fail(*arguments):
            raise RuntimeError("no compiler")

        return fail

    monkeypatch.setattr(torch, "compile", compile_nothing)
    monkeypatch.setitem(sys.modules, "skimage.restoration", None)
    results = benchmark.main(TINY)
    assert len(results.left_out) == 3
    printed = capsys.readouterr().out
    assert "note: compiled eager loop does not run here (RuntimeError: no compiler)" in printed
    assert "note: denoise_tv_chambolle does not run here" in printed


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_goals_find_their_rows(everything, device):
    assert "not measured" in tables.format_goals(tables.Results(), device)
    rows = everything[0].rows
    cases = ["28x256x256", *(f"{batch}x28x256x256" for batch in (1, 4, 16))]
    results = tables.Results(
        [
            dataclasses.replace(row, case=case, of_copy=0.5, peak_mib=1.0)
            for row in rows
            for case in cases
        ]
    )
    assert "not measured" not in tables.format_goals(results, device)


def test_rounds_follow_the_speed():
    calls = {"fast": 0, "slow": 0}

    def count(name):
        calls[name] += 1

    candidates = [
        timing.Candidate(name, lambda name=name: count(name), torch.device("cpu")) for name in calls
    ]
    timings = timing.measure(candidates, rounds=3)
    assert [timings[name].rounds for name in calls] == [3, 3]
    assert min(calls.values()) >= 3
    assert timing._visits(1e-6, 1.0) == timing.MAX_ROUNDS
    assert timing._visits(0.05, 1.0) == 20
    assert timing._visits(0.1, 1.0) == timing.MIN_ROUNDS
    assert timing._visits(2.0, 1.0) == timing.FEWEST_ROUNDS
