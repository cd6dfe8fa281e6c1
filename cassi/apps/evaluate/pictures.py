"""Pictures and the interactive report of an evaluation, from its records."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor

from cassi.apps.settings import Figure
from cassi.data.atomic import atomic_path
from cassi.data.benchmarks import Item
from cassi.data.store import Store, file_name, fingerprint
from cassi.evaluation import Job, Record, RecordFolder
from cassi.evaluation.records import Values
from cassi.plugins import parts
from cassi.viz.figures import Layout, save_comparison, save_curves

LoadItem = Callable[[str], Item]


def make_layout(figure: Figure) -> Layout:
    """Return what figures show, of settings."""
    zoom = tuple(figure.zoom) if isinstance(figure.zoom, list | tuple) else figure.zoom
    regions = None if figure.regions is None else [(int(r), int(c)) for r, c in figure.regions]
    return Layout(figure.bands, zoom, regions)


class Pictures:
    """Draws what is finished, once: a resumed run finds it again.

    Args:
        folder: of the results; pictures go into `figures`, the report beside them.
        records: what is known, and the cubes.
        methods: in the order of the pictures.
        load: reads a scene, for its truth.
        preset: of the PSNR and SSIM that are shown.
        figures: write files for a paper.
        report: write report.html.
        layout: what the files for a paper show.
    """

    def __init__(
        self,
        folder: Path,
        records: RecordFolder,
        methods: Sequence[str],
        load: LoadItem,
        *,
        preset: str,
        figures: bool,
        report: bool,
        layout: Layout | None = None,
    ) -> None:
        self.folder, self.records, self.methods, self.load = folder, records, methods, load
        self.preset, self.figures, self.report = preset, figures, report
        self.layout = layout or Layout()

    def finish_scene(self, scene: str, found: Iterable[Record]) -> bytes | None:
        """Draw a scene and encode it for the report, if all its methods are done or have failed.

        Returns:
            What the report takes; None where there is none.
        """
        known = {record.method: record for record in found if not record.error}
        done = {name: known[name] for name in self.methods if name in known}
        if not (self.figures or self.report) or not done:
            return None
        # Drawn again when what the pictures show changes.
        shown = [(name, record.key, self._shown(record)) for name, record in done.items()]
        key = fingerprint(
            {"scene": scene, "preset": self.preset, "shown": shown, "layout": asdict(self.layout)}
        )
        store, name = Store(self.records.root / "report"), file_name(scene)
        code = store.root / f"{name}.bin"
        earlier = (store.read(name, key) if store.is_done(name, key) else None) or {}
        if (
            earlier.get("report", False) >= self.report
            and earlier.get("figures", False) >= self.figures
        ):
            return code.read_bytes() if self.report else None
        item = self.load(scene)
        cubes = self._cubes(done.values())
        metrics = {name: self._shown(record) for name, record in done.items()}
        if self.figures and not earlier.get("figures"):
            self._draw(scene, item, cubes, metrics, done.values())
        encoded = None
        if self.report:
            from cassi.viz.report import encode_scene

            encoded = encode_scene(scene, cubes, item.truth, metrics)
            store.root.mkdir(parents=True, exist_ok=True)
            with atomic_path(code) as temporary:
                temporary.write_bytes(encoded)
        drawn = {"report": self.report, "figures": self.figures}
        store.write(name, key, drawn, [code] if self.report else [])
        return encoded

    def write_report(
        self, scenes: Sequence[bytes], wavelengths: Sequence[float] | None, title: str
    ) -> None:
        """Write report.html."""
        from cassi.viz.report import make_report
        from cassi.viz.sheet import write_bytes

        page = make_report(list(scenes), wavelengths, title=title, preset=self.preset)
        write_bytes(self.folder / "report.html", page)

    def _draw(
        self,
        scene: str,
        item: Item,
        cubes: dict[str, Tensor],
        metrics: dict[str, Values],
        records: Iterable[Record],
    ) -> None:
        name = quote(scene, safe=" ")
        folder = self.folder / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        shown = cubes, item.truth, item.wavelengths, metrics
        save_comparison(folder, name, *shown, layout=self.layout)
        curves = {record.method: [(s, p) for s, p in record.curve] for record in records}
        curves = {method: curve for method, curve in curves.items() if len(curve) > 1}
        if curves:
            place = folder / f"{name}_convergence"
            place.mkdir(exist_ok=True)
            save_curves(place, "convergence", curves, "seconds")

    def _cubes(self, records: Iterable[Record]) -> dict[str, Tensor]:
        cubes: dict[str, Tensor] = {}
        for record in records:
            cube = self.records.read_cube(Job(record.point, record.scene, record.method))
            cubes[record.method] = torch.empty(0) if cube is None else cube
        return cubes

    def _shown(self, record: Record) -> Values:
        values = record.metrics
        shown = {name: values.get(f"{name}/{self.preset}") for name in ("psnr", "ssim")}
        names = ("sam", "rmse", "ergas", *parts("metric"), "residual")
        rest = {name: values.get(name) for name in names}
        return {**shown, **rest, "seconds": record.timing.get("seconds")}
