"""Refuse names that do not say what a thing is, and a few constructions that hide what happens.

    python -m scripts.checks.names [FOLDER ...]      # cassi and scripts without one

A participle, adjective, pronoun or adverb alone is no name for a local, parameter, field, constant,
function or class. `found` does not say what was found, but `peak_ratio` and `padded_mask` say what
they are. CONTRIBUTING.md has the terms of the field. A function that returns a changed copy may be
a participle, like Python's `sorted`. Parameters of public names are allowed, because users may name
them. Two constructions are refused: the product of a text and a truth value, and a function inside
another function that calls itself.
"""

import argparse
import ast
import configparser
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WORDS = configparser.ConfigParser(allow_no_value=True, delimiters=("=",))
WORDS.read(Path(__file__).with_name("vague_names.txt"), encoding="utf-8")
PARTICIPLES, VAGUE, NOUNS, TERMS = (
    frozenset(" ".join(WORDS[section]).split()) for section in WORDS.sections()
)
# The listing of all public names, with their parameters.
PUBLIC_NAMES = (ROOT / "docs/reference/public.txt").read_text(encoding="utf-8")
PUBLIC_CALLS = {
    name.rpartition(".")[2]: re.findall(r"(\w+)=?(?:,|$)", parameters)
    for name, parameters in re.findall(r"^cassi\.(\S+?)\((.*)\)$", PUBLIC_NAMES, re.MULTILINE)
}
"""Parameters of each public function and class. Users may name them, so they cannot change."""
SETTINGS = frozenset(
    line.rpartition(".")[2] for line in PUBLIC_NAMES.splitlines() if re.match(r"[a-z_.]+$", line)
)
MARK = "# name:"
"""A comment with this mark allows the name in its line. It says why: a key of a file, for example.
"""


def is_vague(name: str) -> bool:
    """Tell whether a name is one word that does not say what the thing is."""
    word = name.strip("_").lower()
    if word in TERMS or word in NOUNS:
        return False
    return word in VAGUE or is_participle(word)


def is_participle(word: str) -> bool:
    """Tell whether a word is a participle: `found`, `shifted`."""
    # Regular participles end in -ed. Irregular ones, such as `found`, are listed.
    return word in PARTICIPLES or (len(word) > 3 and word.endswith("ed") and word.isalpha())


def stored_names(function: ast.AST) -> Iterator[ast.Name]:
    """Yield once each name that a function assigns to; names in inner functions do not count."""
    nodes, names = list(ast.iter_child_nodes(function)), set()
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in names:
            names.add(node.id)
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            nodes += ast.iter_child_nodes(node)


def vague_names(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield the line, kind and name of everything whose name is a vague word alone."""
    for statement in tree.body:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper() and is_vague(target.id):
                yield statement.lineno, "constant", target.id
    # ast.walk comes to a class before its methods, so the class of a method is known there.
    # `PUBLIC_CALLS` has the parameters of `__init__`, and fields, under the name of the class.
    owners: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            if is_vague(node.name) and node.name not in PUBLIC_CALLS:
                yield node.lineno, "class", node.name
            for member in node.body:
                owners[member] = node.name
                if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    field = member.target.id
                    if is_vague(field) and field not in PUBLIC_CALLS.get(node.name, SETTINGS):
                        yield member.lineno, "field", field
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if not isinstance(node, ast.Lambda):
            # Functions that return a changed copy may end in -ed.
            word = node.name.strip("_").lower()
            if word in VAGUE or word in PARTICIPLES:
                yield node.lineno, "function", node.name
            for name in stored_names(node):
                if is_vague(name.id):
                    yield name.lineno, "local", name.id
        arguments = node.args
        owner = owners.get(node) or ("" if isinstance(node, ast.Lambda) else node.name)
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            if is_vague(argument.arg) and argument.arg not in PUBLIC_CALLS.get(owner, ()):
                yield argument.lineno, "parameter", argument.arg


def hidden_branches(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield texts times a truth value, and inner functions that call themselves."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for text, factor in ((node.left, node.right), (node.right, node.left)):
                is_text = isinstance(text, ast.JoinedStr) or (
                    isinstance(text, ast.Constant) and isinstance(text.value, str)
                )
                if is_text and is_truth(factor):
                    yield node.lineno, "text times bool", ast.unparse(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for child in ast.walk(node):
                if child is not node and isinstance(child, ast.FunctionDef) and names_itself(child):
                    yield child.lineno, "inner function that calls itself", child.name


def is_truth(factor: ast.expr) -> bool:
    """Tell whether an expression looks like a truth value; a plain name counts as one."""
    if isinstance(factor, ast.Call):
        return isinstance(factor.func, ast.Name) and factor.func.id in ("bool", "isinstance")
    return isinstance(factor, ast.Compare | ast.BoolOp | ast.Name) or (
        isinstance(factor, ast.UnaryOp) and isinstance(factor.op, ast.Not)
    )


def names_itself(function: ast.FunctionDef) -> bool:
    """Tell whether the body of a function contains its own name."""
    nodes = (node for statement in function.body for node in ast.walk(statement))
    return any(isinstance(node, ast.Name) and node.id == function.name for node in nodes)


def main() -> int:
    """Print every finding, and the number of each kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folders", nargs="*", default=["cassi", "scripts"], metavar="FOLDER")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for folder in options.folders:
        path = ROOT / folder
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            lines, tree = text.splitlines(), ast.parse(text)
            findings = [*vague_names(tree), *hidden_branches(tree)]
            for line, kind, name in sorted(findings):
                if MARK in lines[line - 1]:
                    continue
                counts[kind] += 1
                print(f"{file.relative_to(ROOT)}:{line}: {kind} {name}")
    summary = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    print(f"names: {summary or 'none to change'}")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
