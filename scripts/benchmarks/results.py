"""Rows of a benchmark, how they are printed and stored, and the goals they are held against."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

from scripts.benchmarks import tables

PUBLIC_TV = "denoise_tv_chambolle, float64, channel axis"
BEST_TV = "denoise_tv_chambolle, float32, band by band"
TV, TV_COUPLED = "ours, per band", "ours, coupled"
BACKWARD = " + backward"


@dataclass
class Row:
    """One implementation in one case; what was not measured is None."""

    workload: str
    case: str
    operator: str
    implementation: str
    ms: float | None = None
    wall_ms: float | None = None
    rounds: int | None = None
    over_limit: float | None = None
    """Times as long as the limit."""
    speedup: float | None = None
    """The time of the fastest other implementation over that of ours."""
    gb_per_s: float | None = None
    """Bytes that must move, per second."""
    of_copy: float | None = None
    """That over the rate of a device-to-device copy."""
    peak_mib: float | None = None
    """Memory at the peak of the call, results included."""
    seconds: float | None = None
    """Total."""
    error: float | None = None
    """Mean of |A(ratio_inverse(y)) − y|."""
    kernel: str | None = None
    """Which kernel of ours ran: compiled or reference."""


@dataclass
class Results:
    """What was measured, and what could not be."""

    rows: list[Row] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Implementation and reason: in which cases."""

    def find(self, case: str, operator: str, implementation: str) -> Row | None:
        """Return a row of any workload, or None."""
        wanted = (case, operator, implementation)
        for row in self.rows:
            if (row.case, row.operator, row.implementation) == wanted:
                return row
        return None

    def ms(self, case: str, operator: str, implementation: str) -> float | None:
        """Return a median time, or None where it was not measured."""
        row = self.find(case, operator, implementation)
        return None if row is None else row.ms

    def leave_out(self, case: str, operator: str, implementation: str, error: Exception) -> None:
        """Note that an implementation does not run here, and why."""
        lines = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {lines[0][:200]}"
        key = f"{implementation} does not run here ({reason})"
        self.left_out.setdefault(key, []).append(f"{case} {operator}")


def rank(rows: Sequence[Row]) -> None:
    """Compare the rows of ours with the fastest other implementation of the same operator."""
    times = [row.ms for row in rows if not row.implementation.startswith(("ours", "limit"))]
    best = min((ms for ms in times if ms is not None), default=None)
    for row in rows:
        if best is not None and row.ms and row.implementation.startswith("ours"):
            row.speedup = best / row.ms


def format_table(header: list[str], cells: list[list[str]]) -> str:
    """Lay cells out as an aligned Markdown table."""
    return tabulate(cells, header, tablefmt="github", disable_numparse=True)


def format_rows(rows: Sequence[Row]) -> str:
    """Lay rows out as an aligned Markdown table without the columns that nobody filled."""
    names = [
        column.name
        for column in dataclasses.fields(Row)
        if column.name not in ("workload", "kernel")
        and any(getattr(row, column.name) is not None for row in rows)
    ]
    cells = [[_format(getattr(row, name)) for name in names] for row in rows]
    return format_table(names, cells)


def to_csv(path: Path, rows: Sequence[Row], environment: dict[str, str]) -> None:
    """Write all rows, each with the environment it was measured in."""
    tables.write_csv(path, [
        environment | {name: f"{value:.5g}" if isinstance(value, float) else value
                       for name, value in dataclasses.asdict(row).items()}
        for row in rows
    ])  # fmt: skip


Figure = Callable[[Results], float | None]
"""What was measured of a goal; None: it was not."""


def goals(device: str) -> list[tuple[str, str, Figure]]:
    """List the goals for a type of device, `cpu` or `cuda`: name, limit, figure."""
    one, four, sixteen = (f"{batch}x28x256x256" for batch in (1, 4, 16))
    training = "data_step" + BACKWARD
    if device == "cuda":
        main = ("forward", "adjoint", "data_step")
        others = (("slice-add loop", 10), ("one-hot conv2d", 20), ("scatter_add_, gather", 8))
        return [
            *((f"{operator}, B = 16", ">= 0.85 of a copy's GB/s",
               _entry(sixteen, operator, "of_copy")) for operator in main),
            *((f"{operator}, B = 16, against {other}", f">= {times} x faster",
               _ratio(sixteen, operator, other, "ours"))
              for operator in main for other, times in others),
            (f"{training}, B = 4: peak memory", "output and gradient: 56 MiB",
             _entry(four, training, "peak_mib")),
        ]  # fmt: skip
    limits = [
        ("forward", "x.sum()", 1.2),
        ("adjoint", "unfold view * mask", 1.1),
        ("ratio_inverse", "unfold view * mask", 1.1),
        ("data_step", "x.clone()", 1.5),
    ]
    cube, tv, iteration = "28x256x256", "tv_prox, 5 iterations", "accelerated GAP-TV iteration"
    return [
        *((f"{operator}, B = {case.partition('x')[0]}", f"<= {times} x {limit}",
           _ratio(case, operator, "ours", f"limit: {limit}"))
          for operator, limit, times in limits for case in (one, four, sixteen)),
        *((f"{training}, B = 4, against the {other}", f">= {times} x faster",
           _ratio(four, training, other, "ours"))
          for other, times in (("slice-add loop", 20), ("published shift-roll", 100))),
        (f"{tv}, per band", "<= 3 ms", _entry(cube, tv, "ms", TV)),
        ("against scikit-image as public codes call it", ">= 50 x faster",
         _ratio(cube, tv, PUBLIC_TV, TV)),
        ("against scikit-image at its best", ">= 15 x faster", _ratio(cube, tv, BEST_TV, TV)),
        ("coupled across bands", "<= 1.3 x per band", _ratio(cube, tv, TV_COUPLED, TV)),
        (iteration, "<= 4.5 ms", _entry(cube, iteration, "ms")),
        ("the same in public NumPy codes", "205-330 ms elsewhere",
         _entry(cube, iteration, "ms", "public NumPy form")),
    ]  # fmt: skip


def format_goals(results: Results, device: str) -> str:
    """Lay out every goal and the figure that was measured."""
    cells = []
    for name, limit, measured in goals(device):
        figure = measured(results)
        cells.append([name, limit, "not measured" if figure is None else _format(figure)])
    return format_table(["goal", "limit", "measured"], cells)


def _entry(case: str, operator: str, column: str, implementation: str = "ours") -> Figure:
    return lambda results: getattr(results.find(case, operator, implementation), column, None)


def _ratio(case: str, operator: str, upper: str, lower: str) -> Figure:
    def measured(results: Results) -> float | None:
        a, b = results.ms(case, operator, upper), results.ms(case, operator, lower)
        return a / b if a and b else None

    return measured


def _format(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
