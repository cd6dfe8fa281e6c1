"""One self-contained page to look at reconstructions with: table, pictures and spectra."""

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from cassi.viz.checks import Array, Wavelengths, as_cube, as_wavelengths, shrink
from cassi.viz.color import band_colors, encode, rendering_matrix
from cassi.viz.names import name_band
from cassi.viz.points import choose_points
from cassi.viz.report.codec import BYTES_PER_PIXEL, MOST_PIXELS, block_size, compress, confine

_SCRIPTS = (
    *("scene", "region", "comparison", "picture", "curves", "reference", "table", "files", "page"),
)
_MARKED = 3  # points marked when the page opens
_FINE_PIXELS = 2**22


def encode_scene(
    name: str,
    cubes: Mapping[str, Array],  # (C, H, W) each
    truth: Array | None,  # (C, H, W)
    metrics: Mapping[str, Mapping[str, float | None]],
    bars: Mapping[str, Array] | None = None,  # (C, H, W) each
    fine: bool = False,
) -> bytes:
    """Packs one scene for ``make_report``: some 200 kB a cube of 256×256×28.

    The pictures and spectra of the page come from these packed cubes, with an error of 0.2 to 0.5 %
    of the scene's maximum (root mean square, see ``codec.compress``); the metrics are those
    given. Cubes of more than 400×400 pixels are averaged over 2×2, 3×3, … pixels.

    Args:
        name: of the scene.
        cubes: reconstruction (C, H, W) of each method, in the order of the page.
        truth: (C, H, W), on the cubes' scale, or None.
        metrics: numbers of each method, by name; None or NaN for one that is not known. Methods
            without a cube, for example one that failed, are in the table only.
        bars: half width (C, H, W) of the interval around each value of a method's cube, of those
            methods that have one: shaded around spectra, drawn as a map, and what a slider hides
            unsure pixels by.
        fine: for a page on the same machine, where size does not matter: average only above
            four million pixels, and never raise the step to save bytes.

    Returns:
        JSON, UTF-8.

    Raises:
        TypeError: if a cube is not of real numbers.
        ValueError: if shapes differ, a NaN is found, or there is nothing to show.
    """
    true = None if truth is None else as_cube(truth, "truth")
    arrays = _named_cubes(name, cubes, true)
    first = next(iter(arrays.values())) if true is None else true
    bands, height, width = first.shape
    most, each = (_FINE_PIXELS, float(bands)) if fine else (MOST_PIXELS, BYTES_PER_PIXEL)
    block = block_size(height, width, most)
    clear = shrink(first, block)
    peak = float(np.abs(clear).max()) or 1.0
    like = None if true is None else clear
    small = {method: confine(shrink(array, block), like) for method, array in arrays.items()}
    page = {
        "name": name,
        "shape": list(clear.shape),
        "full": [height, width],
        "block": block,
        "truth": None if true is None else compress(clear, peak, each),
        # A list: JavaScript moves names that look like whole numbers to the front of an object.
        "methods": [[method, compress(cube, peak, each)] for method, cube in small.items()],
        "bars": [
            [method, _pack_bars(shrink(as_cube(half, f"bars of {method}", first.shape), block))]
            for method, half in (bars or {}).items()
        ],
        "points": choose_points(clear, min(_MARKED, clear[0].size)),
        "metrics": _pack_metrics(metrics),
    }
    return json.dumps(page, ensure_ascii=False, separators=(",", ":")).encode()


