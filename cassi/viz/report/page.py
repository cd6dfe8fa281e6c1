"""Make the HTML report: pack each scene, and put scenes, style and scripts into one page."""

import base64
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from cassi.viz.checks import Array, Wavelengths, as_cube, as_wavelengths, quantile, shrink
from cassi.viz.color import band_colors, encode, rendering_matrix
from cassi.viz.names import name_band
from cassi.viz.points import choose_points
from cassi.viz.report.codec import BYTES_PER_PIXEL, MAX_PIXELS, block_size, compress, confine

# The scripts are joined in this order: code that runs at once must stand below what it uses.
_SCRIPTS = (
    "scene",
    "region",
    "comparison",
    "picture",
    "curves",
    "reference",
    "table",
    "files",
    "answers",
    "page",
)
_N_MARKED_POINTS = 3  # points that are marked when the page opens
# Cubes of more pixels are averaged over blocks, also on a page that stays on the same machine.
_MAX_FULL_PIXELS = 2**22


def encode_scene(
    name: str,
    cubes: Mapping[str, Array],  # (C, H, W) each
    truth: Array | None,  # (C, H, W)
    metrics: Mapping[str, Mapping[str, float | None]],
    bars: Mapping[str, Array] | None = None,  # (C, H, W) each
    is_local: bool = False,
) -> bytes:
    """Pack one scene for `make_report`: some 200 kB a cube of 256×256×28.

    The pictures and spectra of the page come from these packed cubes, with an error of 0.2 to 0.5 %
    of the scene's maximum (root mean square, see `codec.compress`). Cubes of more than 400×400
    pixels are averaged over 2×2, 3×3, … pixels.

    Args:
        name: name of the scene.
        cubes: reconstruction (C, H, W) of each method, in the order of the page.
        truth: (C, H, W), on the cubes' scale, or None.
        metrics: numbers of each method, by name. A method that failed has no cube, only numbers.
        bars: half width (C, H, W) of the interval around each value of a cube, for methods that
            have error bars. The page shades intervals around spectra, draws them as a map, and has
            a slider that hides uncertain pixels.
        is_local: the page stays on this machine and may be large: the quantization step is never
            raised, and only cubes of more than four million pixels are averaged.

    Returns:
        JSON, UTF-8.

    Raises:
        TypeError: a cube is not of real numbers.
        ValueError: shapes differ, a NaN is found, or there is nothing to show.
    """
    true_cube = None if truth is None else as_cube(truth, "truth")
    arrays = _check_cubes(name, cubes, true_cube)
    # All cubes are packed in units of the maximum of the truth, or else of the first cube.
    reference = next(iter(arrays.values())) if true_cube is None else true_cube
    bands, height, width = reference.shape
    # One byte per value is enough for any cube with the finest step.
    bytes_per_pixel = float(bands) if is_local else BYTES_PER_PIXEL
    block = block_size(height, width, _MAX_FULL_PIXELS if is_local else MAX_PIXELS)
    reduced_cube = shrink(reference, block)
    peak = float(np.abs(reduced_cube).max()) or 1.0
    reduced_truth = None if true_cube is None else reduced_cube
    page = {
        "name": name,
        "shape": list(reduced_cube.shape),
        "full": [height, width],
        "block": block,
        "truth": None if reduced_truth is None else compress(reduced_truth, peak, bytes_per_pixel),
        # A list keeps the order. In an object, JavaScript moves names that look like whole numbers
        # to the front.
        "methods": [
            [method, compress(confine(shrink(cube, block), reduced_truth), peak, bytes_per_pixel)]
            for method, cube in arrays.items()
        ],
        "bars": _pack_bars(bars or {}, reference.shape, block),
        "points": choose_points(reduced_cube, min(_N_MARKED_POINTS, reduced_cube[0].size)),
        "metrics": _pack_metrics(metrics),
    }
    return json.dumps(page, ensure_ascii=False, separators=(",", ":")).encode()


