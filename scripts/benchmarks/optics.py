"""Draw coded-aperture snapshot cameras: optics, mask, sensor, light, and what their user knows.

    CASSI_DATA=DIR python -m scripts.benchmarks.optics FOLDER --seed N

The image of a scene falls on the mask. A relay with a disperser (`scripts.benchmarks.relay`) puts
it on the sensor, every wavelength elsewhere. Lengths are pixels of the sensor, wavelengths nm.
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

FINE = 6  # samples per pixel and direction, of mask and sensor
PAD = 8  # pixels of the mask plane around the mask's file
NODES = 4  # wavelengths traced per band
# Peak, full width at half maximum and height of bells; lines with their light, in nm of height 1
LAMPS: dict[str, tuple[list[tuple[float, float, float]], dict[float, float]]] = {
    "white LED": ([(452, 22, 1), (562, 115, 1)], {}),
    "LEDs": ([(468, 24, 0.8), (525, 32, 0.7), (592, 18, 0.6), (632, 19, 1), (540, 200, 0.1)], {}),
    "fluorescent": ([(570, 170, 0.3)], {487.7: 6, 542.4: 14, 546.1: 18, 578: 8, 611.6: 22}),
    "mercury and cadmium": ([(560, 200, 0.06)], {480: 5, 508.6: 9, 546.1: 18, 578: 8, 643.8: 12}),
}


def plane_grid(rows: Array, columns: Array, shape: Shape) -> Tensor:
    """Return points of the mask plane, `(1, h, w, 2)`, as `grid_sample` takes them."""
    r, s = (
        (x + PAD + 0.5) * 2 / (n + 2 * PAD) - 1 for x, n in ((rows, shape[0]), (columns, shape[1]))
    )
    return torch.from_numpy(np.stack((s, r), -1)).float()[None]


def expose(
    relay: Relay, light: Iterable[tuple[float, Tensor]], shape: Shape, origin: Any, size: Shape
) -> Tensor:
    """Sum images of the mask plane on a window of the sensor, before blur and pixels.

    `light` has pairs of nm and light behind the mask, `FINE` samples per pixel of the mask's file
    of this `shape` and of `PAD` pixels around. The window of `size` pixels begins with the middle
    of its first pixel at `origin`. Returns `(1, 1, rows·FINE, columns·FINE)`.
    """
    total = torch.zeros(1, 1, size[0] * FINE, size[1] * FINE)
    edge = (1 - 1 / FINE) / 2
    # The inverse is smooth: exact at every fourth pixel, linear between.
    lines = [np.linspace(-edge, n - 1 + edge, n // 4 + 2) for n in size]
    rows, columns = np.meshgrid(lines[0] + origin[0], lines[1] + origin[1], indexing="ij")
    for nm, plane in light:
        grid = plane_grid(*relay.back(rows, columns, nm), shape).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, total.shape[2:], mode="bilinear", align_corners=True)
        total += F.grid_sample(plane[None, None], grid.permute(0, 2, 3, 1), align_corners=False)
    return total


def blurred(image: Tensor, rows: float, columns: float) -> Tensor:
    """Return an image `(1, 1, H, W)` convolved with a Gaussian of these standard deviations."""
    for sigma, view in ((rows, (1, 1, -1, 1)), (columns, (1, 1, 1, -1))):
        reach = math.ceil(3.5 * sigma)
        kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
        image = F.conv2d(image, (kernel / kernel.sum()).view(view), padding="same")
    return image


def draw_relay(rng: Random, span: Pair, pixels: float, axis: int, shape: Shape) -> Relay:
    """Draw optics that spread `span` (nm) over so many pixels, aligned as well as by hand."""
    half, middle = max(shape) / 2, ((shape[0] - 1) / 2, (shape[1] - 1) / 2)
    focal = max(rng.uniform(2500, 8000), abs(pixels) / 0.01)
    crown, flint = str(rng.choice(["N-BK7", "N-BAK4"])), str(rng.choice(["F2", "N-SF11"]))
    glasses = ((crown, flint), (), (flint,))[rng.choice(3, p=[0.5, 0.2, 0.3])]

    def reach(size: float) -> float:
        first, last = (Disperser(glasses, size).tangents(0, 0, nm)[1] for nm in span)
        return float(last - first) * focal

    size = brentq(lambda x: abs(reach(x)) - abs(pixels), 1e-7, 0.8 if glasses else 2e-4)
    size *= math.copysign(1, reach(size) * pixels)
    disperser = Disperser(glasses, size, rng.normal(0, math.radians(1)))
    lens, lean = tuple(rng.uniform(-1.5, 1.5, 2) * half), tuple(rng.normal(0, 2e-3, 2))
    colour, bulge = tuple(rng.normal(0, 8e-4, 2)), rng.normal(0, 4e-3)
    roll, turn = rng.normal(0, math.radians(0.4)), rng.normal(0, math.radians(0.15))
    relay = Relay(disperser, axis, focal, middle, half, lens, roll, colour, bulge, lean)
    # The user has turned and moved the mask until it looks straight, and as large as it should.
    mid, steps = sum(span) / 2, np.array([[1, 0, -1, 0], [0, 1, 0, -1]])
    ends = np.stack(relay.image(middle[0] + steps[0], middle[1] + steps[1], mid))
    wanted = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    pose = np.linalg.solve((ends[:, :2] - ends[:, 2:]) / 2, wanted * rng.normal(1, 0.003))
    relay = replace(relay, pose=pose.tolist())
    base = np.array(middle) - relay.image(*middle, mid)
    first = min(float(relay.image(*middle, nm)[axis]) for nm in span)
    base[axis] = rng.uniform(0, 4) + middle[axis] - first
    return replace(relay, base=tuple(base))


def draw_mask(rng: Random, shape: Shape, axis: int) -> tuple[str, Tensor, Tensor, float]:
    """Draw a mask: name, transmission of the padded plane, the design, transmission where it is 1.

    A field stop at the mask ends the bands, in half of the draws also their sides.
    """
    kind = rng.choice(["chrome on glass", "DMD", "printed grey"], p=[0.5, 0.3, 0.2])
    pitch = rng.choice([1.0, 2.0, 3.0, rng.uniform(1, 3), rng.uniform(1, 3)])
    first = -PAD - 0.5 - pitch * rng.choice([0, rng.random()])
    count = [math.ceil((n + PAD - 0.5 - first) / pitch) for n in shape]

    def cover(start: float, cells: int, width: float, elements: int, fill: float = 1) -> Array:
        """Return the share of each cell that each element covers."""
        cell = (start + width * np.arange(cells))[:, None]
        left = first + pitch * (np.arange(elements) + (1 - fill) / 2)
        overlap = np.minimum(cell + width, left + fill * pitch) - np.maximum(cell, left)
        return np.maximum(overlap, 0) / width

    most, least = rng.uniform(0.85, 0.95), rng.uniform(0.001, 0.03)
    fill = 0.96 if kind == "DMD" else 1
    levels = (rng.random(count) < rng.uniform(0.4, 0.6)).astype(float)
    printed = np.where(rng.random(count) < 0.001, 1 - levels, levels)  # dust and pinholes
    if kind == "printed grey":
        levels = rng.integers(0, 9, count) / 8
        printed = levels ** rng.uniform(0.8, 1.3)
    pairs = list(zip(shape, count, strict=True))
    share = [cover(-PAD - 0.5, (n + 2 * PAD) * FINE, 1 / FINE, k, fill) for n, k in pairs]
    for at, (n, part) in enumerate(zip(shape, share, strict=True)):
        near, far = rng.uniform(0, 3, 2) + (0 if at == axis % 2 or rng.random() < 0.5 else PAD)
        cell = (np.arange(len(part)) + 0.5) / FINE - PAD - 0.5
        stop = (1 + np.exp(-8 * (cell + 0.5 + near))) * (1 + np.exp(8 * (cell - n + 0.5 - far)))
        part /= stop[:, None]
    plane = torch.from_numpy(share[0] @ (least + (most - least) * printed) @ share[1].T).float()
    if kind == "printed grey":
        plane = blurred(plane[None, None], *(FINE * rng.uniform(0.15, 0.5),) * 2)[0, 0]
    rows, columns = (cover(-0.5, n, 1, k) for n, k in pairs)
    design = rows @ levels @ columns.T
    if two := kind != "printed grey" and rng.random() < 0.5:
        design = (design > 0.5).astype(float)
    said = f"{kind}, {pitch:.2f} px an element, design {'of two values' if two else 'averaged'}"
    return said, plane, torch.from_numpy(design).float(), most * fill**2


def draw_light(rng: Random, nm: Array) -> tuple[str, Array, Array, Array]:
    """Draw a lamp: name, wavelengths traced, their light as the sensor sees it, bands' edges."""
    edges = np.array([1.5 * nm[0] - nm[1] / 2, *(nm[1:] + nm[:-1]) / 2, 1.5 * nm[-1] - nm[-2] / 2])
    outer = np.array([edges[0] - 8, *edges, edges[-1] + 8])
    width = np.repeat(np.diff(outer) / NODES, NODES)
    nodes = outer[0] + np.cumsum(width) - width / 2

    def bell(x: Array, peak: float, full: float) -> Array:
        return np.exp(-4 * math.log(2) * ((x - peak) / full) ** 2)

    name = str(rng.choice(["halogen", "daylight", *LAMPS]))
    if name in LAMPS:
        bells, lines = LAMPS[name]
        bells = [(p + rng.normal(0, 4), full, w * rng.uniform(0.6, 1.4)) for p, full, w in bells]
        light = np.sum([w * bell(nodes, p, full) for p, full, w in bells], 0) * width
        lines = {nm: power for nm, power in lines.items() if edges[0] < nm < edges[-1]}
        nodes, light = np.append(nodes, [*lines]), np.append(light, [*lines.values()])
    else:
        kelvin = rng.uniform(2800, 3300) if name == "halogen" else rng.uniform(5200, 7000)
        light = width * nodes**-4 / np.expm1(1.4388e7 / (nodes * kelvin))
    light = light * bell(nodes, rng.uniform(510, 580), rng.uniform(260, 420))  # the sensor
    (low, high), soft = edges[[0, -1]] + rng.normal(0, 2.5, 2), rng.uniform(0.7, 2)
    light /= (1 + np.exp((low - nodes) / soft)) * (1 + np.exp((nodes - high) / soft))  # a filter
    order = np.argsort(nodes)
    order = order[light[order] > 1e-3 * light.max()]
    return name, nodes[order], light[order] / light.max(), edges


