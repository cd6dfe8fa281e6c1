"""Checks of the arguments of public operators, and their canonical shapes for the kernels."""

from numbers import Integral, Real

import torch
from torch import Tensor

from cassi.ops._reference import detector_width

_MAX_INT = 1 << 31  # the kernels index bands, pixels and columns in int32
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def shape_of(tensor: Tensor) -> str:
    """Format a shape for a message."""
    return str(tuple(tensor.shape))


def check_floating(name: str, value: object) -> Tensor:
    """Return the value if it is a dense tensor of a supported floating dtype; else raise."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
    if value.dtype not in FLOATING:
        raise TypeError(
            f"{name}: expected float32, float64, bfloat16 or float16, got {value.dtype}; "
            f"convert it with {name}.float()"
        )
    if value.layout is not torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got layout {value.layout}")
    return value


def check_same_device(**tensors: Tensor) -> None:
    """Raise unless all tensors are on one device."""
    devices = [tensor.device for tensor in tensors.values()]
    if devices.count(devices[0]) == len(devices):
        return
    named_devices = {name: tensor.device for name, tensor in tensors.items()}
    listing = ", ".join(f"{name} on {device}" for name, device in named_devices.items())
    raise ValueError(f"expected all tensors on one device, got {listing}")


def check_int(name: str, value: object, minimum: int = 1 - _MAX_INT) -> int:
    """Return a Python or symbolic integer; raise unless it is from `minimum` to 2^31 − 1."""
    if type(value) is int and minimum <= value < _MAX_INT:
        return value
    if isinstance(value, Tensor) and torch.jit.is_tracing():  # sizes are tensors in a trace
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, Integral | torch.SymInt):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if isinstance(value, torch.SymInt):
        # A comparison of a symbolic size makes the compiled graph valid for its outcome only. So a
        # size is only compared with a limit that any valid size passes.
        if minimum >= 0 and value < minimum:
            raise ValueError(f"{name}: expected at least {minimum}, got {value}")
        return value  # type: ignore[return-value]
    number = int(value)
    if not minimum <= number < _MAX_INT:
        bound = f"at least {minimum}" if number < minimum else f"less than {_MAX_INT}"
        raise ValueError(f"{name}: expected {bound}, got {number}")
    return number


def canonical_mask(mask: Tensor) -> Tensor:  # (1|B, K, 1|C, H, W)
    """View a mask of any accepted shape in the kernels' shape."""
    check_floating("mask", mask)
    if mask.ndim not in (2, 3, 4, 5):
        raise ValueError(
            "mask: expected (H, W), (C, H, W), (K, 1 or C, H, W) or (B, K, 1 or C, H, W), "
            f"got shape {shape_of(mask)}"
        )
    if mask.numel() == 0:
        raise ValueError(f"mask: expected at least one pixel, got shape {shape_of(mask)}")
    return mask if mask.ndim == 5 else mask.expand(*(1,) * (5 - mask.ndim), *mask.shape)


def canonical_basis(basis: Tensor, name: str, value: Tensor) -> Tensor:  # (1|B, C, R)
    """View a spectral basis in the kernels' shape; it must fit the batch of `value`."""
    check_floating("basis", basis)
    if basis.ndim not in (2, 3) or basis.shape[-1] < 1:
        raise ValueError(
            f"basis: expected (C, R) or (B, C, R) with R >= 1, got shape {shape_of(basis)}"
        )
    e = basis if basis.ndim == 3 else basis[None]
    check_samples(name, value, e, "basis")
    return e


def canonical_batch(name: str, value: Tensor, meaning: str) -> tuple[Tensor, bool]:
    """Return the tensor with a batch dimension, and whether this dimension was added."""
    check_floating(name, value)
    if value.ndim not in (3, 4):
        raise ValueError(f"{name}: expected {meaning}, got shape {shape_of(value)}")
    return (value, False) if value.ndim == 4 else (value[None], True)


def check_cube(name: str, x: Tensor, mask: Tensor) -> None:
    """Raise unless a cube (B, C, H, W) fits a canonical mask."""
    _, bands, height, width = x.shape
    if (height, width) != mask.shape[3:]:
        raise ValueError(
            f"{name}: expected the mask's height and width {tuple(mask.shape[3:])}, "
            f"got shape {shape_of(x)}"
        )
    check_bands(mask, bands)
    check_samples(name, x, mask)


