"""docs/reference/networks.md lists every registered network."""

import re
from pathlib import Path

from cassi.models.registry import list_models
from scripts.docs import models_page as script

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/networks.md"


def _rows(text):
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_lists_exactly_the_registered_networks():
    first, second = PAGE.read_text(encoding="utf-8").split("## Where they come from")
    assert [row[0].strip("`") for row in _rows(first)] == list_models(shipped=False)
    named = [name for row in _rows(second) for name in re.findall("`([^`]+)`", row[0])]
    assert sorted(named) == list_models(shipped=False)


def test_the_page_is_made(tmp_path):
    file = tmp_path / "networks.md"
    script.main(["--output", str(file)])
    assert len(_rows(file.read_text(encoding="utf-8"))) == len(
        _rows(PAGE.read_text(encoding="utf-8"))
    )


def test_every_paper_is_found_in_its_docstring():
    for name in list_models(shipped=False):
        authors, title, venue = script.read_source(script.find_model(name).make)
        assert name == "cassi_net" or (authors and title and venue), name
