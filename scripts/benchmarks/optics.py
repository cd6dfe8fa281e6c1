"""Simulate snapshot cameras with random optics, mask, sensor and lamp, and write their files.

    CASSI_DATA=DIR python -m scripts.benchmarks.optics FOLDER --seed N

The image of a scene falls on the mask. A relay with a disperser (`scripts.benchmarks.relay`) images
the mask onto the sensor, each wavelength at another position. A camera comes with the files that
its user would have, which are inexact. Lengths are in pixels of the sensor, wavelengths in nm.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from PIL import Image
from scipy.optimize import brentq
from torch import Tensor

from cassi.data.io import load_cube
from scripts.benchmarks.relay import Array, Disperser, Pair, Relay
from scripts.benchmarks.tables import Parser, data_folder

Random: TypeAlias = np.random.Generator
Shape: TypeAlias = tuple[int, int]

SUBPIXELS = 6  # samples per pixel and direction, of mask and sensor
PAD = 8  # pixels of the mask plane around the mask's file
NODES_PER_BAND = 4  # wavelengths traced per band
# The spectrum of each lamp. First: Gaussians, each (peak, nm; full width at half maximum, nm;
# height). Second: spectral lines, the power of each by its wavelength, nm. A power of 1 equals the
# power of 1 nm of a continuous spectrum of height 1.
LAMPS: dict[str, tuple[list[tuple[float, float, float]], dict[float, float]]] = {
    "white LED": ([(452, 22, 1), (562, 115, 1)], {}),
    "LEDs": ([(468, 24, 0.8), (525, 32, 0.7), (592, 18, 0.6), (632, 19, 1), (540, 200, 0.1)], {}),
    "fluorescent": ([(570, 170, 0.3)], {487.7: 6, 542.4: 14, 546.1: 18, 578: 8, 611.6: 22}),
    "mercury and cadmium": ([(560, 200, 0.06)], {480: 5, 508.6: 9, 546.1: 18, 578: 8, 643.8: 12}),
}


def plane_grid(rows: Array, columns: Array, shape: Shape) -> Tensor:
    """Return points of the mask plane as `grid_sample` takes them, `(1, h, w, 2)` in [-1, 1].

    Args:
        rows: rows of the points, pixels of the mask's file, `(h, w)`.
        columns: columns of the points, pixels of the mask's file, `(h, w)`.
        shape: rows and columns of the mask's file.
    """
    row_grid, column_grid = (
        (x + PAD + 0.5) * 2 / (n + 2 * PAD) - 1 for x, n in ((rows, shape[0]), (columns, shape[1]))
    )
    return torch.from_numpy(np.stack((column_grid, row_grid), -1)).float()[None]


def expose(
    relay: Relay, light: Iterable[tuple[float, Tensor]], shape: Shape, origin: Any, size: Shape
) -> Tensor:
    """Sum the images of the mask plane in a window of the sensor: no blur, no mean over pixels.

    Args:
        relay: the optics between mask and sensor.
        light: pairs of a wavelength, nm, and the light behind the mask. The light has `SUBPIXELS`
            samples per pixel, on the mask's file and on `PAD` pixels around it.
        shape: rows and columns of the mask's file.
        origin: row and column, on the sensor, of the middle of the window's first pixel.
        size: rows and columns of the window.

    Returns:
        `(1, 1, SUBPIXELS · rows, SUBPIXELS · columns)`.
    """
    total = torch.zeros(1, 1, size[0] * SUBPIXELS, size[1] * SUBPIXELS)
    edge = (1 - 1 / SUBPIXELS) / 2
    # The inverse of the relay is smooth, and slow to compute. So it is computed at every fourth
    # pixel, and interpolated linearly between these.
    lines = [np.linspace(-edge, n - 1 + edge, n // 4 + 2) for n in size]
    rows, columns = np.meshgrid(lines[0] + origin[0], lines[1] + origin[1], indexing="ij")
    for nm, plane in light:
        grid = plane_grid(*relay.back(rows, columns, nm), shape).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, total.shape[2:], mode="bilinear", align_corners=True)
        total += F.grid_sample(plane[None, None], grid.permute(0, 2, 3, 1), align_corners=False)
    return total


def blur(image: Tensor, rows: float, columns: float) -> Tensor:
    """Return an image `(1, 1, H, W)` convolved with a Gaussian of these standard deviations."""
    for sigma, view in ((rows, (1, 1, -1, 1)), (columns, (1, 1, 1, -1))):
        reach = math.ceil(3.5 * sigma)
        kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
        image = F.conv2d(image, (kernel / kernel.sum()).view(view), padding="same")
    return image


def draw_relay(rng: Random, span: Pair, pixels: float, axis: int, shape: Shape) -> Relay:
    """Draw hand-aligned optics that spread the wavelengths `span` (nm) over `pixels`."""
    half, middle = max(shape) / 2, ((shape[0] - 1) / 2, (shape[1] - 1) / 2)
    focal = max(rng.uniform(2500, 8000), abs(pixels) / 0.01)
    crown, flint = str(rng.choice(["N-BK7", "N-BAK4"])), str(rng.choice(["F2", "N-SF11"]))
    glasses = ((crown, flint), (), (flint,))[rng.choice(3, p=[0.5, 0.2, 0.3])]

    def spread(size: float) -> float:
        """Return the distance of the first and the last wavelength on the sensor, pixels."""
        first, last = (Disperser(glasses, size).tangents(0, 0, nm)[1] for nm in span)
        return float(last - first) * focal

    # Find the `Disperser.size` that spreads the span over |pixels|, and then its sign.
    size = brentq(lambda x: abs(spread(x)) - abs(pixels), 1e-7, 0.8 if glasses else 2e-4)
    size *= math.copysign(1, spread(size) * pixels)
    disperser = Disperser(glasses, size, rng.normal(0, math.radians(1)))
    lens, lean = tuple(rng.uniform(-1.5, 1.5, 2) * half), tuple(rng.normal(0, 2e-3, 2))
    colour, bulge = tuple(rng.normal(0, 8e-4, 2)), rng.normal(0, 4e-3)
    roll, rotation = rng.normal(0, math.radians(0.4)), rng.normal(0, math.radians(0.15))
    relay = Relay(disperser, axis, focal, middle, half, lens, roll, colour, bulge, lean)
    # A user turns and moves the mask until its image is straight and has the right size. A small
    # rotation and a small error of scale remain. The pose of the mask is the one that makes the
    # Jacobian of the image at the middle equal to this rotation and scale.
    mid_nm, steps = sum(span) / 2, np.array([[1, 0, -1, 0], [0, 1, 0, -1]])
    ends = np.stack(relay.image(middle[0] + steps[0], middle[1] + steps[1], mid_nm))
    jacobian = (ends[:, :2] - ends[:, 2:]) / 2
    cos, sin = math.cos(rotation), math.sin(rotation)
    target = np.array([[cos, -sin], [sin, cos]]) * rng.normal(1, 0.003)
    relay = replace(relay, pose=np.linalg.solve(jacobian, target).tolist())
    # The frame begins 0 to 4 pixels before the first wavelength.
    base = np.array(middle) - relay.image(*middle, mid_nm)
    first = min(float(relay.image(*middle, nm)[axis]) for nm in span)
    base[axis] = rng.uniform(0, 4) + middle[axis] - first
    return replace(relay, base=tuple(base))


def draw_mask(rng: Random, shape: Shape, axis: int) -> tuple[str, Tensor, Tensor, float]:
    """Draw a mask and its field stop.

    The field stop limits the field along the dispersion, and in half of the draws also across it.

    Returns:
        A description; the transmission of the padded mask plane; the user's design mask; and the
        transmission of an element whose design value is 1.
    """
    kind = rng.choice(["chrome on glass", "DMD", "printed grey"], p=[0.5, 0.3, 0.2])
    pitch = rng.choice([1.0, 2.0, 3.0, rng.uniform(1, 3), rng.uniform(1, 3)])
    first = -PAD - 0.5 - pitch * rng.choice([0, rng.random()])
    count = [math.ceil((n + PAD - 0.5 - first) / pitch) for n in shape]

    def cover(start: float, cells: int, width: float, elements: int, fill: float = 1) -> Array:
        """Return the fraction of each cell that each element covers, `(cells, elements)`."""
        cell = (start + width * np.arange(cells))[:, None]
        left = first + pitch * (np.arange(elements) + (1 - fill) / 2)
        overlap = np.minimum(cell + width, left + fill * pitch) - np.maximum(cell, left)
        return np.maximum(overlap, 0) / width

    open_level, closed_level = rng.uniform(0.85, 0.95), rng.uniform(0.001, 0.03)
    fill = 0.96 if kind == "DMD" else 1
    levels = (rng.random(count) < rng.uniform(0.4, 0.6)).astype(float)
    # Dust and pinholes flip one element in a thousand.
    printed_levels = np.where(rng.random(count) < 0.001, 1 - levels, levels)
    if kind == "printed grey":
        levels = rng.integers(0, 9, count) / 8
        printed_levels = levels ** rng.uniform(0.8, 1.3)
    pairs = list(zip(shape, count, strict=True))
    covers = [
        cover(-PAD - 0.5, (n + 2 * PAD) * SUBPIXELS, 1 / SUBPIXELS, k, fill) for n, k in pairs
    ]
    for plane_axis, (n, part) in enumerate(zip(shape, covers, strict=True)):
        # Distances of the stop's edges from the file's edges, pixels. The stop is in the plane of
        # the mask, so its image is sharp, with a soft edge of about 1/8 pixel.
        low, high = rng.uniform(0, 3, 2)
        if plane_axis != axis % 2 and rng.random() >= 0.5:
            low, high = low + PAD, high + PAD  # outside of the plane: no stop
        cell = (np.arange(len(part)) + 0.5) / SUBPIXELS - PAD - 0.5
        stop = (1 + np.exp(-8 * (cell + 0.5 + low))) * (1 + np.exp(8 * (cell - n + 0.5 - high)))
        part /= stop[:, None]
    transmission = closed_level + (open_level - closed_level) * printed_levels
    plane = torch.from_numpy(covers[0] @ transmission @ covers[1].T).float()
    if kind == "printed grey":
        sigma = SUBPIXELS * rng.uniform(0.15, 0.5)
        plane = blur(plane[None, None], sigma, sigma)[0, 0]
    rows, columns = (cover(-0.5, n, 1, k) for n, k in pairs)
    design = rows @ levels @ columns.T
    # If several elements cover a pixel, some users' files have their mean, others 0 or 1.
    is_binary = kind != "printed grey" and rng.random() < 0.5
    if is_binary:
        design = (design > 0.5).astype(float)
    values = "of two values" if is_binary else "averaged"
    description = f"{kind}, {pitch:.2f} px an element, design {values}"
    return description, plane, torch.from_numpy(design).float(), open_level * fill**2


def draw_light(rng: Random, nm: Array) -> tuple[str, Array, Array, Array]:
    """Draw a lamp, a band-pass filter and the sensitivity of a sensor.

    Args:
        rng: random numbers.
        nm: wavelengths of the bands.

    Returns:
        The lamp's name; the wavelengths to trace, nm; for each of these the light times the
        sensor's sensitivity, at most 1; and the edges of the bands, nm.
    """
    edges = np.array([1.5 * nm[0] - nm[1] / 2, *(nm[1:] + nm[:-1]) / 2, 1.5 * nm[-1] - nm[-2] / 2])
    # No filter is perfectly sharp: some light comes from 8 nm beyond the bands.
    traced_edges = np.array([edges[0] - 8, *edges, edges[-1] + 8])
    width = np.repeat(np.diff(traced_edges) / NODES_PER_BAND, NODES_PER_BAND)
    nodes = traced_edges[0] + np.cumsum(width) - width / 2

    def gaussian(x: Array, peak: float, fwhm: float) -> Array:
        return np.exp(-4 * math.log(2) * ((x - peak) / fwhm) ** 2)

    name = str(rng.choice(["halogen", "daylight", *LAMPS]))
    if name in LAMPS:
        peaks, lines = LAMPS[name]
        peaks = [(p + rng.normal(0, 4), fwhm, w * rng.uniform(0.6, 1.4)) for p, fwhm, w in peaks]
        light = np.sum([w * gaussian(nodes, p, fwhm) for p, fwhm, w in peaks], 0) * width
        lines = {nm: power for nm, power in lines.items() if edges[0] < nm < edges[-1]}
        nodes, light = np.append(nodes, [*lines]), np.append(light, [*lines.values()])
    else:
        # Planck's law in photons, with h·c/k = 1.4388e7 nm·K.
        kelvin = rng.uniform(2800, 3300) if name == "halogen" else rng.uniform(5200, 7000)
        light = width * nodes**-4 / np.expm1(1.4388e7 / (nodes * kelvin))
    sensitivity = gaussian(nodes, rng.uniform(510, 580), rng.uniform(260, 420))
    light = light * sensitivity
    (low, high), softness = edges[[0, -1]] + rng.normal(0, 2.5, 2), rng.uniform(0.7, 2)
    # The band-pass filter has a logistic edge at either side.
    light /= (1 + np.exp((low - nodes) / softness)) * (1 + np.exp((nodes - high) / softness))
    order = np.argsort(nodes)
    order = order[light[order] > 1e-3 * light.max()]
    return name, nodes[order], light[order] / light.max(), edges


def draw_scene(rng: Random, path: Path, shape: Shape, nodes: Array) -> Tensor:
    """Draw a part of a cube that fills the padded mask plane, at the wavelengths `nodes` (nm).

    Returns:
        The part, `(nodes, h, w)`, with the pixels of the cube.
    """
    file = load_cube(path)
    cube, sizes = file.data[0].clamp(0), [n + 2 * PAD for n in shape]
    zoom = min(rng.uniform(0.8, 1.6), *(n / m for n, m in zip(cube.shape[1:], sizes, strict=True)))
    for axis, size in enumerate(sizes, 1):
        cut = math.floor(size * zoom)
        cube = cube.narrow(axis, int(rng.integers(cube.shape[axis] - cut + 1)), cut)
    cube_nm = np.array(file.wavelengths)
    position = np.interp(nodes, cube_nm, np.arange(len(cube_nm)))
    low = np.minimum(position.astype(int), len(cube_nm) - 2)
    fraction = torch.from_numpy(position - low).float()[:, None, None]
    return torch.lerp(cube[low], cube[low + 1], fraction)


def read_out(rng: Random, light: Tensor) -> tuple[str, Tensor, Tensor]:
    """Draw a sensor and expose it.

    Args:
        rng: random numbers.
        light: `(H', W')`; 1 is full scale.

    Returns:
        A description, the frame without its dark level, and the hot and dead pixels that the user
        knows.
    """
    shape, max_count = tuple(light.shape), 2 ** int(rng.choice([8, 10, 12, 12, 14])) - 1
    full_well, noise, dark = rng.uniform(6e3, 4e4), rng.uniform(2, 9), rng.uniform(0.01, 0.04)
    gain = rng.normal(1, rng.uniform(0.002, 0.01), shape)
    signal = light.double().numpy() * gain
    electrons = rng.poisson(np.maximum(signal, 0) * full_well) + rng.normal(0, noise, shape)
    # The dark level has a pattern that the user's single dark level does not contain.
    signal = electrons / full_well
    signal += dark + rng.normal(0, noise / 2, shape) / full_well
    is_hot, is_dead = rng.random(shape) < rng.uniform(1e-4, 1e-3), rng.random(shape) < 2e-4
    excess = np.where(is_hot, rng.exponential(0.4, shape), 0)
    signal = np.where(is_dead, dark / 2, signal + excess)
    counts = np.clip(np.round(signal * max_count), 0, max_count)
    frame = torch.from_numpy(counts / max_count - dark - rng.normal(0, 2e-4)).float()
    text = f"{full_well:.0f} e full well, {noise:.1f} e read noise, {max_count} counts"
    return text, frame, torch.from_numpy(is_dead | (excess > 0.05))


@dataclass(frozen=True)
class Optics:
    """A random camera, its snapshot, and the values in the user's files."""

    description: str  # the properties of the camera, in words
    frame: Tensor  # (H', W'), light without its dark level, about 0 to 1, with noise
    bad_pixels: Tensor  # (H', W'), bool: hot and dead pixels that the user knows
    mask: Tensor  # (H, W), mask in the user's file, 0 to 1
    is_measured: bool  # whether this sensor recorded the mask; else it is the design mask
    axis: int  # axis of the dispersion
    detector: int  # pixels along the axis
    wavelengths: tuple[float, ...]  # wavelengths of the bands, nm
    nominal: tuple[float, ...]  # offsets of the bands in the user's camera file
    # (C, H, W), light of the bands. The frame is the sum over bands of mask times truth, with each
    # pixel at its `position`.
    truth: Tensor
    relay: Relay
    origin: Pair  # row and column, on the sensor, of the measured mask's first pixel
    filter_nm: float  # wavelength of the light in which the mask was measured

    def on_plane(self, row: Array, column: Array) -> tuple[Array, Array]:
        """Return the points of the mask plane that correspond to pixels of the mask's file."""
        if not self.is_measured:
            return row, column
        return self.relay.back(row + self.origin[0], column + self.origin[1], self.filter_nm)

    def position(self, row: Tensor, column: Tensor, wavelength: float) -> tuple[Tensor, Tensor]:
        """Return the row and column of the frame at which pixels of the mask's file are imaged."""
        plane = self.on_plane(row.double().numpy(), column.double().numpy())
        r, s = self.relay.image(*plane, wavelength)
        return torch.from_numpy(r), torch.from_numpy(s)

    def offsets(self) -> tuple[float, ...]:
        """Return the true offsets of the bands in the middle of the mask, pixels."""
        row, column = (torch.tensor([x]) for x in self.relay.middle)
        positions = (self.position(row, column, nm)[self.axis] for nm in self.wavelengths)
        return tuple(float(x) - self.relay.middle[self.axis] for x in positions)