def _named_cubes(
    scene: str, cubes: Mapping[str, Array], truth: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Checks that cubes have names, and the shape of the truth or else of the first."""
    shape = None if truth is None else truth.shape
    arrays: dict[str, np.ndarray] = {}
    for method, cube in cubes.items():
        if not method:
            raise ValueError("expected a name for every method, got an empty one: name it")
        arrays[method] = as_cube(cube, f"cube of {method}", shape)
        shape = arrays[method].shape
    if shape is None:
        raise ValueError(f"expected a cube or a truth of scene {scene}, got none: leave it out")
    return arrays


def make_report(
    scenes: Sequence[bytes],
    wavelengths: Wavelengths,  # (C,), nm
    *,
    title: str,
    preset: str = "matlab-uint8",
    illuminant: str | None = None,
    warnings: Sequence[str] = (),
    note: str = "",
    unit: str | None = None,
    errors: Sequence[float] | None = None,  # (C,), nm
) -> bytes:
    """Makes a page that shows scenes to a person: no server, no network, one file of HTML.

    It has a table of the metrics; true colour, single bands, and differences, ratios and normalized
    differences of any two cubes or bands; and the spectra of all at the pixel under the pointer and
    of marked regions. It is decoded by the browser (any since 2023) and draws curves by plotly.js,
    which is inside, compressed.

    Args:
        scenes: what ``encode_scene`` gave, one or more.
        wavelengths: (C,), nm, increasing, of all scenes; None numbers the bands.
        title: of the page.
        preset: what PSNR and SSIM in the metrics mean, named under the table.
        illuminant: as for ``srgb``: the light on a cube of reflectances, or None for radiance.
        warnings: to show above the pictures.
        note: of what was checked, to show there too.
        unit: of the cubes.
        errors: standard errors of the wavelengths, nm, if known: they stand beside these.

    Raises:
        ValueError: if there is no scene, or the wavelengths do not fit a scene or the illuminant
            is unknown.
    """
    if not scenes:
        raise ValueError("expected at least one scene, got none: pass what encode_scene gave")
    pages = [json.loads(scene) for scene in scenes]
    bands = [page["shape"][0] for page in pages]
    has_truth = any(page["truth"] for page in pages)
    settings = {
        "unit": unit or "value in the cube",
        **_describe_bands(set(bands), wavelengths, illuminant, errors),
        "notes": f"PSNR and SSIM as preset {preset}, from the full data. " * has_truth
        + "Pictures and spectra are compressed: about 0.3 % of the maximum (root mean square).",
    }
    parts = {
        "title": html.escape(title),
        "warnings": "\n".join(
            f'<p class="warning" role="note">{html.escape(line)}</p>' for line in warnings
        ),
        "note": html.escape(note),
        "settings": _inline(json.dumps(settings).encode()),
        "scenes": "\n".join(
            f'<script type="application/json" class="scene">{_inline(scene)}</script>'
            for scene in scenes
        ),
    }
    return _fill_page(parts).encode()


def _fill_page(parts: Mapping[str, str]) -> str:
    """Gives the page with its style and scripts, and the parts of a report."""
    folder = Path(__file__).parent
    scripts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    style = (folder / "style.css").read_text(encoding="utf-8")
    page = (folder / "page.html").read_text(encoding="utf-8")
    own = {"style": style, "script": "\n".join(scripts), "plotly": _plotly()}
    for key, text in {**own, **parts}.items():
        page = page.replace(f"<!--{key}-->", text)
    return page


def _describe_bands(
    counts: set[int],
    wavelengths: Wavelengths,
    illuminant: str | None,
    errors: Sequence[float] | None,
) -> dict[str, object]:
    """Gives what the page knows of bands: names, and for every number of them their colours."""
    values = None
    for count in sorted(counts):
        values = as_wavelengths(wavelengths, count)
    return {
        "wavelengths": None if values is None else values.tolist(),
        "names": None
        if values is None
        else [name_band(band, values, errors) for band in range(len(values))],
        "rendering": {
            str(count): np.round(rendering_matrix(values, count, illuminant), 6).tolist()
            for count in counts
        },
        "tints": {str(count): encode(band_colors(values, count)).tolist() for count in counts},
    }


def _pack_bars(half: np.ndarray) -> dict[str, object]:
    """Packs half widths: the few largest would take all levels, so they are cut."""
    peak = float(np.quantile(half, 0.999)) or 1.0
    return compress(np.minimum(half, peak), peak) | {"peak": peak}


def _pack_metrics(metrics: Mapping[str, Mapping[str, float | None]]) -> list[list[object]]:
    return [
        [method, [[key, _finite(value)] for key, value in values.items()]]
        for method, values in metrics.items()
    ]


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _inline(content: bytes) -> str:
    """Makes JSON safe inside a script element: no tag can open or end there."""
    return content.decode().replace("<", "\\u003c")


@lru_cache(maxsize=1)
def _plotly() -> str:
    """Gives plotly.js 4.1.1 (MIT, the licence lies beside it), gzip in base64: 4.8 MB become 2."""
    return base64.b64encode(Path(__file__).with_name("plotly.min.js.gz").read_bytes()).decode()
