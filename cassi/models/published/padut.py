"""PADUT: unrolled projections with learned step sizes and windowed transformers as denoisers."""

import math
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.attention import WINDOW, ChannelAttention, apply_in_windows
from cassi.models.camera_adapters import (
    CroppingCamera,
    NetworkCamera,
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

# `StepSize` weights channels by a small network. The number of its hidden channels is the number of
# bands divided by this.
REDUCTION = 8


class StepSize(nn.Module):
    """Estimate the length of a data step for each band and pixel, from the cube and the masks.

    Source: Li et al., ICCV 2023, figure 3.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        # The published network of 28 bands has 3 hidden channels. If there were fewer, all of them
        # could be zero after the ReLU from the first training step on, and get no gradient. So a
        # network of fewer than 24 bands gets 8.
        width = bands // REDUCTION if bands >= 3 * REDUCTION else 8
        self.attention = layers = nn.Module()
        layers.conv1 = Conv(bands, bands, 3, bias=True)
        layers.conv2 = PointwiseConv(bands, bands, bias=True)
        layers.conv3 = PointwiseConv(2 * bands, bands, bias=True)
        layers.ca = nn.Module()
        layers.ca.conv_du = nn.Sequential(
            nn.Conv2d(bands, width, 1, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, bands, 1, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        """Map a sheared cube and sheared masks, `(1|B, C, H, W')`, to lengths of that shape."""
        layers: Any = self.attention
        mask_features = layers.conv1(masks.permute(0, 2, 3, 1))
        cube_features = layers.conv2(x.permute(0, 2, 3, 1))
        features = layers.conv3(cube_features, mask_features).permute(0, 3, 1, 2)
        return features * layers.ca.conv_du(features.mean((2, 3), keepdim=True))


def relax_step(x: Tensor, step_sizes: Tensor, prior: Prior) -> Prior:
    """Return the prior v ↦ prior(x + s ⊙ (v − x)): it scales the data step from x to v by s.

    Args:
        x: the cube before the data step, `(B, C, H, W')`.
        step_sizes: s, `(B, C, H, W)` with W ≤ W'. The columns of v beyond W are not changed.
        prior: the denoiser.
    """

    def apply(v: Tensor, sigma: float | Tensor | None) -> Tensor:
        width = step_sizes.shape[-1]
        image = torch.lerp(x[..., :width], v[..., :width], step_sizes.to(v.dtype))
        return prior(torch.cat((image, v[..., width:]), -1), sigma)

    return apply


# Largest number of attention heads. The number of heads must divide the number of channels. So it
# is the greatest common divisor of this and the number of channels.
MAX_HEADS = 4
# First list: features before each scale of the encoder. Second list: features after each scale of
# the decoder. In both lists the finest scale is first.
Features = tuple[list[Tensor], list[Tensor]]


class WindowBlock(nn.Module):
    """x + attention(x) among the channels of each window, then x + feed_forward(x).

    If `is_shifted`, the windows lie half a window further down and right.
    """

    def __init__(self, dim: int, is_shifted: bool) -> None:
        super().__init__()
        self.shift = -WINDOW // 2 if is_shifted else 0
        self.norm1, self.attn = PixelNorm(dim), ChannelAttention(dim, math.gcd(dim, MAX_HEADS))
        self.norm2, self.ffn = PixelNorm(dim), GatedFeedForward(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape, H and W multiples of 8."""
        x = x + apply_in_windows(self._attend, self.norm1(x), self.shift)
        return x + self.ffn(self.norm2(x))

    def _attend(self, windows: Tensor) -> Tensor:
        return self.attn(windows.view(-1, WINDOW, WINDOW, windows.shape[-1])).view(windows.shape)


class SpectrumExchange(nn.Module):
    """Fuse x with an image that is made of the amplitudes and phases of two other images.

    The amplitudes and phases are those of Fourier spectra. The amplitudes come from encoder
    features of the stage before, the phases from decoder features of that stage.

    Source: Li et al., ICCV 2023, equation 12.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.post, self.mid = PointwiseConv(2 * dim, dim, bias=True), depthwise_conv(dim, bias=True)

    def forward(self, x: Tensor, amplitudes: Tensor, phases: Tensor) -> Tensor:
        """Return `(B, H, W, c)`; x, and the images for amplitudes and phases, have this shape."""
        size = x.shape[1:3]
        with torch.autocast(x.device.type, enabled=False):
            # An FFT sums over the whole image, for which half precision has too few digits. torch
            # also has no FFT in bfloat16.
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
    """Return the layers of the encoder.

    Each scale has a block. All scales but the coarsest also have a convolution that halves H and W.
    If `has_exchange`, they have a `SpectrumExchange` with the stage before, too.
    """
    levels = []
    for i in range(scales - 1):
        level: dict[str, nn.Module] = {"block": WindowBlock(dim << i, bool(i % 2))}
        if has_exchange:
            level["stage_int"] = SpectrumExchange(dim << i)
        level["downsample"] = HALVING_CONV(dim << i, dim << i + 1)
        levels.append(nn.ModuleDict(level))
    # Blocks of odd levels have shifted windows. As in the published code, the coarsest level, at
    # position `scales` − 1, counts as level `scales`.
    coarsest = WindowBlock(dim << scales - 1, bool(scales % 2))
    return nn.ModuleDict({"body": nn.ModuleList([*levels, nn.ModuleDict({"block": coarsest})])})


def make_decoder(dim: int, scales: int) -> nn.ModuleDict:
    """Return the layers of the decoder: upsampling, fusion with the encoder's features, a block."""
    levels = []
    for i in reversed(range(scales - 1)):
        upsample = TransposedConv(dim << i + 1, dim << i)
        fuse = PointwiseConv(dim << i + 1, dim << i)
        block = nn.ModuleDict({"block": WindowBlock(dim << i, bool((i + 1) % 2))})
        levels.append(nn.ModuleDict({"up": upsample, "conv": fuse, "conv_block": block}))
    return nn.ModuleDict({"body": nn.ModuleList(levels)})


class Stage(nn.Module):
    """The layers of one iteration: a `StepSize`, and a U-Net whose output is added to the cube."""

    def __init__(self, bands: int, scales: int) -> None:
        super().__init__()
        self.stage_encoder = make_encoder(bands, scales, has_exchange=True)
        self.stage_decoder = make_decoder(bands, scales)
        self.gdm = StepSize(bands)

    def forward(self, x: Tensor, features: Features | None) -> tuple[Tensor, Features]:
        """Denoise `(B, C, H, W)` with the features of the stage before; return this stage's too."""
        return apply_unet(x, features, self.stage_encoder["body"], self.stage_decoder["body"])


def apply_unet(
    x: Tensor,
    features: Features | None,
    encoder: Any,
    decoder: Any,
    shallow: nn.Module | None = None,
) -> tuple[Tensor, Features]:
    """Denoise a cube `(B, C, H, W)` of any height and width; return the features of this stage too.

    Args:
        x: the cube.
        features: features of the stage before; None in the first stage.
        encoder: layers of `make_encoder`.
        decoder: layers of `make_decoder`.
        shallow: layer that is applied before the encoder.
    """
    height, width = x.shape[-2:]
    padded_images = pad_to_multiple(x, WINDOW << (len(encoder) - 1), "mirror")
    padded = padded_images.permute(0, 2, 3, 1).contiguous()
    x = padded
    if shallow is not None:
        # With channels first, the rounding error of this convolution is a quarter smaller than with
        # channels last. `SpectrumExchange` needs that for phases near ±π: if such a phase changes
        # its sign, all pixels change.
        x = shallow(padded_images.contiguous()).permute(0, 2, 3, 1).contiguous()
    *levels, coarsest = encoder
    encoder_features: list[Tensor] = []
    decoder_features: list[Tensor] = []
    for i, level in enumerate(levels):
        encoder_features.append(x)
        if "stage_int" in level and features is not None:
            x = level["stage_int"](x, features[0][i], features[1][i])
        x = level["downsample"](level["block"](x))
    x = coarsest["block"](x)
    for level, skip in zip(decoder, reversed(encoder_features), strict=True):
        x = level["conv_block"]["block"](level["conv"](level["up"](x), skip))
        decoder_features.insert(0, x)
    cube = (decoder_features[0] + padded).permute(0, 3, 1, 2)
    return cube[..., :height, :width], (encoder_features, decoder_features)


@register_model("padut_3stg", stages=3)
@register_model("padut_5stg", stages=5)
@register_model("padut_7stg", stages=7)
@register_model("padut_12stg", stages=12)
class PADUT(UnrolledNetwork):
    """Unrolled projections of learned length; each stage passes its features to the next.

        v = x + r_i ⊙ Aᵀ(AAᵀ)⁺(y − Ax),   x ← D_i(v)

    r_i is the result of a `StepSize`, and D_i a U-Net.

    Args:
        bands: see `UnrolledNetwork`.
        stages: see `UnrolledNetwork`.
        checkpointing: see `UnrolledNetwork`.
        scales: number of resolutions of a stage's U-Net, each half of the one before.

    Raises:
        ValueError: a count below 1.

    Source: Li et al., "Pixel adaptive deep unfolding transformer for hyperspectral image
    reconstruction", ICCV 2023; names of the weights as in its code.
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

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        camera, algorithm = CroppingCamera(system), GAP(accelerated=False)
        shifts, masks = column_offsets(system), sheared_masks(y, system)
        sheared_cube = mix_measurement(self.fution, y, masks, system, 2 / self.bands)
        state = algorithm.init(y, camera, roll_bands(sheared_cube, [-shift for shift in shifts]))
        first_denoiser = partial(
            apply_unet,
            encoder=self.stage1_encoder["body"],
            decoder=self.stage1_decoder["body"],
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
