"""Draw training samples: crops of scenes with random variations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from cassi.data.scenes import Scene
from cassi.data.simulation import draw_integer
from cassi.data.synthetic.patterns import PATTERNS, draw_pattern
from cassi.data.synthetic.spectra import Spectra, smooth_spectra


@dataclass(frozen=True)
class Augment:
    """The random variations of training samples.

    If there is no variation, a sample is a crop at a random position.

    Attributes:
        flip: mirror the rows with probability 1/2, and independently the columns.
        rotate: turn by a random number of right angles.
        splice: probability that a sample is joined from 2 x 2 crops of half the size, each of a
            random scene (Cai et al., "Mask-guided spectral-wise transformer", 2022, use 0.5).
        mix: probability that a sample is a mixture a·x1 + (1-a)·x2 of two samples, with a uniform
            in [0, 1].
        scale: range of the factor by which each crop is resized; the factor is log-uniform. A
            factor below 1 averages areas, which makes detail finer. A factor above 1 interpolates
            bilinearly. None: off.
        brightness: range of a uniform factor on the whole sample. Values above 1 are not clipped,
            because clipping would change spectra. None: off.
        illumination: strength of a random change of the illuminant. The sample is multiplied by a
            smooth curve over the bands. The logarithm of the curve is a sum of three cosines with
            this standard deviation. 0: off.
        lift: probability that a sample is projected to three colour channels and lifted back to a
            cube. The channels and the spectra of the three colours are broad random curves.
        patterns: probability that a sample is a synthetic scene (`cassi.data.synthetic.patterns`)
            instead of a crop; half of the synthetic scenes are mixed with a crop.
        spectra: function that draws the materials of half of the synthetic scenes, such as
            `cassi.data.synthetic.spectra.MeasuredSpectra`. Half of these scenes keep the layout of
            a crop and change only its materials. None: all synthetic scenes have smooth random
            spectra.

    Raises:
        ValueError: a probability or a range is out of its limits.
    """

    flip: bool = True
    rotate: bool = True
    splice: float = 0.5
    mix: float = 0.0
    scale: Sequence[float] | None = None
    brightness: Sequence[float] | None = None
    illumination: float = 0.0
    lift: float = 0.0
    patterns: float = 0.0
    spectra: Spectra | None = None

    def __post_init__(self) -> None:
        for name in ("splice", "mix", "lift", "patterns"):
            if not 0 <= vars(self)[name] <= 1:
                raise ValueError(f"{name}: expected 0 to 1, got {vars(self)[name]!r}")
        if not 0 <= self.illumination < math.inf:
            raise ValueError(f"illumination: expected at least 0, got {self.illumination!r}")
        for name in ("scale", "brightness"):
            limits = vars(self)[name]
            if limits is None:
                continue
            limits = tuple(float(limit) for limit in limits)
            if len(limits) != 2 or not 0 < limits[0] <= limits[1] < math.inf:
                raise ValueError(f"{name}: expected (low, high) with 0 < low <= high, got {limits}")
            object.__setattr__(self, name, limits)

    def source_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the least numbers of rows and columns of a scene for crops of this size."""
        low = self.scale[0] if self.scale else 1.0
        if self.rotate and height != width:
            height = width = max(height, width)
        return math.ceil(height / low), math.ceil(width / low)


