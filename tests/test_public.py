"""What is promised to stay: the list in the documentation is that of the code."""

import difflib

from shared import ROOT

import cassi
from scripts.docs.public import list_names


def test_the_list_of_public_names_is_that_of_the_code():
    """Write it anew by `python -m scripts.docs.public > docs/reference/public.txt`."""
    listed = (ROOT / "docs/reference/public.txt").read_text().splitlines()
    found = "\n".join(list_names()).splitlines()
    assert list(difflib.unified_diff(listed, found, lineterm="", n=0)) == []


def test_completion_offers_the_public_names_and_the_parts():
    offered = {name for name in dir(cassi) if not name.startswith("_")}
    assert {*cassi.__all__, "viz", "priors", "systems"} <= offered
    assert not {"Any", "TYPE_CHECKING", "import_module", "cassi"} & offered
