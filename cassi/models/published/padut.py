"""PADUT: an unrolled network of windowed transformers that hand their spectra on."""

import math
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, ChannelAttention, in_windows
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
    HALVE,
    Conv,
    Double,
    GatedFeedForward,
    PixelNorm,
    Point,
    check_counts,
    pad_to_multiple,
    spread,
)
from cassi.models.network import Unrolled
from cassi.models.registry import register_model
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
        part.conv1 = Conv(bands, bands, 3, bias=True)
        part.conv2 = Point(bands, bands, bias=True)
        part.conv3 = Point(2 * bands, bands, bias=True)
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
        of_masks = part.conv1(masks.permute(0, 2, 3, 1))
        both = part.conv3(part.conv2(x.permute(0, 2, 3, 1)), of_masks).permute(0, 3, 1, 2)
        return both * part.ca.conv_du(both.mean((2, 3), keepdim=True))


def partway(x: Tensor, sizes: Tensor, prior: Prior) -> Prior:
    """Return the prior of a data step from x `(B, C, H, W')` that goes part of the way.

    `sizes` are the parts, `(B, C, H, W)` with W ≤ W'; the rest is not moved by the step.
    """

    def apply(v: Tensor, sigma: float | Tensor | None) -> Tensor:
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

    Windows that are `moved` lie half a window further down and right.
    """

    def __init__(self, dim: int, moved: bool) -> None:
        super().__init__()
        self.shift = -WINDOW // 2 if moved else 0
        self.norm1, self.attn = PixelNorm(dim), ChannelAttention(dim, math.gcd(dim, HEADS))
        self.norm2, self.ffn = PixelNorm(dim), GatedFeedForward(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same, H and W multiples of 8."""
        x = x + in_windows(self._attend, self.norm1(x), self.shift)
        return x + self.ffn(self.norm2(x))

    def _attend(self, cut: Tensor) -> Tensor:
        return self.attn(cut.view(-1, WINDOW, WINDOW, cut.shape[-1])).view(cut.shape)


class SpectrumExchange(nn.Module):
    """Add the image that has the amplitudes of one stage's features and the phases of another's.

    Source: Li et al., ICCV 2023, equation 12.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.post, self.mid = Point(2 * dim, dim, bias=True), spread(dim, bias=True)

    def forward(self, x: Tensor, amplitudes: Tensor, phases: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same."""
        size = x.shape[1:3]
        with torch.autocast(x.device.type, enabled=False):
            # A sum over the image; FFTs know no bfloat16 either.
            wide = torch.promote_types(x.dtype, torch.float32)
            amplitude = torch.fft.rfft2(amplitudes.to(wide), dim=(1, 2)).abs()
            angle = torch.fft.rfft2(phases.to(wide), dim=(1, 2)).angle()
            weight, bias = self.mid.weight.to(wide), cast(Tensor, self.mid.bias).to(wide)
            angle = F.conv2d(
                angle.permute(0, 3, 1, 2), weight, bias, padding=1, groups=x.shape[-1]
            ).permute(0, 2, 3, 1)
            spectrum = torch.complex(amplitude * angle.cos(), amplitude * angle.sin())
            recombined = torch.fft.irfft2(spectrum, s=size, dim=(1, 2))
        return self.post(recombined.to(x.dtype), x)


def encoder(dim: int, scales: int, exchanging: bool) -> nn.ModuleDict:
    """Return the layers of each scale, half as fine as the one before; the last only has a block.

    A block comes after the exchange with the stage before, where there is one.
    """
    levels = []
    for i in range(scales - 1):
        level: dict[str, nn.Module] = {"block": WindowBlock(dim << i, bool(i % 2))}
        if exchanging:
            level["stage_int"] = SpectrumExchange(dim << i)
        level["downsample"] = HALVE(dim << i, dim << i + 1)
        levels.append(nn.ModuleDict(level))
    # The coarsest level counts one more than its place, as in the published code.
    coarsest = WindowBlock(dim << scales - 1, bool(scales % 2))
    return nn.ModuleDict({"body": nn.ModuleList([*levels, nn.ModuleDict({"block": coarsest})])})