def random_crop(
    scene: Scene, height: int, width: int, augment: Augment, generator: Generator
) -> Tensor:
    """Cut a window out of a scene at a random position; resize, turn and mirror it by `augment`.

    Returns:
        float32 `(C, height, width)`.

    Raises:
        ValueError: the scene is too small.
    """
    turns = draw_integer(4, generator) if augment.rotate else 0
    rows, columns = (width, height) if turns % 2 else (height, width)
    ratio = 1.0
    if augment.scale:
        low, high = augment.scale
        ratio = low * (high / low) ** _draw_uniform(generator)
    window_rows, window_columns = math.ceil(rows / ratio), math.ceil(columns / ratio)
    _, scene_rows, scene_columns = scene.shape
    if window_rows > scene_rows or window_columns > scene_columns:
        raise ValueError(
            f"{scene.name}: expected a crop inside {scene_rows} x {scene_columns}, got "
            f"{window_rows} x {window_columns}; choose a smaller size"
        )
    top = draw_integer(scene_rows - window_rows + 1, generator)
    left = draw_integer(scene_columns - window_columns + 1, generator)
    window = scene.values(top, left, window_rows, window_columns)
    if (window_rows, window_columns) != (rows, columns):
        window = _resize(window, rows, columns)
    flips = (draw_integer(2, generator), draw_integer(2, generator)) if augment.flip else (0, 0)
    return rotate_or_flip(window, turns, bool(flips[0]), bool(flips[1]))


def augmented_crop(
    scenes: Sequence[Scene], height: int, width: int, augment: Augment, generator: Generator
) -> Tensor:
    """Draw one training sample with all variations; every scene has the same probability.

    Returns:
        float32 `(C, height, width)`.
    """
    sample = _crop_or_splice(scenes, height, width, augment, generator)
    if augment.patterns and _draw_uniform(generator) < augment.patterns:
        sample = _mix_with_pattern(sample, augment.spectra, generator)
    if augment.mix and _draw_uniform(generator) < augment.mix:
        second_sample = _crop_or_splice(scenes, height, width, augment, generator)
        sample = torch.lerp(second_sample, sample, _draw_uniform(generator))
    if augment.brightness:
        low, high = augment.brightness
        sample.mul_(low + (high - low) * _draw_uniform(generator))
    if augment.illumination:
        curve = _draw_smooth_curve(len(sample), generator).mul_(augment.illumination).exp_()
        sample.mul_(curve[:, None, None])
    if augment.lift and _draw_uniform(generator) < augment.lift:
        sample = _lift_from_rgb(sample, generator)
    return sample


def rotate_or_flip(
    cube: Tensor, turns: int, flip_rows: bool = False, flip_columns: bool = False
) -> Tensor:
    """Turn a cube `(…, H, W)` by right angles counterclockwise, then mirror it; contiguous."""
    # Mirroring both axes equals two turns. So the cube is copied at most twice.
    if flip_rows and flip_columns:
        turns, flip_rows, flip_columns = turns + 2, False, False
    image = torch.rot90(cube, turns % 4, (-2, -1)) if turns % 4 else cube
    if flip_rows or flip_columns:
        image = image.flip(-2 if flip_rows else -1)
    return image.contiguous()


def _crop_or_splice(
    scenes: Sequence[Scene], height: int, width: int, augment: Augment, generator: Generator
) -> Tensor:
    """Draw a crop of a scene, or a splice of four crops of half the size."""
    if not (augment.splice and _draw_uniform(generator) < augment.splice) or min(height, width) < 2:
        scene = scenes[draw_integer(len(scenes), generator)]
        return random_crop(scene, height, width, augment, generator)
    sample = torch.empty(scenes[0].shape[0], height, width)
    half_height, half_width = height // 2, width // 2
    for rows in (slice(0, half_height), slice(half_height, height)):
        for columns in (slice(0, half_width), slice(half_width, width)):
            part = sample[:, rows, columns]
            scene = scenes[draw_integer(len(scenes), generator)]
            part.copy_(random_crop(scene, part.shape[1], part.shape[2], augment, generator))
    return sample


def _mix_with_pattern(cube: Tensor, spectra: Spectra | None, generator: Generator) -> Tensor:
    """Draw a synthetic scene of the size of a crop; half of the time mix it with the crop."""
    choice = draw_integer(4, generator) if spectra is not None else 0
    if spectra is None or choice < 2:
        spectra = smooth_spectra
    if choice == 3:
        pattern = _recolour(cube, spectra, generator)
    else:
        kind = list(PATTERNS)[draw_integer(len(PATTERNS), generator)]
        bands, height, width = cube.shape
        pattern = draw_pattern(kind, bands, height, width, generator, spectra)
    # Dark scenes occur, too: the maximum is uniform from 0.2 to 1.
    pattern = pattern.mul_(0.2 + 0.8 * _draw_uniform(generator))
    return (
        torch.lerp(cube, pattern, _draw_uniform(generator))
        if draw_integer(2, generator)
        else pattern
    )


