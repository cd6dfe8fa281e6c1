"""GAP-Net and ADMM-Net: a small U-Net as the prior of each iteration."""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from cassi.models.grid import Camera, Wide, offsets, roll_bands
from cassi.models.layers import ConvPair, beside, in_order, pad_to_multiple, u_net
from cassi.models.network import Unrolled
from cassi.models.registry import register_model
from cassi.solvers import ADMM, GAP
from cassi.solvers.base import Algorithm


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(inputs, outputs, kernel_size=2, stride=2), nn.ReLU(inplace=True)
    )


class StageUNet(nn.Module):
    """x + tanh(U(x)), a U-Net of three resolutions with 32, 64 and 128 channels.

    Any height and width: reflected to a multiple of 8, and cropped.

    Source: Meng, Yuan, Jalali, "Deep unfolding for snapshot compressive imaging", IJCV 2023;
    names of the weights as in the code that accompanies MST (Cai et al., CVPR 2022).
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.dconv_down1 = in_order(d_conv=ConvPair(bands, 32))
        self.dconv_down2 = in_order(d_conv=ConvPair(32, 64))
        self.dconv_down3 = in_order(d_conv=ConvPair(64, 128))
        self.maxpool = nn.MaxPool2d(2)
        self.upsample2 = _double(128, 64)
        self.upsample1 = _double(64, 32)
        self.dconv_up2 = in_order(d_conv=ConvPair(128, 64))
        self.dconv_up1 = in_order(d_conv=ConvPair(64, 32))
        self.conv_last = nn.Conv2d(32, bands, 1)

    def forward(self, x: Tensor, sigma: float | Tensor | None = None) -> Tensor:
        """Denoise `(B, C, H, W)`; σ is not used."""
        height, width = x.shape[-2:]
        padded = pad_to_multiple(x, 8, "mirror")
        if not padded.is_cuda:
            # Twice as fast on CPUs; on GPUs only half precision gains, and the caller decides.
            padded = padded.contiguous(memory_format=torch.channels_last)
        encoder = (self.dconv_down1, self.maxpool), (self.dconv_down2, self.maxpool)
        decoder = (
            (self.upsample2, beside, self.dconv_up2),
            (self.upsample1, beside, self.dconv_up1),
        )
        change = torch.tanh(self.conv_last(u_net(padded, encoder, self.dconv_down3, decoder)))
        return (change + padded)[..., :height, :width]


class _UNetStages(Unrolled):
    """Iterations on the wide grid from Aᵀy, stage i with the U-Net `unet{i}`."""

    algorithm: ClassVar[Algorithm]

    def __init__(self, bands: int = 28, stages: int = 9, checkpointing: bool = False) -> None:
        super().__init__(bands, stages, checkpointing)
        for i in range(1, stages + 1):
            self.add_module(f"unet{i}", StageUNet(bands))

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        wide = Wide(system)
        state = self.algorithm.init(y, wide, wide.adjoint(y))
        for i in range(1, self.stages + 1):
            prior = partial(self.compute, self.get_submodule(f"unet{i}"))
            state = self.algorithm.step(state, y, wide, prior, None, self._rho(i))
        # The published networks move the bands apart once more at the end and were trained so:
        # their last U-Net has learned to give what is right after that.
        return roll_bands(state.x, offsets(system))[..., : wide.width]

    def _rho(self, stage: int) -> float | Tensor:
        return 0.0


@register_model("gap_net")
class GAPNet(_UNetStages):
    """Unrolled generalized alternating projection.

        v = x + Aᵀ(AAᵀ)⁺(y − Ax),   x ← U_i(v),   from x = Aᵀy

    Arguments and errors are those of `Unrolled`.

    Source: Meng, Yuan, Jalali, "Deep unfolding for snapshot compressive imaging", IJCV 2023.
    """

    algorithm = GAP(accelerated=False)


@register_model("admm_net")
class ADMMNet(_UNetStages):
    """Unrolled alternating direction method of multipliers, with a learned ρ = γ_i per stage.

        v = (x − u) + Aᵀ(AAᵀ + γ_i I)⁻¹(y − A(x − u)),   x ← U_i(v + u),   u ← u + v − x

    Arguments and errors are those of `Unrolled`.

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
