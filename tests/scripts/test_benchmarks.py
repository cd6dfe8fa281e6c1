"""The benchmarks run, and every implementation that is compared gives the same numbers."""

import contextlib
import io
import json

import pytest
import torch

import cassi
from scripts.benchmarks import authors, methods, networks, ops, training

TINY = ["--shapes", "2x3x6x8", "--seconds", "0.001", "--threads", "1"]


def test_all_workloads(tmp_path):
    file = tmp_path / "ops.json"
    with contextlib.redirect_stdout(io.StringIO()) as text:
        rows = ops.main([*TINY, "--json", str(file)])
    assert json.loads(file.read_text()) == {"operators": rows}
    pairs = {(row["operator"], row["implementation"]) for row in rows}
    for operator in ("forward", "adjoint", "ratio_inverse", "data_step"):
        for name in ("ours", *ops.FORMS, ops.CLONE):
            assert {(operator, name), (f"{operator} + backward", name)} <= pairs
    assert {row["workload"] for row in rows} == set(ops.WORKLOADS) - {"deepinv"}
    assert all(row["ms"] > 0 for row in rows)
    assert "| memory | 2x3x6x8 float32 | gram_solve | ours |" in text.getvalue()


def test_a_wrong_implementation_is_not_timed(monkeypatch):
    def wrong(problem):
        return ops.slices(problem) | {"forward": lambda x, mask: torch.zeros_like(problem.y)}

    monkeypatch.setitem(ops.FORMS, "scatter, gather", wrong)
    with pytest.raises(ops.Mismatch, match="scatter, gather"):
        ops.main(["--workload", "operators", *TINY])


def test_the_public_iteration_is_ours():
    """With a prior that changes nothing. The public form moves its target before it projects."""
    mask, algorithm = torch.rand(6, 8), cassi.GAP(accelerated=True)
    system = cassi.SDCassi(mask, bands=3, step=ops.STEP)
    y = system(torch.rand(1, 3, 6, 8))
    state = algorithm.init(y, system, torch.rand(1, 3, 6, 8))
    before = (state.target - (y - system(state.x)))[0, 0].double().numpy()
    expected = algorithm.step(state, y, system, lambda x, sigma: x, 0.0, algorithm.rho).x[0]
    public = ops.NumpyGap(mask.numpy(), 3, lambda image: image)
    wide = public.shift(state.x[0].double().numpy().transpose(1, 2, 0))
    wide, _ = public.iterate(wide, y[0, 0].double().numpy(), before)
    other = torch.from_numpy(public.shift_back(wide).transpose(2, 0, 1).copy())
    assert torch.allclose(other.float(), expected, rtol=1e-4, atol=1e-5)


def test_a_network_is_measured(tmp_path, capsys):
    file = tmp_path / "networks.json"
    given = ["--models", "gap_net", "--sizes", "32", "--seconds", "0.01", "--threads", "1"]
    assert networks.main([*given, "--cases", "float32", "--json", str(file)]) == 0
    assert "| gap_net | 32 | float32 | " in capsys.readouterr().out
    figures = json.loads(file.read_text())["networks"]["cases"]["cpu 32²"]["gap_net"]["float32"]
    assert min(figures.values()) > 0
    options = networks.Parser("").parse_args(["--threads", "1"])
    vars(options).update(train=True, device="cpu", bands=4, batch=1, seconds=0.01)
    assert networks.measure("gap_net", 16, "bfloat16", options)["ms"] > 0


@pytest.mark.parametrize("name", training.NETWORKS)
def test_a_training_step_is_that_of_the_plain_loop(name):
    figures = training.measure(name, size=32, batch=1, rounds=1)
    assert min(figures.values()) > 0


def test_methods_are_timed(tmp_path, capsys):
    small = ["--size", "32", "--rounds", "1", "--threads", "1", "--methods", "gap_tv"]
    more = ["--processors", "avx2", "--beside", "yes", "--trace", str(tmp_path)]
    methods.main([*small, *more])
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| gap_tv | 1 | 1 | avx2 | yes | ")
    assert [file.name for file in tmp_path.iterdir()] == ["gap_tv-1.json.gz"]


THEIRS = """
import cassi
from cassi.models import SAUNet as Ours


class SAUNet(Ours):
    def __init__(self, num_iterations, num_blocks):
        super().__init__(bands=4, stages=num_iterations)

    def forward(self, y, given):
        masks, _ = given
        camera = cassi.SDCassi(masks[0, 0, :, :32].cuda(), bands=4, step=2)
        return super().forward(y[:, None], camera)
"""


def test_a_clone_is_compared_with_ours(tmp_path, monkeypatch, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "SAUNet.py").write_text(THEIRS)
    monkeypatch.setattr(authors, "SIZE", 32)
    monkeypatch.setattr(authors, "BANDS", 4)
    given = [f"saunet_1stg={tmp_path}", "--seconds", "0.01", "--threads", "1"]
    ((name, difference, *ratios),) = authors.main(given)
    assert (name, difference) == ("saunet_1stg", 0)
    assert min(ratios) > 0
    assert "| saunet_1stg | " in capsys.readouterr().out