def draw_scene(rng: Random, path: Path, shape: Shape, nodes: Array) -> Tensor:
    """Draw a part of a cube that fills the padded mask plane, `(nodes, h, w)`."""
    loaded = load_cube(path)
    cube, sizes = loaded.data[0].clamp(0), [n + 2 * PAD for n in shape]
    zoom = min(rng.uniform(0.8, 1.6), *(n / m for n, m in zip(cube.shape[1:], sizes, strict=True)))
    for axis, size in enumerate(sizes, 1):
        cut = math.floor(size * zoom)
        cube = cube.narrow(axis, int(rng.integers(cube.shape[axis] - cut + 1)), cut)
    known = np.array(loaded.wavelengths)
    place = np.interp(nodes, known, np.arange(len(known)))
    low = np.minimum(place.astype(int), len(known) - 2)
    part = torch.from_numpy(place - low).float()[:, None, None]
    return torch.lerp(cube[low], cube[low + 1], part)


def read_out(rng: Random, light: Tensor) -> tuple[str, Tensor, Tensor]:
    """Draw a sensor: what it is, its picture of light (1 is full scale), hot and dead pixels."""
    shape, top = tuple(light.shape), 2 ** int(rng.choice([8, 10, 12, 12, 14])) - 1
    full, noise, dark = rng.uniform(6e3, 4e4), rng.uniform(2, 9), rng.uniform(0.01, 0.04)
    share = light.double().numpy() * rng.normal(1, rng.uniform(0.002, 0.01), shape)
    share = (rng.poisson(np.maximum(share, 0) * full) + rng.normal(0, noise, shape)) / full
    share += dark + rng.normal(0, noise / 2, shape) / full
    hot, dead = rng.random(shape) < rng.uniform(1e-4, 1e-3), rng.random(shape) < 2e-4
    excess = np.where(hot, rng.exponential(0.4, shape), 0)
    counts = np.clip(np.round(np.where(dead, dark / 2, share + excess) * top), 0, top)
    picture = torch.from_numpy(counts / top - dark - rng.normal(0, 2e-4)).float()
    said = f"{full:.0f} e full well, {noise:.1f} e read noise, {top} counts"
    return said, picture, torch.from_numpy(dead | (excess > 0.05))


