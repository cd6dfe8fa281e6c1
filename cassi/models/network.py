"""Base classes of networks that reconstruct a snapshot: one estimate, or one per stage."""

from collections.abc import Callable, Iterator
from typing import TypeVar, TypeVarTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cassi import ops
from cassi.models.camera_adapters import AlignedCamera, NetworkCamera, TransposedCamera
from cassi.models.layers import check_counts
from cassi.solvers.base import Prior
from cassi.solvers.linear_system import LinearSystem

Result = TypeVar("Result")
StageFeatures = TypeVar("StageFeatures")
Inputs = TypeVarTuple("Inputs")


class Network(nn.Module):
    """A network `(y, system) -> x` for cameras of one shot that disperse along either axis.

    A subclass defines `recover` for cameras with axis -1 whose offsets are whole and begin at 0. A
    camera with axis -2 is wrapped as a `TransposedCamera`, a camera with other offsets as an
    `AlignedCamera`.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        check_counts(type(self).__name__, bands=bands)
        self.bands = bands

    def forward(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct: measurement `(B, 1, H', W')` → cube `(B, C, H, W)`.

        Raises:
            ValueError: the camera has another number of bands, or several shots, or y is not one
                of its measurements.
        """
        y, camera = self.align(y, system)
        x = self.recover(y, camera)
        return x.mT if system.axis == -2 else x

    def align(self, y: Tensor, system: NetworkCamera) -> tuple[Tensor, NetworkCamera]:
        """Return the measurement `(B, 1, H, W')` and the camera that `recover` gets."""
        self._check(y, system)
        if system.axis == -2:
            y, system = y.mT, TransposedCamera(system)
        if tuple(system.offsets) == ops.step_offsets(system.bands, system.step):
            return y, system
        aligned_camera = AlignedCamera(system)
        return aligned_camera.window(y), aligned_camera

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        raise NotImplementedError

    def _check(self, y: Tensor, system: NetworkCamera) -> None:
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


def compute(layer: Callable[[*Inputs], Result], *inputs: *Inputs, checkpointing: bool) -> Result:
    """Apply a layer of a network.

    If `checkpointing` is true, the backward pass computes the layer's inner activations again.
    """
    if checkpointing and torch.is_grad_enabled():
        return checkpoint(layer, *inputs, use_reentrant=False)
    return layer(*inputs)


class UnrolledNetwork(Network):
    """A fixed number of iterations of an algorithm with learned denoisers, called stages.

    Args:
        bands: number C of bands.
        stages: number of iterations.
        checkpointing: whether only the cubes between the stages are kept for the backward pass. It
            then computes the activations within a stage again. This takes less memory and about a
            third more time.

    Raises:
        ValueError: a count below 1.
    """

    def __init__(self, bands: int, stages: int, checkpointing: bool = False) -> None:
        super().__init__(bands)
        check_counts(type(self).__name__, stages=stages)
        self.stages, self.checkpointing = stages, checkpointing

    def compute(self, part: Callable[[*Inputs], Result], *inputs: *Inputs) -> Result:
        """Apply a part of a stage; see the function `compute` for `checkpointing`."""
        return compute(part, *inputs, checkpointing=self.checkpointing)

    def chain(
        self,
        denoiser: Callable[[Tensor, StageFeatures | None], tuple[Tensor, StageFeatures]],
        features: list[StageFeatures],
    ) -> Prior:
        """Return a denoiser `net(x, features) -> x, features` as the prior of one stage.

        Args:
            denoiser: the denoiser of the stage. In the first stage it gets None as features.
            features: a list that holds the features of the stage before; empty in the first stage.
                The prior replaces its content by the features of this stage.
        """

        def apply(x: Tensor, sigma: float | Tensor | None) -> Tensor:
            cube, new_features = self.compute(denoiser, x, features[0] if features else None)
            features[:] = [new_features]
            return cube

        return apply


class StagedNetwork(UnrolledNetwork):
    """An unrolled network in which every stage ends with an estimate of the cube.

    A subclass defines `iterates`, which gets the same cameras as `recover`.
    """

    def iterates(self, y: Tensor, system: NetworkCamera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage; y is `(B, 1, H, W')`."""
        raise NotImplementedError

    def recover(self, y: Tensor, system: NetworkCamera) -> Tensor:
        """Reconstruct from a camera with axis -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        cube = y
        for iterate in self.iterates(y, system):
            cube = iterate
        return cube

    def outputs(self, y: Tensor, system: NetworkCamera) -> list[Tensor]:
        """Return the cubes of all stages, the last stage first.

        Returns:
            Cubes `(B, C, H, W)`, as many as there are stages.
        """
        y, camera = self.align(y, system)
        cubes = list(self.iterates(y, camera))[::-1]
        return [x.mT for x in cubes] if system.axis == -2 else cubes


def memory_format_warning(network: nn.Module, y: Tensor, system: LinearSystem) -> str | None:
    """Return a line that names the first operator which loses `torch.channels_last`, or None.

    The network runs once, in evaluation mode. The state of the random generators is restored.
    """
    training = network.training
    try:
        with torch.random.fork_rng():
            ops.assert_memory_format(network.eval(), (y, system))
    except AssertionError as error:
        _, first_line, *other_lines = str(error).splitlines()
        location = first_line.strip() + (f", and {len(other_lines)} more" if other_lines else "")
        return f"channels_last: {type(network).__name__} loses it by {location}; it may gain little"
    finally:
        network.train(training)
    return None
