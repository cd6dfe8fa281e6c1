"""Every row that knows of no defect starts from the same aligned camera."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from cassi.apps.evaluate import rows
from cassi.apps.evaluate.rows import align_rows, see_aligned, see_true
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Evaluate
from cassi.systems import SDCassi


@dataclass(frozen=True)
class Seen:
    """What an alignment needs of a problem."""

    y: torch.Tensor
    system: SDCassi


def test_rows_that_know_more_stay_as_they_are():
    hashes, views = align_rows({"auto": "1", "pretrained": "2", "told": "3"}, {"told": see_true})
    assert views == {"auto": see_aligned, "pretrained": see_aligned, "told": see_true}
    assert hashes["told"] == "3"
    assert len({*hashes.values(), "1", "2"}) == 5


def test_the_mask_is_moved_where_the_frame_is_sure(monkeypatch):
    nominal, moved = (SDCassi(torch.rand(8, 9), bands=3, step=1) for _ in range(2))
    problem = Seen(torch.rand(1, 1, 8, 11), nominal)
    monkeypatch.setattr(rows, "align", lambda y, system: SimpleNamespace(system=moved))
    assert see_aligned(problem).system is moved
    monkeypatch.setattr(rows, "align", lambda y, system: None)
    assert see_aligned(problem) is problem


def test_alignment_is_a_setting_of_both_commands():
    assert compose_settings().align
    assert not compose_settings().calibrate
    assert not compose_settings(["align=false"], kind=Evaluate).align
