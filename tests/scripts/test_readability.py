"""The lengths of sentences that scripts/docs/readability.py counts."""

import pytest
from shared import ROOT

from scripts.docs.readability import measure, split_sentences

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_readme_and_guides_are_short(page):
    """A guide is about one task; logs of measurements stand in docs/development/experiments."""
    text = page.read_text(encoding="utf-8")
    mean, long = measure([len(sentence) for sentence in split_sentences(text)])
    assert mean <= 17
    assert long <= 3
    assert len(text.split()) <= (900 if page.parent.name == "guides" else 1000)
