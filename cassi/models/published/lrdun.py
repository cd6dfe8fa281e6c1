"""LRDUN: an unrolled network on a low-rank factorization of the cube into spectra and images."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from cassi.models.camera_adapters import NetworkCamera, camera_mask, initial_cube
from cassi.models.layers import (
    Conv,
    InstanceNorm,
    LayerNorm,
    PointwiseConv,
    PreNorm,
    ResidualSequence,
    apply_padded,
    check_counts,
    depthwise_conv,
    feed_forward,
    named_sequence,
)
from cassi.models.network import StagedNetwork
from cassi.models.published.ssr import HALVINGS, Modulation, RectifyingUNet, RelaxationNet
from cassi.models.registry import register_model


def modulation_block(dim: int) -> ResidualSequence:
    """Return layers of `(B, H, W, c)`: twice x + modulation(x), then x + feed_forward(x)."""

    def modulate() -> PreNorm:
        return PreNorm(LayerNorm(dim), Modulation(dim))

    def feed() -> PreNorm:
        return PreNorm(InstanceNorm(dim), feed_forward(dim, 2.66))

    return ResidualSequence(WSA=modulate(), FFN_1=feed(), SWSA=modulate(), FFN_2=feed())


class ImageNet(RectifyingUNet):
    """A U-Net that denoises the images of the factorization.

    Height and width are free: images are mirrored to a multiple of 4, and the result is cropped.

    Source: Huang et al., CVPR 2026, section 3.4.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = Conv(dim, dim, 3)
        self.build(dim, dim, modulation_block)

    def forward(self, x: Tensor) -> Tensor:
        """Denoise `(B, H, W, dim)`."""
        images = x.permute(0, 3, 1, 2)
        images = apply_padded(lambda z: self.pass_through(self.embedding(z)), images, 2**HALVINGS)
        return images.permute(0, 2, 3, 1)


def spectra_net(bands: int, dim: int) -> ResidualSequence:
    """Return a denoiser of spectra e `(B, dim, C)`: e + convolutions of e along the bands.

    Source: Huang et al., CVPR 2026, section 3.4.
    """
    width = 2 * dim
    layers = (
        nn.LayerNorm(bands),
        nn.Conv1d(dim, width, 3, padding=1, bias=False),
        nn.GELU(),
        nn.Conv1d(width, width, 5, padding=2, groups=width, bias=False),
        nn.GELU(),
        nn.Conv1d(width, dim, 3, padding=1, bias=False),
    )
    return ResidualSequence(net=nn.Sequential(*layers))


class FirstSpectra(nn.Module):
    """Compute the first spectra from the mean of each band; they are orthonormal."""

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
    """Return an orthonormal basis of the rows of `(B, k, C)`, k <= C."""
    # The signs of the rows are those of Householder's method in LAPACK. The published weights were
    # trained with these signs, so another method would give wrong results.
    with torch.autocast(spectra.device.type, enabled=False):
        matrix = spectra.to(torch.promote_types(spectra.dtype, torch.float32))
        return torch.linalg.qr(matrix.mT)[0].mT


@register_model("lrdun_3stg", stages=3)
@register_model("lrdun_6stg", stages=6)
@register_model("lrdun_9stg", stages=9)
class LRDUN(StagedNetwork):
    """Unrolled proximal gradient descent on x = Σ_k a_k e_k, images a_k times spectra e_k.

        E ← P_i(E − η_i ∂/∂E ½‖A(aE) − y‖²),   a ← Q_i(a − ν_i ∂/∂a ½‖A(aE) − y‖²)

    The sum has `rank` terms. The networks P_i and Q_i get dim − rank further spectra and images,
    which pass features from stage to stage. If the camera has a mask per band, the first estimate
    uses the mean of the masks.

    Args:
        bands: see `UnrolledNetwork`.
        stages: see `UnrolledNetwork`.
        checkpointing: see `UnrolledNetwork`.
        rank: number of terms of the sum; reduced to `dim` if larger.
        dim: number of spectra and images in the networks; reduced to C if larger.

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
        self.init_x = PointwiseConv(bands + 1, bands, bias=True)
        self.init_E = FirstSpectra(bands, dim)
        # Each band is convolved, then the bands are mixed into the first images.
        depthwise, pointwise = (
            depthwise_conv(bands, bias=True),
            PointwiseConv(bands, dim, bias=True),
        )
        self.init_A = named_sequence(net=nn.Sequential(depthwise, nn.GELU(), pointwise))
        self.eta_As = nn.Parameter(torch.full((stages,), 1e-4))
        self.eta_Es = nn.Parameter(torch.full((stages,), 1e-4))
        self.proxy_net_Es = nn.ModuleList(spectra_net(bands, dim) for _ in range(stages))
        self.proxy_net_As = nn.ModuleList(ImageNet(dim) for _ in range(stages))
        # The published weights contain these networks, but the published code does not use their
        # results.
        self.para_nets = nn.ModuleList(RelaxationNet(bands, 2) for _ in range(stages))
        self.para_nets.requires_grad_(False)

    def iterates(self, y: Tensor, system: NetworkCamera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage; y is `(B, 1, H, W')`."""
        mask = camera_mask(system).to(y.dtype).mean(1, keepdim=True)
        initial, mask = (x.permute(0, 2, 3, 1) for x in (initial_cube(y, system), mask))
        x = self.init_x(initial, mask)
        spectra, images = self.init_E(x), self.init_A(x)
        e, carried_e = self._split_factors(spectra, 1)
        a, carried_a = self._split_factors(images, -1)
        cube = self._cube(a, e)
        for i, (restore_e, restore_a) in enumerate(
            zip(self.proxy_net_Es, self.proxy_net_As, strict=True)
        ):
            gradient = self._gradient(cube, y, system)
            e = e - self.eta_Es[i] * (a.flatten(1, 2).mT @ gradient.mT)
            e, carried_e = self._split_factors(
                self.compute(restore_e, torch.cat((e, carried_e), 1)), 1
            )
            e = orthonormalize(e)
            gradient = self._gradient(self._cube(a, e), y, system)
            a = a - self.eta_As[i] * (e @ gradient).mT.view(a.shape)
            a, carried_a = self._split_factors(
                self.compute(restore_a, torch.cat((a, carried_a), -1)), -1
            )
            cube = self._cube(a, e)
            yield cube

    def _split_factors(self, factors: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        n_carried = factors.shape[axis] - self.rank
        rank_factors, carried_factors = factors.split((self.rank, n_carried), axis)
        return rank_factors, carried_factors

    def _cube(self, a: Tensor, e: Tensor) -> Tensor:  # (B, H, W, k), (B, k, C) → (B, C, H, W)
        x = a.flatten(1, 2) @ e.to(a.dtype)
        return x.unflatten(1, a.shape[1:3]).permute(0, 3, 1, 2)

    def _gradient(self, x: Tensor, y: Tensor, system: NetworkCamera) -> Tensor:  # (B, C, H·W)
        return system.adjoint(system(x) - y).flatten(2)
