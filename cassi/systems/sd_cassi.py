"""The single-disperser CASSI camera."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from cassi import ops
from cassi.systems.base import System


class SDCassi(System):
    r"""Single disperser: mask, then dispersion along one axis, then the sum over bands.

        y[k, h, w'] = Σ_c m[k, c, h, w' - o(c)] · x[c, h, w' - o(c)],  o(c) = c·step  (step >= 0)

    For step < 0 the bands move the other way, o(c) = (C-1-c)·|step|. The detector has
    W' = W + (C-1)|step| columns, or H' = H + (C-1)|step| rows for `axis=-2`.

    Args:
        mask: transmission in [0, 1], `(H, W)`, `(C, H, W)`, `(K, 1|C, H, W)` for K shots, or
            `(B, K, 1|C, H, W)` for a mask per sample; a tensor or anything NumPy understands.
        bands: number of bands C, in order of increasing wavelength.
        step: dispersion in whole pixels per band; the sign is the direction.
        axis: -1 disperses along columns, -2 along rows.

    Raises:
        TypeError: the mask is not numeric, or `bands` or `step` is not an integer.
        ValueError: the mask's shape or bands do not fit, it holds NaN, or `axis` is unknown.

    Source: Wagadarikar et al., "Single disperser design for coded aperture snapshot spectral
    imaging", Applied Optics 47(10), 2008.

    >>> system = SDCassi(torch.ones(4, 6), bands=3, step=-2)
    >>> system(torch.ones(1, 3, 4, 6)).shape
    torch.Size([1, 1, 4, 10])
    """

    mask: Tensor
    gram: Tensor

    def __init__(self, mask: Any, bands: int, step: int = 2, axis: int = -1) -> None:
        super().__init__()
        if axis not in (-1, -2):
            raise ValueError(f"axis: expected -1 (columns) or -2 (rows), got {axis!r}")
        mask = _as_mask(mask)
        self.bands, self.step, self.axis = bands, step, axis
        self.register_buffer("mask", mask)
        # Derived from the mask: refreshed, not stored, with the state dict.
        self.register_buffer("gram", None, persistent=False)
        self.refresh()
        self.register_load_state_dict_post_hook(_refresh)

    @property
    def shots(self) -> int:
        """Number K of masks, that is of channels of the measurement."""
        return self.mask.shape[-4]

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return (self.bands, *cast("tuple[int, int]", tuple(self.mask.shape[-2:])))

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""
        _, height, width = self.cube_shape
        extra = (self.bands - 1) * abs(self.step)
        return (
            self.shots,
            height + (extra if self.axis == -2 else 0),
            width + (extra if self.axis == -1 else 0),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        return self._turn(ops.forward(self._turn(x), self._turn(self.mask), self.step))

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        return self._turn(ops.adjoint(self._turn(y), self._turn(self.mask), self.bands, self.step))

    def gram_solve(self, r: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve (AAᵀ + ρI) z = r at every detector pixel."""
        if tuple(r.shape[-3:]) != self.measurement_shape:
            raise ValueError(
                f"y: expected (B, K, H', W') = (B, {', '.join(map(str, self.measurement_shape))}), "
                f"got shape {tuple(r.shape)}"
            )
        gram = self._current_gram()
        gram = self._gram() if gram is None else gram
        return self._turn(ops.gram_solve(self._turn(r), gram, rho))

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖² in closed form, see `cassi.ops.data_step`."""
        gram = self._current_gram()
        x = ops.data_step(self._turn(v), self._turn(y), self._turn(self.mask), self.step, rho, gram)
        return self._turn(x)

    def ratio_inverse(self, y: Tensor) -> Tensor:
        """Divide y by band count and mask, see `cassi.ops.ratio_inverse`."""
        mask = self._turn(self.mask)
        return self._turn(ops.ratio_inverse(self._turn(y), mask, self.bands, self.step))

    @torch.no_grad()
    def refresh(self) -> None:
        """Derive the gram from the mask again."""
        self.gram = self._gram()
        self._mask_version = _version(self.mask)

    def _current_gram(self) -> Tensor | None:
        if self.mask.requires_grad:
            return None  # it has a gradient of its own
        # A mask changed in place is noticed, except in a compiled graph, where it is a constant.
        if not torch.compiler.is_compiling() and _version(self.mask) != self._mask_version:
            self.refresh()
        return self.gram

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.refresh()  # the gram keeps float32 at least, whatever the mask is converted to
        return self

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        height, width = self.mask.shape[-2:]
        return (
            f"mask={height}x{width}, shots={self.shots}, bands={self.bands}, step={self.step}, "
            f"axis={self.axis}"
        )

    def _gram(self) -> Tensor:  # ([B,] K, K, H, W'), dispersion along the last axis
        return ops.gram(self._turn(self.mask), self.bands, self.step)

    def _turn(self, value: Tensor) -> Tensor:
        # The operators disperse along the last axis and read transposed views in place.
        return value if self.axis == -1 else value.mT


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _refresh(system: SDCassi, _: Any) -> None:
    system.refresh()


def _as_mask(mask: Any) -> Tensor:  # ([B,] K, 1|C, H, W)
    if not isinstance(mask, Tensor):
        array = np.asarray(mask)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"mask: expected numbers, got dtype {array.dtype}")
        native = array.dtype.newbyteorder("=")
        mask = torch.from_numpy(np.ascontiguousarray(array, dtype=native))
    if mask.is_complex():
        raise TypeError(f"mask: expected real numbers, got {mask.dtype}")
    if not mask.is_floating_point():
        mask = mask.to(torch.get_default_dtype())
    if mask.ndim not in (2, 3, 4, 5):
        raise ValueError(
            "mask: expected (H, W), (C, H, W), (K, 1 or C, H, W) or (B, K, 1 or C, H, W), "
            f"got shape {tuple(mask.shape)}"
        )
    if not torch.isfinite(mask).all():
        raise ValueError("mask: expected finite numbers, got NaN or infinity")
    return mask.detach().clone()[(None,) * max(4 - mask.ndim, 0)]
