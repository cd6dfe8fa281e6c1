"""Measure how long the sentences of pages are.

    python -m scripts.docs.readability README.md docs/guides/*.md

Prints words, mean words a sentence, and the share of sentences above 30 words, for every page and
for all. tests/scripts/test_readability.py holds the limits for README and guides.
Code blocks, tables, headings, pictures and the targets of links do not count; `code` is one word.
"""

import argparse
import re
from pathlib import Path

LONG = 30  # words
DROPPED = re.compile(
    r"(?ms)^ *```.*?^ *```[^\n]*$"  # code blocks
    r"|(?<=\n\n) {4}(?![-*] )[^\n]*(?:\n {4}[^\n]*)*"  # indented ones
    r"|^ *[|#][^\n]*$"  # tables and headings
    r"|!\[[^\]]*\]\([^)]*\)"  # pictures
    r"|^\$\$.*?^\$\$$"  # equations
)
BLOCK = re.compile(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s+", re.MULTILINE)
END = re.compile(r"(?<=[.!?])[*_)\]\"”]*\s+(?=[*_(\[\"“]*[A-Z0-9])")


def sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence of a page in Markdown."""
    text = re.sub(r"`[^`]*`|\$[^$\n]+\$", "CODE", DROPPED.sub("", text))
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    found = (part for block in BLOCK.split(text) for part in END.split(block))
    return [words for part in found if (words := re.findall(r"\S*\w\S*", part))]


def measure(lengths: list[int]) -> tuple[float, float]:
    """Return the mean of these lengths of sentences, and how many percent of them are long."""
    count = max(len(lengths), 1)
    return sum(lengths) / count, 100 * sum(length > LONG for length in lengths) / count


def describe(lengths: list[int]) -> str:
    """Return a line about sentences of these lengths."""
    mean, share = measure(lengths)
    return f"{sum(lengths):6} words  {mean:5.1f} a sentence  {share:4.1f} % long"


def main() -> None:
    """Print a line a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--long", action="store_true", help="print the long sentences as well")
    options = parser.parse_args()
    every: list[int] = []
    for page in options.pages:
        found = sentences(page.read_text(encoding="utf-8"))
        every += (lengths := [len(sentence) for sentence in found])
        print(describe(lengths), page)
        for sentence in (words for words in found if options.long and len(words) > LONG):
            print("   ", *sentence)
    print(describe(every), "all")


if __name__ == "__main__":
    main()
