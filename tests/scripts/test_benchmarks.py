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

TINY = ["--shapes", "2x3x6x8", "--rounds", "1"]
HALF = ["--dtype", "bfloat16", "--channels-last"]


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
    results = benchmark.main([*TINY, *HALF])
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
