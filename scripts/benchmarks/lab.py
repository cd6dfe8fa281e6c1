"""Simulate a random camera of a lab on subpixels, and write the files that the lab would have.

    python -m scripts.benchmarks.lab bench              # the bench of docs/guides/bench.md
    python -m scripts.benchmarks.lab bench --seed 3 --scene cube.tif

The simulation uses no model of the package. The cells of the mask are magnified and rotated
relative to the pixels. The dispersion is curved like that of a prism, and the optics blur. The lamp
has a narrow-band or broadband spectrum, and there are a sensor, stray light and vignetting. In this
module the dispersion runs along the columns. In the written files it may run along the rows.
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

# Samples per pixel, in both directions.
SUBPIXELS = 4
# A camera has one of these numbers. 1: the light consists of spectral lines, as in most
# simulations. 4: the light is broadband, as real light is.
WAVELENGTHS_PER_BAND = (1, 4)
BANDS = 18
# Wavelengths of the first and the last band.
BAND_RANGE_NM = (455.0, 645.0)
# Range that a filter lets through. If the light consists of lines, it selects a single line.
FILTER_WIDTH_NM = 10.0
KINDS = ("binary", "DMD", "chrome", "grey")
# A dark frame, a flat frame and a frame through a filter are each the mean of so many frames.
AVERAGED_FRAMES = 16


@dataclass(frozen=True)
class Lab:
    """A random camera.

    Attributes:
        seed: seed of all random numbers.
        shape: rows and columns of the mask's field, pixels.
        axis: axis of the dispersion in the files, -1 or -2.
        wavelengths: nm, one per band.
        detector: pixels along the dispersion.
        kind: kind of the mask, one of `KINDS`.
        description: the properties of the camera, in words.
        masks: `(2, 4 H, 4 W)`, transmission of the masks of two shots.
        bits: bits of the sensor.
        electrons: electrons of a full pixel.
        dark: `(H, W')`, dark level as a fraction of full scale; it is higher at hot pixels.
        response: `(H, W')`, response of the pixels; 0 at a dead pixel.
        blur: standard deviation of the blur of the optics behind the mask, pixels.
        stray_light: light on every pixel as a fraction of the mean, and its slope along the
            dispersion.
        lamp_kelvin: temperature of the lamp.
        first_offset: offset of the first band, pixels.
        span: distance of the last band from the first, pixels.
        curve: form of the dispersion, 0 for a straight line, 1 for the curve of a prism.
        wavelengths_per_band: one of `WAVELENGTHS_PER_BAND`.
    """

    seed: int
    shape: tuple[int, int]
    axis: int
    wavelengths: tuple[float, ...]
    detector: int
    kind: str
    description: str
    masks: Tensor = field(repr=False)
    bits: int
    electrons: float
    dark: Tensor = field(repr=False)
    response: Tensor = field(repr=False)
    blur: float
    stray_light: tuple[float, float]
    lamp_kelvin: float
    first_offset: float
    span: float
    curve: float
    wavelengths_per_band: int

    @staticmethod
    def draw(seed: int, shape: tuple[int, int] = (160, 176)) -> Lab:
        """Draw a camera.

        Args:
            seed: seed of all random numbers. If they are drawn in another order, the same seed
                gives another camera.
            shape: rows and columns of its field, pixels; the dispersion is along the columns.
        """
        random = torch.Generator().manual_seed(seed)

        def uniform(low: float, high: float) -> float:
            return low + (high - low) * float(torch.rand((), generator=random))

        step, sign = uniform(1.0, 2.5), (1 if uniform(0, 1) < 0.5 else -1)
        axis = -1 if uniform(0, 1) < 0.5 else -2
        curve, kind = uniform(0.2, 1.1), KINDS[seed % len(KINDS)]
        magnification, rotation = uniform(0.93, 1.07), uniform(-0.5, 0.5)
        masks = _draw_masks(kind, shape, magnification, rotation, uniform(0.1, 0.25), random)
        span = sign * step * (BANDS - 1)
        detector = shape[1] + math.ceil(abs(span)) + round(uniform(0, 2))
        first_offset = uniform(-0.4, 0.4) + (0 if sign > 0 else -span)
        bits = 12 if uniform(0, 1) < 0.5 else 14
        size = (shape[0], detector)
        is_hot = torch.rand(size, generator=random) < 1e-3
        dark = uniform(0.02, 0.06) + is_hot * (0.05 + 0.3 * torch.rand(size, generator=random))
        is_dead = torch.rand(size, generator=random) < 5e-4
        response = (1 + 0.01 * torch.randn(size, generator=random)) * ~is_dead
        band_width = (BAND_RANGE_NM[1] - BAND_RANGE_NM[0]) / (BANDS - 1)
        wavelengths = tuple(BAND_RANGE_NM[0] + band_width * band for band in range(BANDS))
        # Successive seeds run through the kinds of masks and light. The second term makes each kind
        # of mask occur with both kinds of light.
        light_index = (seed + seed // len(KINDS)) % len(WAVELENGTHS_PER_BAND)
        wavelengths_per_band = WAVELENGTHS_PER_BAND[light_index]
        light = "lines" if wavelengths_per_band == 1 else "broadband"
        side = "rows" if axis == -2 else "columns"
        description = (
            f"{kind}, {light}, step {sign * step:.2f}, {side}, "
            f"magnified {magnification:.2f}, turned {rotation:+.1f}°, {bits} bits"
        )
        return Lab(
            seed=seed,
            shape=shape,
            axis=axis,
            wavelengths=wavelengths,
            detector=detector,
            kind=kind,
            description=description,
            masks=masks,
            bits=bits,
            electrons=uniform(1.5e4, 4e4),
            dark=dark,
            response=response,
            blur=uniform(0.15, 0.35),
            stray_light=(uniform(0.005, 0.015), uniform(-1, 1)),
            lamp_kelvin=uniform(2800, 3400),
            first_offset=first_offset,
            span=span,
            curve=curve,
            wavelengths_per_band=wavelengths_per_band,
        )

    @property
    def band_offsets(self) -> Tensor:
        """Offset of each band, pixels, float64."""
        return torch.tensor([self.offset_at(nm) for nm in self.wavelengths], dtype=torch.float64)

    def offset_at(self, wavelength: float) -> float:
        """Return the offset of light of one wavelength, pixels."""
        low, high = self.wavelengths[0], self.wavelengths[-1]
        # The refractive index of a glass by Sellmeier's equation with one resonance, at 0.12 µm.
        glass = [1 / ((value / 1000) ** 2 - 0.015) for value in (wavelength, low, high)]
        prism_position = (glass[0] - glass[1]) / (glass[2] - glass[1])
        line_position = (wavelength - low) / (high - low)
        position = line_position + self.curve * (prism_position - line_position)
        return self.first_offset + self.span * position

    def spectral_power(self, wavelength: float) -> float:
        """Return the power of the lamp times the sensitivity of the sensor at a wavelength."""
        meters = 1e-9 * wavelength
        planck = meters**-4 / (math.exp(0.014388 / (meters * self.lamp_kelvin)) - 1)
        silicon = 0.62 * math.exp(-(((wavelength - 630) / 210) ** 2))
        return planck * silicon / 1e24

    def scene(self, cube: Tensor, wavelengths: Sequence[float]) -> Tensor:
        """Return the light of a scene that falls on the mask, by wavelength.

        Args:
            cube: `(1, C', h, w)`, reflectance.
            wavelengths: wavelengths of the cube's bands, nm. Beyond them, reflectance is constant.

        Returns:
            `(C, wavelengths per band, 4 H, 4 W)`; the largest mean of a band is 1.
        """
        height, width = (SUBPIXELS * side for side in self.shape)
        scale = max(height / cube.shape[-2], width / cube.shape[-1])
        size = [math.ceil(length * scale) for length in cube.shape[-2:]]
        images = []
        traced_nm = self.traced_wavelengths().flatten().tolist()
        bands = cube.shape[1]
        # Positions stay a little below the last band, so that there is always a band above.
        positions = np.interp(traced_nm, wavelengths, np.arange(bands)).clip(max=bands - 1.001)
        for wavelength, position in zip(traced_nm, positions.tolist(), strict=True):
            band = int(position)
            image = torch.lerp(cube[:, band], cube[:, band + 1], position - band)[:, None]
            image = interpolate(image.float(), size=size, mode="bicubic", align_corners=False)
            image = image[0, 0, :height, :width].clamp_min(0)
            images.append(image * self.spectral_power(wavelength))
        light = torch.stack(images).unflatten(0, (BANDS, self.wavelengths_per_band))
        return light / light.mean(1).amax()

    def traced_wavelengths(self) -> Tensor:
        """Return the simulated wavelengths, nm, `(C, wavelengths per band)`."""
        width, n = self.wavelengths[1] - self.wavelengths[0], self.wavelengths_per_band
        fractions = (torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5
        return torch.tensor(self.wavelengths, dtype=torch.float64)[:, None] + width * fractions

    def measure(self, scene: Tensor, shot: int = 0) -> Tensor:
        """Return the light on the detector, `(H, W')`, for a scene that `Lab.scene` returned."""
        images = scene.flatten(0, 1) / self.wavelengths_per_band
        return self._disperse(images, self.traced_wavelengths().flatten().tolist(), shot)

    def white(self, wavelength: float | None = None, shot: int = 0) -> Tensor:
        """Return the light of an even white scene on the detector, `(H, W')`.

        If a wavelength is given, the light goes through a filter around it.
        """
        if wavelength is None:
            traced_nm = self.traced_wavelengths().flatten().tolist()
        else:
            filter_width = FILTER_WIDTH_NM if self.wavelengths_per_band > 1 else 0.0
            traced_nm = [wavelength + filter_width * ((k + 0.5) / 9 - 0.5) for k in range(9)]
        white = torch.ones([SUBPIXELS * side for side in self.shape])
        return self._disperse(
            [self.spectral_power(nm) * white for nm in traced_nm], traced_nm, shot
        )

    def _disperse(
        self, images: Sequence[Tensor] | Tensor, wavelengths: Sequence[float], shot: int
    ) -> Tensor:
        """Return the light on the detector, from an image on the mask for each wavelength."""
        height, width = (SUBPIXELS * side for side in self.shape)
        margin = 4 * SUBPIXELS
        light = torch.zeros(height, SUBPIXELS * self.detector + 2 * margin)
        for image, wavelength in zip(images, wavelengths, strict=True):
            # A shift by a fraction of a subpixel is interpolated linearly.
            position = SUBPIXELS * self.offset_at(wavelength) + margin
            first = math.floor(position)
            coded_image = self.masks[shot] * image
            light[:, first : first + width] += (1 - (position - first)) * coded_image
            light[:, first + 1 : first + 1 + width] += (position - first) * coded_image
        steps = torch.arange(-2 * SUBPIXELS, 2 * SUBPIXELS + 1)
        kernel = torch.softmax(-((steps / SUBPIXELS / self.blur) ** 2) / 2, 0)
        light = pad(light[None, None], (2 * SUBPIXELS,) * 4, mode="replicate")
        light = conv2d(conv2d(light, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))
        columns = slice(margin, margin + SUBPIXELS * self.detector)
        y = avg_pool2d(light[..., columns], SUBPIXELS)[0, 0]
        fraction, slope = self.stray_light
        return y + fraction * y.mean() * (1 + slope * torch.linspace(-1, 1, y.shape[1]))

    def expose(self, light: Tensor, fill: float, repeats: int, seed: int) -> np.ndarray:
        """Take frames of light `(H, W')`, and return their mean, counts.

        Args:
            light: light on the detector, in any unit.
            fill: fraction of full scale that the 99.9 % quantile of the light reaches; 0 gives a
                dark frame.
            repeats: number of frames.
            seed: seed of the noise.
        """
        random = torch.Generator().manual_seed(1000 * self.seed + seed)
        bright_level = light.flatten().quantile(0.999).clamp_min(1e-30)
        electrons = self.electrons * (light / bright_level * fill * self.response + self.dark)
        max_count, total = 2**self.bits - 1, torch.zeros_like(electrons)
        for _ in range(repeats):
            noisy = torch.poisson(electrons, generator=random)
            noisy += 3 * torch.randn(noisy.shape, generator=random)  # read noise, electrons
            total += (noisy / self.electrons * max_count).round().clamp(0, max_count)
        return (total / repeats).numpy()

    def write_files(self, folder: Path, scene: Tensor) -> dict[str, Any]:
        """Write the files of the lab: frames, the user's camera file, and the true camera.

        The user has cut the mask by hand from the frame of the middle filter, and takes the mean
        step between the outermost bands as the dispersion.

        Args:
            folder: the folder of the files.
            scene: the light of a scene, from `Lab.scene`.

        Returns:
            The contents of camera.yaml.
        """
        filters = self.filter_wavelengths()
        frames = {
            "frame": self.expose(self.measure(scene), 0.8, 1, 1),
            "second": self.expose(self.measure(scene, 1), 0.8, 1, 2),
            "dark": self.expose(torch.zeros_like(self.dark), 0, AVERAGED_FRAMES, 3),
            "flat": self.expose(torch.ones_like(self.dark), 0.6, AVERAGED_FRAMES, 4),
            "white": self.expose(self.white(), 0.8, AVERAGED_FRAMES, 5),
            **{
                f"filter_{wavelength:.0f}": self.expose(
                    self.white(wavelength), 0.7, AVERAGED_FRAMES, 10 + k
                )
                for k, wavelength in enumerate(filters)
            },
        }
        counts = {name: frame.round().astype(np.uint16) for name, frame in frames.items()}
        without_dark = {name: frame - frames["dark"] for name, frame in frames.items()}
        # A pixel is bad if its dark level differs from the median by 2 % of full scale, or if its
        # response is less than half of the median.
        dark_level, flat = np.median(frames["dark"]), without_dark["flat"]
        is_bad = np.abs(frames["dark"] - dark_level) > 0.02 * 2**self.bits
        is_bad |= flat < 0.5 * np.median(flat)
        counts["bad"] = (255 * is_bad).astype(np.uint8)
        relative_flat = np.where(is_bad, 1, flat / flat[~is_bad].mean())
        mask_frame = without_dark[f"filter_{filters[1]:.0f}"] / relative_flat
        mask_frame = np.where(is_bad, _neighbour_median(mask_frame), mask_frame)
        left = round(self.crop())
        mask = mask_frame[:, left : left + self.shape[1]]
        mask = np.clip(60000 * mask / np.quantile(mask, 0.995), 0, 65535)
        counts["mask"] = mask.astype(np.uint16)
        for name, frame in counts.items():
            picture = frame.T if self.axis == -2 else frame
            Image.fromarray(np.ascontiguousarray(picture)).save(folder / f"{name}.png")
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
        text = yaml.safe_dump(camera | {"system": system}, sort_keys=False)
        (folder / "true.yaml").write_text(text)
        return camera

    def filter_wavelengths(self) -> list[float]:
        """Return the wavelengths of three filters, nm, as multiples of 10."""
        low, high = BAND_RANGE_NM
        return [10 * round((low + part * (high - low)) / 10) for part in (0.1, 0.5, 0.9)]

    def filter_options(
        self, folder: Path, camera: str = "camera.yaml", filters: slice = slice(None)
    ) -> list[str]:
        """Return the options of `cassi-calibrate` for the frames through filters."""
        frames = (
            f"{{file: {folder}/filter_{nm:.0f}.png, wavelength: {nm}}}"
            for nm in self.filter_wavelengths()[filters]
        )
        return [f"camera={folder}/{camera}", f"monochromatic=[{', '.join(frames)}]"]

    def crop(self) -> float:
        """Return the detector column at which the field begins, in light of the middle filter."""
        return self.offset_at(self.filter_wavelengths()[1])

    def offsets(self) -> Tensor:
        """Return the offset of each band relative to the mask of the files, pixels."""
        return (self.band_offsets - (self.crop() - round(self.crop()))).float()

    def score(self, x: Tensor, scene: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best factor for a cube, and the truth `(C, H, W)` at the best position.

        The truth is without borders. The factor is fitted because a frame has no unit. The position
        is fitted within a pixel or two, because a camera whose mask and offsets are shifted by the
        same pixels is the same camera.

        Args:
            x: cube `(C, H, W)` as a command returned it.
            scene: the light of the scene, from `Lab.scene`.
        """
        x = x.mT if self.axis == -2 else x
        fine_truth, interior = scene.mean(1), (..., slice(4, -4), slice(4, -4))

        def fit(down: int, right: int) -> tuple[float, Tensor, Tensor]:
            """Return error, factor and truth, with the truth shifted by so many subpixels."""
            truth = avg_pool2d(fine_truth.roll((-down, -right), (-2, -1)), SUBPIXELS)
            truth, cube = truth[..., : x.shape[-2], : x.shape[-1]][interior], x[interior]
            scale = (truth * cube).sum() / cube.square().sum().clamp_min(1e-30)
            return float((scale * cube - truth).square().mean()), scale, truth

        best_right = min((fit(0, right)[0], right) for right in range(-6, 7))[1]
        best_down = min((fit(down, best_right)[0], down) for down in range(-2, 3))[1]
        _, scale, truth = fit(best_down, best_right)
        return scale, truth


