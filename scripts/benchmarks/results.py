"""Rows of a benchmark, how they are printed and stored, and the goals they are held against."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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


def format_table(header: list[str], cells: list[list[str]]) -> str:
    """Lay cells out as an aligned Markdown table."""
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [header, ["-" * width for width in widths], *cells]
    return "\n".join(
        "| " + " | ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def write_csv(path: Path, rows: Sequence[Row], environment: dict[str, str]) -> None:
    """Write all rows, each with the environment it was measured in."""
    columns = [column.name for column in dataclasses.fields(Row)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=[*environment, *columns])
        writer.writeheader()
        for row in rows:
            values = {
                name: f"{value:.5g}" if isinstance(value, float) else value
                for name, value in dataclasses.asdict(row).items()
            }
            writer.writerow({**environment, **values})


@dataclass(frozen=True)
class Goal:
    """A figure to reach."""

    name: str
    limit: str
    measured: Callable[[Results], float | None]


def goals(device: str) -> list[Goal]:
    """List the goals for a type of device, `cpu` or `cuda`."""
    return _gpu_goals() if device == "cuda" else _cpu_goals()


def format_goals(results: Results, device: str) -> str:
    """Lay out every goal and the figure that was measured."""
    found = [(goal, goal.measured(results)) for goal in goals(device)]
    cells = [
        [goal.name, goal.limit, "not measured" if figure is None else _format(figure)]
        for goal, figure in found
    ]
    return format_table(["goal", "limit", "measured"], cells)


def _cpu_goals() -> list[Goal]:
    limits = [
        ("forward", "limit: x.sum()", "<= 1.2 x x.sum()"),
        ("adjoint", "limit: unfold view * mask", "<= 1.1 x unfold view * mask"),
        ("ratio_inverse", "limit: unfold view * mask", "<= 1.1 x unfold view * mask"),
        ("data_step", "limit: x.clone()", "<= 1.5 x x.clone()"),
    ]
    found = [
        Goal(f"{operator}, B = {batch}", text, _ratio(_camera(batch), operator, "ours", limit))
        for operator, limit, text in limits
        for batch in (1, 4, 16)
    ]
    training = "data_step" + BACKWARD
    found += [
        Goal(
            f"{training}, B = 4, against the {other}",
            f">= {times} x faster",
            _ratio(_camera(4), training, other, "ours"),
        )
        for other, times in (("slice-add loop", 20), ("published shift-roll", 100))
    ]
    case, operator = "28x256x256", "tv_prox, 5 iterations"
    found += [
        Goal("tv_prox, 5 iterations, per band", "<= 3 ms", _ms(case, operator, TV)),
        Goal(
            "against scikit-image as public codes call it",
            ">= 50 x faster",
            _ratio(case, operator, PUBLIC_TV, TV),
        ),
        Goal(
            "against scikit-image at its best",
            ">= 15 x faster",
            _ratio(case, operator, BEST_TV, TV),
        ),
        Goal(
            "coupled across bands",
            "<= 1.3 x per band",
            _ratio(case, operator, TV_COUPLED, TV),
        ),
    ]
    operator = "accelerated GAP-TV iteration"
    found += [
        Goal(operator, "<= 4.5 ms", _ms(case, operator, "ours")),
        Goal(
            "the same in public NumPy codes",
            "205-330 ms elsewhere",
            _ms(case, operator, "public NumPy form"),
        ),
    ]
    return found


def _gpu_goals() -> list[Goal]:
    case = _camera(16)
    found = [
        Goal(f"{operator}, B = 16", ">= 0.85 of a copy's GB/s", _share_of_copy(case, operator))
        for operator in ("forward", "adjoint", "data_step")
    ]
    found += [
        Goal(
            f"{operator}, B = 16, against {other}",
            f">= {times} x faster",
            _ratio(case, operator, other, "ours"),
        )
        for operator in ("forward", "adjoint", "data_step")
        for other, times in (
            ("slice-add loop", 10),
            ("one-hot conv2d", 20),
            ("scatter_add_, gather", 8),
        )
    ]
    training = "data_step" + BACKWARD
    found.append(
        Goal(f"{training}, B = 4: peak memory", "output and gradient: 56 MiB", _peak(4, training))
    )
    return found


def _camera(batch: int) -> str:
    return f"{batch}x28x256x256"


def _ms(case: str, operator: str, implementation: str) -> Callable[[Results], float | None]:
    return lambda results: results.ms(case, operator, implementation)


def _ratio(case: str, operator: str, upper: str, lower: str) -> Callable[[Results], float | None]:
    def measured(results: Results) -> float | None:
        a, b = results.ms(case, operator, upper), results.ms(case, operator, lower)
        return a / b if a and b else None

    return measured


def _share_of_copy(case: str, operator: str) -> Callable[[Results], float | None]:
    def measured(results: Results) -> float | None:
        row = results.find(case, operator, "ours")
        return None if row is None else row.of_copy

    return measured


def _peak(batch: int, operator: str) -> Callable[[Results], float | None]:
    def measured(results: Results) -> float | None:
        row = results.find(_camera(batch), operator, "ours")
        return None if row is None else row.peak_mib

    return measured


def _format(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
