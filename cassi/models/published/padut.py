"""PADUT: unrolled projections with learned step sizes and windowed transformers as denoisers."""

import math
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, ChannelAttention, apply_in_windows
from cassi.models.camera_adapters import (
    Camera,
    CroppingCamera,
    column_offsets,
    mix_measurement,
    roll_bands,
    sheared_masks,
    unshear_bands,
)
from cassi.models.layers import (
    HALVING_CONV,
    Conv,
    GatedFeedForward,
    PixelNorm,
    PointwiseConv,
    TransposedConv,
    check_counts,
    depthwise_conv,
    pad_to_multiple,
)
from cassi.models.network import UnrolledNetwork
from cassi.models.registry import register_model
from cassi.solvers import GAP
from cassi.solvers.base import Prior

# Channels of a step size over the hidden channels of the network that weights them.
REDUCTION = 8


class StepSize(nn.Module):
    """Estimate the length of a data step for each band and pixel, from the cube and the masks.

    Source: Li et al., ICCV 2023, figure 3.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        # The published network of 28 bands has 3 hidden units. With fewer, all may be zero after
        # the ReLU from the first training step on; then no gradient reaches them.
        width = bands // REDUCTION if bands >= 3 * REDUCTION else 8
        self.attention = part = nn.Module()
        part.conv1 = Conv(bands, bands, 3, bias=True)
        part.conv2 = PointwiseConv(bands, bands, bias=True)
        part.conv3 = PointwiseConv(2 * bands, bands, bias=True)
        part.ca = nn.Module()
        part.ca.conv_du = nn.Sequential(
            nn.Conv2d(bands, width, 1, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, bands, 1, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        """Map a sheared cube and sheared masks, `(1|B, C, H, W')`, to lengths of that shape."""
        part: Any = self.attention
        mask_features = part.conv1(masks.permute(0, 2, 3, 1))
        features = part.conv3(part.conv2(x.permute(0, 2, 3, 1)), mask_features).permute(0, 3, 1, 2)
        return features * part.ca.conv_du(features.mean((2, 3), keepdim=True))


def relax_step(x: Tensor, step_sizes: Tensor, prior: Prior) -> Prior:
    """Return a prior that first shortens a data step from x to v: prior(x + s ⊙ (v − x)).

    Args:
        x: the cube before the step, `(B, C, H, W')`.
        step_sizes: s, `(B, C, H, W)` with W ≤ W'; the other columns are those of v.
        prior: the denoiser.
    """

    def apply(v: Tensor, sigma: float | Tensor | None) -> Tensor:
        width = step_sizes.shape[-1]
        image = torch.lerp(x[..., :width], v[..., :width], step_sizes.to(v.dtype))
        return prior(torch.cat((image, v[..., width:]), -1), sigma)

    return apply


# Heads of attention, at most; it is reduced to a divisor of the number of channels.
HEADS = 4
# Features before each scale of the encoder, and after each of the decoder, the finest first.
Features = tuple[list[Tensor], list[Tensor]]


class WindowBlock(nn.Module):
    """x + attention(x) among the channels of each window, then x + feed_forward(x).

    With `is_shifted` the windows lie half a window further down and right.
    """

    def __init__(self, dim: int, is_shifted: bool) -> None:
        super().__init__()
        self.shift = -WINDOW // 2 if is_shifted else 0
        self.norm1, self.attn = PixelNorm(dim), ChannelAttention(dim, math.gcd(dim, HEADS))
        self.norm2, self.ffn = PixelNorm(dim), GatedFeedForward(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape, H and W multiples of 8."""
        x = x + apply_in_windows(self._attend, self.norm1(x), self.shift)
        return x + self.ffn(self.norm2(x))

    def _attend(self, windows: Tensor) -> Tensor:
        return self.attn(windows.view(-1, WINDOW, WINDOW, windows.shape[-1])).view(windows.shape)


class SpectrumExchange(nn.Module):
    """Fuse x with an image of the amplitudes of one stage's features and the phases of another's.

    Source: Li et al., ICCV 2023, equation 12.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.post, self.mid = PointwiseConv(2 * dim, dim, bias=True), depthwise_conv(dim, bias=True)

    def forward(self, x: Tensor, amplitudes: Tensor, phases: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        size = x.shape[1:3]
        with torch.autocast(x.device.type, enabled=False):
            # An FFT sums over the image, which takes more digits than half precision has. torch has
            # no FFT in bfloat16 either.
            precision = torch.promote_types(x.dtype, torch.float32)
            amplitude = torch.fft.rfft2(amplitudes.to(precision), dim=(1, 2)).abs()
            angle = torch.fft.rfft2(phases.to(precision), dim=(1, 2)).angle()
            weight, bias = self.mid.weight.to(precision), cast(Tensor, self.mid.bias).to(precision)
            angle = F.conv2d(
                angle.permute(0, 3, 1, 2), weight, bias, padding=1, groups=x.shape[-1]
            ).permute(0, 2, 3, 1)
            spectrum = torch.complex(amplitude * angle.cos(), amplitude * angle.sin())
            image = torch.fft.irfft2(spectrum, s=size, dim=(1, 2))
        return self.post(image.to(x.dtype), x)


def make_encoder(dim: int, scales: int, has_exchange: bool) -> nn.ModuleDict:
    """Return the layers of the encoder, a block and a halving for each scale but the coarsest.

    With `has_exchange`, a scale begins with the exchange of spectra with the stage before.
    """
    levels = []
    for i in range(scales - 1):
        level: dict[str, nn.Module] = {"block": WindowBlock(dim << i, bool(i % 2))}
        if has_exchange:
            level["stage_int"] = SpectrumExchange(dim << i)
        level["downsample"] = HALVING_CONV(dim << i, dim << i + 1)
        levels.append(nn.ModuleDict(level))
    # Every second block has shifted windows. The published code counts the coarsest level one
    # higher than its position.
    coarsest = WindowBlock(dim << scales - 1, bool(scales % 2))
    return nn.ModuleDict({"body": nn.ModuleList([*levels, nn.ModuleDict({"block": coarsest})])})


def make_decoder(dim: int, scales: int) -> nn.ModuleDict:
    """Return the layers of the decoder: upsampling, fusion with the encoder's features, a block."""
    levels = []
    for i in reversed(range(scales - 1)):
        double, conv = TransposedConv(dim << i + 1, dim << i), PointwiseConv(dim << i + 1, dim << i)
        block = nn.ModuleDict({"block": WindowBlock(dim << i, bool((i + 1) % 2))})
        levels.append(nn.ModuleDict({"up": double, "conv": conv, "conv_block": block}))
    return nn.ModuleDict({"body": nn.ModuleList(levels)})


