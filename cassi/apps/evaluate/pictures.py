"""Pictures and the interactive report of an evaluation, from its records."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from torch import Tensor

from cassi.apps.settings import Evaluate, Figure
from cassi.data.atomic import atomic_path
from cassi.data.benchmarks import Item
from cassi.data.store import Store, file_name, fingerprint
from cassi.evaluation import Record, RecordFolder
from cassi.evaluation.records import Values
from cassi.plugins import parts
from cassi.viz.figures import Layout, save_comparison, save_curves


def finish_scene(
    settings: Evaluate,
    root: Path,
    records: RecordFolder,
    found: Sequence[Record],
    load: Callable[[str], Item],
) -> bytes | None:
    """Draw the files of a scene and encode it for the report, once; return that code."""
    done = [record for record in found if not record.error]
    if not (settings.figures or settings.report) or not done:
        return None
    scene, layout = done[0].scene, _make_layout(settings.figure)
    shown = {record.method: _shown(record, settings.preset) for record in done}
    # Drawn again when what the pictures show changes.
    keys = [(record.method, record.key) for record in done]
    drawn = {"scene": scene, "figures": settings.figures, "report": settings.report}
    about = {"preset": settings.preset, "shown": shown, "keys": keys, "layout": asdict(layout)}
    key = fingerprint({**drawn, **about})
    store, name = Store(records.root / "report"), file_name(scene)
    code = store.root / f"{name}.bin"
    if not store.is_done(name, key):
        item = load(scene)
        cubes = {record.method: records.read_cube(record.job) for record in done}
        known = {method: cube for method, cube in cubes.items() if cube is not None}
        if settings.figures:
            _draw(root / "figures", item, known, shown, layout, done)
        if settings.report:
            from cassi.viz.report import encode_scene

            store.root.mkdir(parents=True, exist_ok=True)
            with atomic_path(code) as temporary:
                temporary.write_bytes(encode_scene(scene, known, item.truth, shown))
        store.write(name, key, {}, [code] if settings.report else [])
    return code.read_bytes() if settings.report else None


def _make_layout(figure: Figure) -> Layout:
    zoom = tuple(figure.zoom) if isinstance(figure.zoom, list | tuple) else figure.zoom
    regions = None if figure.regions is None else [(int(r), int(c)) for r, c in figure.regions]
    return Layout(figure.bands, zoom, regions)


def _draw(
    folder: Path,
    item: Item,
    cubes: dict[str, Tensor],
    shown: dict[str, Values],
    layout: Layout,
    records: Sequence[Record],
) -> None:
    name = quote(item.name, safe=" ")
    folder.mkdir(parents=True, exist_ok=True)
    save_comparison(folder, name, cubes, item.truth, item.wavelengths, shown, layout=layout)
    curves = {record.method: record.curve for record in records if len(record.curve) > 1}
    if curves:
        place = folder / f"{name}_convergence"
        place.mkdir(exist_ok=True)
        save_curves(place, "convergence", curves, "seconds")


def _shown(record: Record, preset: str) -> Values:
    values = record.metrics
    shown = {name: values.get(f"{name}/{preset}") for name in ("psnr", "ssim")}
    names = ("sam", "rmse", "ergas", *parts("metric"), "residual")
    rest = {name: values.get(name) for name in names}
    return {**shown, **rest, "seconds": record.timing.get("seconds")}
