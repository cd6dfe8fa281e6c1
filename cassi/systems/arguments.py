"""Check the arguments of cameras, and bring masks, cubes and measurements into one form."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from cassi import ops
from cassi.checks import whole_number
from cassi.ops._recording import is_recorded, is_tracked, unwrap

Array = Tensor | ArrayLike
"""A tensor, or anything that NumPy makes an array of."""
_SHAPES = {"x": "(B, C, H, W)", "y": "(B, K, H', W')"}


@runtime_checkable
class _HasMeasurementShape(Protocol):
    """The attributes of `System` that checks read; importing `System` here would be circular."""

    base_camera: nn.Module
    measurement_shape: tuple[int, int, int]


def as_real(name: str, value: Array) -> Tensor:
    """Convert a tensor, or what NumPy makes an array of, to a tensor of real numbers.

    Raises:
        TypeError: the values are no real numbers.
    """
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"{name}: expected numbers, got dtype {array.dtype}")
        native = array.dtype.newbyteorder("=")
        array = np.ascontiguousarray(array, dtype=native)
        # torch warns of memory that may not be written to, such as a mapped file.
        value = torch.from_numpy(array if array.flags.writeable else array.copy())
    if value.is_complex():
        raise TypeError(f"{name}: expected real numbers, got {value.dtype}")
    return value


def as_measurement(y: Array, system: object) -> Tensor:
    """Return a measurement of any accepted kind as `(B, K, H', W')` in a camera's precision.

    Arrays are moved to the camera's device; tensors stay on theirs. `(H', W')` and `(K, H', W')`
    are one sample. The shape is checked only if the camera is a `cassi.systems.System`.

    Raises:
        TypeError: the values are no real numbers.
        ValueError: the shape is not that of the camera's measurements.
    """
    original, y = y, as_real("y", y)
    if not isinstance(system, _HasMeasurementShape):
        return y
    y = y[(None,) * max(4 - y.ndim, 0)]
    shape = tuple(system.measurement_shape)
    if y.ndim != 4 or tuple(y.shape[1:]) != shape:
        # The two likeliest mistakes: a transposed frame, and a batch whose axis was not added.
        hint = "; y.mT would fit" if tuple(y.mT.shape[1:]) == shape else ""
        if y.ndim == 4 and len(y) == 1 < y.shape[1] and tuple(y[0, 0][None].shape) == shape:
            hint = f"; a batch of {y.shape[1]} is y[:, None]"
        raise ValueError(
            f"y: expected (B, K, H', W') = (B, {', '.join(map(str, shape))}) as of "
            f"{system.base_camera}, got shape {tuple(y.shape)}{hint}"
        )
    reference = _find_reference(system.base_camera, y)
    return y.to(reference.dtype) if isinstance(original, Tensor) else y.to(reference)


def as_cube(x: Array, system: object) -> Tensor:
    """Return a cube as a tensor; `(C, H, W)` is one sample.

    An array gets the camera's precision and device.

    Raises:
        TypeError: the values are no real numbers.
    """
    original, x = x, as_real("x", x)
    x = x[None] if x.ndim == 3 else x
    camera = system.base_camera if isinstance(system, _HasMeasurementShape) else system
    if isinstance(original, Tensor) or not isinstance(camera, nn.Module):
        return x
    return x.to(_find_reference(camera, x))


def _find_reference(camera: nn.Module, fallback: Tensor) -> Tensor:
    """Return the first floating-point tensor of a camera, or another tensor if it has none."""
    tensors = (*camera.parameters(), *camera.buffers(), fallback)
    return next(tensor for tensor in tensors if tensor.is_floating_point() or tensor is fallback)


def as_mask(mask: Array) -> Tensor:  # ([B,] K, 1|C, H, W)
    """Copy a mask of any accepted kind into `([B,] K, 1|C, H, W)`, floating.

    A tensor gets gradients through the copy. A parameter is copied without gradients, because the
    camera registers a parameter of its own.

    Raises:
        TypeError: the values are no real numbers.
        ValueError: the shape does not fit, or a value is not finite.
    """
    mask = as_real("mask", mask)
    if not mask.is_floating_point():
        mask = mask.to(torch.get_default_dtype())
    if mask.ndim not in (2, 3, 4, 5):
        raise ValueError(
            "mask: expected (H, W), (C, H, W), (K, 1 or C, H, W) or (B, K, 1 or C, H, W), "
            f"got shape {tuple(mask.shape)}"
        )
    if not bool(unwrap(torch.isfinite(mask)).all()):
        raise ValueError("mask: expected finite numbers, got NaN or infinity")
    mask = mask.detach() if isinstance(mask, nn.Parameter) else mask
    return mask.clone()[(None,) * max(4 - mask.ndim, 0)]


def as_step(step: float) -> int | float:
    """Return a step in pixels per band, as an integer if it is whole."""
    if isinstance(step, bool) or not isinstance(step, Real) or not math.isfinite(step):
        raise TypeError(f"step: expected a number of pixels per band, got {step!r}")
    number = float(step)
    return int(number) if number.is_integer() else number


def spaced_offsets(bands: int, step: float) -> tuple[float, ...]:
    """Return the offset of each band, pixels, for a step that is whole or not.

    The smallest offset is 0.

    Args:
        bands: number of bands C.
        step: pixels per band; the sign is the direction.

    Raises:
        TypeError: the step is no finite number.

    >>> spaced_offsets(3, -1.5)
    (3.0, 1.5, 0.0)
    """
    step = as_step(step)
    if isinstance(step, int):
        return ops.step_offsets(bands, step)
    # Rounding drops the last digits: a length of 54.000000000000007 pixels would need a 55th one.
    return tuple(round(n * abs(step), 9) for n in ops.step_offsets(bands, 1 if step > 0 else -1))


def as_shifts(offsets: Sequence[float] | Tensor, bands: int) -> Tensor:  # (C,)
    """Copy one offset per band into `(C,)`, float64.

    Raises:
        TypeError: the offsets are no numbers.
        ValueError: there is not one finite offset per band, or a tensor needs a gradient.
    """
    if not isinstance(offsets, nn.Parameter):
        refuse_gradient("offsets", offsets, "give an nn.Parameter")
    try:
        shifts = torch.as_tensor(offsets, dtype=torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"offsets: expected numbers, one per band, got {offsets!r}") from None
    if tuple(shifts.shape) != (bands,):
        raise ValueError(
            f"offsets: expected {bands} numbers, one per band, got shape {tuple(shifts.shape)}"
        )
    if not bool(shifts.isfinite().all()) or bool((shifts.abs() >= 2**31).any()):
        raise ValueError(f"offsets: expected finite numbers of pixels, got {shifts.tolist()}")
    return shifts


def count_detector_pixels(shifts: Tensor, width: int, detector: int | None) -> int:
    """Return the detector's length along the dispersion: `detector`; if None, what bands need."""
    if detector is not None:
        return whole_number("detector", detector, 1)
    smallest = shifts.min().item()
    if smallest < 0:
        raise ValueError(
            f"offsets: expected at least 0, got {smallest:g}; or give detector=, the number of "
            "detector pixels along the axis: offsets then count from the first of them"
        )
    return ops.detector_columns(shifts.tolist(), width)


