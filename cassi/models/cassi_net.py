"""CassiNet: iterations with total variation, then learned stages, in a spectral subspace."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.methods.automatic import auto
from cassi.models.layers import check_counts, level_map, pad_to_multiple
from cassi.models.network import compute
from cassi.models.registry import register_model
from cassi.ops import convolve3x3
from cassi.priors.subspace import block_means, from_subspace, spectral_basis, to_subspace
from cassi.solvers import (
    ADMM,
    Statistics,
    damped_inverse,
    noise_damping,
    relative_noise,
    signal_level,
)
from cassi.solvers.linear_system import LinearSystem, begin_system, has_subspace, zero_bad_pixels
from cassi.solvers.statistics import check_noise, upper_quantile


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(x))), both 3×3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        with torch.no_grad():
            # Small weights let a deep stack of blocks start near the identity.
            self.second.weight.mul_(0.2)

    def forward(self, x: Tensor) -> Tensor:
        """Return images shaped like x."""
        features = convolve3x3(x, self.first.weight, self.first.bias, rectify=True)
        return convolve3x3(features, self.second.weight, self.second.bias, residual=x)


class ComponentNet(nn.Module):
    """A U-Net of plain convolutions at a half, a quarter and an eighth of the resolution.

    In the first convolution, the weights of all planes after the first `outputs + 1` start at zero.

    Args:
        inputs: number of input planes.
        outputs: number of output planes.
        widths: channels at a half, a quarter and an eighth of the resolution.
        blocks: number of residual blocks at each of these resolutions. The decoder has one block
            fewer than the encoder, but at least one.
        carries: whether the net takes the features of the stage before.
    """

    def __init__(
        self, inputs: int, outputs: int, widths: Sequence[int], blocks: Sequence[int], carries: bool
    ) -> None:
        super().__init__()
        fine_width, middle_width, coarse_width = widths

        def stack(width: int, count: int) -> nn.Sequential:
            return nn.Sequential(*(ResidualBlock(width) for _ in range(count)))

        self.enter = nn.Conv2d(inputs, fine_width, 4, stride=2, padding=1)
        self.carry = (
            nn.Conv2d(fine_width, fine_width, 3, padding=1, bias=False) if carries else None
        )
        self.down = nn.ModuleList(
            [nn.Conv2d(fine_width, middle_width, 2, 2), nn.Conv2d(middle_width, coarse_width, 2, 2)]
        )
        self.encoder = nn.ModuleList([stack(fine_width, blocks[0]), stack(middle_width, blocks[1])])
        self.bottom = stack(coarse_width, blocks[2])
        up = [
            nn.ConvTranspose2d(middle_width, fine_width, 2, 2),
            nn.ConvTranspose2d(coarse_width, middle_width, 2, 2),
        ]
        self.up = nn.ModuleList(up)
        decoder = [stack(w, max(1, n - 1)) for w, n in zip(widths[:2], blocks[:2], strict=True)]
        self.decoder = nn.ModuleList(decoder)
        self.leave = nn.ConvTranspose2d(fine_width, outputs, 4, stride=2, padding=1)
        # An untrained net uses only the components and the noise level, and its correction is
        # small. So a training starts near the result without a learned prior.
        with torch.no_grad():
            self.enter.weight[:, outputs + 1 :] = 0
            if self.carry is not None:
                self.carry.weight.zero_()
            self.leave.weight.mul_(0.1)

    def forward(self, planes: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return a correction and the features that the next stage takes.

        Args:
            planes: `(B, inputs, H, W)`, H and W multiples of 8.
            features: `(B, widths[0], H/2, W/2)` of the stage before.
        """
        x = self.enter(planes)
        if self.carry is not None and features is not None:
            x = convolve3x3(features, self.carry.weight, residual=x, rectify=True)
        else:
            x = F.relu(x)
        fine_features = self.encoder[0](x)
        middle_features = self.encoder[1](self.down[0](fine_features))
        x = self.bottom(self.down[1](middle_features))
        x = self.decoder[1](middle_features + self.up[1](x))
        features = self.decoder[0](fine_features + self.up[0](x))
        return self.leave(features), features


# Pixels along each side of the blocks whose mean spectra determine the subspace, see `Subspace`.
# Larger blocks average more noise, and mix more materials.
BLOCK_SIDE = 16


