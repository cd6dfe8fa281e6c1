"""Extension of Griffe that turns examples in docstrings, `>>> …`, into code blocks.

Otherwise Markdown would take the examples for quotations. An example ends at the next empty line,
as for doctest.
"""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^([ \t]*)>>> .*(?:\n\1\S.*|\n\1[ \t]+\S.*)*", re.MULTILINE)


def fence_examples(docstring: str) -> str:
    """Return a docstring with every example in a fenced code block."""

    def fence(match: re.Match[str]) -> str:
        indent = match[1]
        return f"\n{indent}```pycon\n{match[0]}\n{indent}```\n"

    return EXAMPLE.sub(fence, docstring)


class FencedExamples(Extension):
    """Fence the examples of every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Fence the examples of one object's docstring."""
        if obj.docstring:
            obj.docstring.value = fence_examples(obj.docstring.value)
