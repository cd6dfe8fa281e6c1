"""SAUNet: unrolled ADMM whose denoisers modulate features by convolutions."""

from functools import partial

import torch
from torch import Tensor, nn

from cassi.models.camera_adapters import (
    CroppingCamera,
    NetworkCamera,
    column_offsets,
    mix_measurement,
    roll_bands,
    sheared_masks,
)
from cassi.models.layers import (
    Conv3x3,
    LayerNorm,
    PointwiseConv,
    PreNorm,
    UNet,
    apply_padded,
    depthwise_conv,
    init_truncated_normal,
    level_plane,
    named_sequence,
)
from cassi.models.network import UnrolledNetwork
from cassi.models.published.dauhst import ParameterNet
from cassi.models.registry import register_model

# Number of resolutions of a denoiser, each half of the one before.
SCALES = 3
# H and W are padded to multiples of this, as in the training of the published weights.
MULTIPLE = 16


class ConvolutionalModulation(nn.Module):
    """P(A(x) ⊙ V x), where A is a 1×1 convolution, GELU and a depthwise convolution.

    P and V are 1×1 convolutions. x is normalized first.

    Source: Wang et al., arXiv 2023, section 3.3.
    """

    def __init__(self, dim: int, kernel: int = 7) -> None:
        super().__init__()
        self.norm = LayerNorm(dim, eps=1e-6)
        depthwise = depthwise_conv(dim, kernel, bias=True)
        self.a = nn.Sequential(PointwiseConv(dim, dim, bias=True), nn.GELU(), depthwise)
        self.v, self.proj = PointwiseConv(dim, dim, bias=True), PointwiseConv(dim, dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        x = self.norm(x)
        return self.proj(self.a(x) * self.v(x))


def depthwise_feed_forward(dim: int, factor: int = 4) -> nn.Sequential:
    """Return a 1×1, a 3×3 depthwise and a 1×1 convolution, with GELU after the first two."""
    width = factor * dim
    return named_sequence(
        fc=nn.Sequential(PointwiseConv(dim, width), nn.GELU()),
        dwconv=nn.Sequential(depthwise_conv(width), nn.GELU()),
        ffn=PointwiseConv(width, dim, bias=True),
    )


class ConvolutionalAttentionBlock(nn.Module):
    """x + modulation(x), then x + feed_forward(norm(x)), on images `(B, H, W, c)`.

    In training, each of the two added terms is left out for a sample with the probability `drop`.
    """

    def __init__(self, dim: int, drop: float) -> None:
        super().__init__()
        self.attn = ConvolutionalModulation(dim)
        self.dwffn = PreNorm(LayerNorm(dim, eps=1e-6), depthwise_feed_forward(dim))
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same shape."""
        x = x + self._drop_path(self.attn(x))
        return x + self._drop_path(self.dwffn(x))

    def _drop_path(self, branch: Tensor) -> Tensor:
        if not (self.training and self.drop):
            return branch
        is_kept = torch.rand(len(branch), 1, 1, 1, device=branch.device) >= self.drop
        # Because of the division, the mean of the branch is the same as in evaluation mode.
        return branch * is_kept.to(branch.dtype) / (1 - self.drop)


def make_blocks(dim: int, count: int, drop: float) -> nn.Sequential:
    """Return blocks, one after another; the drop probability rises linearly from 0 to `drop`.

    A single block has the probability `drop`.
    """
    probabilities = [drop] if count == 1 else [drop * i / (count - 1) for i in range(count)]
    sequence = (ConvolutionalAttentionBlock(dim, probability) for probability in probabilities)
    return named_sequence(blocks=nn.Sequential(*sequence))


class ConvolutionalTransformer(UNet):
    """A U-Net of convolutional attention; one more input channel holds the noise level.

    Height and width are free: images are mirrored to a multiple of 16, and the result is cropped.

    Source: Wang et al., arXiv 2023, figure 3.
    """

    def __init__(self, bands: int, drop: float, drop_bottom: float) -> None:
        super().__init__()

        def make_scale(scale: int) -> nn.Sequential:
            count, drop_probability = (3, drop_bottom) if scale == SCALES - 1 else (1, drop)
            return make_blocks(bands << scale, count, drop_probability)

        def make_edge(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(Conv3x3(inputs, outputs))

        self.build(bands, SCALES - 1, make_scale, bands + 1, make_edge)
        init_truncated_normal(self, nn.Linear)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Denoise `(B, C, H, W)`; sigma `(B, 1, 1, 1)` is the noise level of each sample."""

        def restore(z: Tensor) -> Tensor:
            return self.pass_through(torch.cat((z, level_plane(sigma, z)), -1))

        return apply_padded(restore, x, MULTIPLE)


@register_model("saunet_1stg", stages=1)
@register_model("saunet_2stg", stages=2)
@register_model("saunet_3stg", stages=3)
@register_model("saunet_5stg", stages=5)
@register_model("saunet_9stg", stages=9)
@register_model("saunet_13stg", stages=13)
class SAUNet(UnrolledNetwork):
    """Unrolled ADMM with a learned step γ_i of the dual variable u.

        v = (x − u) + Aᵀ(AAᵀ + α_i I)⁻¹(y − A(x − u)),   x ← CMFormer_i(v + u, β_i)
        u ← u + γ_i (v − x)

    α_i is the ρ and β_i the σ of stage i. Both are estimated from y and the mask. CMFormer_i is a
    `ConvolutionalTransformer`.

    Args:
        bands: see `UnrolledNetwork`.
        stages: see `UnrolledNetwork`.
        checkpointing: see `UnrolledNetwork`.
        drop: probability in training that a branch of a denoiser is left out for a sample. The
            authors used 0, 0.1, 0.1, 0.1, 0, 0.1 for 1, 2, 3, 5, 9, 13 stages.
        drop_bottom: the same probability in the last block of the lowest resolution. It rises
            linearly from 0 in the first block of this resolution. The authors used 0, 0.1, 0.2,
            0.2, 0.3, 0.2 for 1, 2, 3, 5, 9, 13 stages.

    Raises:
        ValueError: a count below 1, or a probability outside of [0, 1).

    Source: Wang, Wang, Liu, Zheng, Wang, "A simple adaptive unfolding network for hyperspectral
    image reconstruction", arXiv 2023; names of the weights as in its code.
    """

    def __init__(
        self,
        bands: int = 28,
        stages: int = 1,
        drop: float = 0.0,
        drop_bottom: float = 0.0,
        checkpointing: bool = False,
    ) -> None:
        super().__init__(bands, stages, checkpointing)
        for name, probability in (("drop", drop), ("drop_bottom", drop_bottom)):
            if not 0 <= probability < 1:
                raise ValueError(
                    f"SAUNet {name}: expected a probability in [0, 1), got {probability}"
                )
        self.para_estimator = ParameterNet(bands, stages)
        self.fution = nn.Conv2d(2 * bands, bands, 1)
        self.gamma = nn.ParameterList(torch.zeros(()) for _ in range(stages - 1))
        self.denoisers = nn.ModuleList(
            ConvolutionalTransformer(bands, drop, drop_bottom) for _ in range(stages)
        )

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        camera = CroppingCamera(system)
        initial = mix_measurement(self.fution, y, sheared_masks(y, system), system, 2 / self.bands)
        alpha, beta = self.para_estimator(initial)
        x = roll_bands(initial, [-shift for shift in column_offsets(system)])
        dual: float | Tensor = 0.0
        for i, denoiser in enumerate(self.denoisers):
            v = camera.data_step(x - dual, y, alpha[:, i, 0, 0])
            x = partial(self.compute, denoiser)(v + dual, beta[:, i : i + 1])
            # The last stage has no γ, because its dual variable would not be used.
            if i < self.stages - 1:
                dual = dual + self.gamma[i] * (v - x)
        return x[..., : camera.width]