def read_scene(path: Path) -> tuple[Tensor, tuple[float, ...]]:
    """Read a cube `(1, C, h, w)` and the wavelengths that its file states, nm."""
    from cassi.data.io import load_cube

    file = load_cube(path)
    if file.wavelengths is None:
        raise ValueError(f"{path}: expected a file that states its wavelengths")
    return file.data, file.wavelengths


def _draw_masks(
    kind: str,
    shape: tuple[int, int],
    magnification: float,
    rotation: float,
    vignetting: float,
    random: torch.Generator,
) -> Tensor:
    """Return the transmission of two masks on subpixels, `(2, 4 H, 4 W)`; rotation in degrees."""
    height, width = shape
    rows = (torch.arange(SUBPIXELS * height) + 0.5) / SUBPIXELS - height / 2
    columns = (torch.arange(SUBPIXELS * width) + 0.5) / SUBPIXELS - width / 2
    rows, columns = torch.meshgrid(rows, columns, indexing="ij")
    angle, pitch = math.radians(rotation), magnification * (1.25 if kind == "DMD" else 1.0)
    cell_row = (math.cos(angle) * rows - math.sin(angle) * columns) / pitch + height
    cell_column = (math.sin(angle) * rows + math.cos(angle) * columns) / pitch + width
    cells = torch.rand(2, 2 * height, 2 * width, generator=random)
    if kind != "grey":
        cells = (cells < 0.5).float()
    masks = cells[:, cell_row.long(), cell_column.long()]
    if kind == "chrome":
        masks = 0.03 + 0.94 * masks
    if kind == "DMD":  # gaps between mirrors
        masks = masks * (((cell_row % 1) > 0.06) & ((cell_column % 1) > 0.06))
    radius = (rows / height).square() + (columns / width).square()
    return masks * (1 - 2 * vignetting * radius)


