"""LRDUN: an unrolled network on two factors of the cube, spectra and images."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from cassi.models.grid import Camera, camera_mask, initial_cube
from cassi.models.layers import (
    Conv,
    InstanceNorm,
    LayerNorm,
    Point,
    PreNorm,
    Residuals,
    check_counts,
    feed_forward,
    in_order,
    padded,
    spread,
)
from cassi.models.network import Staged
from cassi.models.published.ssr import HALVINGS, Modulation, RectifyingUNet, RelaxationNet
from cassi.models.registry import register_model


def modulation_block(dim: int) -> Residuals:
    """Return twice: x + modulation(x), then x + feed_forward(x), on `(B, H, W, c)`."""

    def modulate() -> PreNorm:
        return PreNorm(LayerNorm(dim), Modulation(dim))

    def feed() -> PreNorm:
        return PreNorm(InstanceNorm(dim), feed_forward(dim, 2.66))

    return Residuals(WSA=modulate(), FFN_1=feed(), SWSA=modulate(), FFN_2=feed())


class ImageNet(RectifyingUNet):
    """A U-Net on the images of the factorization.

    Any height and width: reflected to a multiple of 4, and cropped.

    Source: Huang et al., CVPR 2026, section 3.4.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = Conv(dim, dim, 3)
        self.build(dim, dim, modulation_block)

    def forward(self, x: Tensor) -> Tensor:
        """Denoise `(B, H, W, dim)`."""
        images = x.permute(0, 3, 1, 2)
        restored = padded(lambda z: self.pass_through(self.embedding(z)), images, 2**HALVINGS)
        return restored.permute(0, 2, 3, 1)


def spectra_net(bands: int, dim: int) -> Residuals:
    """Return what denoises spectra `(B, dim, C)`: x + convolutions along the bands.

    Source: Huang et al., CVPR 2026, section 3.4.
    """
    inner = 2 * dim
    layers = (
        nn.LayerNorm(bands),
        nn.Conv1d(dim, inner, 3, padding=1, bias=False),
        nn.GELU(),
        nn.Conv1d(inner, inner, 5, padding=2, groups=inner, bias=False),
        nn.GELU(),
        nn.Conv1d(inner, dim, 3, padding=1, bias=False),
    )
    return Residuals(net=nn.Sequential(*layers))


class FirstSpectra(nn.Module):
    """Orthonormal spectra made of the mean of each band."""

    def __init__(self, bands: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.conv = nn.Sequential(
            nn.Conv2d(bands, bands, 1), nn.GELU(), nn.Conv2d(bands, dim * bands, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return `(B, dim, C)` of a cube `(B, H, W, C)`."""
        means = x.mean((1, 2))[..., None, None]
        return orthonormalize(self.conv(means).unflatten(1, (self.dim, -1))[..., 0, 0])


def orthonormalize(spectra: Tensor) -> Tensor:
    """Return an orthonormal basis of the rows of `(B, k, C)`, k <= C.

    The signs are those of Householder's method, as LAPACK gives them: weights are trained for them.
    """
    with torch.autocast(spectra.device.type, enabled=False):
        wide = spectra.to(torch.promote_types(spectra.dtype, torch.float32))
        return torch.linalg.qr(wide.mT)[0].mT


@register_model("lrdun_3stg", stages=3)
@register_model("lrdun_6stg", stages=6)
@register_model("lrdun_9stg", stages=9)
class LRDUN(Staged):
    """Unrolled proximal gradient descent on x = Σ_k a_k e_k, images a_k times spectra e_k.

        E ← P_i(E − η_i ∂/∂E ½‖A(aE) − y‖²),   a ← Q_i(a − ν_i ∂/∂a ½‖A(aE) − y‖²)

    `rank` of the factors enter the physics; `dim` of them pass through the networks P_i, Q_i, so
    that these hand more to the next stage than the cube shows. A mask per band is averaged over the
    bands where the first guess sees it.

    Args:
        bands: as of `Unrolled`.
        stages: as of `Unrolled`.
        checkpointing: as of `Unrolled`.
        rank: terms of the sum; at most `dim`.
        dim: factors in the networks; at most C: what is above is cut.

    Raises:
        ValueError: a count below 1.

    Source: Huang, Guo, He, "LRDUN: A low-rank deep unfolding network for efficient spectral
    compressive imaging", CVPR 2026; names of the weights as in the authors' code.
    """

    def __init__(
        self,
        bands: int = 28,
        stages: int = 3,
        rank: int = 11,
        dim: int = 16,
        checkpointing: bool = False,
    ) -> None:
        super().__init__(bands, stages, checkpointing)
        check_counts("LRDUN", rank=rank, dim=dim)
        # More than C spectra cannot be orthonormal.
        dim = min(dim, bands)
        self.rank = min(rank, dim)
        self.init_x = Point(bands + 1, bands, bias=True)
        self.init_E = FirstSpectra(bands, dim)
        # Images mixed of the bands, each blurred first.
        blur, point = spread(bands, bias=True), Point(bands, dim, bias=True)
        self.init_A = in_order(net=nn.Sequential(blur, nn.GELU(), point))
        self.eta_As = nn.Parameter(torch.full((stages,), 1e-4))
        self.eta_Es = nn.Parameter(torch.full((stages,), 1e-4))
        self.proxy_net_Es = nn.ModuleList(spectra_net(bands, dim) for _ in range(stages))
        self.proxy_net_As = nn.ModuleList(ImageNet(dim) for _ in range(stages))
        # Published weights have them, the published arithmetic does not use them.
        self.para_nets = nn.ModuleList(RelaxationNet(bands, 2) for _ in range(stages))
        self.para_nets.requires_grad_(False)

    def iterates(self, y: Tensor, system: Camera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage, of y `(B, 1, H, W')`."""
        mask = camera_mask(system).to(y.dtype).mean(1, keepdim=True)
        guess, mask = (x.permute(0, 2, 3, 1) for x in (initial_cube(y, system), mask))
        x = self.init_x(guess, mask)
        spectra, images = self.init_E(x), self.init_A(x)
        e, more_e = self._parts(spectra, 1)
        a, more_a = self._parts(images, -1)
        cube = self._cube(a, e)
        for i, (restore_e, restore_a) in enumerate(
            zip(self.proxy_net_Es, self.proxy_net_As, strict=True)
        ):
            back = self._gradient(cube, y, system)
            e = e - self.eta_Es[i] * (a.flatten(1, 2).mT @ back.mT)
            e, more_e = self._parts(self.compute(restore_e, torch.cat((e, more_e), 1)), 1)
            e = orthonormalize(e)
            back = self._gradient(self._cube(a, e), y, system)
            a = a - self.eta_As[i] * (e @ back).mT.view(a.shape)
            a, more_a = self._parts(self.compute(restore_a, torch.cat((a, more_a), -1)), -1)
            cube = self._cube(a, e)
            yield cube

    def _parts(self, factors: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        rest = factors.shape[axis] - self.rank
        first, other = factors.split((self.rank, rest), axis)
        return first, other

    def _cube(self, a: Tensor, e: Tensor) -> Tensor:  # (B, H, W, k), (B, k, C) → (B, C, H, W)
        x = a.flatten(1, 2) @ e.to(a.dtype)
        return x.unflatten(1, a.shape[1:3]).permute(0, 3, 1, 2)

    def _gradient(self, x: Tensor, y: Tensor, system: Camera) -> Tensor:  # (B, C, H·W)
        return system.adjoint(system(x) - y).flatten(2)
