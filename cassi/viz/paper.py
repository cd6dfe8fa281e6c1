"""Style of figures for papers, and how they are written: PNG and PDF."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from cassi.viz.sheet import INK, write_bytes

DPI = 220
SMALL, BODY = 6.5, 8.0  # points


def literal(text: str) -> str:
    """Keeps matplotlib from reading mathematics in a label, or hiding one that starts with _."""
    text = text.replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text


def fitting(name: str, tail: str, room: float, size: float = SMALL) -> str:
    """Shortens a name in the middle until it fits, with what follows it, into ``room`` points."""
    from matplotlib.textpath import TextPath

    kept = name
    for length in range(len(name) - 2, 1, -1):
        if TextPath((0, 0), kept + tail, size=size).get_extents().width <= room:
            break
        kept = f"{name[: (length + 1) // 2]}…{name[len(name) - length // 2 :]}"
    return kept + tail


def tidy(axes: Any) -> None:
    """Takes away what is no data: two spines, heavy ticks."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=SMALL, colors=INK, width=0.5, length=2)
    axes.grid(axis="y", color="#e3e6ea", lw=0.5)
    axes.set_axisbelow(True)


def make_figure(width: float, height: float) -> Any:
    """Makes a figure (inches) outside pyplot, so that nothing global knows of it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_both(figure: Any, folder: Path, name: str) -> None:
    """Writes ``<name>.png`` and ``<name>.pdf``, each whole or not at all."""
    # Without the date, the same cubes give the same bytes.
    for suffix, metadata in (("png", None), ("pdf", {"CreationDate": None})):
        buffer = BytesIO()
        figure.savefig(buffer, format=suffix, metadata=metadata, dpi=DPI)
        write_bytes(folder / f"{name}.{suffix}", buffer.getvalue())
