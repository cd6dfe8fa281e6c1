"""The LightningModule of a training: training steps, validation, optimizer and seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from cassi import metrics
from cassi.checks import check_cube, check_loss
from cassi.solvers import relative_noise
from cassi.systems import System
from cassi.training.data import batch_number, check_reuse
from cassi.training.first_cubes import FirstCubeCache
from cassi.training.loggers import picture_logger
from cassi.training.losses import MultiStage

# Function that draws a picture: estimate and truth `(C, H, W)` → 8-bit RGB `(H, W, 3)`.
PictureFunction = Callable[[Tensor, Tensor], np.ndarray]


class Simulate(Protocol):
    """Simulates measurements of cubes; see `cassi.data.simulation.Simulator`."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, System]:
        """Return the measurement of `(B, C, H, W)` and the camera that made it."""


@runtime_checkable
class _StagedNetwork(Protocol):
    def outputs(
        self, y: Tensor, system: System, *inputs: Tensor, **options: Tensor
    ) -> list[Tensor]: ...


@runtime_checkable
class _StartingNetwork(_StagedNetwork, Protocol):
    def begin(self, y: Tensor, system: System) -> Tensor: ...


@runtime_checkable
class _NoiseNetwork(Protocol):
    takes_noise: bool
    noise: float | Literal["auto"]


