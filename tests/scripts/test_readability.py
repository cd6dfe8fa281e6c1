"""The lengths of sentences that scripts/docs/readability.py counts."""

import pytest
from shared import ROOT

from scripts.docs.readability import measure, sentences

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]

PAGE = """# A heading does not count

Two words. `code of many words` is one [word of four](https://example.org)! See:

```
cassi-reconstruct measurement=y.mat
```

| a | table |
|---|---|

- An item of 2.5 pixels.
- Another
  one.
"""


def test_sentences_of_a_page():
    counts = [len(sentence) for sentence in sentences(PAGE)]
    assert counts == [2, 6, 1, 5, 2]


def test_share_of_long_sentences():
    assert measure([10, 31, 1, 0]) == (10.5, 25)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_readme_and_guides_are_short(page):
    """A guide is about one task; logs of measurements stand in docs/development/experiments."""
    text = page.read_text(encoding="utf-8")
    mean, long = measure([len(sentence) for sentence in sentences(text)])
    assert mean <= 17
    assert long <= 3
    assert len(text.split()) <= (900 if page.parent.name == "guides" else 1000)
