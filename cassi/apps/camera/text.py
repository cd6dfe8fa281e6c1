"""The text of a camera's file: YAML of bounded size and depth, with names of its own.

The file may be a stranger's. Size and nesting are bounded before anything is made of it. Texts may
refer to values under `vars`, and to nothing else: no environment, no other resolver.
"""

import re
from typing import Any

import yaml

LARGEST = 2**20
"""Bytes of a file."""
_DEEPEST, _MOST = 16, 100_000  # levels of lists and values by name; parts of the text
_LONGEST_NUMBER = 64  # characters; a longer one takes Python long to convert
_CHAIN, _EXPANDED = 8, 2**18  # references behind a reference; characters and values of all
_REFERENCE = re.compile(r"\$\{\s*(vars(?:\.[\w-]+|\[\d+\])+)\s*\}")
_FLOAT = re.compile(
    r"""[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |[-+]?\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)""",
    re.VERBOSE,
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Knows numbers such as 1e-3, no dates, no number in the base 60, and no key twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, known) for tag, known in found if not tag.endswith((":float", ":timestamp"))]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse a key that is there twice, and one that is no text."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError("expected names, got a list or values by name as a name")
            if key.value in seen:
                raise ValueError(f"found duplicate key {key.value[:80]}")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_number(self, node: Any) -> Any:
        """Make a number of a text that is not too long for one."""
        if len(node.value) > _LONGEST_NUMBER or ":" in node.value:
            raise ValueError(f"expected a number, got {node.value[:20]!r}")
        is_whole = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"(?:{_FLOAT.pattern})\Z", re.X), [*"-+0123456789."]
)
for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def parse(text: str) -> Any:
    """Read YAML as dicts, lists and scalars, and put the values of `vars` where texts name them."""
    _check_structure(text)
    values = yaml.load(text, _Loader)
    if isinstance(values, int | float):
        raise ValueError(f"expected values by name, got {values}")
    own = values.get("vars") if isinstance(values, dict) else None
    return _References({"vars": own}).expand(values)


def _check_structure(text: str) -> None:
    if re.search("^%", text, re.MULTILINE):
        raise ValueError("expected no directive, %NAME")
    depth = 0
    for number, event in enumerate(yaml.parse(text, _Loader)):
        # An alias of an alias of an alias could expand to any size.
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has an alias, *NAME; use ${vars.NAME} instead")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"lists and values by name are more than {_DEEPEST} levels deep")
        if number > _MOST:
            raise ValueError(f"it has more than {_MOST} parts")


class _References:
    """Puts values in the place of `${vars.NAME}`, as often as the bounds allow."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known, self.left = known, _EXPANDED

    def expand(self, value: Any, seen: tuple[str, ...] = ()) -> Any:
        """Return a value without references."""
        if seen:  # what is there without a reference has been counted
            self.left -= 1 + (len(value) if isinstance(value, str) else 0)
            if self.left < 0:
                raise ValueError(f"its references come to more than {_EXPANDED} characters")
        if isinstance(value, dict):
            return {key: self.expand(item, seen) for key, item in value.items()}
        if isinstance(value, list):
            return [self.expand(item, seen) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        if whole := _REFERENCE.fullmatch(value):
            return self._find(whole[1], seen)
        text = _REFERENCE.sub(lambda found: self._text(found[1], seen), value)
        if "${" in text:  # also one that has come together of parts
            raise ValueError(f"expected references ${{vars.NAME}} alone, got {value[:80]!r}")
        return text

    def _find(self, name: str, seen: tuple[str, ...]) -> Any:
        if name in seen or len(seen) >= _CHAIN:
            raise ValueError(f"expected at most {_CHAIN} references in a row, at {name[:80]!r}")
        found: Any = self.known
        for part in re.findall(r"[\w-]+", name):
            try:
                found = found[int(part)] if isinstance(found, list) else found[part]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ValueError(f"Interpolation key {name[:80]!r} not found") from None
        return self.expand(found, (*seen, name))

    def _text(self, name: str, seen: tuple[str, ...]) -> str:
        found = self._find(name, seen)
        if isinstance(found, dict | list):
            raise ValueError(f"expected a text or a number within a text, got {name[:80]!r}")
        return str(found)