def _recolour(cube: Tensor, spectra: Spectra, generator: Generator) -> Tensor:
    """Replace the materials of a crop by others with spectra s_k: x ← Σ_k b w_k s_k.

    The result is divided by its maximum. b is the mean of a pixel over the bands. The weight w_k is
    large if the spectrum of the pixel is similar to that of the k-th of 2 to 12 random pixels. The
    weights are a softmax of 100 times the cosines between these spectra. If the factor is larger
    than 100, the borders between materials are sharper.
    """
    bands, height, width = cube.shape
    pixels = cube.flatten(1)
    directions = functional.normalize(pixels, dim=0)
    count = 2 + draw_integer(11, generator)
    chosen_pixels = torch.randint(height * width, (count,), generator=generator)
    weights = (100 * directions[:, chosen_pixels].T @ directions).softmax(0) * pixels.mean(0)
    pattern = spectra(len(chosen_pixels), bands, generator).T @ weights
    return pattern.div_(pattern.amax().clamp_min(1e-6)).view_as(cube)


def _draw_smooth_curve(bands: int, generator: Generator) -> Tensor:
    """Draw a sum of three cosines over the bands, `(C,)`, with a mean square of about 1."""
    phase = (torch.arange(bands) + 0.5) * (math.pi / bands)
    weights = torch.randn(3, generator=generator) * torch.tensor([1.2, 0.6, 0.4])
    waves = [weight * torch.cos((k + 1) * phase) for k, weight in enumerate(weights)]
    return torch.stack(waves).sum(0)


def _lift_from_rgb(cube: Tensor, generator: Generator) -> Tensor:
    """Project a cube to three channels and lift it back: x ← Bᵀ P R x, with the same maximum.

    R has the curves of three channels, and B those of three colours, `(3, C)` each. P is a
    permutation of the channels.
    """
    camera_curves = _draw_broad_curves(len(cube), generator)
    display_curves = _draw_broad_curves(len(cube), generator)
    display_curves = display_curves[torch.randperm(3, generator=generator)]
    picture = (camera_curves / camera_curves.sum(1, keepdim=True)) @ cube.flatten(1)
    lifted_cube = (display_curves.T @ picture).view_as(cube)
    brightest = lifted_cube.amax()
    return lifted_cube.mul_(cube.amax() / brightest) if brightest > 0 else lifted_cube


def _draw_broad_curves(bands: int, generator: Generator) -> Tensor:
    """Draw three bell curves `(3, C)`, one in each third of the bands.

    Their width is 0.1 to 0.33 of the range of the bands.
    """
    positions = (torch.arange(bands) + 0.5) / bands
    centres = (torch.arange(3) + 0.15 + 0.7 * torch.rand(3, generator=generator)) / 3
    widths = 0.1 + 0.23 * torch.rand(3, generator=generator)
    return torch.exp(-(((positions - centres[:, None]) / widths[:, None]) ** 2))


def _resize(cube: Tensor, height: int, width: int) -> Tensor:
    """Resample a cube in space: means over areas to a smaller size, else bilinear."""
    if height <= cube.shape[-2] and width <= cube.shape[-1]:
        return functional.interpolate(cube[None], (height, width), mode="area")[0]
    size = (height, width)
    return functional.interpolate(cube[None], size, mode="bilinear", align_corners=False)[0]


def _draw_uniform(generator: Generator) -> float:
    # A float64 has 53 random bits, a float32 only 24.
    return float(torch.rand((), generator=generator, dtype=torch.float64))
