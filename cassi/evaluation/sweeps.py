"""Results of methods over a change of the camera or its noise, as tables."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from cassi.data.formats.cells import csv_text, strict_json
from cassi.evaluation import tables
from cassi.evaluation.jobs import Job
from cassi.evaluation.records import Record, Values


def write_sweep(
    folder: Path,
    records: Sequence[Record],
    points: Mapping[str, float],
    scenes: Sequence[str],
    methods: Sequence[str],
    *,
    parameter: str,
    preset: str,
    settings: Mapping[str, object],
    environment: Mapping[str, object],
) -> dict[str, list[tuple[float, float]]]:
    """Write sweep.csv, sweep.json and timing.json.

    Args:
        folder: where they go.
        records: one per point, method and scene.
        points: name → value of the parameter.
        scenes: in the order of the table.
        methods: in the order of the table.
        parameter: name of its column in the table.
        preset: of the PSNR that is returned.
        settings: of the evaluation, written into sweep.json.
        environment: device, versions, ….

    Returns:
        Of each method (value, mean PSNR in dB), where that is known and finite.
    """
    found = {record.job: record for record in records}
    rows: list[dict[str, object]] = []
    means: dict[str, dict[str, Values]] = {}
    timing: dict[str, dict[str, Values]] = {}
    for point, value in points.items():
        here = [r for r in found.values() if r.point == point]
        mean = tables.average(here, methods)
        for method in methods:
            head = {parameter: value, "method": method}
            jobs = (Job(point, scene, method) for scene in scenes)
            for record in (found[job] for job in jobs if job in found):
                own = {**tables.values_of(record), "error": record.error}
                rows.append({**head, "scene": record.scene, **own})
            rows.append({**head, "scene": tables.MEAN, **mean[method]})
        timed = {name for r in here for name in r.timing}
        timing[point], means[point] = _only(mean, timed, True), _only(mean, timed, False)
    done = sorted(found.values(), key=lambda record: record.job)
    errors = tables.errors_of(done, "point", "method", "scene")
    sweep = {"parameter": parameter, "values": points, "preset": preset, "settings": settings}
    texts = {
        "sweep.csv": csv_text(rows),
        "timing.json": strict_json({"environment": environment, "timing": timing}),
        "sweep.json": strict_json({**sweep, "metrics": means, "errors": errors}),
    }
    tables.write_texts(folder, texts)
    return {method: _curve(points, means, method, f"psnr/{preset}") for method in methods}


def _curve(
    points: Mapping[str, float], means: Mapping[str, Mapping[str, Values]], method: str, name: str
) -> list[tuple[float, float]]:
    """Return (value of the parameter, mean) where the mean of a method is known and finite."""
    known = ((value, means[point][method].get(name)) for point, value in points.items())
    return [(value, y) for value, y in known if y is not None and math.isfinite(y)]


def _only(means: Mapping[str, Values], names: set[str], inside: bool) -> dict[str, Values]:
    return {
        method: {name: value for name, value in values.items() if (name in names) == inside}
        for method, values in means.items()
    }
