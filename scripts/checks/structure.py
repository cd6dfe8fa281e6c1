"""Count lines of each part, loaded modules, long functions, and uses of `Any` and `hasattr`.

    python -m scripts.checks.structure
    python -m scripts.checks.structure --beside v1.0.0rc1    # and the lines of another revision

A line is code, docstring, comment or blank. `Any` counts all uses of the name, in annotations and
elsewhere. `probes` counts calls of getattr and hasattr.
"""

import argparse
import ast
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A function with more lines is listed, unless it belongs to a network of the literature.
MAX_FUNCTION_LINES = 60
KINDS = ("code", "docstring", "comment", "blank")
# This program reconstructs by a Python call or by the command. It prints how many modules of the
# package were loaded for this, and how many lines they have.
PROGRAM = """
import json, sys, torch
import cassi
if {command}:
    sys.argv = ["cassi-reconstruct", "hydra.run.dir={folder}", "output.progress=false"]
    from cassi.apps.reconstruct import main
    try:
        main()
    except SystemExit:
        pass
else:
    system = cassi.SDCassi(torch.rand(32, 32), bands=4)
    cassi.reconstruct(system(torch.rand(1, 4, 32, 32)), system)
files = {{m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "cassi"
          and (getattr(m, "__file__", None) or "").endswith(".py")}}
print(json.dumps([len(files), sum(len(open(file).readlines()) for file in files)]))
"""


def find_sources(folder: str, root: Path = ROOT) -> list[Path]:
    """Return the Python files below a folder; for `NAME/*` only those in the folder itself."""
    pattern = "*.py" if folder.endswith("/*") else "**/*.py"
    return sorted((root / folder.removesuffix("/*")).glob(pattern))


def count_lines(part: str, root: Path) -> int:
    """Return the lines of the Python files of a part; for "docs, words" the words of the pages."""
    if part == "docs, words":
        pages = [*(root / "docs").rglob("*.md"), *root.glob("*.md")]
        return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    return sum(
        len(file.read_text(encoding="utf-8").splitlines()) for file in find_sources(part, root)
    )


@contextmanager
def check_out(revision: str) -> Iterator[Path]:
    """Yield a folder with the files of a revision."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def compare(parts: list[str], revision: str) -> None:
    """Print the lines of each part in a revision, and now."""
    with check_out(revision) as root:
        names = sorted(p.name for p in (root / "cassi").iterdir() if p.is_dir())
        removed_parts = [f"cassi/{name}" for name in names if f"cassi/{name}" not in parts]
        parts = [*parts, *removed_parts, "docs, words"]
        rows = {part: (count_lines(part, root), count_lines(part, ROOT)) for part in parts}
    print(f"{'':20}{revision:>12}{'now':>10}")
    for part, (old_lines, new_lines) in rows.items():
        if old_lines or new_lines:
            print(f"{part:20}{old_lines:>12}{new_lines:>10}")


def count_kinds(text: str) -> Counter[str]:
    """Count the lines of each kind in a source."""
    lines = text.splitlines()
    kinds = ["code" if line.strip() else "blank" for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, column = token.start
        # A line with code and a comment counts as code.
        if token.type == tokenize.COMMENT and not lines[row - 1][:column].strip():
            kinds[row - 1] = "comment"
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            last = value.end_lineno or value.lineno
            kinds[value.lineno - 1 : last] = ["docstring"] * (last - value.lineno + 1)
    return Counter(kinds)


def find_long_functions() -> Iterator[str]:
    """Yield the functions of the package that are longer than `MAX_FUNCTION_LINES`."""
    for path in find_sources("cassi"):
        if "published" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    yield f"{path.relative_to(ROOT)}: {node.name}, {length} lines"


def count_loose_types() -> Counter[str]:
    """Count in the package `Any`, probes, and parameters `system` of type `Any`."""
    counts: Counter[str] = Counter()
    for path in find_sources("cassi"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and node.id == "Any":
                counts["Any"] += 1
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                counts["probes"] += node.func.id in ("getattr", "hasattr")
            if isinstance(node, ast.arg) and node.arg == "system" and node.annotation is not None:
                counts["system: Any"] += ast.unparse(node.annotation) == "Any"
    return counts


def count_modules(command: bool, folder: str) -> list[int]:
    """Return modules and lines of the package that the command, or a Python call, loads."""
    code = PROGRAM.format(command=command, folder=folder)
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return list(json.loads(process.stdout.splitlines()[-1]))


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", default="outputs/structure", help="output of the command")
    parser.add_argument("--beside", metavar="REVISION", help="also print the lines of a revision")
    options = parser.parse_args()
    package: Counter[str] = Counter()
    total: Counter[str] = Counter()
    print(f"{'':20}{'lines':>8}" + "".join(f"{kind:>11}" for kind in KINDS))
    parts = sorted(p.name for p in (ROOT / "cassi").iterdir() if p.is_dir() and p.name[0] != "_")
    folders = [*(f"cassi/{name}" for name in parts), "cassi/*", "scripts", "tests"]
    for part in folders:
        counts = sum((count_kinds(p.read_text()) for p in find_sources(part)), Counter[str]())
        total += counts
        package += counts if part.startswith("cassi/") else Counter()
        row = "".join(f"{counts[kind]:>11}" for kind in KINDS)
        print(f"{part:20}{sum(counts.values()):>8}{row}")
    print(f"{'all':20}{sum(total.values()):>8}" + "".join(f"{total[k]:>11}" for k in KINDS))
    share = package["comment"] / package["code"]
    print(f"comments of cassi: {share:.1%} of its lines of code")
    print(dict(count_loose_types()), *find_long_functions(), sep="\n")
    for name, command in (("cassi.reconstruct(y, system)", False), ("cassi-reconstruct", True)):
        modules, lines = count_modules(command, options.folder)
        print(f"{name}: {modules} modules, {lines} lines")
    if options.beside:
        compare(folders, options.beside)


if __name__ == "__main__":
    main()
