"""A figure of how a calibration went."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cassi.viz.sheet import INK, PAPER_DPI, SMALL, make_figure, tidy

Points = Sequence[tuple[float, float]]


def save_calibration(
    path: str | os.PathLike[str],
    objectives: Sequence[float],
    residuals: Sequence[tuple[str, float]],
    curves: Sequence[tuple[str, Points, float]],
) -> None:
    """Draws objective over iterations, residual over models, and the objective near its optimum.

    Args:
        path: of the PNG.
        objectives: one per iteration, in order.
        residuals: name of each model that was tried, and the residual of a reconstruction with it.
        curves: for each number, its name, (distance from the optimum, objective), and standard
            error, which is shaded.
    """
    count = 2 + len(curves)
    columns = min(count, 4)
    rows = -(-count // columns)
    figure = make_figure(1.9 * columns, 1.7 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    first, second, *others = grid
    first.plot(range(len(objectives)), objectives, "o-", ms=2.5, lw=1, color="#1f5aa6")
    first.set_xlabel("iteration", size=SMALL, color=INK)
    first.set_title("objective", size=SMALL, color=INK)
    names, values = zip(*residuals, strict=True)
    second.bar(range(len(values)), values, color="#8fb1d9")
    second.set_xticks(range(len(values)), names)
    second.set_xlabel("degree of the dispersion", size=SMALL, color=INK)
    second.set_title("residual of a reconstruction", size=SMALL, color=INK)
    for axes, (name, points, error) in zip(others, curves, strict=False):
        places, heights = zip(*points, strict=True)
        axes.plot(places, heights, lw=1, color="#1f5aa6")
        axes.axvspan(-error, error, color="#f0c36d", alpha=0.6, lw=0)
        axes.set_title(name, size=SMALL, color=INK)
    for axes in grid[count:]:
        axes.set_visible(False)
    for axes in grid[:count]:
        tidy(axes)
    figure.tight_layout(pad=0.6)
    figure.savefig(Path(path), dpi=PAPER_DPI)
