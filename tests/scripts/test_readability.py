"""The lengths of sentences that scripts/docs/readability.py counts."""

from __future__ import annotations

from scripts.docs.readability import measure, sentences

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
    assert "10.5 a sentence" in measure([10, 31, 1, 0])
    assert "25.0 % long" in measure([10, 31, 1, 0])
