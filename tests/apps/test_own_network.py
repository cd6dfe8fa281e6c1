"""The guide to a network of one's own: its commands run as written, with the file that it shows."""

import re
import shlex
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs/guides/own-network.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
FILE = "\n\n".join(text for kind, text in BLOCKS if kind == "python")
LINES = [line for kind, text in BLOCKS if not kind for line in text.splitlines()]


QUICK = {
    "cassi-train": (
        *("trainer.enable_progress_bar=false", "trainer.accelerator=cpu", "data.workers=0"),
        "data.validation.crop=32",
    ),
    "cassi-evaluate": ("report=false", "figures=false"),
    "cassi-reconstruct": ("output.pictures=false",),
}
"""What is left out of the lines."""


@pytest.mark.release
@pytest.mark.usefixtures("own_plugins")
def test_every_line_works(commands, tmp_path, results):
    (tmp_path / "mymod.py").write_text(FILE)
    for line in LINES:
        name, *options = shlex.split(line)
        commands(name.removeprefix("cassi-"))(*options, *QUICK[name]).ok()
    assert len(LINES) == 8
    table = results("results.csv", "runs/table")
    assert {row["method"] for row in table} == {"gap_tv", "mine"}
    assert all(float(row["mae"]) > 0 for row in table)


def test_it_is_short():
    assert len(PAGE.split()) <= 700
    first = next(text for kind, text in BLOCKS if kind == "python")
    assert len([line for line in first.splitlines() if line]) <= 20
