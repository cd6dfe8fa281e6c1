"""Results of methods over a change of the camera or its noise: tables and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cassi.data.atomic import atomic_path
from cassi.evaluation import tables
from cassi.evaluation.jobs import Job
from cassi.evaluation.records import Record


def write_sweep(
    folder: Path,
    records: Sequence[Record],
    points: Mapping[str, float],
    scenes: Sequence[str],
    methods: Sequence[str],
    *,
    parameter: str,
    label: str,
    preset: str,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> None:
    """Write sweep.csv, sweep.json, sweep.png, sweep.pdf and timing.json.

    Args:
        folder: where they go.
        records: one per point, method and scene.
        points: name → value of the parameter.
        scenes: in the order of the table.
        methods: in the order of table and legend.
        parameter: name of its column in the table.
        label: text of the axis, with the unit.
        preset: of the PSNR that is drawn.
        settings: of the evaluation, written into sweep.json.
        environment: device, versions, ….
    """
    found = {record.job: record for record in records}
    rows: list[dict[str, Any]] = []
    means: dict[str, dict[str, Any]] = {}
    timing: dict[str, dict[str, Any]] = {}
    for point, value in points.items():
        here = [r for r in found.values() if r.point == point]
        means[point] = tables.average(here, methods)
        for method in methods:
            known = [found.get(Job(point, scene, method)) for scene in scenes]
            for record in (r for r in known if r is not None):
                head = {parameter: value, "method": method, "scene": record.scene}
                rows.append({**head, **tables.values_of(record), "error": record.error})
            head = {parameter: value, "method": method, "scene": tables.MEAN}
            rows.append({**head, **means[point][method]})
        timed = {name for r in here for name in r.timing}
        timing[point] = _only(means[point], timed, True)
        means[point] = _only(means[point], timed, False)
    texts = {
        "sweep.csv": tables.csv_text(rows),
        "timing.json": tables.strict_json({"environment": environment, "timing": timing}),
        "sweep.json": tables.strict_json(
            {
                "parameter": parameter,
                "values": points,
                "preset": preset,
                "settings": settings,
                "metrics": means,
                "errors": tables.errors_of(
                    sorted(found.values(), key=lambda r: r.job), "point", "method", "scene"
                ),
            }
        ),
    }
    tables.write_texts(folder, texts)
    name = f"psnr/{preset}"
    curves = {
        method: [(value, means[point][method].get(name)) for point, value in points.items()]
        for method in methods
    }
    count = f"{len(scenes)} scene{'s' if len(scenes) > 1 else ''}"
    _plot(folder, curves, label, f"mean of {count}, {preset}")


def _only(means: Mapping[str, Mapping[str, Any]], names: set[str], inside: bool) -> dict[str, Any]:
    return {
        method: {name: value for name, value in values.items() if (name in names) == inside}
        for method, values in means.items()
    }


def _plot(
    folder: Path, curves: Mapping[str, Sequence[tuple[float, Any]]], label: str, title: str
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    markers = "osD^vP*X<>"
    for index, (method, curve) in enumerate(curves.items()):
        known = [(x, y) for x, y in curve if y is not None]
        if known:
            marker = markers[index % len(markers)]
            axes.plot(*zip(*known, strict=True), marker=marker, markersize=4, label=method)
    axes.set_xlabel(label)
    axes.set_ylabel("PSNR (dB)")
    axes.set_title(title, fontsize="small")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize="small")
    _save(figure, folder, "sweep")


def plot_cases(
    folder: Path, records: Sequence[Record], cases: Sequence[str], scenes: int, preset: str
) -> None:
    """Draw cases.png and cases.pdf: the mean PSNR of every case, a bar per method.

    Args:
        folder: where they go.
        records: one per case (`point`), method and scene.
        cases: in their order, from the top.
        scenes: number of them.
        preset: of the PSNR.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    methods = list(dict.fromkeys(record.method for record in records))
    means = {c: tables.average([r for r in records if r.point == c], methods) for c in cases}
    name = f"psnr/{preset}"
    figure = Figure(figsize=(5.6, 1.0 + 0.3 * len(cases) * max(1, len(methods))), layout="tight")
    FigureCanvasAgg(figure)
    axes, height = figure.add_subplot(), 0.8 / max(1, len(methods))
    found: list[float] = []
    for index, method in enumerate(methods):
        values = [means[case][method].get(name) for case in cases]
        known = [(place, v) for place, v in enumerate(values) if isinstance(v, float)]
        places = [place + (index - (len(methods) - 1) / 2) * height for place, _ in known]
        bars = axes.barh(places, [v for _, v in known], height, label=method)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize="small")
        found += [v for _, v in known]
    axes.set_yticks(range(len(cases)), list(cases), fontsize="small")
    axes.invert_yaxis()
    if found:
        axes.set_xlim(min(found) - 2, max(found) + 2)  # differences are what matters
    axes.set_xlabel("PSNR (dB)")
    axes.set_title(f"mean of {scenes} scene{'s' if scenes > 1 else ''}, {preset}", fontsize="small")
    if len(methods) > 1:
        axes.legend(fontsize="small")
    _save(figure, folder, "cases")


def _save(figure: Any, folder: Path, name: str) -> None:
    for suffix in (".png", ".pdf"):
        with atomic_path(folder / f"{name}{suffix}") as temporary:
            # No date: the same numbers make the same file.
            metadata = {"CreationDate": None} if suffix == ".pdf" else None
            figure.savefig(temporary, dpi=200, metadata=metadata)
