"""The gate of new weights and what a further training of them begins with."""

import pytest
import torch
from shared import uniform

from cassi import SDCassi
from cassi.models.cassi_net import CassiNet
from cassi.pipeline.align import align
from scripts.benchmarks import kinds
from scripts.docs.figures import TABLES
from scripts.release import weights as gate
from scripts.release.untie import untie

CARD = ("verdict on the weights", "gains by scene", "gains by camera", "error bars")
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
    row = kinds.Row(kind, noise=(None, 35.0), scenes=2, size=24)
    one, other = (list(row.problems()) for _ in range(2))
    for (x, y, system), (again, *_) in zip(one, other, strict=True):
        assert torch.equal(x, again)
        assert x.shape == (1, *system.cube_shape) == (1, 28, 24, 24)
        assert y.shape == (1, *system.measurement_shape)
    assert torch.equal(one[0][1], one[0][2](one[0][0]))
    assert not torch.equal(one[1][1], one[1][2](one[1][0]))


@pytest.mark.parametrize("name", ["metamers", "page", "laser", "narrow lights", "40 bands"])
def test_a_row_is_what_its_name_says(name, data_dir, monkeypatch):
    monkeypatch.setenv("CASSI_DATA", str(data_dir))
    row = kinds.PANEL[name]._replace(scenes=1, size=48)
    truth, y, system = next(row.problems())
    assert truth.shape == (1, row.bands, 48, 48)
    assert truth.min() >= 0
    assert 0.2 < truth.max() < 1.6
    assert torch.equal(y, system(truth))


def test_methods_are_told_the_camera_of_the_commands():
    row = kinds.Row("patches", twin="blurred", scenes=1, size=128)
    (_, y, told), (*_, nominal) = (next(r.problems()) for r in (row, row._replace(twin=None)))
    moved = align(y, nominal).system
    assert torch.equal(told.base_camera.mask, moved.mask)
    assert not torch.equal(moved.mask, nominal.mask)


@pytest.mark.parametrize(
    ("auto", "old", "new", "shares", "fault"),
    [
        (30.0, 31.0, 31.1, [0.9, 0.9], None),
        (30.0, 29.8, 29.95, [0.84, 0.95], None),
        (30.0, 29.0, 29.8, [0.9, 0.9], "text: -0.20 dB beside auto"),
        (30.0, 31.0, 30.7, [0.9, 0.9], "text: -0.30 dB beside the weights of the package"),
        (30.0, 31.0, 31.01, [0.9, 0.9], "mean of the panel: +0.01 dB beside the weights of"),
        (30.0, 31.0, 31.1, [0.8, 0.95], "error bars, TSA mask: 87.5 (80.0, 95.0) %"),
        (30.0, 31.0, 31.1, [0.94, 0.95], "error bars, mean of all: 94.5 %"),
    ],
)
def test_the_gate_names_the_row_that_fails(auto, old, new, shares, fault):
    rows = {"text": {"auto": auto, "package": old, "new": new}}
    faults = gate.find_faults(rows, {"TSA mask": shares})
    assert faults == [] if fault is None else any(fault in one for one in faults)


def test_what_is_measured_is_kept_for_these_weights_alone(tmp_path):
    file, other = tmp_path / "one", tmp_path / "other"
    file.write_bytes(b"1")
    other.write_bytes(b"2")
    gate.FigureFile(tmp_path, {"new": file}).note("rows", "text", {"auto": 30.0})
    assert gate.FigureFile(tmp_path, {"new": file}).figures["rows"] == {"text": {"auto": 30.0}}
    with pytest.raises(SystemExit, match="other weights"):
        gate.FigureFile(tmp_path, {"new": other})


def test_the_card_has_every_row_and_the_verdict():
    rows = {"text": {"auto": 30.0, "package": 30.5}, "TSA mask": {"auto": 29.0, "package": 28.8}}
    bars = {"TSA mask": [0.9, 0.91]}
    card = {"card": gate.make_card(rows, bars, gate.find_faults(rows, bars))}
    text = "\n".join(table(card) for name, table in TABLES.items() if name in CARD)
    assert "| text | 30.00 | +0.50 |" in text
    assert "| TSA mask | 29.00 | -0.20 |" in text
    assert "**FAIL**.\n- TSA mask: -0.20 dB beside auto" in text
    assert "| TSA mask | 90.5 (90.0, 91.0) % |" in text
