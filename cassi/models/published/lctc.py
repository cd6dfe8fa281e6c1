"""LCTC: a network without training; its weights are fitted to one measurement."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.layers import check_counts, check_images

# Negative slope of every leaky ReLU.
SLOPE = 0.2
# Interpolation by which each scale is upsampled, from the finest scale to the coarsest.
UPSAMPLING = ("nearest", "nearest", "bilinear")


def pointwise_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Apply a 1×1 convolution as a matrix product."""
    # For a 1×1 convolution torch would first copy the images, on a single core.
    return F.linear(x.permute(0, 2, 3, 1), weight.flatten(1)).permute(0, 3, 1, 2)


class ReflectConv(nn.Conv2d):
    """A convolution without bias, of images mirrored at their borders, and a leaky ReLU."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, side, stride, bias=False)
        self.border = side // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, outputs, ⌈H/stride⌉, ⌈W/stride⌉)`."""
        if not self.border:  # a 1×1 convolution
            return F.leaky_relu_(pointwise_conv(x, self.weight), SLOPE)
        padded = F.pad(x, 4 * (self.border,), "reflect")
        return F.leaky_relu_(F.conv2d(padded, self.weight, None, self.stride), SLOPE)


class Threshold(nn.Module):
    r"""One step of convolutional sparse coding: channels with a small gate become zero.

        r = x + D₂ lrelu(norm(D₁ x)),   s = relu(g − mean(g)/5),   g = sigmoid(W₂ lrelu(W₁ mean r))
        u = lrelu(s · r)

    D₁ is a 3×1 convolution, D₂ a 1×3 convolution, and norm a batch normalization.
    """

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        width = channels // reduction
        self.down = nn.Conv2d(channels, channels, (3, 1), padding=(1, 0), bias=False)
        self.norm = nn.BatchNorm2d(channels, eps=1e-4, track_running_stats=False)
        self.across = nn.Conv2d(channels, channels, (1, 3), padding=(0, 1), bias=False)
        self.gate = nn.Sequential(
            nn.Linear(channels, width, bias=False),
            nn.LeakyReLU(SLOPE),
            nn.Linear(width, channels, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, channels, H, W)`."""
        r = self.across(F.leaky_relu_(self.norm(self.down(x)), SLOPE)) + x
        g = self.gate(r.mean((2, 3)))
        return F.leaky_relu_(r * F.relu(g - 0.2 * g.mean())[..., None, None], SLOPE)


class Scale(nn.Module):
    """One scale of the hourglass, with the coarser scales inside it."""

    def __init__(self, inputs: int, width: int, skip: int, upsampling: tuple[str, ...]) -> None:
        super().__init__()
        self.mode, coarser = upsampling[0], upsampling[1:]
        self.skip = nn.Sequential(ReflectConv(inputs, skip, 1), Threshold(skip))
        self.down = nn.Sequential(
            ReflectConv(inputs, width, 3, stride=2),
            Threshold(width),
            ReflectConv(width, width, 3),
            Threshold(width),
        )
        self.inner = Scale(width, width, skip, coarser) if coarser else nn.Identity()
        self.up = nn.Sequential(
            ReflectConv(skip + width, width, 3),
            Threshold(width),
            ReflectConv(width, width, 3),
            Threshold(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, width, H, W)`."""
        coarse_features = F.interpolate(self.inner(self.down(x)), scale_factor=2, mode=self.mode)
        coarse_features = coarse_features[..., : x.shape[-2], : x.shape[-1]]
        return self.up(torch.cat((self.skip(x), coarse_features), 1))


class LCTC(nn.Module):
    """An hourglass network of three scales with a `Threshold` after every convolution.

    Its weights are for one scene only: `cassi.solvers.Untrained` fits the weights and the input of
    the network to one measurement.

    Args:
        bands: number C of bands.
        inputs: channels of the input.
        width: channels at every scale, at least 16.
        skip: channels of the skip connections, at least 16.

    Attributes:
        least: smallest number of rows and columns of an image.

    Raises:
        ValueError: a count is below 1, or `width` or `skip` is below 16.

    Source: Chen et al., "Lightweight convolutional thresholding sparse coding network prior for
    computational hyperspectral imaging", its code, for the single disperser.
    """

    least = 9

    def __init__(self, bands: int, inputs: int = 4, width: int = 36, skip: int = 16) -> None:
        super().__init__()
        check_counts("LCTC", bands=bands, inputs=inputs, width=width, skip=skip)
        if min(width, skip) < 16:
            raise ValueError(f"LCTC: expected width and skip of 16 or more, got {width} and {skip}")
        self.inputs = inputs
        self.scales = Scale(inputs, width, skip, UPSAMPLING)
        self.spectra = nn.Conv2d(width, bands, 1, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Return a cube: `(N, inputs, H, W)` → `(N, C, H, W)`.

        Raises:
            ValueError: z has another shape, or fewer rows or columns than `least`.
        """
        check_images("LCTC", z, self.inputs)
        if min(z.shape[-2:]) < self.least:
            height, width = z.shape[-2:]
            raise ValueError(
                f"LCTC: expected {self.least} rows and columns, got {height} and {width}"
            )
        z = z.contiguous(memory_format=torch.channels_last)
        return pointwise_conv(self.scales(z), self.spectra.weight)
