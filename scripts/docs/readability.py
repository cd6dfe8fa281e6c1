"""Measure how long the sentences of Markdown pages are.

    python -m scripts.docs.readability README.md docs/guides/*.md

For each page, and for all pages together, three numbers are printed: the words, the mean words per
sentence, and the percentage of sentences with more than 30 words. tests/scripts/test_readability.py
has the limits for README and guides. Code blocks, tables, headings, pictures and the targets of
links do not count. `code` in a sentence counts as one word.
"""

import argparse
import re
from pathlib import Path

MAX_WORDS = 30  # a sentence with more words is long
IGNORED_BLOCKS = re.compile(
    r"(?ms)^ *```.*?^ *```[^\n]*$"  # code blocks
    r"|(?<=\n\n) {4}(?![-*] )[^\n]*(?:\n {4}[^\n]*)*"  # indented code blocks
    r"|^ *[|#][^\n]*$"  # tables and headings
    r"|!\[[^\]]*\]\([^)]*\)"  # pictures
    r"|^\$\$.*?^\$\$$"  # equations
)
BLOCK = re.compile(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s+", re.MULTILINE)
END = re.compile(r"(?<=[.!?])[*_)\]\"”]*\s+(?=[*_(\[\"“]*[A-Z0-9])")


def split_sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence of a page in Markdown."""
    text = re.sub(r"`[^`]*`|\$[^$\n]+\$", "CODE", IGNORED_BLOCKS.sub("", text))
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = (part for block in BLOCK.split(text) for part in END.split(block))
    return [words for part in parts if (words := re.findall(r"\S*\w\S*", part))]


def measure(lengths: list[int]) -> tuple[float, float]:
    """Return the mean of the lengths of sentences, and the percentage of long ones."""
    count = max(len(lengths), 1)
    return sum(lengths) / count, 100 * sum(length > MAX_WORDS for length in lengths) / count


def describe(lengths: list[int]) -> str:
    """Return a line about sentences of these lengths."""
    mean, share = measure(lengths)
    return f"{sum(lengths):6} words  {mean:5.1f} a sentence  {share:4.1f} % long"


def main() -> None:
    """Print one line per page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--long", action="store_true", help="print the long sentences as well")
    options = parser.parse_args()
    all_lengths: list[int] = []
    for page in options.pages:
        page_sentences = split_sentences(page.read_text(encoding="utf-8"))
        lengths = [len(sentence) for sentence in page_sentences]
        all_lengths += lengths
        print(describe(lengths), page)
        for sentence in page_sentences:
            if options.long and len(sentence) > MAX_WORDS:
                print("   ", *sentence)
    print(describe(all_lengths), "all")


if __name__ == "__main__":
    main()
