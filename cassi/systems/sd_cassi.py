"""The single-disperser CASSI camera."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from cassi import ops
from cassi.checks import is_number
from cassi.ops._checks import canonical_mask, check_bands
from cassi.ops._recording import is_tracked, is_wrapped
from cassi.systems.arguments import (
    Array,
    as_mask,
    as_shifts,
    as_step,
    check_axis,
    count_detector_pixels,
    find_even_step,
    refuse_shape,
    spaced_offsets,
)
from cassi.systems.coded import CodedSystem
from cassi.systems.lines import add_lines, solve_lines
from cassi.systems.taps import make_band_taps, make_sharp_codes

# A triangle of b pixels has about 2 b taps, and the gram as many diagonals: memory limits b.
_MAX_BAND_WIDTH_PIXELS = 100


class SDCassiOptions(TypedDict, total=False):
    """Arguments of `SDCassi` that the cameras derived from it take too."""

    offsets: Sequence[float] | Tensor | None
    detector: int | None
    band_width: float
    measured_mask: bool


class SDCassi(CodedSystem):
    r"""Single disperser: mask, then dispersion along one axis, then the sum over bands.

        y[k, h, w'] = Σ_c m[k, c, h, w' - o(c)] · x[c, h, w' - o(c)],  o(c) = c·step  (step >= 0)

    For step < 0 the bands move the other way, o(c) = (C-1-c)·|step|. The detector has
    W' = W + (C-1)|step| columns, or H' = H + (C-1)|step| rows for `axis=-2`. Any `offsets` o(c) may
    replace the step. The light of a band is then spread over pixels of the detector by taps a[c]:

        y[k, h, w'] = Σ_c Σ_t a[c, t] · (m[k, c] · x[c])[h, w' − s(c) − t]

    A Aᵀ then couples neighbouring pixels, and is still inverted exactly; see
    `cassi.ops.band_solve`. A band of one pixel with o = s + f, 0 <= f < 1, is interpolated
    linearly: a = (1 − f, f).

    A wider band (`band_width` b > 1) is a triangle, b pixels wide at half its height. It is the
    light of a continuous spectrum that is known at points b pixels apart and linear between them.
    The triangle is sampled at pixels, and its sum is 1.

    A mask that the sensor measured is averaged over pixels already. Linear interpolation would
    average it once more and lower its contrast. So such a mask is shifted with sharper taps, and
    codes the bands after they are spread; see `cassi.systems.taps.make_sharp_codes`:

        y[k, h, w'] = Σ_c m_c[k, h, w'] · Σ_t a[c, t] x[c, h, w' − s(c) − t]

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
        band_width: b, width of a band at half its height, pixels, 1 to 100.
        measured_mask: True: the sensor that takes the snapshots measured the mask. False: it is a
            design mask. The two differ for bands of one pixel width that fall between pixels.

    Attributes:
        offsets: o(c), a tuple of numbers, pixels.
        shifts: o(c) as a tensor, float64; None if the camera has a step.
        step: pixels per band; with offsets their mean distance, rounded.

    Raises:
        TypeError: the mask is not numeric, `bands` is not an integer or `step` not a number.
        ValueError: the mask's shape or bands do not fit, it holds NaN or infinity, `axis` is
            unknown, there is not one offset per band, one is negative without a `detector`, or
            `band_width` is out of range.

    Source: Wagadarikar et al., "Single disperser design for coded aperture snapshot spectral
    imaging", Applied Optics 47(10), 2008.

    >>> system = SDCassi(torch.ones(4, 6), bands=3, step=-2)
    >>> system(torch.ones(1, 3, 4, 6)).shape
    torch.Size([1, 1, 4, 10])
    >>> SDCassi(torch.ones(4, 6), bands=3, offsets=[0, 1.5, 3.25]).measurement_shape
    (1, 4, 10)
    >>> wide = SDCassi(torch.ones(1, 4), bands=1, band_width=2)
    >>> wide(torch.tensor([[[[0.0, 0.0, 4.0, 0.0]]]]))
    tensor([[[[0., 1., 2., 1.]]]])
    """

    shifts: Tensor | None
    _float64_tensors = ("shifts",)
    _gram: Tensor
    _codes: Tensor | None = None
    _fixed_gram: Tensor | None = None  # the gram of one run; see `begin`
    _taps: Tensor
    _starts: Tensor
    # Whether bands are spread over pixels first, and then coded by a measured mask.
    _codes_after_spread: bool = False

    def __init__(
        self,
        mask: Array,
        bands: int,
        step: float = 2,
        axis: int = -1,
        offsets: Sequence[float] | Tensor | None = None,
        detector: int | None = None,
        *,
        band_width: float = 1.0,
        measured_mask: bool = False,
    ) -> None:
        super().__init__()
        check_axis(axis)
        if not (is_number(band_width) and 1 <= band_width <= _MAX_BAND_WIDTH_PIXELS):
            raise ValueError(
                f"band_width: expected 1 to {_MAX_BAND_WIDTH_PIXELS} pixels, got {band_width!r}"
            )
        if isinstance(bands, bool) or not isinstance(bands, int):
            raise TypeError(f"bands: expected an integer, got {bands!r}")
        step = as_step(step)
        is_wide = band_width > 1
        if offsets is None and (detector is not None or isinstance(step, float) or is_wide):
            offsets = spaced_offsets(bands, step)
        self.band_width, self.measured_mask = float(band_width), measured_mask
        self.bands, self.step, self.axis = bands, round(step), axis
        _register(self, "mask", as_mask(mask), mask)
        width = self.mask.shape[axis]
        if offsets is None:
            self.register_buffer("shifts", None)
            self.detector = width + (bands - 1) * abs(self.step)
        else:
            shifts = as_shifts(offsets, bands)
            self.detector = count_detector_pixels(shifts, width, detector)
            # Evenly spaced whole offsets count as a step: `ratio_inverse` and the operators on
            # spectral components need one. A parameter may move off the pixels, so it stays.
            may_be_step = not (is_wide or isinstance(offsets, nn.Parameter))
            whole_step = find_even_step(shifts) if may_be_step else None
            if whole_step is not None and self.detector == width + (bands - 1) * abs(whole_step):
                self.step = whole_step
                self.register_buffer("shifts", None)
            else:
                self.step = round((shifts[-1] - shifts[0]).item() / max(bands - 1, 1))
                _register(self, "shifts", shifts, offsets)
        self._start_deriving()

    @property
    def part_axis(self) -> int:  # type: ignore[override]
        """The axis across the dispersion, -2 or -1. The camera mixes no pixels along it."""
        return -3 - self.axis

    @property
    def codes_frames(self) -> bool:
        """Whether the bands may be frames of a video: each has its own mask, and none moves."""
        return self.mask.shape[-3] > 1 and not any(self.offsets) and self.band_width == 1

    def part(self, start: int, stop: int) -> SDCassi:
        """Return the camera of rows (columns for `axis=-2`) start to stop; see `System.part`."""
        length = self.mask.shape[self.part_axis]
        if not 0 <= start < stop <= length:
            raise ValueError(f"part: expected 0 <= start < stop <= {length}, got {start}, {stop}")
        return self.replace(mask=self.mask.narrow(self.part_axis, start, stop - start))

    def replace(self, **changes: Any) -> SDCassi:
        """Return a camera with some arguments changed; `is_broadband` and `unit` stay.

        Args:
            changes: arguments of the camera by name. If the camera has a step, the detector's
                length follows from the mask.
        """
        arguments: dict[str, Any] = {"mask": self.mask, "bands": self.bands, "axis": self.axis}
        arguments |= {"band_width": self.band_width, "measured_mask": self.measured_mask}
        if self.shifts is None and not changes.keys() & {"offsets", "detector"}:
            arguments["step"] = self.step
        else:
            offsets = list(self.offsets) if self.shifts is None else self.shifts
            arguments |= {"offsets": offsets, "detector": self.detector}
        return self.copy_metadata_to(SDCassi(**arguments | changes))

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        if x.ndim >= 3 and x.shape[-3] != self.bands:
            refuse_shape("x", x, self.cube_shape)
        x = self.orient(x)
        if self.shifts is None:
            return self.orient(ops.forward(x, self.orient(self.mask), self.step))
        codes, taps, starts = self._get_spread()
        y = ops.forward_taps(x, codes, taps, starts, self.detector, after=self._codes_after_spread)
        return self.orient(y)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        y = self.orient(y)
        if self.shifts is None:
            return self.orient(ops.adjoint(y, self.orient(self.mask), self.bands, self.step))
        if y.shape[-1] != self.detector:
            refuse_shape("y", self.orient(y), self.measurement_shape)
        x = ops.adjoint_taps(y, *self._get_spread(), after=self._codes_after_spread)
        return self.orient(x)

    def add_adjoint(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + Aᵀy: `(B, C, H, W)` and `(B, K, H', W')` → `(B, C, H, W)`."""
        v, y = self.orient(v), self.orient(y)
        if self.shifts is None:
            return self.orient(ops.add_adjoint(v, y, self.orient(self.mask), self.step))
        if y.shape[-1] != self.detector:
            refuse_shape("y", self.orient(y), self.measurement_shape)
        x = ops.add_adjoint_taps(v, y, *self._get_spread(), after=self._codes_after_spread)
        return self.orient(x)

    def forward_subspace(self, components: Tensor, basis: Tensor) -> Tensor:
        """Simulate the measurement of the cube E a: `(B, R, H, W)` → `(B, K, H', W')`."""
        if self.shifts is not None:
            return super().forward_subspace(components, basis)
        a = self.orient(components)
        return self.orient(ops.forward_subspace(a, basis, self.orient(self.mask), self.step))

    def adjoint_subspace(self, y: Tensor, basis: Tensor) -> Tensor:
        """Return the components Eᵀ Aᵀ y: `(B, K, H', W')` → `(B, R, H, W)`."""
        if self.shifts is not None:
            return super().adjoint_subspace(y, basis)
        mask = self.orient(self.mask)
        return self.orient(ops.adjoint_subspace(self.orient(y), basis, mask, self.step))

    @property
    def gram(self) -> Tensor:
        """A Aᵀ of the present mask, without a gradient; dispersion along the last axis."""
        return self._get_gram().detach()

    def add_gram_product(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + A Aᵀ y: `(B, K, H', W')` twice → `(B, K, H', W')`."""
        if is_tracked(self.mask, self.shifts) or is_wrapped(self.mask):
            return super().add_gram_product(v, y)
        gram = self._get_gram()
        # A gram (T·K, K, H, W') with T > 1 taps is a band matrix, which couples pixels of a line.
        # With T = 1 it couples only the K shots of each pixel.
        if gram.shape[-4] != gram.shape[-3]:
            return self.orient(add_lines(self.orient(v), self.orient(y), gram))
        gram, y_turned = gram.to(y.dtype), self.orient(y)
        if gram.shape[-4] == 1:
            return torch.addcmul(v, self.orient(gram.squeeze(-3)), y)
        image = (gram.expand(len(y), -1, -1, -1, -1) * y_turned[:, None]).sum(2)
        return v + self.orient(image)

    def gram_solve(self, r: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve (AAᵀ + diag ρ) z = r in closed form, r and ρ as for `System.gram_solve`.

        If bands move by whole pixels, every detector pixel is solved by itself, in the
        Moore–Penrose sense. Otherwise every detector row is solved by itself; see
        `cassi.ops.band_solve`.
        """
        if tuple(r.shape[-3:]) != self.measurement_shape:
            refuse_shape("y", r, self.measurement_shape)
        gram, r_turned, rho = self._get_gram(), self.orient(r), self._turn_damping(rho)
        if gram.shape[-4] != gram.shape[-3]:
            return self.orient(solve_lines(r_turned, gram, rho, self.offsets))
        return self.orient(ops.gram_solve(r_turned, gram, rho))

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖² in closed form, see `System.data_step`."""
        if self.shifts is not None:
            return super().data_step(v, y, rho)
        v, y, mask = self.orient(v), self.orient(y), self.orient(self.mask)
        return self.orient(
            ops.data_step(v, y, mask, self.step, self._turn_damping(rho), self._fixed_gram)
        )

    def _fix_derived(self) -> None:
        super()._fix_derived()
        self._fixed_gram = self._get_gram()

    def ratio_inverse(self, y: Tensor) -> Tensor:
        """Divide y by band count and mask, see `cassi.ops.ratio_inverse`.

        Raises:
            ValueError: the camera has offsets or several shots; use `pinv` instead.
        """
        if self.shifts is not None:
            raise ValueError("ratio_inverse: expected a camera with a step; use pinv instead")
        mask = self.orient(self.mask)
        return self.orient(ops.ratio_inverse(self.orient(y), mask, self.bands, self.step))

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute taps, codes and gram from the present mask and shifts; nothing for a step."""
        if self.shifts is None:
            check_bands(canonical_mask(self.mask), self.bands)
            self._offsets = ops.step_offsets(self.bands, self.step)
            return
        self._offsets = tuple(self.shifts.tolist())
        is_whole = all(offset == int(offset) for offset in self._offsets)
        self._codes_after_spread = self.measured_mask and self.band_width == 1 and not is_whole
        codes, self._taps, self._starts = self._compute_spread()
        self._codes = codes if self._codes_after_spread else None
        self._gram = self._compute_gram(codes, self._taps, self._starts)
        self._note_sources()

    def _get_spread(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return mask or codes, taps and starts, as `cassi.ops.forward_taps` takes them."""
        # Stored tensors carry no gradient. So they are computed anew if a gradient passes through
        # them: to the shifts, or from codes to the mask.
        is_transient = is_tracked(self.shifts)
        if self._codes_after_spread:
            is_transient |= is_tracked(self.mask) or is_wrapped(self.mask)
            is_transient |= torch.compiler.is_compiling()
        if is_transient:
            return self._compute_spread()
        self._refresh_if_changed()
        codes = self.orient(self.mask) if self._codes is None else self._codes
        return codes, self._taps, self._starts

    def _compute_spread(self) -> tuple[Tensor, Tensor, Tensor]:
        assert self.shifts is not None
        if self._codes_after_spread:
            mask = canonical_mask(self.orient(self.mask))
            return make_sharp_codes(mask, self.shifts, self.detector)
        taps, starts = make_band_taps(self.shifts, self.band_width)
        dtype = torch.promote_types(self.mask.dtype, torch.float32)
        return self.orient(self.mask), taps.to(dtype), starts

    def _get_gram(self) -> Tensor:
        """Return the gram of the present mask, with a gradient if the mask has one.

        If bands move by whole pixels, computing the gram takes a tenth of a data step, and the gram
        is kept for one run only; see `begin`. Otherwise it takes twenty times as long as the solve,
        so the gram is kept until the mask changes.
        """
        if self._fixed_gram is not None:
            return self._fixed_gram
        if self.shifts is None:
            return ops.gram(self.orient(self.mask), self.bands, self.step)
        if is_tracked(self.mask, self.shifts) or torch.compiler.is_compiling():
            return self._compute_gram(*self._get_spread())
        self._refresh_if_changed()
        return self._gram

    def _list_sources(self) -> tuple[Tensor, Tensor | None]:
        return self.mask, self.shifts

    def _describe_arguments(self) -> list[str]:
        if self.shifts is None:
            return super()._describe_arguments()
        first, last = (f"{self.offsets[i]:.4g}" for i in (0, -1))
        band_width = [f"band_width={self.band_width:.4g}"] if self.band_width > 1 else []
        mask_kind = ["measured_mask"] if self._codes_after_spread else []
        sizes = [f"offsets={first} to {last}", f"detector={self.detector}"]
        return [*sizes, *band_width, *mask_kind, f"axis={self.axis}"]

    def _compute_gram(self, codes: Tensor, taps: Tensor, starts: Tensor) -> Tensor:
        gram = ops.gram_taps(codes, taps, starts, self.detector, after=self._codes_after_spread)
        return gram.to(taps) if gram.shape[1] == gram.shape[2] else gram

    def _turn_damping(self, rho: float | Tensor) -> float | Tensor:
        # Only a ρ per pixel has rows and columns to exchange.
        return self.orient(rho) if isinstance(rho, Tensor) and rho.ndim > 2 else rho


def _register(module: nn.Module, name: str, value: Tensor, original: object) -> None:
    """Register a value as a parameter if the user gave a parameter, else as a buffer."""
    if isinstance(original, nn.Parameter):
        module.register_parameter(name, nn.Parameter(value, requires_grad=original.requires_grad))
    else:
        module.register_buffer(name, value)