@dataclass(frozen=True)
class Optics:
    """A drawn camera, its snapshot, and what its user knows."""

    said: str  # what was drawn, for people
    frame: Tensor  # (H', W'), light without its dark level, about 0 to 1, with noise
    bad: Tensor  # (H', W'), bool: pixels that the user knows to be hot or dead
    mask: Tensor  # (H, W), the user's file, 0 to 1
    photographed: bool  # by this sensor; else the file is the design
    axis: int  # of the dispersion
    detector: int  # pixels along the axis
    wavelengths: tuple[float, ...]  # of the bands
    nominal: tuple[float, ...]  # offsets of the bands that the user believes
    truth: Tensor  # (C, H, W), light of the bands: the frame is the sum of mask times truth, placed
    relay: Relay
    cut: Pair  # row and column of the sensor of the photograph's first pixel
    filter_nm: float  # through which it was taken

    def on_plane(self, row: Array, column: Array) -> tuple[Array, Array]:
        """Return the points of the mask plane that pixels of the file show."""
        if not self.photographed:
            return row, column
        return self.relay.back(row + self.cut[0], column + self.cut[1], self.filter_nm)

    def place(self, row: Tensor, column: Tensor, wavelength: float) -> tuple[Tensor, Tensor]:
        """Return row and column of the frame where pixels of the mask's file fall."""
        plane = self.on_plane(row.double().numpy(), column.double().numpy())
        r, s = self.relay.image(*plane, wavelength)
        return torch.from_numpy(r), torch.from_numpy(s)

    def offsets(self) -> tuple[float, ...]:
        """Return the offsets that fit `place` in the middle of the mask."""
        row, column = (torch.tensor([x]) for x in self.relay.middle)
        ends = (self.place(row, column, nm)[self.axis] for nm in self.wavelengths)
        return tuple(float(end) - self.relay.middle[self.axis] for end in ends)


