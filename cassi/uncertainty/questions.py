"""Questions about a scene: functions of a cube `(C, H, W)` that return a map, a list or a number.

Every function of a cube is a question, also a user's own. The classes here also say how the parts
of a result are called, in which unit they are, and which values are possible.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Question = Callable[[Tensor], Tensor]
"""A function of a cube `(C, H, W)`. It returns maps `(H, W)` or `(N, H, W)`, numbers `(N,)`, or one
number `()`. It may have the attributes `labels` (N names), `unit` (a text), `bounds` (the least
and the largest possible value), and `pixels`, see `RegionMean`."""

# Steps of the accelerated projected gradient. With four materials of the bundled scene, 150 steps
# leave errors below 0.001 (tests/uncertainty/test_questions.py). Without restarts, and with spectra
# of unequal norms, 200 steps leave up to 0.07.
_UNMIXING_STEPS = 150
# Loading of a background's covariance, relative to its mean variance. A reconstructed cube has few
# components, so the inverse of its covariance amplifies errors. The error of the matched filter,
# over the standard deviation of its map, is 0.96 with a loading of 0.001, 0.76 with 0.01, and 0.49
# with 0.1 (docs/development/experiments/samples.md).
_LOADING = 0.1
# Lower bound of a denominator, relative to its mean size over the cube. Below it an index would
# amplify the error of black. For a sum of two bands, it is 2 % of their brightness. A bound in
# units of the brightness would depend on the unit of the cube, if the denominator does not.
_MIN_DENOMINATOR = 0.01
_OPERATORS: dict[type[ast.operator | ast.unaryop], Callable[..., Tensor]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda dividend, divisor: dividend / _bound_divisor(divisor),
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


@dataclass(frozen=True)
class Index:
    """An index per pixel, from a formula of wavelengths, such as `(w640 - w550) / (w640 + w550)`.

    `w640` is the cube at 640 nm, linear between the bands. A formula has numbers, `+ - * / **`,
    signs and brackets. The size of a denominator is at least 1 % of its mean over the cube.

    Attributes:
        formula: the formula.
        wavelengths: wavelengths of the bands, nm, increasing.

    Raises:
        ValueError: the formula has other parts, or a wavelength is not between the bands.
    """

    formula: str
    wavelengths: Sequence[float]
    labels: tuple[str, ...] = ()
    unit: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def __post_init__(self) -> None:
        """Check the formula with a cube of ones."""
        self(torch.ones(len(self.wavelengths), 1, 1))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the index, `(H, W)`."""
        try:
            tree = ast.parse(self.formula.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            raise ValueError(
                f"index: expected a formula such as (w640 - w550) / (w640 + w550), got "
                f"{self.formula!r}"
            ) from None
        return self._evaluate(tree, x).expand(x.shape[-2:])

    def _evaluate(self, node: ast.expr, x: Tensor) -> Tensor:
        match node:
            case ast.Constant(value=int() | float() as number):
                return x.new_tensor(float(number))
            case ast.UnaryOp() if type(node.op) in _OPERATORS:
                return _OPERATORS[type(node.op)](self._evaluate(node.operand, x))
            case ast.BinOp() if type(node.op) in _OPERATORS:
                operands = self._evaluate(node.left, x), self._evaluate(node.right, x)
                return _OPERATORS[type(node.op)](*operands)
            case ast.Name() if re.fullmatch(r"w\d+(_\d+)?", node.id):
                return self._at(float(node.id[1:].replace("_", ".")), x)
        raise ValueError(
            f"index: expected numbers, + - * / **, and wavelengths such as w550 or w550_5, got "
            f"{ast.unparse(node)!r} in {self.formula!r}"
        )

    def _at(self, wavelength: float, x: Tensor) -> Tensor:
        first, last = self.wavelengths[0], self.wavelengths[-1]
        if not first <= wavelength <= last:
            raise ValueError(
                f"index: expected wavelengths from {first:g} to {last:g} nm, got {wavelength:g} in "
                f"{self.formula!r}"
            )
        band = bisect_left(self.wavelengths, wavelength)
        if self.wavelengths[band] == wavelength:
            return x[band]
        low, high = self.wavelengths[band - 1 : band + 1]
        return torch.lerp(x[band - 1], x[band], (wavelength - low) / (high - low))


@dataclass(frozen=True)
class Abundance:
    """Abundances of materials: min_a ‖x − Σ_m a_m s_m‖² with a ≥ 0 in every pixel.

    Attributes:
        spectra: spectra s of the materials at the bands, `(M, C)`, in the unit of the cube.
        labels: names of the materials.
        sum_to_one: whether the abundances of a pixel sum to 1.

    Raises:
        ValueError: the spectra are not finite, not `(M, C)`, or one of them is 0.
    """

    spectra: Tensor
    labels: tuple[str, ...]
    sum_to_one: bool = False
    unit: str = ""

    def __post_init__(self) -> None:
        """Check the spectra."""
        shape = tuple(self.spectra.shape)
        if len(shape) != 2 or shape[0] != len(self.labels) or 0 in shape:
            count = len(self.labels) or "some"
            raise ValueError(f"abundance: expected {count} spectra (M, C), got {shape}")
        if not bool(self.spectra.isfinite().all()) or not bool((self.spectra != 0).any(1).all()):
            raise ValueError("abundance: expected finite spectra, and none that is 0 in all bands")

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest possible abundance."""
        return (0.0, 1.0 if self.sum_to_one else math.inf)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the abundances, `(M, H, W)`.

        Sources: Beck and Teboulle, "A fast iterative shrinkage-thresholding algorithm", 2009,
        (4.1); O'Donoghue and Candès, "Adaptive restart for accelerated gradient schemes", 2015,
        section 3.2, for the restart of a pixel whose momentum leads uphill.
        """
        # Spectra of equal norms make the problem better conditioned. If abundances sum to 1, their
        # unit is fixed, but the part that all spectra have in common can be subtracted.
        spectra, pixels = self.spectra.to(x), x.flatten(1)
        norms = spectra.norm(dim=1, keepdim=True)
        if self.sum_to_one:
            common_part = spectra.mean(0)
            spectra, pixels = spectra - common_part, pixels - common_part[:, None]
            norms = torch.ones_like(norms)
        spectra = spectra / norms
        gram = spectra @ spectra.mT
        tiny = torch.finfo(x.dtype).tiny
        step = 1 / max(float(torch.linalg.matrix_norm(gram.double(), 2)), tiny)
        gram, target = gram * step, (spectra @ pixels) * step
        abundance = momentum = torch.zeros_like(target)
        t = torch.ones_like(target[:1])
        for _ in range(_UNMIXING_STEPS):
            previous = abundance
            descent = momentum - (gram @ momentum - target)
            abundance = _project_on_simplex(descent) if self.sum_to_one else descent.relu()
            change = abundance - previous
            is_uphill = ((momentum - abundance) * change).sum(0, keepdim=True) > 0
            t = torch.where(is_uphill, 1.0, t)
            next_t = (1 + (1 + 4 * t * t).sqrt()) / 2
            momentum = abundance + (t - 1) / next_t * change
            t = next_t
        return (abundance / norms).unflatten(1, x.shape[-2:])


@dataclass(frozen=True)
class Target:
    """How much a pixel is like a target spectrum s, before the background of the cube.

    With mean μ and covariance Σ of the pixels, and ⟨a, b⟩ = (a − μ)ᵀΣ⁻¹(b − μ), where a tenth of
    the mean variance is added to the diagonal of Σ:

        matched_filter: ⟨s, x⟩ / ⟨s, s⟩, 0 for the background and 1 for the target
        coherence: ⟨s, x⟩² / (⟨s, s⟩⟨x, x⟩), the adaptive coherence estimator, 0 to 1

    Attributes:
        spectrum: s at the bands, `(C,)`, in the unit of the cube.
        detector: matched_filter or coherence.

    Source: Manolakis, Marden and Shaw, "Hyperspectral image processing for automatic target
    detection applications", 2003, equations 17 and 22.
    """

    spectrum: Tensor
    detector: str = "matched_filter"
    labels: tuple[str, ...] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        """Check the name of the detector."""
        if self.detector not in ("matched_filter", "coherence"):
            raise ValueError(
                f"target: expected detector matched_filter or coherence, got {self.detector!r}"
            )

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest possible value."""
        return (0.0, 1.0) if self.detector == "coherence" else (-math.inf, math.inf)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the statistic of the detector, `(H, W)`."""
        pixels = x.flatten(1).double()
        mean = pixels.mean(1, keepdim=True)
        deviation = pixels - mean
        covariance = deviation @ deviation.mT / deviation.shape[1]
        loading = _LOADING * covariance.diagonal().mean()
        # A black cube has no covariance.
        covariance.diagonal().add_(loading.clamp_min(torch.finfo(loading.dtype).tiny))
        target = (self.spectrum.to(pixels)[:, None] - mean)[:, 0]
        weights = torch.linalg.solve(covariance, target)
        of_pixels, of_target = weights @ deviation, weights @ target
        statistic = of_pixels / of_target
        if self.detector == "coherence":
            power = (deviation * torch.linalg.solve(covariance, deviation)).sum(0)
            statistic = of_pixels.square() / (of_target * power.clamp_min(1e-12))
        return statistic.to(x).unflatten(0, x.shape[-2:])


@dataclass(frozen=True)
class RegionMean:
    """The mean spectrum of a region.

    Attributes:
        where: bool, pixels of the region, `(H, W)`.
        labels: names of the bands.
        unit: unit of the cube.
    """

    where: Tensor
    labels: tuple[str, ...] = ()
    unit: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def __post_init__(self) -> None:
        """Check that the region has pixels."""
        _check_region(self.where)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the mean spectrum, `(C,)`."""
        return x[:, self.where.to(x.device)].mean(1)

    def pixels(self, x: Tensor) -> Tensor:
        """Return the map whose spread shows what a scene may have here: the cube, `(C, H, W)`."""
        return x


@dataclass(frozen=True)
class Area:
    """The share of a region where a map is above a threshold, 0 to 1.

    Attributes:
        question: a question whose result is one map.
        threshold: the threshold, in the unit of the map.
        where: bool, pixels of the region, `(H, W)`.
    """

    question: Question
    threshold: float
    where: Tensor
    labels: tuple[str, ...] = ()
    unit: str = ""
    bounds: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        """Check that the region has pixels."""
        _check_region(self.where)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the share, `()`."""
        return self.pixels(x)[self.where.to(x.device)].mean()

    def pixels(self, x: Tensor) -> Tensor:
        """Return 1 where the map is above the threshold, else 0, `(H, W)`."""
        return (self.question(x) > self.threshold).to(x.dtype)


@dataclass(frozen=True)
class ColorDifference:
    """The colour difference ΔE00 (CIEDE2000) of every pixel to a reference.

    Attributes:
        matrix: from spectra to X, Y, Z over those of white, `(3, C)`:
            `xyz_of_srgb(rendering_matrix(wavelengths), False)` of `cassi.viz.color`.
        reference: CIE L*a*b* of the reference, for the white of sRGB (D65).
        white: value of a white surface in the cube.
    """

    matrix: Tensor
    reference: tuple[float, float, float]
    white: float = 1.0
    labels: tuple[str, ...] = ()
    unit: str = "ΔE00"
    bounds: tuple[float, float] = (0.0, math.inf)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the difference, `(H, W)`."""
        lab = to_lab(x, self.matrix, self.white)
        return delta_e(lab, torch.tensor(self.reference).to(lab)[:, None, None])


@dataclass(frozen=True)
class Function:
    """A user's function of a cube, with the properties of a question.

    Attributes:
        function: called with a cube `(C, H, W)`.
        labels: names of the first axis of its result, if it has one.
        unit: unit of its values.
        bounds: the least and the largest possible value.
    """

    function: Question
    labels: tuple[str, ...] = ()
    unit: str = ""
    bounds: tuple[float, float] = field(default=(-math.inf, math.inf))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the result of the function."""
        return torch.as_tensor(self.function(x)).to(x)


def _bound_divisor(divisor: Tensor) -> Tensor:
    """Return a denominator of an index, away from 0."""
    size = divisor.abs()
    size = size.maximum(_MIN_DENOMINATOR * size.nanmean())
    return torch.where(divisor < 0, -size, size)


def to_lab(x: Tensor, matrix: Tensor, white: float = 1.0) -> Tensor:
    """Return CIE L*a*b* of a cube `(C, H, W)`, `(3, H, W)`, for the white of sRGB (D65).

    Args:
        x: the cube.
        matrix: from spectra to X, Y, Z over those of white, `(3, C)`.
        white: value of a white surface in the cube.
    """
    ratio = (matrix.to(x) @ x.flatten(1) / white).clamp_min(0)
    # CIE 15:2018, 8.2.1.1
    root = torch.where(ratio > (6 / 29) ** 3, ratio.pow(1 / 3), ratio * (29 / 6) ** 2 / 3 + 4 / 29)
    lab = torch.stack([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])
    return lab.unflatten(1, x.shape[-2:])


def delta_e(first: Tensor, second: Tensor) -> Tensor:
    """Return the colour difference ΔE00 of two CIE L*a*b* colours `(3, …)`, `(…)`.

    Source: Sharma, Wu and Dalal, "The CIEDE2000 color-difference formula", 2005, equations 2 to 22.
    """
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean_chroma = (torch.hypot(a1, b1) + torch.hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * (mean_chroma**7 / (mean_chroma**7 + 25.0**7)).sqrt()
    a1, a2 = a1 * stretch, a2 * stretch
    c1, c2 = torch.hypot(a1, b1), torch.hypot(a2, b2)
    h1, h2 = torch.atan2(b1, a1), torch.atan2(b2, a2)
    # Angles turn the shorter way. A grey has no hue, and its product of chromas is 0.
    turn = torch.remainder(h2 - h1 + math.pi, 2 * math.pi) - math.pi
    is_colored = (c1 * c2) > 0
    hue = torch.where(is_colored, h1 + turn / 2, h1 + h2)
    lightness, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    degree = math.pi / 180
    t = (
        1
        - 0.17 * torch.cos(hue - 30 * degree)
        + 0.24 * torch.cos(2 * hue)
        + 0.32 * torch.cos(3 * hue + 6 * degree)
        - 0.20 * torch.cos(4 * hue - 63 * degree)
    )
    offset = (torch.remainder(hue / degree, 360) - 275) / 25
    rotation = -2 * (chroma**7 / (chroma**7 + 25.0**7)).sqrt()
    rotation = rotation * torch.sin(60 * degree * torch.exp(-(offset**2)))
    of_lightness = (l2 - l1) / (
        1 + 0.015 * (lightness - 50) ** 2 / (20 + (lightness - 50) ** 2).sqrt()
    )
    of_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    of_hue = 2 * (c1 * c2).sqrt() * torch.sin(turn / 2) / (1 + 0.015 * chroma * t)
    squares = of_lightness**2 + of_chroma**2 + of_hue**2 + rotation * of_chroma * of_hue
    return squares.clamp_min(0).sqrt()


def _project_on_simplex(values: Tensor) -> Tensor:
    """Return the nearest values with a sum of 1 and none below 0, along the first axis.

    Source: Duchi et al., "Efficient projections onto the l1-ball", 2008, figure 1.
    """
    sorted_values = values.sort(0, descending=True).values
    excess = sorted_values.cumsum(0) - 1
    counts = torch.arange(1, len(values) + 1, device=values.device)[:, None].to(values)
    last = (sorted_values * counts > excess).sum(0, keepdim=True) - 1
    return (values - excess.gather(0, last) / (last + 1)).relu()


def _check_region(region: Tensor) -> None:
    if region.dtype != torch.bool or not bool(region.any()):
        raise ValueError("region: expected a bool image with some pixels, got none")
