"""The single-disperser CASSI camera."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn

from cassi import ops
from cassi.ops._checks import canonical_mask, check_bands, damping
from cassi.ops._library import call, kernels
from cassi.ops._recording import is_tracked, is_transformed, is_wrapped
from cassi.systems.arguments import (
    as_mask,
    as_shifts,
    as_step,
    check_axis,
    detector_pixels,
    even_step,
    refuse_shape,
    spaced_offsets,
)
from cassi.systems.coded import CodedSystem
from cassi.systems.conjugate import ConjugateGradients

_DATA_STEP, _GRAM_SOLVE = kernels.data_step.default, kernels.gram_solve.default
_GRAM = kernels.gram.default


class Checked:
    """Kinds of tensors that have passed all checks of a camera, and the last damping."""

    def __init__(self) -> None:
        self._known: set[tuple[Any, ...]] = set()
        self._damping: tuple[float, torch.dtype, Tensor] | None = None  # of the last number

    def know(self, rho: Any, *given: Tensor) -> bool:
        """Tell whether tensors like these have passed all checks."""
        for value in given:
            if type(value) is not Tensor:
                return False
        return _kind(given) in self._known and (
            type(rho) is float or not isinstance(rho, Tensor) or rho.device == given[0].device
        )

    def note(self, mask: Tensor, *given: Tensor) -> None:
        """Remember that tensors like these have passed all checks."""
        if all(type(value) is Tensor and value.ndim == 4 for value in given):
            self._known.add(_kind((mask, *given)))

    def damping(self, rho: Any, like: Tensor, y: Tensor) -> Tensor:
        """Return ρ as `cassi.ops._checks.damping`; on a CPU the tensor of the last number is kept.

        Not on a GPU, where a graph may be recorded, which needs memory of its own.
        """
        if type(rho) is not float or not like.is_cpu:
            return damping(rho, like, y)
        kept = self._damping
        if kept is None or kept[0] != rho or kept[1] is not like.dtype:
            with torch.inference_mode(False):  # or it could not be saved for a gradient
                kept = self._damping = rho, like.dtype, damping(rho, like, y)
        return kept[2]


def _kind(given: tuple[Tensor, ...]) -> tuple[Any, ...]:
    return tuple([(value.shape, value.dtype, value.device, value.layout) for value in given])


class SDCassi(CodedSystem):
    r"""Single disperser: mask, then dispersion along one axis, then the sum over bands.

        y[k, h, w'] = Σ_c m[k, c, h, w' - o(c)] · x[c, h, w' - o(c)],  o(c) = c·step  (step >= 0)

    For step < 0 the bands move the other way, o(c) = (C-1-c)·|step|. The detector has
    W' = W + (C-1)|step| columns, or H' = H + (C-1)|step| rows for `axis=-2`. Any `offsets` o(c) may
    replace the step. A band with o = i + f, 0 < f < 1, is interpolated linearly: (1 - f) of it
    moves by i pixels, and f of it by i + 1. A Aᵀ then couples neighbours, and is still inverted
    exactly.

    Args:
        mask: transmission in [0, 1], `(H, W)`, `(C, H, W)`, `(K, 1|C, H, W)` for K shots, or
            `(B, K, 1|C, H, W)` for a mask per sample; a tensor, or anything that NumPy makes an
            array of. An `nn.Parameter` becomes a parameter of the camera; anything else is copied,
            and a tensor gets gradients through the copy.
        bands: number of bands C, in order of increasing wavelength.
        step: dispersion in pixels per band; the sign is the direction. A fractional step gives the
            offsets c·step, shifted so that the least is 0.
        axis: -1 disperses along columns, -2 along rows.
        offsets: one o(c) per band in pixels, instead of `step`, whole or not: a list, a tensor, or
            an `nn.Parameter`. Evenly spaced whole offsets that start at 0 count as a step.
        detector: pixels of the detector along the axis; W' = W + ⌈max o(c)⌉ by default. Offsets
            count from its first pixel, and light beside it is lost.

    Attributes:
        offsets: o(c), a tuple of numbers, pixels.
        shifts: o(c) as a tensor, float64; None where the camera has a step.
        step: of a camera with offsets, their mean distance, rounded.

    Raises:
        TypeError: the mask is not numeric, `bands` is not an integer or `step` not a number.
        ValueError: the mask's shape or bands do not fit, it holds NaN or infinity, `axis` is
            unknown, there is not one offset per band, or one is negative without a `detector`.

    Source: Wagadarikar et al., "Single disperser design for coded aperture snapshot spectral
    imaging", Applied Optics 47(10), 2008.

    >>> system = SDCassi(torch.ones(4, 6), bands=3, step=-2)
    >>> system(torch.ones(1, 3, 4, 6)).shape
    torch.Size([1, 1, 4, 10])
    >>> SDCassi(torch.ones(4, 6), bands=3, offsets=[0, 1.5, 3.25]).measurement_shape
    (1, 4, 10)
    """

    shifts: Tensor | None
    _gram: Tensor | None
    _held: tuple[Tensor | None, Tensor] | None = None
    _taps: Tensor
    _starts: Tensor

    def __init__(
        self,
        mask: Any,
        bands: int,
        step: float = 2,
        axis: int = -1,
        offsets: Sequence[float] | Tensor | None = None,
        detector: int | None = None,
    ) -> None:
        super().__init__()
        check_axis(axis)
        if isinstance(bands, bool) or not isinstance(bands, int):
            raise TypeError(f"bands: expected an integer, got {bands!r}")
        step = as_step(step)
        if offsets is None and (detector is not None or isinstance(step, float)):
            offsets = spaced_offsets(bands, step)
        self.bands, self.step, self.axis = bands, round(step), axis
        self._checked = Checked()
        _register(self, "mask", as_mask(mask), mask)
        width = self.mask.shape[axis]
        if offsets is None:
            self.register_buffer("shifts", None)
            self.detector = width + (bands - 1) * abs(self.step)
        else:
            shifts = as_shifts(offsets, bands)
            self.detector = detector_pixels(shifts, width, detector)
            even = None if isinstance(offsets, nn.Parameter) else even_step(shifts)
            if even is not None and self.detector == width + (bands - 1) * abs(even):
                self.step = even
                self.register_buffer("shifts", None)
            else:
                self.step = round((shifts[-1] - shifts[0]).item() / max(bands - 1, 1))
                _register(self, "shifts", shifts, offsets)
        # Derived from mask and shifts: refreshed, not stored, with the state dict.
        self.register_buffer("_gram", None, persistent=False)
        self.register_buffer("_taps", None, persistent=False)
        self.register_buffer("_starts", None, persistent=False)
        self._derive()

    @property
    def part_axis(self) -> int:  # type: ignore[override]
        """The axis across the dispersion, -2 or -1; the camera mixes nothing along it."""
        return -3 - self.axis

    @property
    def codes_frames(self) -> bool:
        """Whether the bands may be frames of a video: each has its own mask, none is moved."""
        return self.mask.shape[-3] > 1 and not any(self.offsets)

    def part(self, start: int, stop: int) -> SDCassi:
        """Return the camera of rows (columns for `axis=-2`) start to stop; see `System.part`."""
        length = self.mask.shape[self.part_axis]
        if not 0 <= start < stop <= length:
            raise ValueError(f"part: expected 0 <= start < stop <= {length}, got {start}, {stop}")
        mask = self.mask.narrow(self.part_axis, start, stop - start)
        if self.shifts is None:
            return self.tell(SDCassi(mask, self.bands, self.step, self.axis))
        return self.tell(
            SDCassi(mask, self.bands, axis=self.axis, offsets=self.shifts, detector=self.detector)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        if x.ndim >= 3 and x.shape[-3] != self.bands:
            refuse_shape("x", x, self.cube_shape)
        x, mask = self.turn(x), self._coded()
        if self.shifts is None:
            return self.turn(ops.forward(x, mask, self.step))
        return self.turn(ops.forward_taps(x, mask, *self._spread(), self.detector))

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        y, mask = self.turn(y), self._coded()
        if self.shifts is None:
            return self.turn(ops.adjoint(y, mask, self.bands, self.step))
        if y.shape[-1] != self.detector:
            refuse_shape("y", self.turn(y), self.measurement_shape)
        return self.turn(ops.adjoint_taps(y, mask, *self._spread()))

    def add_adjoint(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + Aᵀy: `(B, C, H, W)` and `(B, K, H', W')` → `(B, C, H, W)`."""
        v, y, mask = self.turn(v), self.turn(y), self._coded()
        if self.shifts is None:
            return self.turn(ops.add_adjoint(v, y, mask, self.step))
        if y.shape[-1] != self.detector:
            refuse_shape("y", self.turn(y), self.measurement_shape)
        return self.turn(ops.add_adjoint_taps(v, y, mask, *self._spread()))

    def forward_subspace(self, components: Tensor, basis: Tensor) -> Tensor:
        """Simulate the measurement of the cube E a: `(B, R, H, W)` → `(B, K, H', W')`."""
        if self.shifts is not None:
            return super().forward_subspace(components, basis)
        a, mask = self.turn(components), self._coded()
        return self.turn(ops.forward_subspace(a, basis, mask, self.step))

    def adjoint_subspace(self, y: Tensor, basis: Tensor) -> Tensor:
        """Return the components Eᵀ Aᵀ y: `(B, K, H', W')` → `(B, R, H, W)`."""
        if self.shifts is not None:
            return super().adjoint_subspace(y, basis)
        mask = self._coded()
        return self.turn(ops.adjoint_subspace(self.turn(y), basis, mask, self.step))

    @property
    def gram(self) -> Tensor:
        """A Aᵀ of the present mask, without a gradient; dispersion along the last axis."""
        return self._current_gram().detach()

    def add_gram_product(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + A Aᵀ y: `(B, K, H', W')` twice → `(B, K, H', W')`."""
        if is_tracked(self.mask, self.shifts) or is_wrapped(self.mask):
            return super().add_gram_product(v, y)
        gram = self._current_gram()
        if gram.shape[-4] != gram.shape[-3]:
            return self.turn(add_lines(self.turn(v), self.turn(y), gram))
        gram, turned = gram.to(y.dtype), self.turn(y)
        if gram.shape[-4] == 1:
            return torch.addcmul(v, self.turn(gram.squeeze(-3)), y)
        image = (gram.expand(len(y), -1, -1, -1, -1) * turned[:, None]).sum(2)
        return v + self.turn(image)

    def gram_solve(self, r: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve (AAᵀ + diag ρ) z = r in closed form, r and ρ as for `System.gram_solve`.

        At every detector pixel by itself, in the Moore–Penrose sense, where bands move by whole
        pixels. Along every detector row otherwise, see `cassi.ops.band_solve`.
        """
        mask, checked = self._plain_mask(), self._checked
        if mask is not None and checked.know(rho, mask, r):
            r, rho = self.turn(r), self._turn_damping(rho)
            gram = self._plain_gram(mask)
            return self.turn(call(_GRAM_SOLVE, r, gram, checked.damping(rho, r, r)))
        if tuple(r.shape[-3:]) != self.measurement_shape:
            refuse_shape("y", r, self.measurement_shape)
        gram, turned, rho = self._current_gram(), self.turn(r), self._turn_damping(rho)
        if gram.shape[-4] != gram.shape[-3]:
            return self.turn(solve_lines(turned, gram, rho, self.offsets))
        z = ops.gram_solve(turned, gram, rho)
        if mask is not None:
            checked.note(mask, r)
        return self.turn(z)

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖² in closed form, see `System.data_step`."""
        mask, checked = self._plain_mask(), self._checked
        if mask is not None and checked.know(rho, mask, v, y):
            v, y, rho = self.turn(v), self.turn(y), self._turn_damping(rho)
            gram, weight = self._plain_gram(mask), checked.damping(rho, v, y)
            return self.turn(call(_DATA_STEP, v, y, mask, gram, weight, self.step))
        if self.shifts is not None:
            return super().data_step(v, y, rho)
        v, y, coded = self.turn(v), self.turn(y), self.turn(self.mask)
        held = None if self._held is None else self._held[1]
        x = ops.data_step(v, y, coded, self.step, self._turn_damping(rho), held)
        if mask is not None:
            checked.note(mask, v, y)
        return self.turn(x)

    def _coded(self) -> Tensor:
        """Return the mask as operators take it, dispersion along the last axis."""
        mask = self._plain_mask()
        return self.turn(self.mask) if mask is None else mask

    def _plain_mask(self) -> Tensor | None:
        """Return the mask as kernels take it; None where it may have a gradient, or offsets."""
        if self._held is not None:
            return self._held[0]
        if torch.compiler.is_compiling() or is_transformed() or self.shifts is not None:
            return None
        return None if is_tracked(self.mask) else canonical_mask(self.turn(self.mask.detach()))

    def _plain_gram(self, mask: Tensor) -> Tensor:
        """Return the gram of a `_plain_mask`, `(1|B, K, K, H, W')`."""
        if self._held is not None:
            return self._held[1]
        return call(_GRAM, mask, self.bands, self.step)

    def _hold(self) -> None:
        mask = self._plain_mask()
        self._held = mask, self._current_gram() if mask is None else self._plain_gram(mask)
        super()._hold()

    def ratio_inverse(self, y: Tensor) -> Tensor:
        """Divide y by band count and mask, see `cassi.ops.ratio_inverse`.

        Raises:
            ValueError: the camera has offsets, or several shots; use `pinv` for those.
        """
        if self.shifts is not None:
            raise ValueError("ratio_inverse: expected a camera with a step; use pinv instead")
        mask = self._coded()
        return self.turn(ops.ratio_inverse(self.turn(y), mask, self.bands, self.step))

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute taps, and gram where bands fall between pixels, of present mask and shifts."""
        if self.shifts is None:
            check_bands(canonical_mask(self.mask), self.bands)
            self._offsets = ops.step_offsets(self.bands, self.step)
            return
        self._offsets = tuple(self.shifts.tolist())
        self._taps, self._starts = self._linear_taps()
        self._gram = self._spread_gram(self._taps, self._starts)
        self._note_sources()

    def _spread(self) -> tuple[Tensor, Tensor]:
        if is_tracked(self.shifts):
            return self._linear_taps()  # they have a gradient of their own
        self._notice()
        return self._taps, self._starts

    def _linear_taps(self) -> tuple[Tensor, Tensor]:
        assert self.shifts is not None
        taps, starts = ops.linear_taps(self.shifts)
        if not is_tracked(self.shifts) and all(offset == int(offset) for offset in self.offsets):
            taps = taps[:, :1]  # no band is spread
        return taps.to(torch.promote_types(self.mask.dtype, torch.float32)), starts

    def _current_gram(self) -> Tensor:
        """Return the gram of the present mask, with a gradient where that has one.

        At whole pixels it takes a tenth of a data step, and is kept for one run alone, see `begin`.
        Between pixels it takes twenty times as long as the solution, and is derived again where the
        mask has changed.
        """
        if self._held is not None:
            return self._held[1]
        if self.shifts is None:
            return ops.gram(self.turn(self.mask), self.bands, self.step)
        if is_tracked(self.mask, self.shifts) or torch.compiler.is_compiling():
            return self._spread_gram(*self._spread())
        self._notice()
        return cast(Tensor, self._gram)

    def _sources(self) -> tuple[Tensor, Tensor | None]:
        return self.mask, self.shifts

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        exact = None if self.shifts is None else self.shifts.detach()
        super()._apply(fn, recurse)
        if self.shifts is not None and exact is not None:  # a half would move bands by pixels
            self.shifts.data = exact.to(self.shifts.device)
        self.refresh()  # the gram keeps float32 at least, whatever the mask is converted to
        return self

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        height, width = self.mask.shape[-2:]
        how = f"step={self.step}"
        if self.shifts is not None:
            first, last = (f"{self.offsets[i]:.4g}" for i in (0, -1))
            how = f"offsets={first} to {last}, detector={self.detector}"
        return (
            f"mask={height}x{width}, shots={self.shots}, bands={self.bands}, {how}, "
            f"axis={self.axis}"
        )

    def _spread_gram(self, taps: Tensor, starts: Tensor) -> Tensor:  # (1|B, T·K, K, H, W')
        gram = ops.gram_taps(self.turn(self.mask), taps, starts, self.detector)
        return gram.to(taps) if gram.shape[1] == gram.shape[2] else gram

    def _turn_damping(self, rho: float | Tensor) -> float | Tensor:
        # One value per sample is the same both ways, of any shape.
        return self.turn(rho) if isinstance(rho, Tensor) and rho.ndim > 2 else rho


def solve_lines(r: Tensor, gram: Tensor, rho: float | Tensor, offsets: Sequence[float]) -> Tensor:
    """Solve as `cassi.ops.band_solve`, from the numerically stable end of the lines.

    Where most light of a pixel falls on the second of two detector pixels, elimination from the
    first pixel on multiplies rounding errors at each pixel by the ratio of the two weights.
    Elimination from the other end divides them by it.

    Args:
        r: `(B, K, H, D)`.
        gram: `(1 or B, T·K, K, H, D)`.
        rho: ρ >= 0 as there.
        offsets: of all bands, pixels.
    """
    if sum(offset % 1 for offset in offsets) <= len(offsets) / 2:
        return ops.band_solve(r, gram, rho)
    rho = rho.flip(-1) if isinstance(rho, Tensor) and rho.ndim > 2 else rho
    return ops.band_solve(r.flip(-1), _from_the_end(gram), rho).flip(-1)


def add_lines(v: Tensor, y: Tensor, gram: Tensor) -> Tensor:
    """Return v + G y, v and y `(B, K, H, D)`, G as `cassi.ops.gram_taps` makes it."""
    shots, wide = y.shape[1], y.shape[-1]
    out = torch.add(v, y, alpha=0)  # a new tensor, mapped where either is
    for apart, part in enumerate(gram.to(y.dtype).unflatten(1, (-1, shots)).unbind(1)):
        for k, j in product(range(shots), repeat=2):
            entries = part[:, k, j, :, : wide - apart]
            out[:, k, :, : wide - apart].addcmul_(entries, y[:, j, :, apart:])
            if apart:
                out[:, j, :, apart:].addcmul_(entries, y[:, k, :, : wide - apart])
    return out


def _from_the_end(gram: Tensor) -> Tensor:
    """Return the band matrix `(1|B, T·K, K, H, W')` of detector rows read backwards."""
    shots = gram.shape[2]
    parts = gram.unflatten(1, (-1, shots)).transpose(2, 3).flip(-1)
    # The entry of pixels j and j + d stands at j: at the one that now comes first.
    return torch.stack([part.roll(-d, -1) for d, part in enumerate(parts.unbind(1))], 1).flatten(
        1, 2
    )


def _register(module: nn.Module, name: str, value: Tensor, given: Any) -> None:
    if isinstance(given, nn.Parameter):
        module.register_parameter(name, nn.Parameter(value, requires_grad=given.requires_grad))
    else:
        module.register_buffer(name, value)


class CoupledCassi(CodedSystem):
    """A single disperser whose optics couple pixels: AAᵀ is inverted by conjugate gradients.

    Args:
        plain: the same camera without those optics; gives mask and sizes.
        tolerance: of conjugate gradients, relative; see `ConjugateGradients`.
        iterations: of conjugate gradients, at most.
    """

    def __init__(self, plain: SDCassi, tolerance: float | None, iterations: int) -> None:
        super().__init__()
        self.bands, self.step, self.axis = plain.bands, plain.step, plain.axis
        self.detector, self._offsets = plain.detector, plain.offsets
        self.conjugate = ConjugateGradients(tolerance, iterations)
        if isinstance(plain.mask, nn.Parameter):
            self.mask = plain.mask
        else:
            self.register_buffer("mask", plain.mask)