def check_bands(mask: Tensor, bands: int) -> None:
    """Raise unless a canonical mask fits this number of bands."""
    check_int("bands", bands, minimum=1)
    if mask.shape[2] not in (1, bands):
        raise ValueError(
            f"mask: expected 1 or {bands} bands, got {mask.shape[2]}; a 3-D mask is (C, H, W)"
        )


def check_measurement(y: Tensor, mask: Tensor, bands: int, step: int) -> None:
    """Raise unless a measurement (B, K, H, W') fits mask, bands and step."""
    check_bands(mask, bands)
    height, width = mask.shape[-2:]
    expected = (mask.shape[1], height, detector_width(width, bands, step))
    if tuple(y.shape[1:]) != expected:
        raise ValueError(
            f"y: expected (B, K, H, W') = (B, {expected[0]}, {expected[1]}, {expected[2]}) for a "
            f"{height} x {width} mask, {bands} bands and step {step}, got shape {shape_of(y)}; "
            "check step first"
        )
    check_samples("y", y, mask)


def check_samples(
    name: str, value: Tensor, shared_value: Tensor, shared_name: str = "mask"
) -> None:
    """Raise unless a mask or gram has one entry for the whole batch, or one for each sample."""
    if shared_value.shape[0] not in (1, value.shape[0]):
        raise ValueError(
            f"{shared_name}: expected one for all or one per sample of {name} ({value.shape[0]}), "
            f"got {shared_value.shape[0]}"
        )


def canonical_parameter(name: str, value: float | Tensor, tensor: Tensor) -> Tensor:  # (1|B,)
    """Return a parameter, a number >= 0 or a tensor, as a tensor with one entry or one per sample.

    The values of a tensor are not checked, because the host would wait for a GPU.
    """
    if isinstance(value, Tensor):
        check_floating(name, value)
        if value.numel() not in (1, tensor.shape[0]):
            raise ValueError(
                f"{name}: expected a number or one value per sample ({tensor.shape[0]}), "
                f"got shape {shape_of(value)}"
            )
        return value.reshape(-1)
    return _number(name, value, tensor, (1,))


def _number(name: str, value: float, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    is_plain_number = type(value) in (int, float)  # isinstance with `Real` takes longer
    if not is_plain_number and (
        isinstance(value, bool) or not isinstance(value, Real | torch.SymInt | torch.SymFloat)
    ):
        raise TypeError(f"{name}: expected a number or a tensor, got {value!r}")
    if not value >= 0:
        raise ValueError(f"{name}: expected a number >= 0, got {value}")
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return torch.full(shape, float(value), dtype=dtype, device=tensor.device)


def canonical_damping(value: float | Tensor, cube: Tensor, measurement: Tensor) -> Tensor:
    """Return ρ as `(1|B, 1|K, 1|H, 1|W')`, from a number, a value per sample, or one per pixel.

    Numbers are >= 0; infinite values are allowed. A number becomes a tensor on the device of the
    cube, in its dtype or float32, whichever is wider.
    """
    if not isinstance(value, Tensor):
        return _number("rho", value, cube, (1, 1, 1, 1))
    check_floating("rho", value)
    batch, *pixels = measurement.shape
    if value.ndim in (3, 4) and list(value.shape[-3:]) == pixels:
        if value.ndim == 3:
            return value[None]
        if value.shape[0] in (1, batch):
            return value
    if value.numel() not in (1, batch):
        shape = f"(1 or {batch}, {', '.join(map(str, pixels))})"
        raise ValueError(
            f"rho: expected a number, one value per sample ({batch}) or one per detector pixel "
            f"{shape}, got shape {shape_of(value)}"
        )
    return value.reshape(-1, 1, 1, 1)


def canonical_dual(dual: Tensor | None, x: Tensor, is_single: bool) -> Tensor | None:
    """Check a dual variable (B, 2, C, H, W) of total variation against its cube (B, C, H, W)."""
    if dual is None:
        return None
    check_floating("dual", dual)
    dual_batch = dual[None] if is_single else dual
    batch, bands, height, width = x.shape
    if tuple(dual_batch.shape) != (batch, 2, bands, height, width):
        raise ValueError(
            f"dual: expected (2, C, H, W) for every sample, ({batch}, 2, {bands}, {height}, "
            f"{width}), got shape {shape_of(dual)}"
        )
    return dual_batch
