"""The base class of cameras with a mask and a dispersion, and the update of derived tensors."""

from collections.abc import Callable, Sequence
from typing import Self, cast

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.forward_ad import unpack_dual

from cassi.ops._recording import is_forward_mode, is_tracked, is_transformed, is_wrapped
from cassi.systems.base import System


class CodedSystem(System):
    """A camera that codes the scene by a mask and moves its bands along an axis.

    The camera keeps tensors that it derives from its sources: mask, offsets or kernels. An example
    is the gram. If a source has changed, the derived tensors are computed again; see
    `_refresh_if_changed`.

    Attributes:
        mask: `([B,] K, 1|C, H, W)`.
        bands: number of bands C.
        step: pixels per band, whole; for a camera with offsets their mean distance, rounded.
        axis: axis of the dispersion, -1 along columns, -2 along rows.
        detector: pixels of the detector along the axis.
    """

    mask: Tensor
    bands: int
    step: int
    axis: int
    detector: int
    _offsets: tuple[float, ...]
    # Names of buffers and parameters that stay float64 whatever the camera is converted to.
    _float64_tensors: Sequence[str] = ()
    # Copies of the sources from which the derived tensors were computed last.
    _noted_sources: Sequence[Tensor | None] = ()
    # Whether the camera belongs to one run of a solver, during which its sources do not change.
    _is_fixed = False

    @property
    def offsets(self) -> tuple[float, ...]:
        """Where the first column (row) of each band falls on the detector, pixels."""
        return self._offsets

    @property
    def shots(self) -> int:
        """Number K of masks, which is the number of channels of the measurement."""
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

    def orient(self, value: Tensor) -> Tensor:
        """Return a view with the dispersion along the last axis, or turn such a view back."""
        return value if self.axis == -1 else value.mT

    def begin(self) -> System:
        """Return the camera for one run of a solver.

        If `gram_solve` has no closed form, the result is a `WarmStart`. If it has one, the result
        is a copy that keeps the derived tensors and no longer compares the sources. Under
        transforms, with gradients and in a compiled graph the result is the camera itself.
        """
        sources = self._list_sources()
        if torch.compiler.is_compiling() or is_transformed() or is_tracked(*sources):
            return super().begin()
        if not self.has_closed_form:
            return super().begin()
        # A shallow copy without `__init__`: it shares mask and buffers, and only flags differ.
        run = object.__new__(type(self))
        vars(run).update(vars(self))
        run._fix_derived()
        return run

    def _fix_derived(self) -> None:
        """Derive the tensors that a run needs, and keep them; see `begin`."""
        self._refresh_if_changed()
        self._is_fixed = True

    def refresh(self) -> None:
        """Compute the tensors that are derived from `_list_sources`."""

    def _list_sources(self) -> Sequence[Tensor | None]:
        """Return the tensors that others are derived from."""
        return ()

    def _start_deriving(self) -> None:
        """Compute the derived tensors now, and again whenever a state dict is loaded."""
        self.refresh()
        self.register_load_state_dict_post_hook(_refresh)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # torch converts all tensors of a module. Positions go back to float64: float16 would round
        # an offset of 60 pixels to 1/32 pixel.
        float64_tensors = {name: getattr(self, name) for name in self._float64_tensors}
        super()._apply(fn, recurse)
        for name, value in float64_tensors.items():
            if value is None:
                continue
            on_device = value.detach().to(self.mask.device)
            if name in self._buffers:
                self._buffers[name] = on_device.requires_grad_(value.requires_grad)
            else:
                getattr(self, name).data = on_device
        if not self._is_current():
            self.refresh()
        return self

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        height, width = self.mask.shape[-2:]
        sizes = f"mask={height}x{width}, shots={self.shots}, bands={self.bands}"
        return ", ".join([sizes, *self._describe_arguments()])

    def _describe_arguments(self) -> list[str]:
        """Return the parts of `extra_repr` after the sizes."""
        return [f"step={self.step}", f"axis={self.axis}"]

    def _note_sources(self) -> None:
        """Remember the sources that the derived tensors were computed from."""
        sources = self._list_sources()
        copies = [None if value is None else value.detach().clone() for value in sources]
        self._noted_sources = () if any(map(_is_transient, sources)) else copies

    def _is_current(self) -> bool:
        """Tell whether the sources have the values that were noted last.

        Values are compared, not version counters: `mask.data.copy_` and inference mode do not
        count up.
        """
        sources = self._list_sources()
        if len(sources) != len(self._noted_sources) or any(map(_is_transient, sources)):
            return False
        return all(map(_is_same, self._noted_sources, sources))

    def _refresh_if_changed(self) -> None:
        """Compute the derived tensors again if a source was changed in place, or replaced.

        In a compiled graph and in a recorded CUDA graph no value can be read, so nothing is
        compared. A changed mask has effect there, because operators read the mask itself. Changed
        offsets, kernels or maps have none.
        """
        sources = [value for value in self._list_sources() if value is not None]
        if self._is_fixed or torch.compiler.is_compiling():
            return
        if any(value.is_cuda for value in sources) and torch.cuda.is_current_stream_capturing():
            return
        if any(map(is_wrapped, sources)):
            self.refresh()
            return
        # Derived tensors are kept, so they must not belong to a transform of `torch.func` that is
        # active in this call.
        with temporarily_clear_interpreter_stack():
            if not self._is_current():
                self.refresh()


def _is_transient(value: Tensor | None) -> bool:
    """Tell whether a value belongs to one call only: vmap maps it, or it has a tangent."""
    if value is None or is_wrapped(value):
        return value is not None
    return is_forward_mode() and unpack_dual(value).tangent is not None


def _is_same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)


def _refresh(system: CodedSystem, _: object) -> None:
    system.refresh()