def decoder(dim: int, scales: int) -> nn.ModuleDict:
    """Return what doubles the resolution, mixes with what entered that scale, and a block."""
    levels = []
    for i in reversed(range(scales - 1)):
        up, conv = Double(dim << i + 1, dim << i), Point(dim << i + 1, dim << i)
        block = nn.ModuleDict({"block": WindowBlock(dim << i, bool((i + 1) % 2))})
        levels.append(nn.ModuleDict({"up": up, "conv": conv, "conv_block": block}))
    return nn.ModuleDict({"body": nn.ModuleList(levels)})


class Stage(nn.Module):
    """One iteration: the step size, and a U-Net that adds to the cube."""

    def __init__(self, bands: int, scales: int) -> None:
        super().__init__()
        self.stage_encoder = encoder(bands, scales, exchanging=True)
        self.stage_decoder = decoder(bands, scales)
        self.gdm = StepSize(bands)

    def forward(self, x: Tensor, features: Features | None) -> tuple[Tensor, Features]:
        """Denoise `(B, C, H, W)`, with the features of the stage before; return its own."""
        return restore(x, features, self.stage_encoder["body"], self.stage_decoder["body"])


def restore(
    x: Tensor,
    features: Features | None,
    downwards: Any,
    upwards: Any,
    shallow: nn.Module | None = None,
) -> tuple[Tensor, Features]:
    """Denoise `(B, C, H, W)` of any height and width; return the features of this stage too."""
    height, width = x.shape[-2:]
    rows = pad_to_multiple(x, WINDOW << (len(downwards) - 1), "mirror")
    padded = rows.permute(0, 2, 3, 1).contiguous()
    x = padded
    if shallow is not None:
        # On rows a convolution rounds a quarter less than on channels. That matters to phases near
        # ±π: one that ends up on the other side is seen in all pixels.
        x = shallow(rows.contiguous()).permute(0, 2, 3, 1).contiguous()
    *levels, coarsest = downwards
    entered: list[Tensor] = []
    left: list[Tensor] = []
    for i, level in enumerate(levels):
        entered.append(x)
        if "stage_int" in level and features is not None:
            x = level["stage_int"](x, features[0][i], features[1][i])
        x = level["downsample"](level["block"](x))
    x = coarsest["block"](x)
    for level, bridge in zip(upwards, reversed(entered), strict=True):
        x = level["conv_block"]["block"](level["conv"](level["up"](x), bridge))
        left.insert(0, x)
    cube = (left[0] + padded).permute(0, 3, 1, 2)
    return cube[..., :height, :width], (entered, left)


@register_model("padut_3stg", stages=3)
@register_model("padut_5stg", stages=5)
@register_model("padut_7stg", stages=7)
@register_model("padut_12stg", stages=12)
class PADUT(Unrolled):
    """Unrolled projections of learned length; each stage's spectra guide the next.

        v = x + r_i ⊙ Aᵀ(AAᵀ)⁺(y − Ax),   x ← D_i(v)

    Args:
        bands: as of `Unrolled`.
        stages: as of `Unrolled`.
        checkpointing: as of `Unrolled`.
        scales: resolutions of a stage's U-Net, each half of the one before.

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
        self.stage1_encoder = encoder(bands, scales, exchanging=False)
        self.stage1_decoder = decoder(bands, scales)
        self.gdm = StepSize(bands)

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        wide, algorithm, shifts = Wide(system), GAP(accelerated=False), offsets(system)
        masks = moved_masks(y, system)
        moved = mix_measurement(self.fution, y, masks, system, 2 / self.bands)
        state = algorithm.init(y, wide, roll_bands(moved, [-shift for shift in shifts]))
        first = partial(
            restore,
            downwards=self.stage1_encoder["body"],
            upwards=self.stage1_decoder["body"],
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
