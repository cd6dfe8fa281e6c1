"""A 3×3 convolution of images with what comes after it, as a function of tensors."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from cassi.ops._checks import check_floating, check_same_device, shape_of
from cassi.ops._library import call, define, kernels
from cassi.ops._recording import Context, Dims, VmapInfo, has_tangents, is_tracked, is_transformed

MAX_CHANNELS = 128
"""Above, the transformed weights leave a core's cache, and torch's convolution is faster."""
MIN_PIXELS = 1024
"""Of all images together; below, transforming the weights takes longer than the convolution."""


def convolve3x3(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    rectify: bool = False,
) -> Tensor:
    """Convolve images with a 3×3 kernel, zeros around them, and add what there is to add.

        y = W ∗ x + b + r,   or with `rectify`   max(y, 0)

    The kernel of the CPU takes a quarter of the products (Winograd's algorithm F(4×4, 3×3)), and
    rounds to about 1e-5 of the largest value in float32. A number that is not finite spreads over
    the 4×4 pixels of a tile. It also computes the gradient of the image. Torch's convolution runs
    under autocast, on other devices, and for sizes where it is faster. Results have the same bits
    for every number of threads.

    Shapes: image x `(B, C, H, W)`, with C innermost in memory it is read in place; weight W
    `(O, C, 3, 3)`, bias b `(O,)`, residual r and result `(B, O, H, W)`.

    Source: Lavin, Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.

    >>> convolve3x3(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 3, 3))
    tensor([[[[4., 6., 4.],
              [4., 6., 4.]]]])
    """
    check_floating("image", image)
    check_floating("weight", weight)
    if image.ndim != 4:
        raise ValueError(f"image: expected (B, C, H, W), got shape {shape_of(image)}")
    if weight.ndim != 4 or tuple(weight.shape[1:]) != (image.shape[1], 3, 3):
        raise ValueError(
            f"weight: expected (O, {image.shape[1]}, 3, 3), got shape {shape_of(weight)}"
        )
    check_same_device(image=image, weight=weight)
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"bias: expected ({weight.shape[0]},), got shape {shape_of(bias)}")
    result = image.shape[0], weight.shape[0], *image.shape[2:]
    if residual is not None and tuple(residual.shape) != tuple(result):
        raise ValueError(f"residual: expected {tuple(result)}, got shape {shape_of(residual)}")
    if not _is_faster(image, weight, bias, residual):
        return convolve_by_torch(image, weight, bias, residual, rectify)
    needs_gradient = torch.is_grad_enabled() and is_tracked(image, weight, bias, residual)
    convolve = _ConvolveFunction.apply if needs_gradient else _convolve
    return convolve(image, weight, bias, residual, rectify)


def _convolve(
    image: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, rectify: bool
) -> Tensor:
    bias = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return call(kernels.convolve3x3, image, weight, bias, residual, rectify)


class _ConvolveFunction(torch.autograd.Function):
    """The kernel, and its gradient; that one's gradient is torch's."""

    @staticmethod
    def forward(ctx: Context, *args: Any) -> Tensor:
        """Convolve."""
        image, weight, bias, _, rectify = args
        y = _convolve(*args)
        ctx.constants = (bias is not None,)
        ctx.save_for_backward(image, weight, y if rectify else None)
        return y

    @staticmethod
    def backward(ctx: Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of image, weight, bias and residual."""
        image, weight, y = ctx.saved_tensors
        (has_bias,) = ctx.constants
        g = gradients[0]
        g = g if y is None else torch.ops.aten.threshold_backward(g, y, 0)
        needs = ctx.needs_input_grad
        runs_kernel = needs[0] and not torch.is_grad_enabled()
        mask = [needs[0] and not runs_kernel, needs[1], has_bias and needs[2]]
        image_gradient, weight_gradient, bias_gradient = torch.ops.aten.convolution_backward(
            *(g, image, weight, [len(weight)] if has_bias else None),
            *([1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask),
        )
        if runs_kernel:
            image_gradient = _convolve(g, weight.flip(2, 3).transpose(0, 1), None, None, False)
        return image_gradient, weight_gradient, bias_gradient, g if needs[3] else None, None


def _is_faster(image: Tensor, weight: Tensor, *others: Tensor | None) -> bool:
    if torch.jit.is_tracing() or torch.compiler.is_compiling():
        return False
    return (
        image.device.type == "cpu"
        and image.dtype == weight.dtype == torch.float32
        and not (has_tangents() and is_tracked(image, weight, *others))
        and not torch.is_autocast_enabled("cpu")
        and not is_transformed()
        and max(weight.shape[:2]) <= MAX_CHANNELS
        and image.shape[0] * image.shape[2] * image.shape[3] >= MIN_PIXELS
    )


# Pure torch, the specification of the compiled kernels; sums run in float32 at least.


def convolve_by_torch(
    image: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, rectify: bool
) -> Tensor:
    """Convolve with torch's convolution, in the dtype of the image."""
    y = F.conv2d(image, weight, bias, padding=1)
    if residual is not None:
        y = y + residual
    return F.relu(y, inplace=True) if rectify else y


def _reference(
    image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, rectify: bool
) -> Tensor:
    """Convolve images; channels are innermost in the result's memory."""
    dtype = torch.float64 if torch.float64 in (image.dtype, weight.dtype) else torch.float32
    wide_residual = residual if residual is None else residual.to(dtype)
    y = convolve_by_torch(image.to(dtype), weight.to(dtype), bias.to(dtype), wide_residual, rectify)
    return y.to(image.dtype, memory_format=torch.channels_last)


def _fake(
    image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, rectify: bool
) -> Tensor:
    batch, _, height, width = image.shape
    return image.new_empty((batch, height, width, weight.shape[0])).movedim(-1, 1)


def _map_by_loop(info: VmapInfo, in_dims: Dims, *args: Any) -> tuple[Tensor, int]:
    rows = [
        kernels.convolve3x3(
            *(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True))
        )
        for i in range(info.batch_size)
    ]
    return torch.stack(rows), 0


define(
    "convolve3x3(Tensor image, Tensor weight, Tensor bias, Tensor? residual, bool rectify)"
    " -> Tensor",
    _reference,
    _fake,
    vmap=_map_by_loop,
)


@register_flop_formula(kernels.convolve3x3)
def _count_flops(
    image: Sequence[int], weight: Sequence[int], *_: object, out_shape: object = None, **__: object
) -> int:
    """Count as of torch's convolution, two for each of its multiply-adds."""
    return 2 * image[0] * image[2] * image[3] * 9 * weight[0] * weight[1]
