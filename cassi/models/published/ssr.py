"""SSR: an unrolled network that rectifies spectra and space."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from cassi.models._inputs import band_masks, initial_cube
from cassi.models.attention import WINDOW
from cassi.models.grid import Camera
from cassi.models.mixing import pool_rectified, pooled_mlp
from cassi.models.pixelwise import convolve, mix
from cassi.models.published.rectification import (
    HALVINGS,
    FeedForward,
    PreNorm,
    RectifyingUNet,
    SpatialBlock,
    WindowedChannelAttention,
)
from cassi.models.registry import register
from cassi.models.staged import Staged
from cassi.models.wide import reflect_to_multiple
from cassi.solvers import GAP

MULTIPLE = WINDOW * 2**HALVINGS


class SpectralBlock(nn.Module):
    """x + attention(x), then x + feed_forward(x)."""

    def __init__(self, dim: int, bands: int) -> None:
        super().__init__()
        self.WSSA = PreNorm(dim, WindowedChannelAttention(dim, bands))
        self.FFN = PreNorm(dim, FeedForward(dim, 4), over_pixels=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same, H and W multiples of 8."""
        x = x + self.WSSA(x)
        return x + cast(Tensor, self.FFN(x))


class Block(nn.Module):
    """Positions, spectra, space."""

    def __init__(self, dim: int, bands: int) -> None:
        super().__init__()
        self.pos = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.SARB = SpectralBlock(dim, bands)
        self.SRB = SpatialBlock(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, H, W, c)` to the same, H and W multiples of 8."""
        return cast(Tensor, self.SRB(self.SARB(x + convolve(self.pos, x))))


class MaskEmbedding(nn.Module):
    """conv(x) ⊙ (1 + conv(mask))."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.cnn = nn.Conv2d(bands, bands, 3, padding=1, bias=False)
        self.mask = nn.Conv2d(bands, bands, 3, padding=1, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Embed: cube `(B, H, W, C)`, mask `(1|B, H, W, C)` → `(B, H, W, C)`."""
        return convolve(self.cnn, x) * (1 + convolve(self.mask, mask))


class Rectifier(RectifyingUNet):
    """A U-Net of spectral and spatial blocks, told the mask.

    Any height and width: reflected to a multiple of 32, and cropped.

    Args:
        bands: number C of bands, also the channels at full size.

    Source: Zhang et al., CVPR 2024, figure 3; names of the weights as in the authors' code.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.mask_embedding = MaskEmbedding(bands)
        self.build(bands, bands, lambda dim: Block(dim, bands))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Denoise: cube `(B, C, H, W)`, mask `(1|B, C, H, W)` → cube."""
        height, width = x.shape[-2:]
        x, mask = (reflect_to_multiple(image, MULTIPLE).permute(0, 2, 3, 1) for image in (x, mask))
        x = self.pass_through(self.mask_embedding(x, mask)) + x
        return x[:, :height, :width].permute(0, 3, 1, 2)


class SpatialRefinement(SpatialBlock):
    """A spatial block on cubes `(B, C, H, W)`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to the same."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RelaxationNet(nn.Module):
    """Estimate numbers from a cube, one by default: how far to go towards the measurement.

    Source: Zhang et al., CVPR 2024; names of the weights as in the authors' code.
    """

    def __init__(self, bands: int, outputs: int = 1, width: int = 32) -> None:
        super().__init__()
        self.fusion = nn.Conv2d(bands, width, 1)
        self.bias = nn.Parameter(torch.ones(1))
        self.mlp = pooled_mlp(width, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(B, outputs, 1, 1)` of cubes `(B, C, H, W)`."""
        return cast(Tensor, self.mlp(pool_rectified(self.fusion, x))) + self.bias


@register("ssr_s", stages=3)
@register("ssr_m", stages=6)
@register("ssr_l", stages=9)
class SSR(Staged):
    """Unrolled alternating projection, relaxed by ρ_i that is estimated from x.

        z = x + ρ_i Aᵀ(AAᵀ)⁺(y − Ax),   x ← S_i(R_i(z, mask))

    R_i is a U-Net of spectral and spatial blocks, S_i one more spatial block.

    Args:
        bands: number C of bands.
        stages: number of iterations.
        checkpointing: spend time to save memory in training, see `Unrolled`.

    Raises:
        ValueError: a count below 1.

    Source: Zhang et al., "Improving spectral snapshot reconstruction with spectral-spatial
    rectification", CVPR 2024; names of the weights as in the authors' code.
    """

    def __init__(self, bands: int = 28, stages: int = 3, checkpointing: bool = False) -> None:
        super().__init__(bands, stages, checkpointing)
        self.initial = nn.Conv2d(2 * bands, bands, 1)
        self.rhos = nn.ModuleList(RelaxationNet(bands) for _ in range(stages))
        self.net_stage = nn.ModuleList(
            part(bands) for _ in range(stages) for part in (Rectifier, SpatialRefinement)
        )

    def iterates(self, y: Tensor, system: Camera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage, of y `(B, 1, H, W')`."""
        mask = band_masks(y, system).contiguous(memory_format=torch.channels_last)
        guess, pattern = (x.permute(0, 2, 3, 1) for x in (initial_cube(y, system), mask))
        x = mix(self.initial, guess, pattern).permute(0, 3, 1, 2)
        algorithm = GAP(accelerated=False)
        state = algorithm.init(y, system, x)
        for i, net in enumerate(self.rhos):
            rectify, refine = self.net_stage[2 * i : 2 * i + 2]
            prior = self._prior(state.x, rectify, refine, mask)
            state = algorithm.step(state, y, system, prior, net(state.x), 0.0)
            yield state.x

    def _prior(self, x: Tensor, rectify: nn.Module, refine: nn.Module, mask: Tensor) -> Any:
        def apply(projected: Tensor, rho: Tensor) -> Tensor:
            wide = projected.dtype  # of the measurement, also under autocast
            z = torch.lerp(x.to(wide), projected, rho.to(wide))
            return self.run(refine, self.run(rectify, z, mask))

        return apply