def draw(
    seed: int, scene: Path | None = None, shape: Shape = (160, 176), bands: int = 18
) -> Optics:
    """Draw a camera and take its snapshot of a scene.

    Args:
        seed: seed of all random numbers. If they are drawn in another order, the same seed gives
            another camera.
        scene: file of a cube; None takes one of `$CASSI_DATA/cave_train`.
        shape: rows and columns of the mask.
        bands: number of bands.
    """
    rng = np.random.default_rng(seed)
    if scene is None:
        scene = rng.choice(np.array(sorted(data_folder("cave_train").glob("*.tif"))))
    is_measured, axis = bool(rng.random() < 0.5), int(rng.choice([-1, -2]))
    order = 1 if axis == -1 else -1
    span = (rng.uniform(452, 470), rng.uniform(620, 648))
    step = rng.choice([1.0, 1.5, 2.0, rng.uniform(0.8, 2.4)]) * rng.choice([-1, 1])
    relay = draw_relay(rng, span, step * (bands - 1), axis, shape)
    nm = np.linspace(*span, bands)
    offsets = np.array([relay.image(*relay.middle, x)[axis] - relay.middle[axis] for x in nm])
    # A quarter of the cameras have bands that are evenly spaced on the sensor, not in nm.
    has_even_pixels = rng.random() < 0.25
    if has_even_pixels:
        even_offsets = np.linspace(offsets[0], offsets[-1], bands)
        nm = np.interp(np.sign(step) * even_offsets, np.sign(step) * offsets, nm)
        offsets = even_offsets
    # The user has measured the dispersion at both ends, and in one of three cameras also in the
    # middle. The measured offsets have errors of scale, position and slope.
    has_parabola = rng.random() < 1 / 3
    points = [0, bands // 2, bands - 1] if has_parabola else [0, bands - 1]
    fit = np.polynomial.Polynomial.fit(points, offsets[points], len(points) - 1)(np.arange(bands))
    nominal = fit.mean() + (fit - fit.mean()) * rng.normal(1, 0.01)
    nominal += rng.normal(0, 0.3) + np.linspace(-1, 1, bands) * rng.normal(0, 0.2)
    detector = math.ceil(shape[axis] + max(nominal) + rng.choice([0, 0, 2, 5, -2]))
    size = (shape[0], detector) if axis == -1 else (detector, shape[1])

    mask_shift, filter_nm = rng.normal(0, 0.7, 2), float(nm[bands // 2])
    origin = np.array(relay.image(*relay.middle, filter_nm)) - relay.middle + mask_shift
    if not is_measured:
        relay = replace(relay, base=tuple(relay.base + mask_shift))
    mask_text, plane, mask, unit = draw_mask(rng, shape, axis)
    light_text, nodes, light, edges = draw_light(rng, nm)
    images = draw_scene(rng, scene, shape, nodes) * torch.from_numpy(light).float()[:, None, None]
    # Vignetting: light falls off with the distance from the optical axis, which is near the middle.
    rows, columns = (np.linspace(-1, 1, n) + rng.normal(0, 0.3) for n in plane.shape)
    falloff = 1 / (1 + rng.uniform(0, 0.25) * (rows[:, None] ** 2 + columns**2)) ** 2
    vignetting = torch.from_numpy(falloff).float()
    transmission = plane * vignetting
    # The blur is smallest at one wavelength, and grows with the distance from this wavelength.
    focus_nm, stretch = rng.uniform(500, 600), rng.uniform(0.9, 1.25)
    min_blur, defocus = rng.uniform(0.25, 0.65), rng.uniform(0, 0.25)
    glare = rng.uniform(0, 0.03)

    def sense(image: Tensor, wavelength: float) -> Tensor:
        """Blur an image of `SUBPIXELS` samples per pixel, and average it over pixels."""
        sigma = SUBPIXELS * (min_blur + defocus * ((wavelength - focus_nm) / 100) ** 2)
        return F.avg_pool2d(blur(image, *(sigma, sigma * stretch)[::order]), SUBPIXELS)

    def code(image: Tensor) -> Tensor:
        """Return the light of an image behind the mask."""
        image = F.interpolate(image[None, None], transmission.shape, mode="bilinear")
        return transmission * image[0, 0]

    # Eight neighbouring wavelengths share a blur, because it hardly changes among them. A blur of
    # each wavelength would take most of the time.
    total = torch.zeros(1, 1, *size)
    for group in np.array_split(np.arange(len(nodes)), math.ceil(len(nodes) / 8)):
        coded_images = ((float(nodes[i]), code(images[i])) for i in group)
        exposure = expose(relay, coded_images, shape, (0, 0), size)
        total += sense(exposure, float(nodes[group].mean()))
    glare_sigma = rng.uniform(3, 12)
    total = (1 - glare) * total + glare * blur(total, glare_sigma, glare_sigma)
    gain = float(rng.uniform(0.4, 0.85) / total.quantile(0.995))
    sensor_text, frame, bad_pixels = read_out(rng, gain * total[0, 0])

    if is_measured:
        # The filter's transmission is a triangle with this width at half of its height.
        width = rng.uniform(2, 10)
        planes = (
            (filter_nm + width * x / 4, transmission * (4 - abs(x)) / 16) for x in range(-3, 4)
        )
        mask = sense(expose(relay, planes, shape, origin, shape), filter_nm)[0, 0]
        mask = mask + mask.clamp(0).sqrt() * torch.from_numpy(rng.normal(0, 4e-3, shape)).float()
        unit = float(mask.quantile(0.995))
        mask = (mask / unit).clamp(0, 1)
    disperser_text = "/".join(relay.disperser.glasses) or "grating"
    bands_text = "even in pixels" if has_even_pixels else "even in nm"
    curve_text = "parabola" if has_parabola else "line"
    optics = Optics(
        description=f"{scene.stem}, {light_text}; {'measured mask, ' if is_measured else ''}"
        f"{mask_text}; {disperser_text}, {step:+.2f} px a band, axis {axis}, {bands_text}, "
        f"{curve_text}; blur {min_blur:.2f} + {defocus:.2f} px, glare {glare:.1%}; {sensor_text}",
        frame=frame,
        bad_pixels=bad_pixels,
        mask=mask,
        is_measured=is_measured,
        axis=axis,
        detector=detector,
        wavelengths=tuple(nm.tolist()),
        nominal=tuple(nominal.tolist()),
        truth=mask,
        relay=relay,
        origin=tuple(origin.tolist()),
        filter_nm=filter_nm,
    )
    # The truth is the scene of each band at the pixels of the mask's file, by means of 3×3 samples.
    rows, columns = (np.arange(3 * n) / 3 - 1 / 3 for n in shape)
    grid = plane_grid(*optics.on_plane(*np.meshgrid(rows, columns, indexing="ij")), shape)
    bins = np.searchsorted(edges, nodes)
    sums = torch.stack([images[bins == band + 1].sum(0) for band in range(bands)])
    truth = F.grid_sample(sums[None], grid, padding_mode="border", align_corners=False)
    # A measured mask contains the vignetting. A design mask does not, so the truth contains it.
    if not is_measured:
        truth = truth * F.grid_sample(vignetting[None, None], grid, align_corners=False)
    return replace(optics, truth=gain * unit * F.avg_pool2d(truth, 3)[0])


def write(folder: Path, optics: Optics) -> None:
    """Write frame, mask and bad pixels as PNG of 16 bits, and two files of the camera.

    `camera.yaml` has the nominal offsets, `true.yaml` the true ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"frame": 2000 + 50000 * optics.frame, "mask": 65535 * optics.mask}
    for name, picture in {**pictures, "bad": 65535 * optics.bad_pixels}.items():
        counts = picture.round().clamp(0, 65535).numpy().astype(np.uint16)
        Image.fromarray(counts).save(folder / f"{name}.png")
    camera = {"mask": "mask.png", "measured_mask": optics.is_measured, "bits": 16, "dark": 2000}
    camera |= {"wavelengths": [*optics.wavelengths], "bad_pixels": "bad.png"}
    for name, offsets in (("camera", optics.nominal), ("true", optics.offsets())):
        system = {"offsets": [*offsets], "axis": optics.axis, "detector": optics.detector}
        text = yaml.safe_dump({**camera, "system": system}, sort_keys=False)
        (folder / f"{name}.yaml").write_text(f"# {optics.description}\n{text}")


def main() -> None:
    """Draw a camera and write its files."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    optics = draw(options.seed)
    write(options.folder, optics)
    print(optics.description)


if __name__ == "__main__":
    main()
