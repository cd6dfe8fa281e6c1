"""What networks that reconstruct a snapshot share: checks, either axis, stages."""

from collections.abc import Callable, Iterator
from typing import TypeVar, TypeVarTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cassi import ops
from cassi.models.grid import Aligned, Camera, Turned
from cassi.models.layers import check_counts
from cassi.solvers.base import Prior
from cassi.solvers.linear_system import LinearSystem

Result = TypeVar("Result")
Left = TypeVar("Left")
Inputs = TypeVarTuple("Inputs")


class Network(nn.Module):
    """A network `(y, system) -> x`, for cameras of one shot, dispersed along either axis.

    A subclass gives `recover`, which sees dispersion along columns only, by whole pixels to the
    right of the first column. Of a camera that moves or warps its bands otherwise it sees the next
    such one, see `Aligned`; what it does with the camera's own data step is exact.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        check_counts(type(self).__name__, bands=bands)
        self.bands = bands

    def forward(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct: measurement `(B, 1, H', W')` → cube `(B, C, H, W)`.

        Raises:
            ValueError: the camera has another number of bands, or several shots, or y is not one
                of its measurements.
        """
        y, camera = self.align(y, system)
        x = self.recover(y, camera)
        return x.mT if system.axis == -2 else x

    def align(self, y: Tensor, system: Camera) -> tuple[Tensor, Camera]:
        """Return measurement and camera as `recover` sees them: `(B, 1, H, W')`."""
        self._check(y, system)
        if system.axis == -2:
            y, system = y.mT, Turned(system)
        if tuple(system.offsets) == ops.step_offsets(system.bands, system.step):
            return y, system
        aligned = Aligned(system)
        return aligned.window(y), aligned

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        raise NotImplementedError

    def _check(self, y: Tensor, system: Camera) -> None:
        name = type(self).__name__
        if system.bands != self.bands:
            raise ValueError(
                f"{name}: expected a camera of {self.bands} bands, got {system.bands}; make the "
                f"network for them, create_model(…, bands={system.bands})"
            )
        if system.mask.shape[-4] != 1:
            raise ValueError(
                f"{name}: expected a camera of one shot, got {system.mask.shape[-4]} shots; "
                "solvers take several"
            )
        expected = system.measurement_shape[1:]
        if y.ndim != 4 or (y.shape[1], *y.shape[-2:]) != (1, *expected):
            raise ValueError(
                f"{name} y: expected (B, 1, {expected[0]}, {expected[1]}) as the camera says, "
                f"got {tuple(y.shape)}"
            )


def compute(part: Callable[[*Inputs], Result], *inputs: *Inputs, checkpointing: bool) -> Result:
    """Apply a part of a network; with checkpointing its gradient computes its inside again."""
    if checkpointing and torch.is_grad_enabled():
        return checkpoint(part, *inputs, use_reentrant=False)
    return part(*inputs)


class Unrolled(Network):
    """A fixed number of iterations of an `Algorithm`, each with a denoiser of its own.

    Args:
        bands: number C of bands.
        stages: number of iterations.
        checkpointing: keep only the cubes between the stages for the gradient and compute what is
            within a stage again: less memory, about a third more time.

    Raises:
        ValueError: a count below 1.
    """

    def __init__(self, bands: int, stages: int, checkpointing: bool = False) -> None:
        super().__init__(bands)
        check_counts(type(self).__name__, stages=stages)
        self.stages, self.checkpointing = stages, checkpointing

    def compute(self, part: Callable[[*Inputs], Result], *inputs: *Inputs) -> Result:
        """Apply a part of a stage; with `checkpointing` its inside is computed again."""
        return compute(part, *inputs, checkpointing=self.checkpointing)

    def chain(
        self, denoiser: Callable[[Tensor, Left | None], tuple[Tensor, Left]], features: list[Left]
    ) -> Prior:
        """Return a denoiser `net(x, features) -> x, features` as the prior of one stage.

        `features` hold what the stage before left, nothing before the first; they are replaced.
        """

        def apply(x: Tensor, sigma: float | Tensor | None) -> Tensor:
            cube, left = self.compute(denoiser, x, features[0] if features else None)
            features[:] = [left]
            return cube

        return apply


class Staged(Unrolled):
    """A network whose every stage ends with an estimate of the cube.

    A subclass gives `iterates`, which sees dispersion along columns only.
    """

    def iterates(self, y: Tensor, system: Camera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage, of y `(B, 1, H, W')`."""
        raise NotImplementedError

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        cube = y
        for iterate in self.iterates(y, system):
            cube = iterate
        return cube

    def outputs(self, y: Tensor, system: Camera) -> list[Tensor]:
        """Return the cubes of all stages, the last stage first.

        Returns:
            Cubes `(B, C, H, W)`, as many as there are stages.
        """
        y, camera = self.align(y, system)
        cubes = list(self.iterates(y, camera))[::-1]
        return [x.mT for x in cubes] if system.axis == -2 else cubes


def memory_format_warning(network: nn.Module, y: Tensor, system: LinearSystem) -> str | None:
    """Say in a line what operator of a network loses `torch.channels_last`; None if none does.

    Runs the network once, in evaluation mode; random numbers drawn afterwards are the same.
    """
    training = network.training
    try:
        with torch.random.fork_rng():
            ops.assert_memory_format(network.eval(), (y, system))
    except AssertionError as error:
        _, first, *others = str(error).splitlines()
        more = f", and {len(others)} more" if others else ""
        name = type(network).__name__
        return f"channels_last: {name} loses it by {first.strip()}{more}; it may gain little"
    finally:
        network.train(training)
    return None
