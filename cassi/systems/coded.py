"""What cameras with a mask and a dispersion have in common."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from cassi.ops._recording import is_wrapped
from cassi.systems.base import System


class CodedSystem(System):
    """A camera that codes the scene by a mask and moves its bands along an axis.

    Attributes:
        mask: `([B,] K, 1|C, H, W)`.
        bands: number of bands C.
        step: pixels per band, whole; where the camera has offsets, their mean distance, rounded.
        axis: of the dispersion, -1 along columns, -2 along rows.
        detector: pixels of the detector along the axis.
    """

    mask: Tensor
    bands: int
    step: int
    axis: int
    detector: int
    _offsets: tuple[float, ...]
    _made_of: Sequence[tuple[Tensor | None, int]] = ()

    @property
    def offsets(self) -> tuple[float, ...]:
        """Where the first column (row) of each band falls on the detector, pixels."""
        return self._offsets

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
        if self.axis == -2:
            return self.shots, self.detector, width
        return self.shots, height, self.detector

    def turn(self, value: Tensor) -> Tensor:
        """Turn an image, a view, so that the dispersion is along its last axis, or back."""
        return value if self.axis == -1 else value.mT

    def refresh(self) -> None:
        """Derive from `_sources` again what depends on them."""

    def _sources(self) -> Sequence[Tensor | None]:
        """Return the tensors that others are derived from."""
        return ()

    def _derive(self) -> None:
        """Derive for the first time, and after every state dict."""
        self.refresh()
        self.register_load_state_dict_post_hook(_refresh)

    def _note_sources(self) -> None:
        self._made_of = _versions(self._sources())

    def _is_current(self) -> bool:
        """Tell whether the sources are those noted last, and have not been changed since."""
        now = _versions(self._sources())
        return len(now) == len(self._made_of) and all(
            a is b and m == n for (a, m), (b, n) in zip(self._made_of, now, strict=True)
        )

    def _notice(self) -> None:
        """Derive again where a source was changed in place, or replaced.

        Except in a compiled graph, where it is a constant.
        """
        if torch.compiler.is_compiling() or self._is_current():
            return
        if any(value is not None and is_wrapped(value) for value in self._sources()):
            self.refresh()
            return
        with temporarily_clear_interpreter_stack():  # what is kept belongs to no transform
            self.refresh()


def _versions(values: Sequence[Tensor | None]) -> list[tuple[Tensor | None, int]]:
    return [(v, 0 if v is None or v.is_inference() else v._version) for v in values]


def _refresh(system: Any, _: Any) -> None:
    system.refresh()
