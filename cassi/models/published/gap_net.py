"""GAP-Net and ADMM-Net: a small U-Net as the prior of each iteration."""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from cassi.models.camera_adapters import CroppingCamera, NetworkCamera, column_offsets, roll_bands
from cassi.models.layers import ConvPair, join_channels, named_sequence, pad_to_multiple, u_net
from cassi.models.network import UnrolledNetwork
from cassi.models.registry import register_model
from cassi.solvers import ADMM, GAP
from cassi.solvers.base import Algorithm


def doubling_layers(inputs: int, outputs: int) -> nn.Sequential:
    """Return a transposed convolution to twice the size, and a ReLU."""
    return nn.Sequential(
        nn.ConvTranspose2d(inputs, outputs, kernel_size=2, stride=2), nn.ReLU(inplace=True)
    )


class StageUNet(nn.Module):
    """x + tanh(U(x)), a U-Net of three resolutions with 32, 64 and 128 channels.

    Height and width are free: images are mirrored to a multiple of 8, and the result is cropped.

    Source: Meng, Yuan, Jalali, "Deep unfolding for snapshot compressive imaging", IJCV 2023;
    names of the weights as in the code that accompanies MST (Cai et al., CVPR 2022).
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.dconv_down1 = named_sequence(d_conv=ConvPair(bands, 32))
        self.dconv_down2 = named_sequence(d_conv=ConvPair(32, 64))
        self.dconv_down3 = named_sequence(d_conv=ConvPair(64, 128))
        self.maxpool = nn.MaxPool2d(2)
        self.upsample2 = doubling_layers(128, 64)
        self.upsample1 = doubling_layers(64, 32)
        self.dconv_up2 = named_sequence(d_conv=ConvPair(128, 64))
        self.dconv_up1 = named_sequence(d_conv=ConvPair(64, 32))
        self.conv_last = nn.Conv2d(32, bands, 1)

    def forward(self, x: Tensor, sigma: float | Tensor | None = None) -> Tensor:
        """Denoise `(B, C, H, W)`; σ is not used."""
        height, width = x.shape[-2:]
        padded = pad_to_multiple(x, 8, "mirror")
        if not padded.is_cuda:
            # channels_last is twice as fast on CPUs. On GPUs only half precision gains from it, so
            # the layout of the caller is kept.
            padded = padded.contiguous(memory_format=torch.channels_last)
        encoder = (self.dconv_down1, self.maxpool), (self.dconv_down2, self.maxpool)
        decoder = (
            (self.upsample2, join_channels, self.dconv_up2),
            (self.upsample1, join_channels, self.dconv_up1),
        )
        correction = torch.tanh(self.conv_last(u_net(padded, encoder, self.dconv_down3, decoder)))
        return (correction + padded)[..., :height, :width]


class _UNetStages(UnrolledNetwork):
    """Iterations on cubes `(B, C, H, W')`, beginning with Aᵀy; `unet{i}` denoises in stage i."""

    algorithm: ClassVar[Algorithm]

    def __init__(self, bands: int = 28, stages: int = 9, checkpointing: bool = False) -> None:
        super().__init__(bands, stages, checkpointing)
        for i in range(1, stages + 1):
            self.add_module(f"unet{i}", StageUNet(bands))

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        camera = CroppingCamera(system)
        # The published networks start from Aᵀy, not from the minimum-norm solution.
        state = self.algorithm.init(y, camera, camera.adjoint(y))
        for i in range(1, self.stages + 1):
            prior = partial(self.compute, self.get_submodule(f"unet{i}"))
            state = self.algorithm.step(state, y, camera, prior, None, self._rho(i))
        # The published networks shear the cube once more at the end. They were trained with this
        # step, so without it the bands of the cube would be misplaced.
        return roll_bands(state.x, column_offsets(system))[..., : camera.width]

    def _rho(self, stage: int) -> float | Tensor:
        return 0.0


@register_model("gap_net")
class GAPNet(_UNetStages):
    """Unrolled generalized alternating projection.

        v = x + Aᵀ(AAᵀ)⁺(y − Ax),   x ← U_i(v),   from x = Aᵀy

    Arguments and errors are those of `UnrolledNetwork`.

    Source: Meng, Yuan, Jalali, "Deep unfolding for snapshot compressive imaging", IJCV 2023.
    """

    algorithm = GAP(accelerated=False)


@register_model("admm_net")
class ADMMNet(_UNetStages):
    """Unrolled alternating direction method of multipliers, with a learned ρ = γ_i per stage.

        v = (x − u) + Aᵀ(AAᵀ + γ_i I)⁻¹(y − A(x − u)),   x ← U_i(v + u),   u ← u + v − x

    Arguments and errors are those of `UnrolledNetwork`.

    Source: Ma et al., "Deep tensor ADMM-Net for snapshot compressive imaging", ICCV 2019; with the
    U-Nets of Meng, Yuan, Jalali, IJCV 2023.
    """

    algorithm = ADMM()

    def __init__(self, bands: int = 28, stages: int = 9, checkpointing: bool = False) -> None:
        super().__init__(bands, stages, checkpointing)
        for i in range(1, stages + 1):
            self.register_parameter(f"gamma{i}", nn.Parameter(torch.zeros(1)))

    def _rho(self, stage: int) -> Tensor:
        return self.get_parameter(f"gamma{stage}")
