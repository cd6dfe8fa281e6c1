"""Fit the denoising network that refines to what it is for: the errors in those iterations.

It begins with the weights of the package, or with others. Crops of training scenes, and drawn
ones with measured spectra, are measured by the cameras of `recipe=cassi_net_spectra`,
most of them ideal. The network of the package reconstructs them once. Each step takes one batch
some iterations of plug-and-play ADMM further (`cassi.methods.refining`) and goes back through them.
TV and the directions of the subspace are constants. Where a batch has all its iterations behind
it, it begins anew. Windows are short at first and long at the end. The loss is the logarithm of the
root mean square error at the end of a window, times how far the iterations are. The moving average
of the weights goes into OUT/refiner.safetensors, in half precision.
"""

from __future__ import annotations

import io
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import cassi
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Train
from cassi.apps.train import inputs
from cassi.config import build
from cassi.data.atomic import atomic_path
from cassi.data.datasets import TrainingCrops
from cassi.methods.refinement import InTurn, refining
from cassi.models.pretrained import SMOOTHER, refining_denoiser
from cassi.priors import Denoiser
from cassi.solvers.base import begin
from cassi.solvers.linear_system import begin_system, seen
from cassi.solvers.refinement import no_closer
from cassi.solvers.schedules import as_schedule
from cassi.solvers.statistics import damped_schedule, signal_level
from cassi.training import LogRMSE
from cassi.training.module import combine_seeds, merge_bands

BANDS = (28, 28, 14, 28, 20)
"""Of the batches, in turn."""
CLEAN = (1, 55, 90)
CAMERAS = (CLEAN, (1, 33, 55), (0, 55, 90), CLEAN, (1, 27, 33), CLEAN, (1, 40, 60))
"""Of the batches, in turn: 1 for ideal cameras or 0 for twins, least and largest SNR, dB."""
DRAWN = 0.35
"""Share of drawn scenes."""
NOISY = 0.06
"""Noise relative to the root mean square of y, beyond which a batch is left out."""
GATHERING = 0.25
"""Share of `seconds` in which batches are made, at most, after the first one."""
SIDE = 512
"""Least side of the scenes, pixels."""


LOSS = LogRMSE()
LEAST = 20
"""Batches, without which the network would learn them by heart."""
HELD = 4
"""Batches that are not trained with: their gain is printed."""


@dataclass
class Sample:
    """A batch of snapshots, and where its iterations stand; cubes in half precision."""

    truth: Tensor
    y: Tensor
    system: Any
    first: Tensor
    """The network's cubes, which are refined."""
    noise: Tensor
    run: Run | None = None


class Run:
    """The iterations that refine, one by one, with gradients."""

    def __init__(self, denoiser: Denoiser, sample: Sample) -> None:
        prior = _Smoothed(InTurn(denoiser))
        solver: Any = refining(float(sample.noise.max()), prior)
        self.algorithm, self.count, self.k = solver.algorithm, solver.iterations, 0
        self.system, self.noise = sample.system, sample.noise
        self.level = signal_level(sample.y, self.system)
        self.y, self.sigma = sample.y / self.level, as_schedule(solver.sigma)
        rho = as_schedule(self.algorithm.rho)
        self.rho = damped_schedule(rho, self.noise, self.y, self.system)
        self.prior, self.running = begin(solver.prior), begin_system(self.system)
        first = sample.first.float() / self.level
        self.state: Any = self.algorithm.init(self.y, self.running, first)

    def step(self) -> Tensor:
        """Take one iteration; return its cube, after the data step if it is the last one."""
        given = self.sigma(self.k, self.count), self.rho(self.k, self.count)
        self.state = self.algorithm.step(self.state, self.y, self.running, self.prior, *given)
        self.k, x = self.k + 1, self.state.x
        if self.k == self.count:
            stepped = self.system.data_step(x, self.y, given[1])
            x = no_closer(x, stepped, self.y, self.system, self.noise)
        return x * self.level

    def detach(self) -> None:
        """Forget how the state came about."""
        values = {each.name: getattr(self.state, each.name) for each in fields(self.state)}
        tensors = {k: v.detach() for k, v in values.items() if isinstance(v, Tensor)}
        self.state = replace(self.state, **tensors)


class _Smoothed:
    """Total variation, whose derivative is taken for one, and then the denoiser."""

    def __init__(self, denoiser: Any, smooth: Any = None) -> None:
        self.denoiser, self.smooth = denoiser, smooth

    def begin(self) -> _Smoothed:
        return _Smoothed(begin(self.denoiser), SMOOTHER.begin())

    def turn(self, rotation: Tensor) -> None:
        self.smooth.turn(rotation)

    def __call__(self, x: Tensor, sigma: Any) -> Tensor:
        smoothed = self.smooth(x.detach(), sigma)
        u: Tensor = self.denoiser(x + (smoothed - x).detach(), sigma)
        return u


@cache
def _sources(size: int, seed: int, manifest: str) -> tuple[TrainingCrops, tuple[Any, ...]]:
    """Return crops, and a simulator for each of `CAMERAS`."""
    root = os.environ["CASSI_DATA"]
    options = ["recipe=cassi_net_spectra", "data=cave", f"data.crop={size}", "folder=."]
    options += [f"data.augment.patterns={DRAWN}", f"data.manifest={manifest}"]
    options += [f"data.augment.scale=[{max(0.4, size / SIDE)},1.0]"]

    def compose(*more: str) -> Train:
        composed: Train = compose_settings([*options, *more], root, Train)
        return replace(composed, data=replace(composed.data, root=root))

    data = compose().data
    wavelengths = inputs.data_wavelengths(data)
    scenes = inputs.load_scenes(data, "train", wavelengths)
    crops = TrainingCrops(scenes, size=size, length=1, seed=seed, augment=build(data.augment))
    simulators = []
    for ideal, low, high in CAMERAS:
        noise = f"data.simulator.noise.snr_db=[{low},{high}]"
        own = compose(f"data.simulator.ideal={ideal}", noise).data.simulator
        simulators.append(inputs.build_simulator(own, wavelengths))
    return crops, tuple(simulators)


