"""A network is timed beside its authors' code, whose cube is compared with ours."""

from scripts.benchmarks import authors

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
    given = [f"saunet_1stg={tmp_path}", "--rounds", "1", "--threads", "1"]
    ((name, difference, *ratios),) = authors.main(given)
    assert (name, difference) == ("saunet_1stg", 0)
    assert min(ratios) > 0
    assert "| saunet_1stg | " in capsys.readouterr().out
