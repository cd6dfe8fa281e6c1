"""Parse the text of a camera's file: YAML of bounded size and depth, with references to `vars`.

The file may be a stranger's. Size and nesting are checked before any value is made. Texts may refer
to values under `vars`, and to nothing else: not to the environment, nor to resolvers of OmegaConf.
"""

import re
from typing import Any

import yaml

MAX_BYTES = 2**20
"""Largest size of a file."""
# Largest number of levels of nested lists and dicts.
_MAX_DEPTH = 16
# Largest number of events of the parser: scalars, and starts and ends of lists and dicts.
_MAX_EVENTS = 100_000
# Python takes long to convert a very long text to a number.
_MAX_NUMBER_CHARACTERS = 64
# Largest number of references in a chain. In a chain, each reference leads to a value that has the
# next reference.
_MAX_CHAIN = 8
# Largest number of characters and values that all references together may expand to.
_MAX_EXPANDED = 2**18
_REFERENCE = re.compile(r"\$\{\s*(vars(?:\.[\w-]+|\[\d+\])+)\s*\}")
_FLOAT = re.compile(
    r"""[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |[-+]?\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)""",
    re.VERBOSE,
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML with numbers such as 1e-3; refuses base-60 numbers and keys that are repeated."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if not tag.endswith((":float", ":timestamp"))
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Make a dict; raise ValueError for a repeated key, or one that is no text."""
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError("expected names, got a list or values by name as a name")
            if key.value in keys:
                raise ValueError(f"found duplicate key {key.value[:80]}")
            keys.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_number(self, node: Any) -> Any:
        """Make a number; raise ValueError if its text is too long."""
        if len(node.value) > _MAX_NUMBER_CHARACTERS or ":" in node.value:
            raise ValueError(f"expected a number, got {node.value[:20]!r}")
        is_int = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"(?:{_FLOAT.pattern})\Z", re.X), [*"-+0123456789."]
)
for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def parse(text: str) -> Any:
    """Read YAML as dicts, lists and scalars, and replace the references to values of `vars`.

    Raises:
        ValueError: the text exceeds a limit, or refers to anything but `vars`.
        yaml.YAMLError: the text is no YAML.
    """
    _check_structure(text)
    values = yaml.load(text, _Loader)
    if isinstance(values, int | float):
        raise ValueError(f"expected values by name, got {values}")
    variables = values.get("vars") if isinstance(values, dict) else None
    return _References({"vars": variables}).expand(values)


def _check_structure(text: str) -> None:
    if re.search("^%", text, re.MULTILINE):
        raise ValueError("expected no directive, %NAME")
    depth = 0
    for number, event in enumerate(yaml.parse(text, _Loader)):
        # An alias of an alias of an alias could expand to any size ("billion laughs").
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has an alias, *NAME; use ${vars.NAME} instead")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ValueError(f"lists and values by name are more than {_MAX_DEPTH} levels deep")
        if number > _MAX_EVENTS:
            raise ValueError(f"it has more than {_MAX_EVENTS} parts")


class _References:
    """Replaces `${vars.NAME}` by values, within the bounds on their number and size."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root, self.budget = root, _MAX_EXPANDED

    def expand(self, value: Any, chain: tuple[str, ...] = ()) -> Any:
        """Return a value without references."""
        if chain:  # values outside of references count already in `_check_structure`
            self.budget -= 1 + (len(value) if isinstance(value, str) else 0)
            if self.budget < 0:
                raise ValueError(f"its references come to more than {_MAX_EXPANDED} characters")
        if isinstance(value, dict):
            return {key: self.expand(item, chain) for key, item in value.items()}
        if isinstance(value, list):
            return [self.expand(item, chain) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        if match := _REFERENCE.fullmatch(value):
            return self._resolve_reference(match[1], chain)
        text = _REFERENCE.sub(lambda reference: self._resolve_to_text(reference[1], chain), value)
        # A "${" may also be made of two parts: "$" before a value that begins with "{".
        if "${" in text:
            raise ValueError(f"expected references ${{vars.NAME}} alone, got {value[:80]!r}")
        return text

    def _resolve_reference(self, name: str, chain: tuple[str, ...]) -> Any:
        if name in chain or len(chain) >= _MAX_CHAIN:
            raise ValueError(f"expected at most {_MAX_CHAIN} references in a row, at {name[:80]!r}")
        value: Any = self.root
        for part in re.findall(r"[\w-]+", name):
            try:
                value = value[int(part)] if isinstance(value, list) else value[part]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ValueError(f"Interpolation key {name[:80]!r} not found") from None
        return self.expand(value, (*chain, name))

    def _resolve_to_text(self, name: str, chain: tuple[str, ...]) -> str:
        value = self._resolve_reference(name, chain)
        if isinstance(value, dict | list):
            raise ValueError(f"expected a text or a number within a text, got {name[:80]!r}")
        return str(value)