def measure(batch: int, size: int, seed: int, manifest: str, k: int) -> bytes:
    """Measure batch k of crops: truth, y and camera, as `torch.save` writes them."""
    torch.set_num_threads(1)
    crops, simulators = _sources(size, seed, manifest)
    own = combine_seeds(seed, k)
    torch.manual_seed(own)
    truth = torch.stack([crops[batch * k + i] for i in range(batch)])
    truth = merge_bands(truth, BANDS[k % len(BANDS)])
    simulate = simulators[k % len(simulators)]
    y, system = simulate(truth, torch.Generator().manual_seed(own))
    stream = io.BytesIO()
    torch.save((truth.half(), seen(y, system), system), stream)
    return stream.getvalue()


def gather(settings: Any, pool: ProcessPoolExecutor) -> Iterator[Sample]:
    """Let the network of the package reconstruct batches of crops."""
    device = torch.device(settings.device)
    net = cassi.create_model("pretrained", precision="bf16-mixed").to(device)
    run = partial(measure, settings.batch, settings.size, settings.seed, settings.manifest)
    for made in pool.map(run, range(settings.batches)):
        truth, y, system = torch.load(io.BytesIO(made), map_location=device, weights_only=False)
        system = system.to(device)
        x, _, noise = net.begin(y, system)
        assert noise is not None
        if float(noise.max()) < NOISY:
            yield Sample(truth, y, system, x.half(), noise)


def advance(denoiser: Denoiser, sample: Sample, window: int) -> Tensor:
    """Take a batch some iterations further; return the loss of the last, weighted by how late."""
    run = sample.run = sample.run or Run(denoiser, sample)
    run.detach()
    for _ in range(min(window, run.count - run.k)):
        x = run.step()
    if run.k == run.count:
        sample.run = None
    return LOSS(x, sample.truth.float()) * (run.k / run.count)


@torch.no_grad()
def gain(denoiser: Denoiser, samples: list[Sample]) -> float:
    """Return the mean gain over the network, dB."""
    gains = []
    for sample in samples:
        run, truth = Run(denoiser, sample), sample.truth.float()
        last = [run.step() for _ in range(run.count)][-1]
        gains.append(LOSS(sample.first.float(), truth) - LOSS(last, truth))
    return float(torch.stack(gains).mean()) * 20 / math.log(10)


def fit(
    denoiser: Denoiser, samples: list[Sample], seconds: float, out: Path, settings: Any
) -> None:
    """Minimise the loss; write the average of the weights now and then, and at the end."""
    held, samples = samples[:HELD], samples[HELD:]
    network: Any = denoiser.network
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=settings.rate, betas=(0.9, 0.99), weight_decay=0
    )
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(settings.decay))
    begun, step, done, written = time.perf_counter(), 0, 0.0, 0.0
    while done < 1:
        rate = settings.rate * min((step + 1) / 50, 0.505 + 0.495 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        sample = random.choice(samples)
        loss = advance(denoiser, sample, settings.windows[done > settings.short])
        optimizer.zero_grad()
        loss.backward()
        size = nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        if bool(size.isfinite()):
            optimizer.step()
        else:
            sample.run = None
        average.update_parameters(network)
        step, passed = step + 1, time.perf_counter() - begun
        done = max(step / settings.steps, passed / seconds)
        if passed - written > settings.every or done >= 1:
            written = passed
            shown = replace(denoiser, network=average.module, weights=None, learns=False)
            print(f"{step:6d} {gain(shown, held):+.3f} dB, {passed:.0f} s", flush=True)
            write(average.module, out)


def write(net: nn.Module, out: Path) -> None:
    """Write the weights in half precision."""
    state = {name: value.half().contiguous() for name, value in net.state_dict().items()}
    with atomic_path(out / "refiner.safetensors") as temporary:
        save_file(state, temporary)


def train_all(out: Path, settings: Any) -> None:
    """Gather, fit, write."""
    if "CASSI_DATA" not in os.environ:
        sys.exit("set CASSI_DATA to the folder that holds cave_train, spectra and tsa")
    torch.backends.cudnn.benchmark = True
    random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    begun, samples = time.perf_counter(), list[Sample]()
    with ProcessPoolExecutor(settings.workers, get_context("spawn")) as pool:
        for sample in gather(settings, pool):
            samples.append(sample)
            if len(samples) == 1:
                first = time.perf_counter()  # processes have read the scenes
            if len(samples) % 10 == 0:
                print(f"{len(samples)} batches, {time.perf_counter() - begun:.0f} s", flush=True)
            if time.perf_counter() - first > GATHERING * settings.seconds:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    print(f"{len(samples)} batches, {HELD} of them held out", flush=True)
    if len(samples) < LEAST:
        sys.exit(f"{LEAST} batches are needed; give more batches= or seconds=")
    denoiser = refining_denoiser(weights=settings.weights, learns=True)
    denoiser = replace(denoiser, precision="32-true")
    network: Any = denoiser.network
    network.to(settings.device)
    fit(denoiser, samples, settings.seconds - (time.perf_counter() - begun), out, settings)