def _neighbour_median(image: np.ndarray) -> np.ndarray:
    """Return the median of the eight neighbours of each pixel."""
    padded = np.pad(image, 1, mode="edge")
    height, width = image.shape
    views = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.asarray(np.median(views[:4] + views[5:], axis=0))


# Keys of the camera's file with which raw frames are corrected.
FRAME_KEYS = ("bits", "dark", "flat", "bad_pixels", "wavelengths")


def main() -> None:
    """Write the files of a camera, and `frames.yaml` with only the correction of raw frames."""
    from cassi.data.bundled import bundled_path

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2, help="seed of the camera")
    parser.add_argument("--scene", type=Path, help="a cube; the bundled one if left out")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    lab = Lab.draw(arguments.seed)
    scene = lab.scene(*read_scene(arguments.scene or bundled_path("scene.tif")))
    camera = lab.write_files(arguments.folder, scene)
    frames = {name: camera[name] for name in FRAME_KEYS} | {"system": {"axis": lab.axis}}
    (arguments.folder / "frames.yaml").write_text(yaml.safe_dump(frames, sort_keys=False))
    filters = ", ".join(f"{nm:.0f} nm" for nm in lab.filter_wavelengths())
    print(f"{lab.description}; frames through filters of {filters} -> {arguments.folder}")


if __name__ == "__main__":
    main()
