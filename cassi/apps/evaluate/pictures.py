"""Draw the pictures of an evaluation and encode its scenes for the report."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from torch import Tensor

from cassi.apps.settings import Evaluate, Figure
from cassi.data.atomic import atomic_path
from cassi.data.benchmarks import BenchmarkScene
from cassi.data.store import Store, file_name, fingerprint
from cassi.evaluation import Record, RecordFolder
from cassi.evaluation.records import Values
from cassi.plugins import parts
from cassi.viz.figures import Layout, save_comparison, save_curves


def finish_scene(
    settings: Evaluate,
    root: Path,
    records: RecordFolder,
    scene_records: Sequence[Record],
    load: Callable[[str], BenchmarkScene],
) -> bytes | None:
    """Draw the pictures of a scene, and return the scene as it is encoded for the report.

    Pictures that an earlier command has drawn of the same records stay as they are.

    Args:
        settings: settings of the command.
        root: folder of the results.
        records: the folder of all records.
        scene_records: records of the methods on this scene.
        load: a function that loads a scene by its name.

    Returns:
        The encoded scene; None without a report, or if no method succeeded.
    """
    good_records = [record for record in scene_records if not record.error]
    if not (settings.figures or settings.report) or not good_records:
        return None
    scene, layout = good_records[0].scene, _make_layout(settings.figure)
    table_values = {
        record.method: _table_values(record, settings.preset) for record in good_records
    }
    # The key has everything that the pictures show, so they are drawn again after any change.
    keys = [(record.method, record.key) for record in good_records]
    outputs = {"scene": scene, "figures": settings.figures, "report": settings.report}
    content = {
        "preset": settings.preset,
        "shown": table_values,
        "keys": keys,
        "layout": asdict(layout),
    }
    key = fingerprint({**outputs, **content})
    store, name = Store(records.root / "report"), file_name(scene)
    code = store.root / f"{name}.bin"
    if not store.is_done(name, key):
        item = load(scene)
        # A record of an earlier command may have no cube; the pictures then leave the method out.
        cubes = {record.method: records.read_cube(record.job) for record in good_records}
        kept_cubes = {method: cube for method, cube in cubes.items() if cube is not None}
        if settings.figures:
            _draw(root / "figures", item, kept_cubes, table_values, layout, good_records)
        if settings.report:
            from cassi.viz.report import encode_scene

            store.root.mkdir(parents=True, exist_ok=True)
            with atomic_path(code) as temporary:
                temporary.write_bytes(encode_scene(scene, kept_cubes, item.truth, table_values))
        store.write(name, key, {}, [code] if settings.report else [])
    return code.read_bytes() if settings.report else None


def _make_layout(figure: Figure) -> Layout:
    zoom = tuple(figure.zoom) if isinstance(figure.zoom, list | tuple) else figure.zoom
    regions = None if figure.regions is None else [(int(r), int(c)) for r, c in figure.regions]
    return Layout(figure.bands, zoom, regions)


def _draw(
    folder: Path,
    item: BenchmarkScene,
    cubes: dict[str, Tensor],
    table_values: dict[str, Values],
    layout: Layout,
    records: Sequence[Record],
) -> None:
    name = quote(item.name, safe=" ")
    folder.mkdir(parents=True, exist_ok=True)
    save_comparison(folder, name, cubes, item.truth, item.wavelengths, table_values, layout=layout)
    curves = {record.method: record.curve for record in records if len(record.curve) > 1}
    if curves:
        curve_folder = folder / f"{name}_convergence"
        curve_folder.mkdir(exist_ok=True)
        save_curves(curve_folder, "convergence", curves, "seconds")


def _table_values(record: Record, preset: str) -> Values:
    values = record.metrics
    band_scores = {name: values.get(f"{name}/{preset}") for name in ("psnr", "ssim")}
    other_names = ("sam", "rmse", "ergas", *parts("metric"), "residual")
    other_values = {name: values.get(name) for name in other_names}
    return {**band_scores, **other_values, "seconds": record.timing.get("seconds")}