@register_model("cassi_net", any_bands=True)
class CassiNet(nn.Module):
    """ADMM with total nuclear variation as prior, followed by stages with a learned prior.

    Both priors work on the leading components of the cube's own spectral subspace
    (`cassi.priors.Subspace`). Every iteration computes the subspace again. The network therefore
    gets images of components, not bands. It serves any number and any list of bands, any mask,
    size, step and direction, even if its training had other ones.

        v = argmin ½‖Av − y‖² + ρ_k/2‖v − (x − u)‖²
        a = Eᵀ(v + u),  x ← E(a − f_k(a, σ_k, Eᵀx, m, n)),  u ← u + v − x

    f_k is the U-Net of stage k, E the basis of the subspace, and u the dual variable. m is the mean
    of Aᵀ1 over the bands. n is the decimal logarithm of the number of unknowns per measured value.
    It tells f_k how reliable the first cube is. The prior's σ_k and the damping ρ_k rise with the
    noise of the measurement.

    Args:
        bands: number of bands of the cameras that the network is meant for; it takes any number.
        stages: number of learned stages.
        rank: number R of components.
        widths: channels of f at a half, a quarter and an eighth of the resolution.
        blocks: number of residual blocks there.
        start: number of iterations of `auto`, the default method, before the first learned stage.
        strength: weight of total variation in the last of these iterations, relative to the signal
            level; a larger one smooths more.
        training_start: in training, the number of these iterations is drawn anew for every batch,
            uniformly from `training_start` to `start`. So the weights serve any number in between.
        balance: 1 smooths weak components more, 0 smooths all alike; see `cassi.priors.Subspace`.
        noise: noise of the measurement, relative to its root mean square; it sets the damping of
            the data steps and the strength of the prior. "auto" estimates it. An error of the mask
            acts like noise: give a larger value then.
        shared: whether all stages have the same weights.
        checkpointing: whether the backward pass computes the inner activations of f_k again instead
            of keeping them. This takes less memory and about a third more time.

    Raises:
        ValueError: a number is out of range, or `widths` or `blocks` are not three numbers.

    >>> net = CassiNet(stages=1, widths=(4, 4, 4))
    """

    takes_statistics: ClassVar[bool] = True
    """`forward` accepts the statistics of a whole measurement if y is a part of it."""
    takes_noise: ClassVar[bool] = True
    """`forward` accepts a noise level that was measured elsewhere."""
    takes_start: ClassVar[bool] = True
    """`forward` accepts a first cube of another method, and uses it instead of that of `begin`."""
    sees_operators: ClassVar[bool] = True
    """The network uses only the operators of a camera, so a `Weighted` camera may be given too."""

    def __init__(
        self,
        bands: int = 28,
        stages: int = 5,
        rank: int = 6,
        widths: Sequence[int] = (32, 64, 96),
        blocks: Sequence[int] = (2, 2, 2),
        start: int = 100,
        strength: float = 0.024,
        training_start: int = 40,
        balance: float = 1.0,
        noise: float | Literal["auto"] = "auto",
        shared: bool = False,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        check_counts("CassiNet", bands=bands, stages=stages, rank=rank)
        if min(start, training_start) < 0:
            raise ValueError(
                f"CassiNet start: expected at least 0, got {start} and {training_start} in training"
            )
        if not strength > 0:
            raise ValueError(f"CassiNet strength: expected a number > 0, got {strength}")
        if len(widths) != 3 or len(blocks) != 3:
            raise ValueError(f"CassiNet: expected 3 widths and 3 blocks, got {widths}, {blocks}")
        self.bands, self.rank = bands, rank
        self.start, self.training_start = start, training_start
        check_noise(noise)
        self.noise = noise
        self.solver = auto(strength=strength, balance=balance, heldout=0.0)
        self.checkpointing = checkpointing
        carries = [stages > 1] if shared else [k > 0 for k in range(stages)]
        self.nets = nn.ModuleList(
            ComponentNet(2 * rank + 3, rank, widths, blocks, carry) for carry in carries
        )
        # Initial values; training changes them. σ is relative to the signal level. It falls from
        # stage to stage, because the cubes get better. A long training converged to a ρ near 0.01.
        self.log_sigma = nn.Parameter(torch.linspace(0.15, 0.03, stages).log())
        self.log_rho = nn.Parameter(torch.full((stages,), 0.01).log())

    def forward(
        self,
        y: Tensor,
        system: LinearSystem,
        statistics: Statistics | None = None,
        noise: Tensor | float | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """Reconstruct: measurement `(B, K, H', W')` → cube `(B, C, H, W)`.

        The arguments and errors are those of `outputs`.
        """
        return self.outputs(y, system, start, statistics=statistics, noise=noise)[0]

    def outputs(
        self,
        y: Tensor,
        system: LinearSystem,
        start: Tensor | None = None,
        *,
        statistics: Statistics | None = None,
        noise: Tensor | float | None = None,
    ) -> list[Tensor]:
        """Return the cubes of all stages, the last stage first.

        Args:
            y: measurement `(B, K, H', W')`.
            system: the camera.
            start: the cube of `begin`, `(B, C, H, W)`; computed if None.
            statistics: statistics of the whole measurement if y is a part of it.
            noise: noise relative to the root mean square of y; `self.noise` if None.

        Raises:
            ValueError: y is not `(B, K, H', W')`, holds NaN, or does not fit the camera.
        """
        noise_setting = self.noise if noise is None else noise
        start = self.begin(y, system, statistics, noise) if start is None else start
        device = y.device.type
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        # Subspaces and data steps need more digits than half precision has. Only the U-Net runs
        # in the precision of autocast.
        with torch.autocast(device, enabled=False):
            y, level, noise_level, damping = _normalize(y, system, noise_setting, statistics)
            x = start / level
            mean_mask = system.adjoint(torch.ones_like(y)).mean(1, keepdim=True)
            log_unknowns = math.log10(x[0].numel() / y[0].numel())
            prior = _LearnedPrior(self, x, mean_mask, log_unknowns, system, precision)
            algorithm = ADMM()
            cubes: list[Tensor] = []
            y, run_system = zero_bad_pixels(y, system), system
            # A camera without a closed form is used as it is: `begin_system` would return a
            # `WarmStart`, whose solutions differ in the last digits.
            if has_subspace(system) and system.has_closed_form:
                run_system = begin_system(system)
            state: Any = algorithm.init(y, run_system, x)
            for k, (sigma, rho) in enumerate(
                zip(self.log_sigma.exp(), self.log_rho.exp(), strict=True)
            ):
                prior.net = self.nets[k % len(self.nets)]
                state = algorithm.step(
                    state, y, run_system, prior, sigma + noise_level, rho + damping
                )
                cubes.insert(0, state.x * level)
        return cubes

    @torch.no_grad()
    def begin(
        self,
        y: Tensor,
        system: LinearSystem,
        statistics: Statistics | None = None,
        noise: Tensor | float | None = None,
    ) -> Tensor:
        """Return the first cube `(B, C, H, W)` of the learned stages, computed by `auto`.

        If the number of iterations is 0, the first cube is a damped inverse.

        Raises:
            ValueError: y is not `(B, K, H', W')`, holds NaN, or does not fit the camera.
        """
        noise_setting = self.noise if noise is None else noise
        with torch.autocast(y.device.type, enabled=False):
            count = self.start
            if self.training:
                low, high = sorted((self.training_start, self.start))
                count = int(torch.randint(low, high + 1, ()))
            if count:
                # The solver takes one noise level for the whole batch: the largest.
                if not isinstance(noise_setting, str):
                    noise_setting = float(torch.as_tensor(noise_setting).max())
                solver = replace(self.solver, iterations=count, noise=noise_setting)
                return solver.run(y.float(), system, statistics=statistics).x
            y, level, _, damping = _normalize(y, system, noise_setting, statistics)
            # Without iterations the first cube is a damped inverse. Even without noise it is
            # damped, so that pixels with little light do not dominate it.
            return damped_inverse(y, system, damping.clamp_min(0.05)) * level

    def denoise(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Remove white noise from a cube by the prior of the first learned stage.

            E(a − f(a, σ)),  a = Eᵀx,  E the leading spectral directions of x

        Training f for this task first is cheap: it takes a small part of the time of a training
        with cameras.

        Args:
            x: `(B, C, H, W)`, with noise.
            sigma: standard deviation of the noise, one number or one per cube.

        Returns:
            `(B, C, H, W)`.
        """
        device = x.device.type
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        with torch.autocast(device, enabled=False):
            x = x.float()
            mean = x.detach().abs().mean(1).flatten(1)
            # The signal level is the brightness that 0.1 % of the pixels exceed, as for
            # measurements. The quantile sorts its input, so a large image is subsampled.
            level = upper_quantile(mean[:, :: 1 + mean.shape[1] // 2**20], 0.999)
            level = torch.where(level > 0, level, 1).view(-1, 1, 1, 1)
            zero_planes = x.new_zeros(x[:, :1].shape)
            prior = _LearnedPrior(self, torch.zeros_like(x), zero_planes, 0.0, None, precision)
            prior.net = self.nets[0]
            sigma = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
            return prior(x / level, sigma.reshape(-1, 1, 1, 1) / level) * level


def _normalize(
    y: Tensor,
    system: LinearSystem,
    noise: Tensor | float | Literal["auto"],
    statistics: Statistics | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y divided by its signal level, that level `(B, 1, 1, 1)`, noise level and damping."""
    y = y.float()
    level = signal_level(y, system, statistics)
    y = y / level
    noise_level = relative_noise(y, system, noise, statistics)
    return y, level, noise_level, noise_damping(y, system, noise_level, statistics)


class _LearnedPrior:
    """The learned prior of one run; it remembers the last cube and the last features."""

    def __init__(
        self,
        network: CassiNet,
        x: Tensor,
        mean_mask: Tensor,
        log_unknowns: float,
        system: LinearSystem | None,
        precision: torch.dtype | None,
    ) -> None:
        self.network, self.last_cube, self.precision = network, x, precision
        # The net gets two planes of the camera. The first is the mean of Aᵀ1 over the bands. If the
        # camera has one shot, this is its mask. The second has the constant value `log_unknowns`.
        self.camera_planes = torch.cat((mean_mask, torch.full_like(mean_mask, log_unknowns)), 1)
        self.is_transposed = getattr(system, "axis", -1) == -2
        self.is_mirrored = getattr(system, "step", 1) < 0
        self.features: Tensor | None = None
        self.net: nn.Module = nn.Identity()

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        basis = oriented_basis(x, self.network.rank)
        components, previous = to_subspace(x, basis), to_subspace(self.last_cube, basis)
        planes = join_planes(components, sigma, previous, self.camera_planes, self.network.rank)
        correction = self._orient(self._apply(self._orient(planes)))
        components = components - correction[:, : components.shape[1]]
        self.last_cube = from_subspace(components.contiguous(), basis)
        return self.last_cube

    def _apply(self, planes: Tensor) -> Tensor:
        height, width = planes.shape[-2:]
        planes = pad_to_multiple(planes, 8).contiguous(memory_format=torch.channels_last)
        with torch.autocast(planes.device.type, self.precision, enabled=self.precision is not None):
            checkpointing = self.network.checkpointing
            outputs = compute(self.net, planes, self.features, checkpointing=checkpointing)
        correction, self.features = outputs
        return correction[..., :height, :width].float()

    def _orient(self, planes: Tensor) -> Tensor:
        # Images are turned so that the dispersion always points to the right. Then one set of
        # weights serves all directions. Each of these four maps is its own inverse.
        if not self.is_transposed:
            return planes.flip(-1) if self.is_mirrored else planes
        return planes.mT.flip(-2, -1) if self.is_mirrored else planes.mT


@torch.no_grad()
def oriented_basis(x: Tensor, rank: int) -> Tensor:
    """Return the leading spectral directions of a cube, with signs that make component means >= 0.

    The cube is `(B, C, H, W)`, the result `(B, C, min(rank, C))`.
    """
    # The sign of an eigenvector is arbitrary. With a fixed sign the net gets the same components in
    # every iteration.
    basis = spectral_basis(block_means(x, BLOCK_SIDE), rank)
    mean = x.mean((-2, -1)).to(basis.dtype)
    return torch.where((mean[:, None] @ basis) < 0, -basis, basis)


def join_planes(
    a: Tensor, sigma: float | Tensor, previous: Tensor, camera_planes: Tensor, rank: int
) -> Tensor:
    """Stack the input planes of a `ComponentNet`: `(B, 2·rank + 3, H, W)`.

    The planes are the components a, σ, the components of the last cube, and the planes of the
    camera. A cube of fewer than `rank` bands has fewer components; zeros take their place.
    """
    missing_channels = (0, 0, 0, 0, 0, rank - a.shape[1])
    plane = level_map("CassiNet", sigma, a)
    return torch.cat(
        (F.pad(a, missing_channels), plane, F.pad(previous, missing_channels), camera_planes), 1
    )
