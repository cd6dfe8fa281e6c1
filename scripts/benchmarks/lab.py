"""A lab's camera on a fine grid, drawn at random, and the files that the lab has of it.

    python -m scripts.benchmarks.lab bench              # the bench of docs/guides/bench.md
    python -m scripts.benchmarks.lab bench --seed 3 --scene cube.tif

Nothing of it is the package's model: a mask of cells that are magnified and turned over the pixels,
a curve like those of prisms, optics that blur, light in lines or of all wavelengths, a lamp, a
sensor, stray light, vignetting. Dispersion runs along the columns until a file is written.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, pad

FINE = 4
"""Parts of a pixel, in both directions."""
SHADES = (1, 4)
"""Wavelengths per band: light in lines, as cubes are usually measured in simulations, or of all
wavelengths, as it is."""
BANDS = 18
RANGE = (455.0, 645.0)
"""Nanometres, of the first and the last band of a camera."""
FILTER = 10.0
"""Nanometres that a filter lets through; of light in lines it is one of them."""
KINDS = ("binary", "DMD", "chrome", "grey")
REPEATS = 16
"""Frames that a dark frame, a flat frame and a frame through a filter are means of."""


@dataclass(frozen=True)
class Lab:
    """A camera, drawn.

    Attributes:
        shape: of the field, pixels.
        axis: of the dispersion in the files, -1 or -2.
        wavelengths: nm, one per band.
        detector: pixels along the dispersion.
        kind: of the mask, one of `KINDS`.
        said: what was drawn, for people.
        masks: `(2, 4 H, 4 W)`, transmission, of two shots.
        bits: of the sensor.
        electrons: of a full pixel.
        dark: `(H, W')`, dark level, a share of full scale; hot pixels have more.
        response: `(H, W')`, of the pixels; 0 is a dead one.
        blur: of the optics behind the mask, standard deviation, pixels.
        stray: light on every pixel, a share of the mean, and its slope along the dispersion.
        lamp: temperature, K.
        first: offset of the first band, pixels.
        span: of the last band from the first, pixels.
        bent: 0 for a straight line, 1 for the curve of a prism.
        shades: wavelengths per band, of `SHADES`.
    """

    seed: int
    shape: tuple[int, int]
    axis: int
    wavelengths: tuple[float, ...]
    detector: int
    kind: str
    said: str
    masks: Tensor = field(repr=False)
    bits: int
    electrons: float
    dark: Tensor = field(repr=False)
    response: Tensor = field(repr=False)
    blur: float
    stray: tuple[float, float]
    lamp: float
    first: float
    span: float
    bent: float
    shades: int

    @staticmethod
    def drawn(seed: int, shape: tuple[int, int] = (160, 176)) -> Lab:
        """Draw a camera.

        Args:
            seed: of all that is drawn.
            shape: of its field, pixels, dispersion along the columns.
        """
        random = torch.Generator().manual_seed(seed)

        def between(low: float, high: float) -> float:
            return low + (high - low) * float(torch.rand((), generator=random))

        step, sign = between(1.0, 2.5), (1 if between(0, 1) < 0.5 else -1)
        axis = -1 if between(0, 1) < 0.5 else -2
        bent, kind = between(0.2, 1.1), KINDS[seed % len(KINDS)]
        magnified, turned = between(0.93, 1.07), between(-0.5, 0.5)
        masks = _draw_masks(kind, shape, magnified, turned, between(0.1, 0.25), random)
        span = sign * step * (BANDS - 1)
        detector = shape[1] + math.ceil(abs(span)) + round(between(0, 2))
        first = between(-0.4, 0.4) + (0 if sign > 0 else -span)
        bits = 12 if between(0, 1) < 0.5 else 14
        size = (shape[0], detector)
        hot = torch.rand(size, generator=random) < 1e-3
        dark = between(0.02, 0.06) + hot * (0.05 + 0.3 * torch.rand(size, generator=random))
        dead = torch.rand(size, generator=random) < 5e-4
        response = (1 + 0.01 * torch.randn(size, generator=random)) * ~dead
        half = (RANGE[1] - RANGE[0]) / (BANDS - 1)
        wavelengths = tuple(RANGE[0] + half * band for band in range(BANDS))
        shades = SHADES[(seed + seed // len(KINDS)) % len(SHADES)]
        side = "rows" if axis == -2 else "columns"
        said = (
            f"{kind}, {'lines' if shades == 1 else 'all light'}, step {sign * step:.2f}, {side}, "
            f"magnified {magnified:.2f}, turned {turned:+.1f}°, {bits} bits"
        )
        electrons, blur = between(1.5e4, 4e4), between(0.15, 0.35)
        return Lab(
            *(seed, shape, axis, wavelengths, detector, kind, said, masks, bits),
            *(electrons, dark, response, blur, (between(0.005, 0.015), between(-1, 1))),
            lamp=between(2800, 3400),
            first=first,
            span=span,
            bent=bent,
            shades=shades,
        )

    @property
    def places(self) -> Tensor:
        """Offset of each band, pixels, float64."""
        return torch.tensor([self.place(each) for each in self.wavelengths], dtype=torch.float64)

    def place(self, wavelength: float) -> float:
        """Return where the first pixel of the field falls in light of one wavelength."""
        low, high = self.wavelengths[0], self.wavelengths[-1]
        glass = [1 / ((value / 1000) ** 2 - 0.015) for value in (wavelength, low, high)]
        curved = (glass[0] - glass[1]) / (glass[2] - glass[1])
        straight = (wavelength - low) / (high - low)
        return self.first + self.span * (straight + self.bent * (curved - straight))

    def light(self, wavelength: float) -> float:
        """Return what lamp and sensor make of a wavelength."""
        meters = 1e-9 * wavelength
        planck = meters**-4 / (math.exp(0.014388 / (meters * self.lamp)) - 1)
        silicon = 0.62 * math.exp(-(((wavelength - 630) / 210) ** 2))
        return planck * silicon / 1e24

    def scene(self, cube: Tensor, wavelengths: Sequence[float]) -> Tensor:
        """Return what a scene sends into the camera, `(C, shades, 4 H, 4 W)`, its largest 1.

        Args:
            cube: `(1, C', h, w)`, reflectance.
            wavelengths: of its bands, nm; beyond them reflectance stays as it is.
        """
        height, width = (FINE * side for side in self.shape)
        scale = max(height / cube.shape[-2], width / cube.shape[-1])
        size = [math.ceil(length * scale) for length in cube.shape[-2:]]
        shades = []
        lights = self.lights().flatten().tolist()
        bands = cube.shape[1]
        places = np.interp(lights, wavelengths, np.arange(bands)).clip(max=bands - 1.001)
        for wavelength, at in zip(lights, places.tolist(), strict=True):
            image = torch.lerp(cube[:, int(at)], cube[:, int(at) + 1], at - int(at))[:, None]
            image = interpolate(image.float(), size=size, mode="bicubic", align_corners=False)
            shades.append(image[0, 0, :height, :width].clamp_min(0) * self.light(wavelength))
        found = torch.stack(shades).unflatten(0, (BANDS, self.shades))
        return found / found.mean(1).amax()

    def lights(self) -> Tensor:
        """Wavelengths within the bands, nm, `(C, shades)`."""
        width = self.wavelengths[1] - self.wavelengths[0]
        parts = (torch.arange(self.shades, dtype=torch.float64) + 0.5) / self.shades - 0.5
        return torch.tensor(self.wavelengths, dtype=torch.float64)[:, None] + width * parts

    def measure(self, scene: Tensor, shot: int = 0) -> Tensor:
        """Return the light on the detector `(H, W')` of what `scene` returns."""
        images = scene.flatten(0, 1) / self.shades
        return self._disperse(images, self.lights().flatten().tolist(), shot)

    def white(self, wavelength: float | None = None, shot: int = 0) -> Tensor:
        """Return the light of an even white scene, through a filter or not, `(H, W')`."""
        if wavelength is None:
            shades = self.lights().flatten().tolist()
        else:
            wide = FILTER * (self.shades > 1)
            shades = [wavelength + wide * ((k + 0.5) / 9 - 0.5) for k in range(9)]
        even = torch.ones([FINE * side for side in self.shape])
        return self._disperse([self.light(each) * even for each in shades], shades, shot)

    def _disperse(
        self, images: Sequence[Tensor] | Tensor, shades: Sequence[float], shot: int
    ) -> Tensor:
        height, width = (FINE * side for side in self.shape)
        margin = 4 * FINE
        light = torch.zeros(height, FINE * self.detector + 2 * margin)
        for image, wavelength in zip(images, shades, strict=True):
            at = FINE * self.place(wavelength) + margin
            first = math.floor(at)
            coded = self.masks[shot] * image
            light[:, first : first + width] += (1 - (at - first)) * coded
            light[:, first + 1 : first + 1 + width] += (at - first) * coded
        steps = torch.arange(-2 * FINE, 2 * FINE + 1)
        kernel = torch.softmax(-((steps / FINE / self.blur) ** 2) / 2, 0)
        wide = pad(light[None, None], (2 * FINE,) * 4, mode="replicate")
        blurred = conv2d(conv2d(wide, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))
        y = avg_pool2d(blurred[..., margin : margin + FINE * self.detector], FINE)[0, 0]
        share, slope = self.stray
        return y + share * y.mean() * (1 + slope * torch.linspace(-1, 1, y.shape[1]))

    def expose(self, light: Tensor, fill: float, repeats: int, seed: int) -> np.ndarray:
        """Take frames of light `(H, W')` and return their mean, counts.

        Args:
            light: of any unit.
            fill: share of full scale that nearly the brightest pixel reaches; 0 is a dark frame.
            repeats: frames.
            seed: of the noise.
        """
        random = torch.Generator().manual_seed(1000 * self.seed + seed)
        top = light.flatten().quantile(0.999).clamp_min(1e-30)
        electrons = self.electrons * (light / top * fill * self.response + self.dark)
        full, total = 2**self.bits - 1, torch.zeros_like(electrons)
        for _ in range(repeats):
            seen = torch.poisson(electrons, generator=random)
            seen += 3 * torch.randn(seen.shape, generator=random)
            total += (seen / self.electrons * full).round().clamp(0, full)
        return (total / repeats).numpy()

    def files(self, folder: Path, scene: Tensor) -> dict[str, Any]:
        """Write what the lab has: frames, and the camera as its user knows it.

        Args:
            folder: of the files.
            scene: of `scene`.

        Returns:
            The values of the camera's file: the mask is cut by hand from the frame of the middle
            filter, and the dispersion is the step between the outermost bands.
        """
        filters = self.filters()
        frames = {
            "frame": self.expose(self.measure(scene), 0.8, 1, 1),
            "second": self.expose(self.measure(scene, 1), 0.8, 1, 2),
            "dark": self.expose(torch.zeros_like(self.dark), 0, REPEATS, 3),
            "flat": self.expose(torch.ones_like(self.dark), 0.6, REPEATS, 4),
            "white": self.expose(self.white(), 0.8, REPEATS, 5),
            **{
                f"filter_{wavelength:.0f}": self.expose(
                    self.white(wavelength), 0.7, REPEATS, 10 + k
                )
                for k, wavelength in enumerate(filters)
            },
        }
        counts = {name: frame.round().astype(np.uint16) for name, frame in frames.items()}
        away = {name: frame - frames["dark"] for name, frame in frames.items()}
        typical = np.median(frames["dark"])
        bad = (np.abs(frames["dark"] - typical) > 0.02 * 2**self.bits) | (
            away["flat"] < 0.5 * np.median(away["flat"])
        )
        counts["bad"] = (255 * bad).astype(np.uint8)
        even = np.where(bad, 1, away["flat"] / away["flat"][~bad].mean())
        photo = away[f"filter_{filters[1]:.0f}"] / even
        photo = np.where(bad, _median(photo), photo)
        left = round(self.crop())
        mask = photo[:, left : left + self.shape[1]]
        counts["mask"] = np.clip(60000 * mask / np.quantile(mask, 0.995), 0, 65535).astype(
            np.uint16
        )
        for name, frame in counts.items():
            turned = frame.T if self.axis == -2 else frame
            Image.fromarray(np.ascontiguousarray(turned)).save(folder / f"{name}.png")
        camera: dict[str, Any] = {
            "mask": "mask.png",
            "system": {"step": round(self.span / (BANDS - 1), 3), "axis": self.axis},
            "wavelengths": [round(value, 2) for value in self.wavelengths],
            "bits": self.bits,
            "dark": "dark.png",
            "flat": "flat.png",
            "bad_pixels": "bad.png",
        }
        (folder / "camera.yaml").write_text(yaml.safe_dump(camera, sort_keys=False))
        system = {"offsets": self.offsets().tolist(), "axis": self.axis, "detector": self.detector}
        true = yaml.safe_dump(camera | {"system": system}, sort_keys=False)
        (folder / "true.yaml").write_text(true)
        return camera

    def filters(self) -> list[float]:
        """Return the wavelengths of three filters, nm."""
        low, high = RANGE
        return [10 * round((low + share * (high - low)) / 10) for share in (0.1, 0.5, 0.9)]

    def filter_options(
        self, folder: Path, camera: str = "camera.yaml", which: slice = slice(None)
    ) -> list[str]:
        """Return what `cassi-calibrate` is told of the frames through filters, of `files`."""
        frames = (
            f"{{file: {folder}/filter_{each:.0f}.png, wavelength: {each}}}"
            for each in self.filters()[which]
        )
        return [f"camera={folder}/{camera}", f"monochromatic=[{', '.join(frames)}]"]

    def crop(self) -> float:
        """Return where the field begins in light of the middle filter, pixels."""
        return self.place(self.filters()[1])

    def offsets(self) -> Tensor:
        """Return the offset of each band from the mask as it was cut, pixels."""
        return (self.places - (self.crop() - round(self.crop()))).float()

    def score(self, x: Tensor, scene: Tensor) -> tuple[Tensor, Tensor]:
        """Return cube and truth `(C, H, W)` where they fit best, scaled, without the borders.

        Args:
            x: cube `(C, H, W)` as a command returned it.
            scene: of `scene`.
        """
        x = x.mT if self.axis == -2 else x
        truth, inner = scene.mean(1), (..., slice(4, -4), slice(4, -4))

        def tried(down: int, right: int) -> tuple[float, Tensor, Tensor]:
            there = avg_pool2d(truth.roll((-down, -right), (-2, -1)), FINE)
            there, mine = there[..., : x.shape[-2], : x.shape[-1]][inner], x[inner]
            scale = (there * mine).sum() / mine.square().sum().clamp_min(1e-30)
            return float((scale * mine - there).square().mean()), scale, there

        best = min((tried(0, right)[0], right) for right in range(-6, 7))[1]
        down = min((tried(down, best)[0], down) for down in range(-2, 3))[1]
        _, scale, there = tried(down, best)
        return scale, there


def read_scene(path: Path) -> tuple[Tensor, tuple[float, ...]]:
    """Read a cube `(1, C, h, w)` and the wavelengths that its file states, nm."""
    from cassi.data.io import load_cube

    found = load_cube(path)
    if found.wavelengths is None:
        raise ValueError(f"{path}: expected a file that states its wavelengths")
    return found.data, found.wavelengths


def _draw_masks(
    kind: str,
    shape: tuple[int, int],
    magnified: float,
    turned: float,
    vignette: float,
    random: torch.Generator,
) -> Tensor:
    """Return the transmission of two masks on the fine grid, `(2, 4 H, 4 W)`."""
    height, width = shape
    rows = (torch.arange(FINE * height) + 0.5) / FINE - height / 2
    columns = (torch.arange(FINE * width) + 0.5) / FINE - width / 2
    rows, columns = torch.meshgrid(rows, columns, indexing="ij")
    angle, pitch = math.radians(turned), magnified * (1.25 if kind == "DMD" else 1.0)
    down = (math.cos(angle) * rows - math.sin(angle) * columns) / pitch + height
    right = (math.sin(angle) * rows + math.cos(angle) * columns) / pitch + width
    cells = torch.rand(2, 2 * height, 2 * width, generator=random)
    if kind != "grey":
        cells = (cells < 0.5).float()
    seen = cells[:, down.long(), right.long()]
    if kind == "chrome":
        seen = 0.03 + 0.94 * seen
    if kind == "DMD":  # gaps between mirrors
        seen = seen * (((down % 1) > 0.06) & ((right % 1) > 0.06))
    radius = (rows / height).square() + (columns / width).square()
    return seen * (1 - 2 * vignette * radius)


def _median(image: np.ndarray) -> np.ndarray:
    """Return the medians of the neighbours."""
    wide = np.pad(image, 1, mode="edge")
    height, width = image.shape
    near = [wide[i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.asarray(np.median(near[:4] + near[5:], axis=0))


FRAMES = ("bits", "dark", "flat", "bad_pixels", "wavelengths")


def main() -> None:
    """Write the files of a camera into a folder, with `frames.yaml`: what raw frames go through."""
    from cassi.data.bundled import bundled_path

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2, help="of the camera")
    parser.add_argument("--scene", type=Path, help="a cube; the bundled one if left out")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    lab = Lab.drawn(arguments.seed)
    scene = lab.scene(*read_scene(arguments.scene or bundled_path("scene.tif")))
    camera = lab.files(arguments.folder, scene)
    frames = {name: camera[name] for name in FRAMES} | {"system": {"axis": lab.axis}}
    (arguments.folder / "frames.yaml").write_text(yaml.safe_dump(frames, sort_keys=False))
    filters = ", ".join(f"{each:.0f} nm" for each in lab.filters())
    print(f"{lab.said}; frames through filters of {filters} -> {arguments.folder}")


if __name__ == "__main__":
    main()
