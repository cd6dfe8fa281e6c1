"""Random variations of training samples: pure functions of scenes and a generator."""

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
    """What is varied; with everything off a sample is a crop at a random place.

    Attributes:
        flip: mirror rows and columns, each half of the time.
        rotate: turn by a random number of right angles.
        splice: probability that a sample is a 2 x 2 splice of four half-size crops, from scenes
            drawn anew (Cai et al., "Mask-guided spectral-wise transformer", 2022, use 0.5).
        mix: probability that a sample is a·x1 + (1-a)·x2 of two samples, a uniform in [0, 1].
        scale: range of the ratio by which each crop is resampled in space, log-uniform; below 1 by
            means over areas, which makes detail finer, above 1 bilinear. None: not at all.
        brightness: range of a factor on the whole sample, uniform. Nothing is clipped: that would
            change spectra. None: not at all.
        illumination: standard deviation of the logarithm of a smooth factor over the bands, as
            another light would give: three cosines; 0: not at all.
        lift: probability that a sample becomes what an RGB picture of it would be lifted to: seen
            in three broad channels, and lit in three broad colours, all drawn at random.
        patterns: probability that a sample is drawn (`cassi.data.synthetic.patterns`) and not cut
            from a scene; half of those are mixed with a crop.
        spectra: draws the materials of half of the drawn samples, such as
            `cassi.data.synthetic.spectra.MeasuredSpectra`. Of these every second one keeps the
            layout of its crop: only the materials change.
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
        """Rows and columns that a scene must have for crops of this size."""
        low = self.scale[0] if self.scale else 1.0
        if self.rotate and height != width:
            height = width = max(height, width)
        return math.ceil(height / low), math.ceil(width / low)


def random_crop(
    scene: Scene, height: int, width: int, augment: Augment, generator: Generator
) -> Tensor:
    """Cut a window at a random place, resampled in space, mirrored and turned as asked.

    Returns float32 `(C, height, width)`; ValueError where the scene is too small.
    """
    turns = draw_integer(4, generator) if augment.rotate else 0
    rows, columns = (width, height) if turns % 2 else (height, width)
    ratio = 1.0
    if augment.scale:
        low, high = augment.scale
        ratio = low * (high / low) ** _uniform(generator)
    tall, wide = math.ceil(rows / ratio), math.ceil(columns / ratio)
    _, scene_rows, scene_columns = scene.shape
    if tall > scene_rows or wide > scene_columns:
        raise ValueError(
            f"{scene.name}: expected a crop inside {scene_rows} x {scene_columns}, got {tall} x "
            f"{wide}; choose a smaller size"
        )
    top = draw_integer(scene_rows - tall + 1, generator)
    left = draw_integer(scene_columns - wide + 1, generator)
    window = scene.values(top, left, tall, wide)
    if (tall, wide) != (rows, columns):
        window = _resize(window, rows, columns)
    flips = (draw_integer(2, generator), draw_integer(2, generator)) if augment.flip else (0, 0)
    return turn(window, turns, bool(flips[0]), bool(flips[1]))


def augmented_crop(
    scenes: Sequence[Scene], height: int, width: int, augment: Augment, generator: Generator
) -> Tensor:
    """Draw one training sample: scenes, each with the same chance, windows and all variations.

    Returns float32 `(C, height, width)`.
    """
    sample = _plain_or_spliced(scenes, height, width, augment, generator)
    if augment.patterns and _uniform(generator) < augment.patterns:
        sample = _drawn(sample, augment.spectra, generator)
    if augment.mix and _uniform(generator) < augment.mix:
        other = _plain_or_spliced(scenes, height, width, augment, generator)
        sample = torch.lerp(other, sample, _uniform(generator))
    if augment.brightness:
        low, high = augment.brightness
        sample.mul_(low + (high - low) * _uniform(generator))
    if augment.illumination:
        curve = _smooth_curve(len(sample), generator).mul_(augment.illumination).exp_()
        sample.mul_(curve[:, None, None])
    if augment.lift and _uniform(generator) < augment.lift:
        sample = _lifted(sample, generator)
    return sample


def turn(cube: Tensor, turns: int, flip_rows: bool = False, flip_columns: bool = False) -> Tensor:
    """Turn `(…, H, W)` by right angles, counterclockwise, then mirror it; contiguous.

    Two mirrors and two turns undo each other, so at most one copy is made of each kind.
    """
    if flip_rows and flip_columns:
        turns, flip_rows, flip_columns = turns + 2, False, False
    turned = torch.rot90(cube, turns % 4, (-2, -1)) if turns % 4 else cube
    if flip_rows or flip_columns:
        turned = turned.flip(-2 if flip_rows else -1)
    return turned.contiguous()


def _plain_or_spliced(
    scenes: Sequence[Scene], height: int, width: int, augment: Augment, generator: Generator
) -> Tensor:
    if not (augment.splice and _uniform(generator) < augment.splice) or min(height, width) < 2:
        scene = scenes[draw_integer(len(scenes), generator)]
        return random_crop(scene, height, width, augment, generator)
    whole = torch.empty(scenes[0].shape[0], height, width)
    middle, centre = height // 2, width // 2
    for rows in (slice(0, middle), slice(middle, height)):
        for columns in (slice(0, centre), slice(centre, width)):
            part = whole[:, rows, columns]
            scene = scenes[draw_integer(len(scenes), generator)]
            part.copy_(random_crop(scene, part.shape[1], part.shape[2], augment, generator))
    return whole


def _drawn(cube: Tensor, spectra: Spectra | None, generator: Generator) -> Tensor:
    chosen = draw_integer(4, generator) if spectra is not None else 0
    if spectra is None or chosen < 2:
        spectra = smooth_spectra
    if chosen == 3:
        drawn = _recoloured(cube, spectra, generator)
    else:
        kind = list(PATTERNS)[draw_integer(len(PATTERNS), generator)]
        bands, height, width = cube.shape
        drawn = draw_pattern(kind, bands, height, width, generator, spectra)
    drawn = drawn.mul_(0.2 + 0.8 * _uniform(generator))
    return torch.lerp(cube, drawn, _uniform(generator)) if draw_integer(2, generator) else drawn


def _recoloured(cube: Tensor, spectra: Spectra, generator: Generator) -> Tensor:
    # x ← Σ_k b w_k s_k: b the brightness of a pixel, w_k how much its spectrum is like that of the
    # k-th of some pixels, softmax of the cosine, s_k another spectrum. The largest value is 1.
    bands, height, width = cube.shape
    pixels = cube.flatten(1)
    unit = functional.normalize(pixels, dim=0)
    places = torch.randint(height * width, (2 + draw_integer(11, generator),), generator=generator)
    shares = (100 * unit[:, places].T @ unit).softmax(0) * pixels.mean(0)
    drawn = spectra(len(places), bands, generator).T @ shares
    return drawn.div_(drawn.amax().clamp_min(1e-6)).view_as(cube)


def _smooth_curve(bands: int, generator: Generator) -> Tensor:
    # Three half waves and their multiples, of variance 1 on average over the bands.
    at = (torch.arange(bands) + 0.5) * (math.pi / bands)
    weights = torch.randn(3, generator=generator) * torch.tensor([1.2, 0.6, 0.4])
    waves = [weight * torch.cos((k + 1) * at) for k, weight in enumerate(weights)]
    return torch.stack(waves).sum(0)


def _lifted(cube: Tensor, generator: Generator) -> Tensor:
    # x ← Bᵀ P R x, R and B three curves over the bands each, P a permutation; as bright as before.
    channels, colours = _broad_curves(len(cube), generator), _broad_curves(len(cube), generator)
    colours = colours[torch.randperm(3, generator=generator)]
    picture = (channels / channels.sum(1, keepdim=True)) @ cube.flatten(1)
    lifted = (colours.T @ picture).view_as(cube)
    brightest = lifted.amax()
    return lifted.mul_(cube.amax() / brightest) if brightest > 0 else lifted


def _broad_curves(bands: int, generator: Generator) -> Tensor:
    # (3, C): bell curves, one in each third of the bands, a tenth to a third of them wide.
    at = (torch.arange(bands) + 0.5) / bands
    centres = (torch.arange(3) + 0.15 + 0.7 * torch.rand(3, generator=generator)) / 3
    widths = 0.1 + 0.23 * torch.rand(3, generator=generator)
    return torch.exp(-(((at - centres[:, None]) / widths[:, None]) ** 2))


def _resize(cube: Tensor, height: int, width: int) -> Tensor:
    if height <= cube.shape[-2] and width <= cube.shape[-1]:
        return functional.interpolate(cube[None], (height, width), mode="area")[0]
    size = (height, width)
    return functional.interpolate(cube[None], size, mode="bilinear", align_corners=False)[0]


def _uniform(generator: Generator) -> float:
    # float64, so that 1 is never reached.
    return float(torch.rand((), generator=generator, dtype=torch.float64))