class Training(LightningModule):
    """Trains a network `net(y, system) -> x` on measurements simulated from cubes.

    The seed of a step is computed from the run's seed, the number of the batch and the number of
    the process. So a resumed run draws the same random numbers, and a batch that is used again gets
    the same mask and noise again.

    Args:
        net: the network.
        simulate: simulates measurement and camera for a batch of cubes, on their device.
        loss: function of cubes and truth, `(B, C, H, W)`; a `MultiStage` gets the cubes of all
            stages.
        optimizer: makes the optimizer from the parameters.
        scheduler: makes the schedule of the learning rate from the optimizer. The schedule makes a
            step after every optimizer step.
        validate: simulates the validation scenes; `simulate` if None.
        seed: seed of masks, noise and dropout.
        pictures: functions by name that draw the first validation scene, for loggers that take
            pictures.
        channels_last: keep weights and cubes with the bands last in memory, which makes
            convolutions faster on CPUs and tensor cores.
        pool: number of different batches that are used again, see `batch_number`; None uses each
            batch once. Pass the same value to `TrainingData`.
        reuse: how often each batch of the pool is used before new ones follow; None never takes new
            ones. Pass the same value to `TrainingData`.
        bands: a list of n numbers of bands. Batch s is reduced to `bands[s mod n]` bands: each is a
            mean of neighbouring bands. None keeps the bands of the cubes.
        scales: for each validation scene, the factor from its values to those of its file, see
            `cassi.data.scenes.Scene`. The PSNR is computed on the values of the file. None: 1 for
            all scenes.
        starts: folder that stores the first cubes of batches that are used again. The call
            `net.begin(y, system)` makes such a cube, and `net.outputs(y, system, start)` takes it.
        preset: preset of the PSNR of the validation scenes, see `cassi.metrics.presets`.
        plugins: the user's files and modules that are needed to load a checkpoint. Their names are
            stored in it.

    Raises:
        ValueError: an argument is out of range, or does not fit the network or another argument.
    """

    def __init__(
        self,
        net: nn.Module,
        simulate: Simulate,
        loss: nn.Module,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        *,
        validate: Simulate | None = None,
        seed: int = 0,
        pictures: Mapping[str, PictureFunction] | None = None,
        channels_last: bool = False,
        pool: int | None = None,
        reuse: int | None = None,
        bands: Sequence[int] | None = None,
        starts: str | None = None,
        scales: Sequence[float] | None = None,
        preset: str = metrics.DEFAULT_PRESET,
        plugins: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if bands is not None and not (bands and min(bands) >= 1):
            raise ValueError(f"bands: expected a list of counts, or null, got {bands}")
        self.bands = bands
        if starts is not None and (pool is None or not isinstance(net, _StartingNetwork)):
            raise ValueError(
                "starts: expected data.pool, and a network with `begin` (such as cassi_net); got "
                f"data.pool={pool} and {type(net).__name__}"
            )
        check_reuse(pool, reuse)
        self.pool, self.reuse, self.starts = (
            pool,
            reuse,
            None if starts is None else FirstCubeCache(starts),
        )
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        if channels_last:
            net.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.net = net
        self.simulate, self.loss = simulate, loss
        self.validate = validate or simulate
        self.make_optimizer, self.make_scheduler = optimizer, scheduler
        self.seed, self.pictures, self.scales = seed, pictures or {}, scales
        self.preset = metrics.get_preset(preset)
        self.plugins = list(plugins)
        self.scores: list[Tensor] = []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store which plugins the training needs."""
        if self.plugins:
            checkpoint["plugins"] = self.plugins

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Find the best checkpoint in this run's folder, which may have been moved."""
        for callback in self.trainer.checkpoint_callbacks:
            state = checkpoint["callbacks"].get(callback.state_key)
            if state and isinstance(callback, ModelCheckpoint) and callback.dirpath:
                move_checkpoint_paths(state, Path(callback.dirpath))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Return the loss of a batch of cubes `(B, C, H, W)` in [0, 1].

        Raises:
            ValueError: the network's cubes have another shape, or the loss is not one number.
        """
        # `step` counts batches. The count of optimizer steps does not rise while gradients are
        # accumulated.
        loop = self.trainer.fit_loop.epoch_loop
        step = loop.total_batch_idx
        # Loggers number their rows by this count. If a finished run is continued with more steps,
        # Lightning's own count is too low by one.
        loop._batches_that_stepped = self.trainer.global_step
        batch_index = batch_number(step, self.pool, self.reuse)
        seed = combine_seeds(self.seed, batch_index, self.global_rank)
        seed_generators(seed, self.device)
        if self.bands is not None:
            batch = merge_bands(batch, self.bands[batch_index % len(self.bands)])
        truth, y, system = self._measure(self.simulate, batch, seed)
        outputs = self._outputs(y, system, batch_index)
        stages = self._stages
        has_stages = stages is not None and isinstance(outputs, list | tuple)
        for cube in outputs if has_stages else [outputs]:
            # A loss written by the user could broadcast a cube of another shape without an error.
            check_cube(stages or self.network, cube, truth.shape, needs_gradient=True)
        loss: Tensor = self.loss(outputs, truth)
        check_loss(self.loss, loss)
        self.log("loss", loss.detach(), prog_bar=True, on_step=True, batch_size=len(batch))
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """End the epoch at step `max_steps`, so that the final weights are validated."""
        if self.trainer.global_step + 1 >= self.trainer.max_steps > 0:
            self.trainer.should_stop = True

    def on_validation_epoch_start(self) -> None:
        """Forget earlier scores."""
        self.scores = []

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Compute the PSNR of one scene `(1, C, H, W)`; every validation uses the same measurement.

        Raises:
            ValueError: the network's cube is not finite.
        """
        seed = combine_seeds(self.seed, batch_idx)
        seed_generators(seed, self.device)
        truth, y, system = self._measure(self.validate, batch, seed)
        x = self.network(y, system)
        check_cube(self.network, x, truth.shape)
        x = x.float()
        if not x.isfinite().all():
            raise ValueError(
                f"the network's output is not finite after step {self.trainer.global_step}; lower "
                "optimizer.lr, set trainer.gradient_clip_val, or leave 16-mixed"
            )
        scale = 1.0 if self.scales is None else self.scales[batch_idx]
        self.scores.append(metrics.psnr(x * scale, truth * scale, self.preset).mean())
        if batch_idx == 0:
            self._show(x[0], truth[0])

    def on_validation_epoch_end(self) -> None:
        """Report the mean PSNR over the scenes."""
        score = torch.stack(self.scores).mean().float()
        if self.trainer.world_size > 1:
            # Every process has reconstructed every scene. All of them take the score of the first
            # process. Otherwise scores that differ in the last digit could lead to different
            # decisions about the best checkpoint.
            score = self.trainer.strategy.broadcast(score)
        self.log("val_psnr", score, prog_bar=True, batch_size=1)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Make the optimizer, and a schedule that makes a step after each optimizer step."""
        parameters = [p for p in self.net.parameters() if p.requires_grad]
        optimizer = self.make_optimizer(parameters)
        if self.make_scheduler is None:
            return optimizer
        schedule = self.make_scheduler(optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _measure(
        self, simulate: Simulate, batch: Tensor, seed: int
    ) -> tuple[Tensor, Tensor, System | Tensor]:
        truth = batch.contiguous(memory_format=self.layout)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            y, system = simulate(truth, generator)
        return truth, y, system

    @property
    def network(self) -> Callable[..., Tensor]:
        """The function that is trained, `(y, system) -> x`."""
        return self.net

    @property
    def _stages(self) -> Callable[..., Sequence[Tensor]] | None:
        """The function that returns the cubes of all stages, if the loss needs them; else None."""
        if isinstance(self.loss, MultiStage) and isinstance(self.net, _StagedNetwork):
            return self.net.outputs
        return None

    def _outputs(
        self, y: Tensor, system: System | Tensor, batch_index: int
    ) -> Tensor | Sequence[Tensor]:
        net = self.net
        if self.starts is not None:
            assert isinstance(net, _StartingNetwork)
            assert isinstance(system, System)
            name = f"{batch_index % (self.pool or 1)}-{self.global_rank}"
            start, noise = self.starts(name, lambda: compute_start(net, y, system), batch_index)
            noise_argument = {} if noise is None else {"noise": noise.to(y)}
            cubes = net.outputs(y, system, start.to(y), **noise_argument)
            return cubes if isinstance(self.loss, MultiStage) else cubes[0]
        return (self._stages or self.network)(y, system)

    def _show(self, x: Tensor, truth: Tensor) -> None:
        if not self.pictures or not self.trainer.is_global_zero:
            return
        log_functions = [
            log_picture
            for logger in self.trainer.loggers
            if (log_picture := picture_logger(logger))
        ]
        for name, draw in (self.pictures if log_functions else {}).items():
            picture = draw(x.detach().cpu(), truth.detach().cpu())
            for log_picture in log_functions:
                log_picture(name, picture, self.trainer.global_step)


def move_checkpoint_paths(state: dict[str, Any], folder: Path) -> None:
    """Change the paths in the state of a `ModelCheckpoint` to the same files in another folder.

    Nothing changes if the best checkpoint is not in that folder.
    """
    # Lightning stores absolute paths, and drops the best score if the folder has changed. A run
    # whose folder was moved as a whole would lose its best score.

    def in_folder(path: str) -> str:
        return path and str(folder / Path(path).name)

    if not Path(in_folder(state["best_model_path"])).is_file():
        return
    best_models = {in_folder(path): score for path, score in state["best_k_models"].items()}
    paths = {key: in_folder(state[key]) for key in state if key.endswith("_model_path")}
    state.update(paths, best_k_models=best_models, dirpath=str(folder))


def compute_start(net: _StartingNetwork, y: Tensor, system: System) -> tuple[Tensor, Tensor | None]:
    """Return the first cube of a network, and the noise of y if the network takes a noise."""
    noise = None
    if isinstance(net, _NoiseNetwork) and net.takes_noise:
        noise = relative_noise(y.float(), system, net.noise)
    return net.begin(y, system), noise


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of one device, as `torch.manual_seed` does."""
    # `torch.manual_seed` is not used for CPUs and CUDA. It also seeds kinds of devices that are not
    # in use, which takes one to two milliseconds per step.
    if device.type in ("cpu", "cuda"):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed_all(seed)
    else:
        torch.manual_seed(seed)


def combine_seeds(*parts: int) -> int:
    """Hash whole numbers into one seed of 63 bits."""
    state = np.random.SeedSequence(parts).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def merge_bands(x: Tensor, count: int) -> Tensor:
    """Average neighbouring bands: `(B, C, H, W)` → `(B, count, H, W)`.

    Band k is the mean of the bands from ⌊kC/count⌋ up to ⌈(k + 1)C/count⌉ − 1.

    Raises:
        ValueError: `count` is larger than C.
    """
    if count > x.shape[1]:
        raise ValueError(f"bands: expected at most the {x.shape[1]} of the cubes, got {count}")
    if count == x.shape[1]:
        return x
    return functional.adaptive_avg_pool3d(x[:, None], (count, *x.shape[2:]))[:, 0]
