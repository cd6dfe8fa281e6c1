"""Every notebook runs from top to bottom, and is kept without its outputs."""

import re
import shlex

import nbformat
import pytest
from shared import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_kept_and_links_lead_somewhere(path):
    cells = read(path).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert code
    assert not any(cell.outputs or cell.execution_count for cell in code)
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in target or (path.parent / target).exists(), target


@pytest.mark.release
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, commands, tmp_path, monkeypatch):
    """Its cells in this process; `make docs` runs them in a kernel."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    names = {}
    before = set((ROOT / "notebooks").rglob("*"))
    for cell in read(path).cells:
        if cell.source.startswith("%%bash"):
            for line in cell.source.replace("\\\n", " ").splitlines()[1:]:
                program, *options = shlex.split(line)
                if program == "ls":
                    assert all((tmp_path / folder).is_dir() for folder in options)
                else:
                    commands(program.removeprefix("cassi-"))(*options).ok()
        elif cell.cell_type == "code":
            exec(compile(cell.source, path.name, "exec"), names)
    pyplot.close("all")
    assert (tmp_path / "outputs").is_dir()
    assert set((ROOT / "notebooks").rglob("*")) == before
