"""A 3×3 convolution of images, fused with bias, residual and ReLU, as a function of tensors."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from cassi.ops._checks import check_floating, check_same_device, shape_of
from cassi.ops._library import call, define, operators
from cassi.ops._recording import Context, Dims, VmapInfo, has_tangents, is_tracked, is_transformed

# With more channels the transformed weights do not fit a core's cache, and torch's convolution is
# faster.
MAX_CHANNELS = 128
# Image rows of a strip. The gradient of the weight is summed over each strip alone.
STRIP = 16
# Fewest pixels of all images together. With fewer, transforming the weights takes longer than the
# convolution.
MIN_PIXELS = 1024


def convolve3x3(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    rectify: bool = False,
) -> Tensor:
    """Convolve images with a 3×3 kernel, with zeros around them; add bias and residual; rectify.

        y = W ∗ x + b + r,   or, with `rectify`, the larger of this and 0

    The CPU kernel uses Winograd's algorithm F(4×4, 3×3), which needs a quarter of the products. Its
    rounding error in float32 is about 1e-5 of the largest value. A value that is not finite spreads
    over the 4×4 pixels of a tile. The gradients of image and weight have kernels of the same kind.
    Torch's convolution runs instead under autocast, on other devices, and for sizes for which it is
    faster. Results have the same bits for every number of threads.

    Args:
        image: x `(B, C, H, W)`; read in place if C is innermost in memory.
        weight: W `(O, C, 3, 3)`.
        bias: b `(O,)`.
        residual: r `(B, O, H, W)`.
        rectify: whether negative values become zero.

    Returns:
        y `(B, O, H, W)`.

    Raises:
        TypeError: image or weight is not a floating tensor.
        ValueError: shapes or devices do not fit each other.

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
    return call(operators.convolve3x3, image, weight, bias, residual, rectify)


class _ConvolveFunction(torch.autograd.Function):
    """The compiled kernel with its gradient; torch's convolution has the second derivatives."""

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
        if torch.is_grad_enabled():
            # A second derivative is recorded, which the compiled kernels lack.
            output_mask = [*needs[:2], has_bias and needs[2]]
            results = torch.ops.aten.convolution_backward(
                g,
                image,
                weight,
                [len(weight)] if has_bias else None,
                [1, 1],  # stride
                [1, 1],  # padding
                [1, 1],  # dilation
                False,  # transposed
                [0, 0],  # output padding
                1,  # groups
                output_mask,
            )
        else:
            # The gradient of the image is a convolution with the flipped kernel.
            kernel = weight.flip(2, 3).transpose(0, 1)
            results = (
                _convolve(g, kernel, None, None, False) if needs[0] else None,
                _weight_gradient(g, image) if needs[1] else None,
                g.sum((0, 2, 3)) if has_bias and needs[2] else None,
            )
        return *results, g if needs[3] else None, None


def _weight_gradient(gradient: Tensor, image: Tensor) -> Tensor:  # (O, C, 3, 3)
    strips = call(operators.convolve3x3_backward, gradient, image)
    return strips.sum((0, 1)).permute(3, 2, 0, 1)


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


# `convolve_by_torch` runs if the compiled kernel is not used. `_reference` specifies the compiled
# kernel, and its sums run in float32 at least.


def convolve_by_torch(
    image: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, rectify: bool
) -> Tensor:
    """Convolve with torch's convolution, in the dtype of the image."""
    y = F.conv2d(image, weight, bias, padding=1)
    if residual is not None:
        # In place, the sum takes no further image. Gradients and maps need unchanged operands.
        is_plain = not torch.is_grad_enabled() and not is_transformed()
        y = y.add_(residual) if is_plain and y.dtype == residual.dtype else y + residual
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
    results = [
        operators.convolve3x3(
            *(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True))
        )
        for i in range(info.batch_size)
    ]
    return torch.stack(results), 0


def _backward_reference(grad: Tensor, image: Tensor) -> Tensor:
    """Return the gradient of the weight, summed over each strip: `(B, strips, 3, 3, C, O)`."""
    dtype = torch.float64 if torch.float64 in (grad.dtype, image.dtype) else torch.float32
    batch, channels, height, width = image.shape
    below = -height % STRIP
    patches = F.unfold(F.pad(image.to(dtype), (0, 0, 0, below)), 3, padding=1)
    patches = patches.view(batch, channels, 3, 3, -1, STRIP * width)
    slopes = F.pad(grad.to(dtype), (0, 0, 0, below)).reshape(
        batch, grad.shape[1], -1, STRIP * width
    )
    return torch.einsum("bcijsp,bosp->bsijco", patches, slopes)


def _fake_backward(grad: Tensor, image: Tensor) -> Tensor:
    batch, channels, height, _ = image.shape
    dtype = torch.float64 if torch.float64 in (grad.dtype, image.dtype) else torch.float32
    strips = (height + STRIP - 1) // STRIP
    return image.new_empty((batch, strips, 3, 3, channels, grad.shape[1]), dtype=dtype)


define(
    "convolve3x3_backward(Tensor grad, Tensor image) -> Tensor",
    _backward_reference,
    _fake_backward,
)
define(
    "convolve3x3(Tensor image, Tensor weight, Tensor bias, Tensor? residual, bool rectify)"
    " -> Tensor",
    _reference,
    _fake,
    vmap=_map_by_loop,
)


@register_flop_formula(operators.convolve3x3_backward)
def _count_backward_flops(
    grad: Sequence[int], image: Sequence[int], *_: object, out_shape: object = None, **__: object
) -> int:
    return 2 * image[0] * image[2] * image[3] * 9 * grad[1] * image[1]


@register_flop_formula(operators.convolve3x3)
def _count_flops(
    image: Sequence[int], weight: Sequence[int], *_: object, out_shape: object = None, **__: object
) -> int:
    """Count the operations as for torch's convolution: two for each multiply-add."""
    return 2 * image[0] * image[2] * image[3] * 9 * weight[0] * weight[1]
