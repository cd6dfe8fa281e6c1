"""Mutants of a package, as cosmic-ray makes them; `run_mutations.py` tests them."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

# The list that drives the operator tests: a mutant of it is another test, not a fault.
LISTS = frozenset({"examples.py"})


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    operator: str
    occurrence: int
    line: int

    @property
    def name(self) -> str:
        """What results call it."""
        return f"{self.path}:{self.line}:{self.operator}:{self.occurrence}"


def _annotations(source: str) -> set[int]:
    """Return the lines of annotations with operators, which are no arithmetic."""
    places: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        hints = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for hint in filter(None, hints):
            for part in ast.walk(hint):
                if isinstance(part, ast.BinOp):
                    places.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return places


def list_mutants(tree: Path, package: str) -> list[Mutant]:
    """Return every mutant of a package, without those of ``|`` in annotations, in a fixed order."""
    operators = [(name, plugins.get_operator(name)) for name in sorted(plugins.operator_names())]
    mutants = []
    for path in sorted((tree / "cassi" / package).glob("*.py")):
        if path.name in LISTS:
            continue
        source = path.read_text(encoding="utf-8")
        hints, nodes = _annotations(source), list(ast_nodes(get_ast(source)))
        for name, make in operators:
            if make.arguments():
                continue
            operator = make()
            places = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            for occurrence, (line, _) in enumerate(places):
                if not ("BitOr" in name and line in hints):
                    short = name.removeprefix("core/")
                    relative = str(path.relative_to(tree))
                    mutants.append(Mutant(relative, short, occurrence, line))
    return mutants


def mutate(source: str, mutant: Mutant) -> str | None:
    """Return the source with one change, None where that is no Python: a ``*`` may be no product.

    Raises:
        ValueError: there is no such place.
    """
    operator = plugins.get_operator(f"core/{mutant.operator}")()
    changed = mutate_code(source, operator, mutant.occurrence)
    if changed is None:
        raise ValueError(f"{mutant.name}: there is no such place")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(changed, mutant.path, "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return str(changed)