def draw(
    seed: int, scene: Path | None = None, shape: Shape = (160, 176), bands: int = 18
) -> Optics:
    """Draw a camera and its snapshot of a scene, one of `$CASSI_DATA/cave_train` by default."""
    rng = np.random.default_rng(seed)
    if scene is None:
        scene = rng.choice(np.array(sorted(data_folder("cave_train").glob("*.tif"))))
    photographed, axis = bool(rng.random() < 0.5), int(rng.choice([-1, -2]))
    order = 1 if axis == -1 else -1
    span = (rng.uniform(452, 470), rng.uniform(620, 648))
    step = rng.choice([1.0, 1.5, 2.0, rng.uniform(0.8, 2.4)]) * rng.choice([-1, 1])
    relay = draw_relay(rng, span, step * (bands - 1), axis, shape)
    nm = np.linspace(*span, bands)
    true = np.array([relay.image(*relay.middle, x)[axis] - relay.middle[axis] for x in nm])
    if even := rng.random() < 0.25:  # bands evenly spaced on the sensor, not in nm
        wanted = np.linspace(true[0], true[-1], bands)
        nm, true = np.interp(np.sign(step) * wanted, np.sign(step) * true, nm), wanted
    points = [0, bands // 2, bands - 1] if (curved := rng.random() < 1 / 3) else [0, bands - 1]
    fit = np.polynomial.Polynomial.fit(points, true[points], len(points) - 1)(np.arange(bands))
    nominal = fit.mean() + (fit - fit.mean()) * rng.normal(1, 0.01)
    nominal += rng.normal(0, 0.3) + np.linspace(-1, 1, bands) * rng.normal(0, 0.2)
    detector = math.ceil(shape[axis] + max(nominal) + rng.choice([0, 0, 2, 5, -2]))
    size = (shape[0], detector) if axis == -1 else (detector, shape[1])

    off, filter_nm = rng.normal(0, 0.7, 2), float(nm[bands // 2])
    cut = np.array(relay.image(*relay.middle, filter_nm)) - relay.middle + off
    if not photographed:
        relay = replace(relay, base=tuple(relay.base + off))
    said_mask, plane, mask, unit = draw_mask(rng, shape, axis)
    said_light, nodes, light, edges = draw_light(rng, nm)
    parts = draw_scene(rng, scene, shape, nodes) * torch.from_numpy(light).float()[:, None, None]
    away = [np.linspace(-1, 1, n) + rng.normal(0, 0.3) for n in plane.shape]
    shading = 1 / (1 + rng.uniform(0, 0.25) * (away[0][:, None] ** 2 + away[1] ** 2)) ** 2
    vignetting = torch.from_numpy(shading).float()
    behind = plane * vignetting
    focus, stretch = rng.uniform(500, 600), rng.uniform(0.9, 1.25)
    sharp, spoiled, glare = rng.uniform(0.25, 0.65), rng.uniform(0, 0.25), rng.uniform(0, 0.03)

    def sense(fine: Tensor, wavelength: float) -> Tensor:
        sigma = FINE * (sharp + spoiled * ((wavelength - focus) / 100) ** 2)
        return F.avg_pool2d(blurred(fine, *(sigma, sigma * stretch)[::order]), FINE)

    def coded(part: Tensor) -> Tensor:
        return behind * F.interpolate(part[None, None], behind.shape, mode="bilinear")[0, 0]

    total = torch.zeros(1, 1, *size)
    for group in np.array_split(np.arange(len(nodes)), math.ceil(len(nodes) / 8)):
        images = ((float(nodes[i]), coded(parts[i])) for i in group)
        total += sense(expose(relay, images, shape, (0, 0), size), float(nodes[group].mean()))
    total = (1 - glare) * total + glare * blurred(total, *(rng.uniform(3, 12),) * 2)
    gain = float(rng.uniform(0.4, 0.85) / total.quantile(0.995))
    said_sensor, frame, bad = read_out(rng, gain * total[0, 0])

    if photographed:
        width = rng.uniform(2, 10)  # of the filter, at half of its height
        passed = ((filter_nm + width * x / 4, behind * (4 - abs(x)) / 16) for x in range(-3, 4))
        mask = sense(expose(relay, passed, shape, cut, shape), filter_nm)[0, 0]
        mask = mask + mask.clamp(0).sqrt() * torch.from_numpy(rng.normal(0, 4e-3, shape)).float()
        unit = float(mask.quantile(0.995))
        mask = (mask / unit).clamp(0, 1)
    optics = Optics(
        f"{scene.stem}, {said_light}; {'photograph of ' * photographed}{said_mask}; "
        f"{'/'.join(relay.disperser.glasses) or 'grating'}, {step:+.2f} px a band, axis {axis}, "
        f"{'even in pixels' if even else 'even in nm'}, {'parabola' if curved else 'line'}; blur "
        f"{sharp:.2f} + {spoiled:.2f} px, glare {glare:.1%}; {said_sensor}",
        *(frame, bad, mask, photographed, axis, detector, tuple(nm.tolist())),
        *(tuple(nominal.tolist()), mask, relay, tuple(cut.tolist()), filter_nm),
    )
    rows, columns = (np.arange(3 * n) / 3 - 1 / 3 for n in shape)
    grid = plane_grid(*optics.on_plane(*np.meshgrid(rows, columns, indexing="ij")), shape)
    bins = np.searchsorted(edges, nodes)
    sums = torch.stack([parts[bins == band + 1].sum(0) for band in range(bands)])
    truth = F.grid_sample(sums[None], grid, padding_mode="border", align_corners=False)
    if not photographed:
        truth = truth * F.grid_sample(vignetting[None, None], grid, align_corners=False)
    return replace(optics, truth=gain * unit * F.avg_pool2d(truth, 3)[0])


def write(folder: Path, optics: Optics) -> None:
    """Write frame, mask and bad pixels as PNG of 16 bit, `camera.yaml` and `true.yaml`."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"frame": 2000 + 50000 * optics.frame, "mask": 65535 * optics.mask}
    for name, picture in {**pictures, "bad": 65535 * optics.bad}.items():
        counts = picture.round().clamp(0, 65535).numpy().astype(np.uint16)
        Image.fromarray(counts).save(folder / f"{name}.png")
    camera = {"mask": "mask.png", "photographed": optics.photographed, "bits": 16, "dark": 2000}
    camera |= {"wavelengths": [*optics.wavelengths], "bad_pixels": "bad.png"}
    for name, offsets in (("camera", optics.nominal), ("true", optics.offsets())):
        system = {"offsets": [*offsets], "axis": optics.axis, "detector": optics.detector}
        text = yaml.safe_dump({**camera, "system": system}, sort_keys=False)
        (folder / f"{name}.yaml").write_text(f"# {optics.said}\n{text}")


def main() -> None:
    """Draw a camera and write its files."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    drawn = draw(options.seed)
    write(options.folder, drawn)
    print(drawn.said)


if __name__ == "__main__":
    main()
