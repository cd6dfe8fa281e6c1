"""CassiNet: total variation first, then learned stages, on components of a spectral subspace."""

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
from cassi.solvers.linear_system import LinearSystem, begin_system, has_subspace, seen
from cassi.solvers.statistics import check_noise, upper_quantile


class Residual(nn.Module):
    """x + conv(relu(conv(x))), both 3×3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        with torch.no_grad():
            self.second.weight.mul_(0.2)  # deep stacks start near the identity

    def forward(self, x: Tensor) -> Tensor:
        """Return images shaped like x."""
        between = convolve3x3(x, self.first.weight, self.first.bias, rectify=True)
        return convolve3x3(between, self.second.weight, self.second.bias, residual=x)


class ComponentNet(nn.Module):
    """A U-Net of plain convolutions at a half, a quarter and an eighth of the resolution.

    Of the planes that come in the first `outputs + 1` count from the beginning; the weights of the
    others start at zero. A net that `carries` takes the features of an earlier stage.
    """

    def __init__(
        self, inputs: int, outputs: int, widths: Sequence[int], blocks: Sequence[int], carries: bool
    ) -> None:
        super().__init__()
        fine, middle, coarse = widths

        def stack(width: int, count: int) -> nn.Sequential:
            return nn.Sequential(*(Residual(width) for _ in range(count)))

        self.enter = nn.Conv2d(inputs, fine, 4, stride=2, padding=1)
        self.carry = nn.Conv2d(fine, fine, 3, padding=1, bias=False) if carries else None
        self.down = nn.ModuleList([nn.Conv2d(fine, middle, 2, 2), nn.Conv2d(middle, coarse, 2, 2)])
        self.encoder = nn.ModuleList([stack(fine, blocks[0]), stack(middle, blocks[1])])
        self.bottom = stack(coarse, blocks[2])
        up = [nn.ConvTranspose2d(middle, fine, 2, 2), nn.ConvTranspose2d(coarse, middle, 2, 2)]
        self.up = nn.ModuleList(up)
        decoder = [stack(w, max(1, n - 1)) for w, n in zip(widths[:2], blocks[:2], strict=True)]
        self.decoder = nn.ModuleList(decoder)
        self.leave = nn.ConvTranspose2d(fine, outputs, 4, stride=2, padding=1)
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
        fine = self.encoder[0](x)
        middle = self.encoder[1](self.down[0](fine))
        x = self.bottom(self.down[1](middle))
        x = self.decoder[1](middle + self.up[1](x))
        features = self.decoder[0](fine + self.up[0](x))
        return self.leave(features), features


POOL = 16
"""Side of the blocks whose mean spectra give the subspace, see `Subspace`."""


@register_model("cassi_net", any_bands=True)
class CassiNet(nn.Module):
    """ADMM whose prior is total nuclear variation at first, and then learned, stage by stage.

    Both work on the leading components of the cube's own spectral subspace, found anew in every
    iteration (`cassi.priors.Subspace`), so the network sees images, never bands: it takes any
    number and any list of them, and any mask, size, step and direction, whatever it was trained
    with. It is told n, the decimal logarithm of the number of unknowns for each measured value: on
    that depends how far the first cube can be trusted. Its strength and the damping of the data
    step follow the noise of the measurement.

        v = argmin ½‖Av − y‖² + ρ_k/2‖v − (x − u)‖²
        a = Eᵀ(v + u),  x ← E(a − f_k(a, σ_k, Eᵀx, Aᵀ1, n)),  u ← u + v − x

    Args:
        bands: of the cameras it is meant for; others are taken too.
        stages: learned stages.
        rank: components R.
        widths: channels of f at a half, a quarter and an eighth of the resolution.
        blocks: residual blocks there.
        start: iterations of `auto`, the default method, before the first learned stage.
        strength: of total variation at the last of them, relative to the signal level.
        training_start: while training every batch has a start of its own length, from so many
            iterations to `start`, so that one set of weights serves any `start` between.
        balance: of total variation, see `cassi.priors.Subspace`.
        noise: of the measurement, relative to its root mean square: how damped the data steps are
            and how strong the prior. "auto" estimates it. A mask that is not quite the
            camera's counts as noise.
        shared: all stages have the same f.
        checkpointing: compute f again for its gradient instead of keeping what is within: less
            memory, about a third more time.

    Raises:
        ValueError: a number that is no count.

    >>> net = CassiNet(stages=1, widths=(4, 4, 4))
    """

    takes_statistics: ClassVar[bool] = True
    """`forward` is given the statistics of the whole measurement, where y is a part of one."""
    takes_noise: ClassVar[bool] = True
    """`forward` is given the noise where it is found out, and not estimated."""
    takes_start: ClassVar[bool] = True
    """`forward` is given a first cube, where another method has found one, in place of `begin`."""
    sees_operators: ClassVar[bool] = True
    """All it knows of the camera are its operators, so that a `Weighted` one is as good."""

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
        self.log_sigma = nn.Parameter(torch.linspace(0.15, 0.03, stages).log())
        # Near what a long training from other values arrived at.
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

        Statistics are those of the whole measurement, where y is a part of one; a noise is taken
        in place of the setting, a first cube in place of that of `begin`.
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
            start: what `begin` returned for them, `(B, C, H, W)`; computed where it is not given.
            statistics: of the whole measurement, where y is a part of one.
            noise: in place of the setting.

        Raises:
            ValueError: y is not `(B, K, H', W')`, holds NaN, or does not fit the camera.
        """
        given = self.noise if noise is None else noise
        start = self.begin(y, system, statistics, noise) if start is None else start
        device = y.device.type
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        # Subspaces and data steps need more than bfloat16.
        with torch.autocast(device, enabled=False):
            y, level, share, damping = _normalize(y, system, given, statistics)
            x = start / level
            light = system.adjoint(torch.ones_like(y)).mean(1, keepdim=True)
            crowding = math.log10(x[0].numel() / y[0].numel())
            prior = _Components(self, x, light, crowding, system, precision)
            algorithm = ADMM()
            cubes: list[Tensor] = []
            y, running = seen(y, system), system
            # A `WarmStart` would solve to other digits.
            if has_subspace(system) and system.is_closed:
                running = begin_system(system)
            state: Any = algorithm.init(y, running, x)
            for k, (sigma, rho) in enumerate(
                zip(self.log_sigma.exp(), self.log_rho.exp(), strict=True)
            ):
                prior.net = self.nets[k % len(self.nets)]
                state = algorithm.step(state, y, running, prior, sigma + share, rho + damping)
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
        """Return the cube `(B, C, H, W)` from which the learned stages go on: that of `auto`.

        Raises:
            ValueError: y is not `(B, K, H', W')`, holds NaN, or does not fit the camera.
        """
        given = self.noise if noise is None else noise
        with torch.autocast(y.device.type, enabled=False):
            count = self.start
            if self.training:
                low, high = sorted((self.training_start, self.start))
                count = int(torch.randint(low, high + 1, ()))
            if count:
                known = given if isinstance(given, str) else float(torch.as_tensor(given).max())
                solver = replace(self.solver, iterations=count, noise=known)
                return solver.run(y.float(), system, statistics=statistics).x
            y, level, _, damping = _normalize(y, system, given, statistics)
            return damped_inverse(y, system, damping.clamp_min(0.05)) * level

    def denoise(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Remove white noise from a cube by the first learned stage alone: its prior.

            E(a − f(a, σ)),  a = Eᵀx,  E the leading spectral directions of x

        Training this first teaches f what images look like, at a small part of the cost.

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
            level = upper_quantile(mean[:, :: 1 + mean.shape[1] // 2**20], 0.999)
            level = torch.where(level > 0, level, 1).view(-1, 1, 1, 1)
            dark = x.new_zeros(x[:, :1].shape)
            prior = _Components(self, torch.zeros_like(x), dark, 0.0, None, precision)
            prior.net = self.nets[0]
            sigma = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
            return prior(x / level, sigma.reshape(-1, 1, 1, 1) / level) * level


def _normalize(
    y: Tensor,
    system: LinearSystem,
    noise: Tensor | float | Literal["auto"],
    statistics: Statistics | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # The measurement of a scene of unit brightness, that brightness, noise and damping.
    y = y.float()
    level = signal_level(y, system, statistics)
    y = y / level
    share = relative_noise(y, system, noise, statistics)
    return y, level, share, noise_damping(y, system, share, statistics)


class _Components:
    """The learned prior of one run: it remembers the last cube and the last features."""

    def __init__(
        self,
        of: CassiNet,
        x: Tensor,
        light: Tensor,
        crowding: float,
        system: LinearSystem | None,
        precision: torch.dtype | None,
    ) -> None:
        self.of, self.x, self.precision = of, x, precision
        # Of a camera of one shot the light is the mask.
        self.camera = torch.cat((light, torch.full_like(light, crowding)), 1)
        self.turned = getattr(system, "axis", -1) == -2
        self.mirrored = getattr(system, "step", 1) < 0
        self.features: Tensor | None = None
        self.net: nn.Module = nn.Identity()

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        basis = oriented_basis(x, self.of.rank)
        components, before = to_subspace(x, basis), to_subspace(self.x, basis)
        planes = join_planes(components, sigma, before, self.camera, self.of.rank)
        correction = self._turn(self._apply(self._turn(planes)))
        components = components - correction[:, : components.shape[1]]
        self.x = from_subspace(components.contiguous(), basis)
        return self.x

    def _apply(self, planes: Tensor) -> Tensor:
        height, width = planes.shape[-2:]
        planes = pad_to_multiple(planes, 8).contiguous(memory_format=torch.channels_last)
        with torch.autocast(planes.device.type, self.precision, enabled=self.precision is not None):
            checkpointing = self.of.checkpointing
            pair = compute(self.net, planes, self.features, checkpointing=checkpointing)
        correction, self.features = pair
        return correction[..., :height, :width].float()

    def _turn(self, planes: Tensor) -> Tensor:
        # The network sees dispersion to the right only.
        # Each of these four maps is its own inverse.
        if not self.turned:
            return planes.flip(-1) if self.mirrored else planes
        return planes.mT.flip(-2, -1) if self.mirrored else planes.mT


@torch.no_grad()
def oriented_basis(x: Tensor, rank: int) -> Tensor:
    """Return the leading spectral directions of a cube, such that no component is dark on average.

    Of `(B, C, H, W)`: `(B, C, min(rank, C))`.
    """
    basis = spectral_basis(block_means(x, POOL), rank)
    mean = x.mean((-2, -1)).to(basis.dtype)
    return torch.where((mean[:, None] @ basis) < 0, -basis, basis)


def join_planes(
    a: Tensor, sigma: float | Tensor, before: Tensor, camera: Tensor, rank: int
) -> Tensor:
    """Stack components, noise, earlier components and camera: `(B, 2·rank + 3, H, W)`."""
    spare = (0, 0, 0, 0, 0, rank - a.shape[1])
    plane = level_map("CassiNet", sigma, a)
    return torch.cat((F.pad(a, spare), plane, F.pad(before, spare), camera), 1)
