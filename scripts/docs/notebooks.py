"""Turn a notebook into a page of the documentation site, with outputs if it is executed first."""

import base64
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
# Escape codes of colours, and lines that a progress bar has overwritten.
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|.*\r(?!\n)")


def make_tutorial(path: Path, place: str, run: bool) -> dict[str, str | bytes]:
    """Return the page of a notebook and the pictures on it, by their paths in the site.

    Args:
        path: the notebook, which has no outputs.
        place: path of the page, `tutorials/NAME.md`; pictures are put beside it.
        run: whether to execute the notebook first, in an empty folder.
    """
    text = path.read_text()
    cells: list[Cell] = execute(text) if run else json.loads(text)["cells"]
    pages: dict[str, str | bytes] = {}
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        language = "bash" if source.startswith("%%bash\n") else "python"
        parts.append(f"```{language}\n{source.removeprefix('%%bash').strip()}\n```")
        words, pictures = read_outputs(cell)
        if words:
            parts.append(f"```text\n{words}\n```")
        for picture in pictures:
            name = f"{path.stem}_{len(pages)}.png"
            pages[str(Path(place).with_name(name))] = picture
            parts.append(f"![]({name})")
    note = f"*This page is the notebook `notebooks/{path.name}` of the repository.*"
    pages[place] = "\n\n".join([*parts, note]) + "\n"
    return pages


def read_outputs(cell: Cell) -> tuple[str, list[bytes]]:
    """Return the text and the PNG pictures in the outputs of a cell."""
    words, pictures = "", []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        # The text of a picture, "<Figure size …>", is not shown.
        if output["output_type"] == "stream":
            words += "".join(output["text"])
        elif "image/png" in data:
            pictures.append(base64.b64decode("".join(data["image/png"])))
        elif "text/plain" in data:
            words += "".join(data["text/plain"])
    return ESCAPES.sub("", words).strip("\n"), pictures


def execute(text: str) -> list[Cell]:
    """Execute a notebook with this Python, and return its cells with their outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.reads(text, as_version=4)
    scripts = str(Path(sys.executable).parent)  # the commands that a cell calls
    environment = os.environ | {"PATH": os.pathsep.join([scripts, os.environ["PATH"]])}
    environment.pop("MPLBACKEND", None)  # without it, Matplotlib draws into the notebook
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=None, kernel_name="python3", resources=resources)
        client.execute(env=environment)
    return list(json.loads(nbformat.writes(notebook).replace(f"{folder}/", ""))["cells"])
