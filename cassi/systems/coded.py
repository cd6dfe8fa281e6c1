"""What cameras with a mask and a dispersion have in common."""

from collections.abc import Callable, Sequence
from typing import Self, cast

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.forward_ad import unpack_dual

from cassi.ops._recording import is_forward, is_tracked, is_transformed, is_wrapped
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
    _exact: Sequence[str] = ()
    """Buffers and parameters that stay float64 whatever the camera is converted to."""
    _made_of: Sequence[Tensor | None] = ()
    _is_begun = False

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

    def begin(self) -> System:
        """Return the camera for one run of a solver.

        With a closed form it is a copy, which keeps what it derives from the sources as they are
        now, and looks at them no more. Under transforms, with gradients and in a compiled graph it
        is the camera itself. Without a closed form it is a `WarmStart`.
        """
        sources = self._sources()
        if torch.compiler.is_compiling() or is_transformed() or is_tracked(*sources):
            return super().begin()
        if not self.is_closed:
            return super().begin()
        run = object.__new__(type(self))
        vars(run).update(vars(self))
        run._hold()
        return run

    def _hold(self) -> None:
        """Derive what a run needs; see `begin`."""
        self._notice()
        self._is_begun = True

    def refresh(self) -> None:
        """Derive from `_sources` again what depends on them."""

    def _sources(self) -> Sequence[Tensor | None]:
        """Return the tensors that others are derived from."""
        return ()

    def _derive(self) -> None:
        """Derive for the first time, and after every state dict."""
        self.refresh()
        self.register_load_state_dict_post_hook(_refresh)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        exact = {name: getattr(self, name) for name in self._exact}
        super()._apply(fn, recurse)
        for name, value in exact.items():
            if value is None:
                continue
            moved = value.detach().to(self.mask.device)
            if name in self._buffers:
                self._buffers[name] = moved.requires_grad_(value.requires_grad)
            else:
                getattr(self, name).data = moved
        if not self._is_current():
            self.refresh()
        return self

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        height, width = self.mask.shape[-2:]
        sizes = f"mask={height}x{width}, shots={self.shots}, bands={self.bands}"
        return ", ".join([sizes, *self._described()])

    def _described(self) -> list[str]:
        """Return what `extra_repr` says beside the sizes."""
        return [f"step={self.step}", f"axis={self.axis}"]

    def _note_sources(self) -> None:
        sources = self._sources()
        copies = [None if value is None else value.detach().clone() for value in sources]
        self._made_of = () if any(map(_is_passing, sources)) else copies

    def _is_current(self) -> bool:
        """Tell whether the sources have the values that were noted last.

        Values are compared, not versions: `mask.data.copy_` and inference mode count none.
        """
        now = self._sources()
        if len(now) != len(self._made_of) or any(map(_is_passing, now)):
            return False
        return all(map(_is_same, self._made_of, now))

    def _notice(self) -> None:
        """Derive again where a source was changed in place, or replaced.

        Except in a compiled graph and in a recorded one, where no value can be read. There the mask
        is followed all the same, and dispersion, kernels and maps are constants.
        """
        sources = [value for value in self._sources() if value is not None]
        if (
            self._is_begun
            or torch.compiler.is_compiling()
            or (
                any(value.is_cuda for value in sources) and torch.cuda.is_current_stream_capturing()
            )
        ):
            return
        if any(map(is_wrapped, sources)):
            self.refresh()
            return
        with temporarily_clear_interpreter_stack():  # what is kept belongs to no transform
            if not self._is_current():
                self.refresh()


def _is_passing(value: Tensor | None) -> bool:
    """Tell whether a value is of one call alone: mapped, or with a tangent."""
    if value is None or is_wrapped(value):
        return value is not None
    return is_forward() and unpack_dual(value).tangent is not None


def _is_same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)


def _refresh(system: CodedSystem, _: object) -> None:
    system.refresh()