def _check_cubes(
    scene: str, cubes: Mapping[str, Array], truth: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Return the cubes as arrays; raise ValueError if a name is missing or shapes differ."""
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
    answers: bytes | None = None,
) -> bytes:
    """Make the report of some scenes: one HTML file that needs no server and no network.

    The page has a table of the metrics; pictures in true colour and of single bands, and
    differences, ratios and normalized differences of any two cubes or bands; and the spectra of all
    methods at the pixel under the pointer and in marked regions. The browser (any since 2023)
    decodes the cubes. plotly.js, which draws the curves, is part of the file, compressed.

    Args:
        scenes: results of `encode_scene`, one or more.
        wavelengths: (C,), nm, increasing, of all scenes; None numbers the bands.
        title: title of the page.
        preset: the metric preset of PSNR and SSIM, named under the table.
        illuminant: light on a cube of reflectances, or None for radiance; see `srgb`.
        warnings: lines to show above the pictures.
        note: a line on the camera check, above the pictures too.
        unit: unit of the cubes.
        errors: standard errors of the wavelengths, nm, if known; written beside the wavelengths.
        answers: result of `encode_answers`, about the only scene; shown below its pictures.

    Raises:
        ValueError: there is no scene, or the wavelengths do not fit a scene or the illuminant
            is unknown.
    """
    if not scenes:
        raise ValueError("expected at least one scene, got none: pass what encode_scene gave")
    pages = [json.loads(scene) for scene in scenes]
    bands = [page["shape"][0] for page in pages]
    settings = {
        "unit": unit or "value in the cube",
        **_describe_bands(set(bands), wavelengths, illuminant, errors),
        "notes": _describe_numbers(preset if any(page["truth"] for page in pages) else None),
    }
    fields = {
        "title": html.escape(title).encode(),
        "warnings": "\n".join(
            f'<p class="warning" role="note">{html.escape(line)}</p>' for line in warnings
        ).encode(),
        "note": html.escape(note).encode(),
        "settings": _inline(json.dumps(settings).encode()),
        "answers": _inline(answers or b'{"maps":[],"numbers":[]}'),
        "scenes": b"\n".join(
            b'<script type="application/json" class="scene">%b</script>' % _inline(scene)
            for scene in scenes
        ),
    }
    return _fill_page(fields)


def _fill_page(fields: Mapping[str, bytes]) -> bytes:
    """Return page.html with its style and scripts, and the fields of a report."""
    folder = Path(__file__).parent
    fields = {
        **fields,
        "style": (folder / "style.css").read_bytes(),
        "script": b"\n".join((folder / f"{name}.js").read_bytes() for name in _SCRIPTS),
        "plotly": _read_plotly(),
    }
    # Of page.html alone, every second part is the name of a field: text in the fields stays.
    parts = re.split(rb"<!--(\w+)-->", (folder / "page.html").read_bytes())
    parts[1::2] = [fields[name.decode()] for name in parts[1::2]]
    return b"".join(parts)


def _describe_numbers(preset: str | None) -> str:
    """Return a line on the accuracy of pictures, and on the preset of metrics if there are some."""
    metrics_note = f"PSNR and SSIM as preset {preset}, from the full data. " if preset else ""
    return (
        f"{metrics_note}Pictures and spectra are compressed: "
        "about 0.3 % of the maximum (root mean square)."
    )


def _describe_bands(
    counts: set[int],
    wavelengths: Wavelengths,
    illuminant: str | None,
    errors: Sequence[float] | None,
) -> dict[str, object]:
    """Return the wavelengths and names of the bands, and colours for every number of bands."""
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


def _pack_bars(
    bars: Mapping[str, Array], shape: tuple[int, ...], block: int
) -> list[tuple[str, dict[str, object]]]:
    """Pack the half widths of every method that has error bars."""
    packs = []
    for method, half_width in bars.items():
        values = shrink(as_cube(half_width, f"bars of {method}", shape), block)
        # Without the limit, a few very large values would take all levels of the JPEG.
        peak = quantile(values, 0.999) or 1.0
        packs.append((method, compress(np.minimum(values, peak), peak) | {"peak": peak}))
    return packs


def _pack_metrics(metrics: Mapping[str, Mapping[str, float | None]]) -> list[list[object]]:
    return [
        [method, [[key, _finite_or_none(value)] for key, value in values.items()]]
        for method, values in metrics.items()
    ]


def _finite_or_none(value: float | None) -> float | None:
    # JSON has no NaN and no infinity.
    return None if value is None or not math.isfinite(value) else float(value)


def _inline(content: bytes) -> bytes:
    """Make JSON safe inside a script element: no tag can open or end there."""
    return content.replace(b"<", b"\\u003c")


@lru_cache(maxsize=1)
def _read_plotly() -> bytes:
    """Return plotly.js 4.1.1 (MIT, plotly.LICENSE.txt) as base64 of gzip, 2 MB in place of 4.8."""
    return base64.b64encode(Path(__file__).with_name("plotly.min.js.gz").read_bytes())
