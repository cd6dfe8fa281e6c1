"""A check that names the operators at which a network loses a memory format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from cassi.ops._checks import shape_of

if TYPE_CHECKING:
    from torch._ops import OpOverload

Result = TypeVar("Result")

_DIMENSIONS = {torch.channels_last: 4, torch.channels_last_3d: 5}


def assert_memory_format(
    module: Callable[..., Result],
    x: Tensor | tuple[object, ...],
    memory_format: torch.memory_format = torch.channels_last,
    *,
    ignore: Collection[str] = (),
) -> Result:
    """Run a module and raise if an operator in it silently loses a memory format.

    There are two reasons to report an operator:

    - It gets a tensor in the memory format, and writes an image (4-D) in another format. Examples
      are `.contiguous()`, a `reshape` that copies, and `softmax`.
    - It decides the layout of a tensor that later reaches a convolution, or the module's output, as
      an image in another format. An example is a matrix product between two reshapes. A view, such
      as `transpose`, is reported only if no other operator is the reason.

    Only the operator that loses the format is reported, not the operators after it. Parameters and
    buffers may have any format. A tensor with one channel or one pixel has both formats, and is
    ignored.

    The module runs once, without gradients, in its current mode (training or evaluation). Its
    buffers (running statistics) are restored afterwards.

    Args:
        module: a module, or any function of tensors.
        x: its argument, or a tuple of them; floating 4-D tensors (5-D for `channels_last_3d`) are
            converted to the memory format first.
        memory_format: `torch.channels_last` or `torch.channels_last_3d`.
        ignore: operators that may leave the format, named as the report names them.

    Returns:
        What the module returned.

    Raises:
        AssertionError: with one line for every operator that leaves the format: its name, the
            innermost submodule that ran it, and the shape it wrote.
        ValueError: another memory format, or no argument that could have it.
    """
    dimensions = _DIMENSIONS.get(memory_format)
    if dimensions is None:
        raise ValueError(
            "memory_format: expected torch.channels_last or torch.channels_last_3d, "
            f"got {memory_format}"
        )
    arguments = _convert(x if isinstance(x, tuple) else (x,), memory_format, dimensions)
    watch = _Watch(module, dimensions, ignore)
    with torch.no_grad(), _keep_buffers(module), watch.submodules(), watch:
        result = module(*arguments)
    for value in tree_leaves(result):
        watch.consume(value)
    if watch.reported:
        name = str(memory_format).removeprefix("torch.")
        lines = "".join(f"\n  {departure}" for departure in watch.reported)
        raise AssertionError(f"{name}: expected in every operator, lost by{lines}")
    return result


def _convert(
    arguments: tuple[object, ...], memory_format: torch.memory_format, dimensions: int
) -> tuple[object, ...]:
    """Return the arguments, with images converted to the memory format."""
    if not any(_is_image(value, dimensions) for value in arguments):
        descriptions = [
            shape_of(v) if isinstance(v, Tensor) else type(v).__name__ for v in arguments
        ]
        raise ValueError(
            f"x: expected a floating tensor with {dimensions} dimensions, "
            f"got {', '.join(descriptions)}"
        )
    return tuple(
        value.contiguous(memory_format=memory_format) if _is_image(value, dimensions) else value
        for value in arguments
    )


@dataclass(frozen=True)
class _Departure:
    """The operator that decided the layout of a tensor which has lost the format."""

    operator: str
    module: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.operator} in {self.module}, which wrote {self.shape}"


class _Watch(TorchDispatchMode):
    """Track every tensor that is computed from one in the memory format."""

    def __init__(
        self, module: Callable[..., object], dimensions: int, ignore: Collection[str]
    ) -> None:
        super().__init__()
        self.reported: dict[_Departure, None] = {}  # in the order of execution
        self._departures: MutableMapping[Tensor, _Departure] = WeakTensorKeyDictionary()
        self._dimensions = dimensions
        self._ignore = frozenset(ignore)
        self._root = module
        self._running: list[str] = []
        self._constants: set[int] = set()
        if isinstance(module, nn.Module):
            self._constants = {id(t) for t in (*module.parameters(), *module.buffers())}

    @contextmanager
    def submodules(self) -> Iterator[None]:
        """Keep track of the innermost submodule."""
        handles = []
        modules = self._root.named_modules() if isinstance(self._root, nn.Module) else ()
        for name, module in modules:
            label = f"{name} ({type(module).__name__})" if name else type(module).__name__

            def enter(module: nn.Module, args: object, label: str = label) -> None:
                self._running.append(label)

            def leave(module: nn.Module, args: object, output: object) -> None:
                self._running.pop()

            handles.append(module.register_forward_pre_hook(enter, prepend=True))
            handles.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = str(func.overloadpacket)
        if name in self._ignore:
            return result
        sources = [
            value
            for value in tree_leaves((args, kwargs))
            if _is_floating(value) and id(value) not in self._constants
        ]
        if name == "aten.convolution":
            self.consume(args[0])
        for value in tree_leaves(result):
            if _is_floating(value):
                self._follow(name, sources, value)
        return result

    def consume(self, value: object) -> None:
        """Report the departure of an image that an operator is about to read."""
        if self._is_lost_image(value) and value in self._departures:
            self.reported[self._departures[value]] = None

    def _follow(self, name: str, sources: list[Tensor], value: Tensor) -> None:
        if value.ndim == self._dimensions and _is_laid_out(value, _channels_last(value)):
            self._departures.pop(value, None)
            return
        own_departure = _Departure(name, self._module_name(), tuple(value.shape))
        departures = [(s, self._departures[s]) for s in sources if s in self._departures]
        reported_departures = [
            departure for _, departure in departures if departure in self.reported
        ]
        has_pure_source = any(self._has_only_this_format(source) for source in sources)
        # A result that shares memory with a source is a view of the source, unless it is the source
        # itself, changed in place. The operator that decided the layout of the source also decided
        # that of the view.
        base = None
        if not any(value is source for source in sources):
            base = next((source for source in sources if _share_memory(value, source)), None)
        if base is not None:
            if base not in self._departures and not self._has_only_this_format(base):
                return
            departure = self._departures.get(base, own_departure)
        elif reported_departures:
            # Only the first operator that loses the format is reported.
            departure = reported_departures[0]
        elif has_pure_source:
            # A source has this format and no other, so this operator loses the format.
            departure = own_departure
            if self._is_lost_image(value):
                self.reported[own_departure] = None
        elif departures:
            # An elementwise operator keeps the strides of a source. Then the operator that decided
            # these strides is the reason. Any other layout is this operator's own decision.
            same_layout = (departure for s, departure in departures if s.stride() == value.stride())
            departure = next(same_layout, own_departure)
        else:
            return
        self._departures[value] = departure

    def _module_name(self) -> str:
        if self._running:
            return self._running[-1]
        is_function = isinstance(self._root, FunctionType | BuiltinFunctionType)
        return self._root.__name__ if is_function else "x"

    def _is_lost_image(self, value: object) -> TypeGuard[Tensor]:
        return _is_image(value, self._dimensions) and not _is_laid_out(value, _channels_last(value))

    def _has_only_this_format(self, value: Tensor) -> bool:
        return (
            value.ndim == self._dimensions
            and _is_laid_out(value, _channels_last(value))
            and not _is_laid_out(value, range(value.ndim))
        )


@contextmanager
def _keep_buffers(module: object) -> Iterator[None]:
    # A module may write into its buffers, or replace them by other tensors.
    buffers = [
        (owner, name, buffer, buffer.clone())
        for owner in (module.modules() if isinstance(module, nn.Module) else ())
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for owner, name, buffer, value in buffers:
            owner._buffers[name] = buffer.copy_(value)


def _is_floating(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_image(value: object, dimensions: int) -> TypeGuard[Tensor]:
    return _is_floating(value) and value.ndim == dimensions


def _share_memory(value: Tensor, other_value: Tensor) -> bool:
    return value.untyped_storage()._cdata == other_value.untyped_storage()._cdata


def _channels_last(value: Tensor) -> tuple[int, ...]:
    return (0, *range(2, value.ndim), 1)


def _is_laid_out(value: Tensor, axes: Collection[int]) -> bool:
    """Tell whether memory runs through the axes in this order; gaps, as in a slice, are allowed."""
    minimum = 1
    for axis in reversed(tuple(axes)):
        if value.shape[axis] != 1:
            if value.stride(axis) < minimum:
                return False
            minimum = value.stride(axis) * value.shape[axis]
    return True
