"""What is promised to stay: the list in the documentation is that of the code."""

import difflib

from shared import ROOT

from scripts.docs.public import lines


def test_the_list_of_public_names_is_that_of_the_code():
    """Write it anew by `python -m scripts.docs.public > docs/reference/public.txt`."""
    listed = (ROOT / "docs/reference/public.txt").read_text().splitlines()
    found = "\n".join(lines()).splitlines()
    assert list(difflib.unified_diff(listed, found, lineterm="", n=0)) == []