class Stage(nn.Module):
    """One iteration: the step size, and a U-Net whose output is added to the cube."""

    def __init__(self, bands: int, scales: int) -> None:
        super().__init__()
        self.stage_encoder = make_encoder(bands, scales, has_exchange=True)
        self.stage_decoder = make_decoder(bands, scales)
        self.gdm = StepSize(bands)

    def forward(self, x: Tensor, features: Features | None) -> tuple[Tensor, Features]:
        """Denoise `(B, C, H, W)`, with the features of the stage before; return its own."""
        return apply_unet(x, features, self.stage_encoder["body"], self.stage_decoder["body"])


def apply_unet(
    x: Tensor,
    features: Features | None,
    downwards: Any,
    upwards: Any,
    shallow: nn.Module | None = None,
) -> tuple[Tensor, Features]:
    """Denoise `(B, C, H, W)` of any height and width; return the features of this stage too."""
    height, width = x.shape[-2:]
    padded_images = pad_to_multiple(x, WINDOW << (len(downwards) - 1), "mirror")
    padded = padded_images.permute(0, 2, 3, 1).contiguous()
    x = padded
    if shallow is not None:
        # With channels first, this convolution has three quarters of the rounding error that it has
        # with channels last. That matters to phases near ±π in `SpectrumExchange`: a phase that
        # changes its sign changes all pixels.
        x = shallow(padded_images.contiguous()).permute(0, 2, 3, 1).contiguous()
    *levels, coarsest = downwards
    encoder_features: list[Tensor] = []
    decoder_features: list[Tensor] = []
    for i, level in enumerate(levels):
        encoder_features.append(x)
        if "stage_int" in level and features is not None:
            x = level["stage_int"](x, features[0][i], features[1][i])
        x = level["downsample"](level["block"](x))
    x = coarsest["block"](x)
    for level, skip in zip(upwards, reversed(encoder_features), strict=True):
        x = level["conv_block"]["block"](level["conv"](level["up"](x), skip))
        decoder_features.insert(0, x)
    cube = (decoder_features[0] + padded).permute(0, 3, 1, 2)
    return cube[..., :height, :width], (encoder_features, decoder_features)


@register_model("padut_3stg", stages=3)
@register_model("padut_5stg", stages=5)
@register_model("padut_7stg", stages=7)
@register_model("padut_12stg", stages=12)
class PADUT(UnrolledNetwork):
    """Unrolled projections of learned length; each stage's spectra guide the next.

        v = x + r_i ⊙ Aᵀ(AAᵀ)⁺(y − Ax),   x ← D_i(v)

    Args:
        bands: see `UnrolledNetwork`.
        stages: see `UnrolledNetwork`.
        checkpointing: see `UnrolledNetwork`.
        scales: number of resolutions of a stage's U-Net, each half of the one before.

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
        self.stage1_encoder = make_encoder(bands, scales, has_exchange=False)
        self.stage1_decoder = make_decoder(bands, scales)
        self.gdm = StepSize(bands)

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        camera, algorithm = CroppingCamera(system), GAP(accelerated=False)
        shifts, masks = column_offsets(system), sheared_masks(y, system)
        sheared_cube = mix_measurement(self.fution, y, masks, system, 2 / self.bands)
        state = algorithm.init(y, camera, roll_bands(sheared_cube, [-shift for shift in shifts]))
        first_denoiser = partial(
            apply_unet,
            downwards=self.stage1_encoder["body"],
            upwards=self.stage1_decoder["body"],
            shallow=self.shallow_feat,
        )
        denoisers, step_sizes = [first_denoiser, *self.stage_model], [self.gdm]
        step_sizes += [cast(Stage, stage).gdm for stage in self.stage_model]
        features: list[Features] = []
        for denoiser, step_size in zip(denoisers, step_sizes, strict=True):
            sizes = unshear_bands(step_size(sheared_cube, masks), shifts, camera.width)
            prior = relax_step(state.x, sizes, self.chain(denoiser, features))
            state = algorithm.step(state, y, camera, prior, None, 0.0)
            sheared_cube = roll_bands(state.x, shifts)
        return state.x[..., : camera.width]