def refuse_shape(name: str, value: Tensor, shape: tuple[int, int, int]) -> NoReturn:
    """Raise ValueError for a cube x or measurement y that does not have a camera's shape."""
    raise ValueError(
        f"{name}: expected {_SHAPES[name]} = (B, {', '.join(map(str, shape))}), "
        f"got shape {tuple(value.shape)}"
    )


def refuse_gradient(name: str, value: object, advice: str) -> None:
    """Raise ValueError if a tensor needs a gradient, which this argument cannot have."""
    if isinstance(value, Tensor) and is_recorded() and is_tracked(value):
        raise ValueError(f"{name}: expected a tensor without gradient, got one with; {advice}")


def check_shape(name: str, value: Tensor, shape: tuple[int, int, int]) -> None:
    """Raise ValueError unless the shape is a batch of a camera's cubes x or measurements y."""
    if value.ndim != 4 or tuple(value.shape[1:]) != shape:
        refuse_shape(name, value, shape)


def check_axis(axis: int) -> None:
    """Raise ValueError unless the axis is -1 or -2."""
    if axis not in (-1, -2):
        raise ValueError(f"axis: expected -1 (columns) or -2 (rows), got {axis!r}")


def find_even_step(shifts: Tensor) -> int | None:
    """Return the whole step that gives these offsets; None if there is none."""
    values = shifts.tolist()
    step = int(values[1] - values[0]) if len(values) > 1 else 0
    return step if tuple(values) == ops.step_offsets(len(values), step) else None
