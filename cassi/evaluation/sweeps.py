"""Results of methods over a change of the camera or its noise, as tables."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    preset: str,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
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
    psnr = {method: [means[p][method].get(f"psnr/{preset}") for p in points] for method in methods}
    return {
        method: [
            (at, y)
            for at, y in zip(points.values(), values, strict=True)
            if y is not None and math.isfinite(y)
        ]
        for method, values in psnr.items()
    }


def _only(means: Mapping[str, Mapping[str, Any]], names: set[str], inside: bool) -> dict[str, Any]:
    return {
        method: {name: value for name, value in values.items() if (name in names) == inside}
        for method, values in means.items()
    }
