"""The gate of new weights and what a further training of them begins with."""

import pytest
import torch
from shared import seeded, uniform

from cassi import SDCassi
from cassi.models.cassi_net import CassiNet
from scripts.benchmarks import kinds
from scripts.release import weights as gate
from scripts.release.untie import untie

SMALL = {"stages": 3, "rank": 2, "widths": (4, 4, 4), "blocks": (1, 1, 1), "start": 2}


def test_untied_stages_begin_with_the_same_outputs():
    torch.manual_seed(0)
    shared, own = (CassiNet(5, shared=shared, **SMALL).eval() for shared in (True, False))
    with torch.no_grad():  # it begins at zero, where it would not be seen
        shared.nets[0].carry.weight.normal_(std=0.1)
    own.load_state_dict(untie(shared.state_dict(), list(own.state_dict())))
    system = SDCassi(uniform(32, 32), 5, 1)
    y = system(uniform(1, 5, 32, 32, seed=1))
    with torch.no_grad():
        torch.testing.assert_close(own(y, system), shared(y, system))
    assert own.nets[0].carry is None
    assert own.nets[1] is not own.nets[2]


@pytest.mark.parametrize("kind", ["text", "stripes"])
def test_a_kind_has_always_the_same_scenes(kind):
    one, other = (list(kinds.draw_scenes(kind, 2, 24, [])) for _ in range(2))
    for (x, y, system), (again, *_) in zip(one, other, strict=True):
        assert torch.equal(x, again)
        assert x.shape == (1, *system.cube_shape) == (1, 28, 24, 24)
        assert y.shape == (1, *system.measurement_shape)
    assert torch.equal(one[0][1], one[0][2](one[0][0]))
    assert not torch.equal(one[1][1], one[1][2](one[1][0]))


@pytest.mark.parametrize(
    ("auto", "old", "new", "passes"),
    [(0.1, 0.1, 0.101, True), (0.1, 0.2, 0.19, True), (0.1, 0.2, 0.21, False)],
)
def test_a_kind_far_below_auto_must_not_get_worse(monkeypatch, auto, old, new, passes):
    truth, system = uniform(1, 3, 8, 8), SDCassi(uniform(8, 8), 3, 1)
    drawn = [(truth, system(truth), system)]
    monkeypatch.setattr(kinds, "draw_scenes", lambda *_: drawn)
    monkeypatch.setattr(kinds, "KINDS", ("text",))
    monkeypatch.setattr(gate, "read_scenes", lambda _: [])
    noise = torch.randn(truth.shape, generator=seeded())
    methods = {
        name: lambda y, camera, far=far: truth + far * noise
        for name, far in (("auto", auto), ("shipped", old), ("new", new))
    }
    faults = gate.judge_kinds(methods, "")
    assert (faults == []) == passes
