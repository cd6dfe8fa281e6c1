"""The operator benchmark runs, and every implementation it compares gives the same numbers."""

import contextlib
import csv
import io

import pytest
import torch

import cassi
from scripts.benchmarks import ops as benchmark

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


def test_all_workloads(tmp_path):
    path = tmp_path / "ops.csv"
    with contextlib.redirect_stdout(io.StringIO()) as text:
        rows, left_out = benchmark.main([*TINY, "--csv", str(path)])
    assert not left_out
    found = {(row["operator"], row["implementation"]) for row in rows}
    for name in ("ours", *benchmark.FORMS):
        assert any(implementation == name for _, implementation in found)
    for operator in benchmark.LIMITS:
        assert {(operator, "ours"), (f"{operator} + backward", "ours")} <= found
        assert (operator, benchmark.LIMITS[operator][0]) in found
    assert {row["workload"] for row in rows} == set(benchmark.WORKLOADS) - {"deepinv"}
    assert all(row["ms"] > 0 for row in rows)
    errors = [row["error"] for row in rows if row["error"] is not None]
    assert len(errors) == 3
    assert max(errors) < 1e-6
    assert f"torch: {torch.__version__}" in text.getvalue()
    with path.open() as stream:
        written = list(csv.DictReader(stream))
    assert len(written) == len(rows)
    assert {"device", "torch", "threads", "date", "kernels", "case", "ms"} <= set(written[0])
    assert all(row["device"] and row["torch"] == torch.__version__ for row in written)


def test_a_wrong_implementation_is_not_timed(monkeypatch):
    def wrong(problem):
        return {"forward": lambda x, mask: problem.new_measurement(x)}

    monkeypatch.setitem(benchmark.FORMS, "scatter_add_, gather", wrong)
    with pytest.raises(benchmark.Mismatch, match="scatter_add_"):
        benchmark.main(["--workload", "operators", *TINY])


def test_the_public_iteration_is_ours():
    """With a prior that changes nothing. The public form moves its target before it projects."""
    shape = (3, 6, 8)
    mask, algorithm = benchmark._mask(*shape[1:]), cassi.GAP(accelerated=True)
    system = cassi.SDCassi(mask, bands=3, step=benchmark.STEP)
    y = system(benchmark._random(shape, seed=1)[None])
    state = algorithm.init(y, system, benchmark._random(shape, seed=2)[None])
    before = (state.target - (y - system(state.x)))[0, 0].double().numpy()
    found = algorithm.step(state, y, system, lambda x, sigma: x, 0.0, algorithm.rho).x[0]
    public = benchmark.NumpyGap(mask.numpy(), 3, lambda image: image)
    wide = public.shift(state.x[0].double().numpy().transpose(1, 2, 0))
    wide, _ = public.iterate(wide, y[0, 0].double().numpy(), before)
    other = torch.from_numpy(public.shift_back(wide).transpose(2, 0, 1).copy())
    assert torch.allclose(other.float(), found, rtol=1e-5, atol=1e-6)
