"""Every notebook runs from top to bottom, and is kept without its outputs."""

import json
import os
import re
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
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
def test_it_runs(path, tmp_path, monkeypatch):
    # The kernel is the interpreter of the tests, whatever kernels are installed, and so are the
    # commands that a cell calls. Matplotlib may draw only into the notebook.
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    program = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": program, "display_name": "Python 3", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([scripts, os.environ["PATH"]]))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    before = set((ROOT / "notebooks").rglob("*"))
    client = nbclient.NotebookClient(
        read(path), timeout=240, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    )
    client.execute()
    assert (work / "outputs").is_dir()
    assert set((ROOT / "notebooks").rglob("*")) == before
