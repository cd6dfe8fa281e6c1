"""PADUT: an unrolled network of windowed transformers that hand their spectra on."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, ChannelAttention, from_windows, to_windows
from cassi.models.grid import (
    Camera,
    Wide,
    gather_bands,
    mix_measurement,
    moved_masks,
    offsets,
    roll_bands,
)
from cassi.models.layers import (
    GatedFeedForward,
    PixelNorm,
    check_counts,
    convolve,
    mix,
    pad_to_multiple,
)
from cassi.models.network import Unrolled
from cassi.models.registry import register
from cassi.solvers import GAP
from cassi.solvers.base import Prior

REDUCTION = 8
"""Channels of a step size, per channel that weights them."""


class StepSize(nn.Module):
    """The step of a data step, one number per band and pixel, from the cube and the masks.

    Source: Li et al., ICCV 2023, figure 3.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        # Fewer units than the published 3 may all be silent, from the first step of training on.
        few = bands // REDUCTION if bands >= 3 * REDUCTION else 8
        self.attention = part = nn.Module()
        part.conv1 = nn.Conv2d(bands, bands, 3, padding=1)
        part.conv2 = nn.Conv2d(bands, bands, 1)
        part.conv3 = nn.Conv2d(2 * bands, bands, 1)
        part.ca = nn.Module()
        part.ca.conv_du = nn.Sequential(
            nn.Conv2d(bands, few, 1, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv2d(few, bands, 1, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        """Estimate: cube and masks `(1|B, C, H, W')`, their bands where they fall, → the like."""
        part: Any = self.attention
        of_masks = convolve(part.conv1, masks.permute(0, 2, 3, 1))
        both = mix(part.conv3, mix(part.conv2, x.permute(0, 2, 3, 1)), of_masks)
        both = both.permute(0, 3, 1, 2)
        return cast(Tensor, both * part.ca.conv_du(both.mean((2, 3), keepdim=True)))


def partway(x: Tensor, sizes: Tensor, prior: Prior) -> Prior:
    """Return the prior of a data step from x `(B, C, H, W')` that goes part of the way.

    `sizes` are the parts, `(B, C, H, W)` with W ≤ W'; the rest is not moved by the step.
    """

    def apply(v: Tensor, sigma: Any) -> Tensor:
        width = sizes.shape[-1]
        seen = torch.lerp(x[..., :width], v[..., :width], sizes.to(v.dtype))
        return prior(torch.cat((seen, v[..., width:]), -1), sigma)

    return apply


HEADS = 4
"""Heads of attention; fewer where the channels cannot be divided by it."""
Features = tuple[list[Tensor], list[Tensor]]
"""What enters the scales of an encoder, and what leaves those of the decoder, finest first."""


class WindowBlock(nn.Module):
    """x + attention(x) among the channels of each window, then x + feed_forward(x).

    Args:
        moved: whether the windows lie half a window further down and right.
    """

    def __init__(self, dim: int, moved: bool) -> None:
        super().__init__()
        self.moved = moved
        self.norm1 = PixelNorm(dim)
        self.attn = ChannelAttention(dim, math.gcd(dim, HEADS))
        self.norm2 = PixelNorm(dim)
        self.ffn = GatedFeedForward(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same, H and W multiples of 8."""
        batch, height, width, channels = x.shape
        half = WINDOW // 2 if self.moved else 0
        normed = self.norm1(x)
        normed = normed.roll((-half, -half), (1, 2)) if half else normed
        cut = self.attn(to_windows(normed).view(-1, WINDOW, WINDOW, channels))
        mixed = from_windows(cut.view(batch, -1, WINDOW * WINDOW, channels), height, width)
        x = x + (mixed.roll((half, half), (1, 2)) if half else mixed)
        return x + self.ffn(self.norm2(x))


class SpectrumExchange(nn.Module):
    """Add the image that has the amplitudes of one stage's features and the phases of another's.

    Source: Li et al., ICCV 2023, equation 12.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.post = nn.Conv2d(2 * dim, dim, 1)
        self.mid = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor, amplitudes: Tensor, phases: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        size = x.shape[1:3]
        with torch.autocast(x.device.type, enabled=False):
            # A sum over the image; FFTs know no bfloat16 either.
            wide = torch.promote_types(x.dtype, torch.float32)
            amplitude = torch.fft.rfft2(amplitudes.to(wide), dim=(1, 2)).abs()
            angle = torch.fft.rfft2(phases.to(wide), dim=(1, 2)).angle()
            angle = F.conv2d(
                angle.permute(0, 3, 1, 2),
                self.mid.weight.to(wide),
                None if self.mid.bias is None else self.mid.bias.to(wide),
                padding=1,
                groups=x.shape[-1],
            ).permute(0, 2, 3, 1)
            spectrum = torch.complex(amplitude * angle.cos(), amplitude * angle.sin())
            recombined = torch.fft.irfft2(spectrum, s=size, dim=(1, 2))
        return mix(self.post, recombined.to(x.dtype), x)


class Level(nn.Module):
    """A block, after the exchange with the stage before, and before the halving."""

    def __init__(self, dim: int, moved: bool, exchanging: bool, halving: bool) -> None:
        super().__init__()
        self.block = WindowBlock(dim, moved)
        if exchanging:
            self.stage_int = SpectrumExchange(dim)
        if halving:
            self.downsample = nn.Conv2d(dim, 2 * dim, 4, stride=2, padding=1, bias=False)


class Encoder(nn.Module):
    """Levels, each half as fine as the one before; the last only has a block."""

    def __init__(self, dim: int, scales: int, exchanging: bool) -> None:
        super().__init__()
        self.exchanging = exchanging
        # The coarsest level counts one more than its place, as in the published code.
        self.body = nn.ModuleList(
            Level(dim << i, bool(i % 2), exchanging, halving=True) for i in range(scales - 1)
        )
        self.body.append(Level(dim << (scales - 1), bool(scales % 2), False, halving=False))

    def forward(self, x: Tensor, features: Features | None) -> tuple[list[Tensor], Tensor]:
        """Return what enters each scale but the coarsest, and what leaves that."""
        entered = []
        *levels, coarsest = cast("list[Level]", list(self.body))
        for i, level in enumerate(levels):
            entered.append(x)
            if self.exchanging and features is not None:
                x = level.stage_int(x, features[0][i], features[1][i])
            x = convolve(level.downsample, level.block(x))
        return entered, coarsest.block(x)


class UpLevel(nn.Module):
    """Double the resolution, mix with what entered that scale, and apply a block."""

    def __init__(self, dim: int, moved: bool) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2 * dim, dim, kernel_size=2, stride=2)
        self.conv = nn.Conv2d(2 * dim, dim, 1, bias=False)
        self.conv_block = Level(dim, moved, exchanging=False, halving=False)

    def forward(self, x: Tensor, bridge: Tensor) -> Tensor:
        """Return `(B, 2H, 2W, c/2)`."""
        return cast(Tensor, self.conv_block.block(mix(self.conv, convolve(self.up, x), bridge)))


class Decoder(nn.Module):
    """From the coarsest scale to the finest."""

    def __init__(self, dim: int, scales: int) -> None:
        super().__init__()
        self.body = nn.ModuleList(
            UpLevel(dim << (i - 1), bool(i % 2)) for i in range(scales - 1, 0, -1)
        )

    def forward(self, x: Tensor, bridges: list[Tensor]) -> list[Tensor]:
        """Return what leaves each scale, the finest first."""
        left: list[Tensor] = []
        for up, bridge in zip(self.body, reversed(bridges), strict=True):
            x = up(x, bridge)
            left.insert(0, x)
        return left


class Stage(nn.Module):
    """One iteration: the step size, and a U-Net that adds to the cube.

    Args:
        bands: number C of bands, also the channels of the finest scale.
        scales: resolutions, each half of the one before.
    """

    def __init__(self, bands: int, scales: int) -> None:
        super().__init__()
        self.stage_encoder = Encoder(bands, scales, exchanging=True)
        self.stage_decoder = Decoder(bands, scales)
        self.gdm = StepSize(bands)

    def forward(self, x: Tensor, features: Features | None) -> tuple[Tensor, Features]:
        """Denoise `(B, C, H, W)`, with the features of the stage before; return its own."""
        return restore(x, features, self.stage_encoder, self.stage_decoder)


def restore(
    x: Tensor,
    features: Features | None,
    encoder: Encoder,
    decoder: Decoder,
    shallow: nn.Module | None = None,
) -> tuple[Tensor, Features]:
    """Denoise `(B, C, H, W)` of any height and width; return the features of this stage too."""
    height, width = x.shape[-2:]
    rows = pad_to_multiple(x, WINDOW << (len(encoder.body) - 1), "mirror")
    padded = rows.permute(0, 2, 3, 1).contiguous()
    first = padded
    if shallow is not None:
        # On rows a convolution rounds a quarter less than on channels. That matters to phases near
        # ±π: one that ends up on the other side is seen in all pixels.
        first = shallow(rows.contiguous()).permute(0, 2, 3, 1).contiguous()
    entered, coarsest = encoder(first, features)
    left = decoder(coarsest, entered)
    cube = (left[0] + padded).permute(0, 3, 1, 2)
    return cube[..., :height, :width], (entered, left)


@register("padut_3stg", stages=3)
@register("padut_5stg", stages=5)
@register("padut_7stg", stages=7)
@register("padut_12stg", stages=12)
class PADUT(Unrolled):
    """Unrolled projections of learned length; each stage's spectra guide the next.

        v = x + r_i ⊙ Aᵀ(AAᵀ)⁺(y − Ax),   x ← D_i(v)

    Args:
        bands: number C of bands.
        stages: number of iterations.
        scales: resolutions of a stage's U-Net, each half of the one before.
        checkpointing: spend time to save memory in training, see `Unrolled`.

    Raises:
        ValueError: a count below 1.

    Source: Li et al., "Pixel adaptive deep unfolding transformer for hyperspectral image
    reconstruction", ICCV 2023; names of the weights as there.
    """

    def __init__(
        self, bands: int = 28, stages: int = 3, scales: int = 3, checkpointing: bool = False
    ) -> None:
        super().__init__(bands, stages, checkpointing)
        check_counts("PADUT", scales=scales)
        self.shallow_feat = nn.Conv2d(bands, bands, 3, padding=1)
        self.stage_model = nn.ModuleList(Stage(bands, scales) for _ in range(stages - 1))
        self.fution = nn.Conv2d(2 * bands, bands, 1)
        self.stage1_encoder = Encoder(bands, scales, exchanging=False)
        self.stage1_decoder = Decoder(bands, scales)
        self.gdm = StepSize(bands)

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        wide, algorithm, shifts = Wide(system), GAP(accelerated=False), offsets(system)
        masks = moved_masks(y, system)
        moved = mix_measurement(self.fution, y, masks, system, 2 / self.bands)
        state = algorithm.init(y, wide, roll_bands(moved, [-shift for shift in shifts]))
        first = partial(
            restore,
            encoder=self.stage1_encoder,
            decoder=self.stage1_decoder,
            shallow=self.shallow_feat,
        )
        denoisers, step_sizes = [first, *self.stage_model], [self.gdm]
        step_sizes += [cast(Stage, stage).gdm for stage in self.stage_model]
        features: list[Features] = []
        for denoiser, step_size in zip(denoisers, step_sizes, strict=True):
            sizes = gather_bands(step_size(moved, masks), shifts, wide.width)
            prior = partway(state.x, sizes, self.chain(denoiser, features))
            state = algorithm.step(state, y, wide, prior, None, 0.0)
            moved = roll_bands(state.x, shifts)
        return state.x[..., : wide.width]
