"""Train the denoiser of the refinement, with gradients through the iterations of the refinement.

The refinement is plug-and-play ADMM that starts with a network's cube (`cassi.methods.refinement`).
The training begins with the weights of the package, or with others. Crops of training scenes, and
synthetic scenes with measured spectra, are measured by the cameras of `recipe=cassi_net_spectra`,
most of which are ideal. The network of the package reconstructs each batch once.

A training step continues the refinement of one batch by a window of several iterations, and
computes the gradient through this window. TV and the directions of the subspace count as constants.
A batch whose iterations are done starts anew at iteration 1. Windows are short at first, and long
at the end. The loss is the logarithm of the root mean square error at the end of a window, times
the fraction of the iterations that are done. The moving average of the weights is written to
OUT/refiner.safetensors, in half precision.
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
from cassi.methods.refinement import MirroringDenoiser, refining
from cassi.models.pretrained import TV_PRIOR, refining_denoiser
from cassi.priors import Denoiser
from cassi.solvers.base import begin
from cassi.solvers.linear_system import begin_system, zero_bad_pixels
from cassi.solvers.refinement import limit_to_noise
from cassi.solvers.schedules import as_schedule
from cassi.solvers.statistics import damped_schedule, signal_level
from cassi.training import LogRMSE
from cassi.training.module import combine_seeds, merge_bands

# Numbers of bands that the batches take in turn.
BANDS = (28, 28, 14, 28, 20)
NOISELESS = (1, 55, 90)
# Cameras that the batches take in turn, three numbers each. First: 1 for the nominal camera, 0 for
# a digital twin. Second and third: smallest and largest SNR, dB.
CAMERAS = (NOISELESS, (1, 33, 55), (0, 55, 90), NOISELESS, (1, 27, 33), NOISELESS, (1, 40, 60))
# Fraction of synthetic scenes.
SYNTHETIC_FRACTION = 0.35
# Batches with a larger noise level, relative to the root mean square of y, are left out.
MAX_NOISE = 0.06
# Largest fraction of `seconds` for making batches, counted from the first batch on.
MAX_GATHER_FRACTION = 0.25
# Shorter side of the scenes, pixels.
MIN_SCENE_SIDE = 512
LOSS = LogRMSE()
# If there were fewer batches, the network would learn them by heart.
MIN_BATCHES = 20
# Number of batches that are not trained with; the gain on them is printed.
VALIDATION_BATCHES = 4


@dataclass
class Sample:
    """A batch of snapshots, and the state of its iterations. Cubes are in half precision."""

    truth: Tensor
    y: Tensor
    system: Any
    first: Tensor  # cubes of the network, with which the refinement begins
    noise: Tensor  # noise level of each snapshot
    run: Run | None = None  # None before the first iteration


class Run:
    """The iterations of the refinement of a batch, one by one, with gradients.

    The iterations are those of `Solver.run`, which keeps no gradients.
    """

    def __init__(self, denoiser: Denoiser, sample: Sample) -> None:
        prior = _SmoothingDenoiser(MirroringDenoiser(denoiser))
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
        sigma, rho = self.sigma(self.k, self.count), self.rho(self.k, self.count)
        self.state = self.algorithm.step(self.state, self.y, self.running, self.prior, sigma, rho)
        self.k, x = self.k + 1, self.state.x
        if self.k == self.count:
            consistent_x = self.system.data_step(x, self.y, rho)
            x = limit_to_noise(x, consistent_x, self.y, self.system, self.noise)
        return x * self.level

    def detach(self) -> None:
        """Detach the state, so that gradients do not go back beyond this iteration."""
        values = {field.name: getattr(self.state, field.name) for field in fields(self.state)}
        tensors = {k: v.detach() for k, v in values.items() if isinstance(v, Tensor)}
        self.state = replace(self.state, **tensors)


class _SmoothingDenoiser:
    """The prior of the refinement: total variation, and then the denoiser.

    The derivative of total variation counts as the identity.
    """

    def __init__(self, denoiser: Any, smoother: Any = None) -> None:
        self.denoiser, self.smoother = denoiser, smoother

    def begin(self) -> _SmoothingDenoiser:
        return _SmoothingDenoiser(begin(self.denoiser), TV_PRIOR.begin())

    def turn(self, rotation: Tensor) -> None:
        self.smoother.turn(rotation)

    def __call__(self, x: Tensor, sigma: Any) -> Tensor:
        smooth_x = self.smoother(x.detach(), sigma)
        # The value is that of smooth_x, and the derivative that of x.
        u: Tensor = self.denoiser(x + (smooth_x - x).detach(), sigma)
        return u


@cache
def _sources(size: int, seed: int, manifest: str) -> tuple[TrainingCrops, tuple[Any, ...]]:
    """Return crops, and a simulator for each of `CAMERAS`."""
    root = os.environ["CASSI_DATA"]
    options = ["recipe=cassi_net_spectra", "data=cave", f"data.crop={size}", "folder=."]
    options += [f"data.augment.patterns={SYNTHETIC_FRACTION}", f"data.manifest={manifest}"]
    # A scene must not be shrunk below the size of a crop.
    options += [f"data.augment.scale=[{max(0.4, size / MIN_SCENE_SIDE)},1.0]"]

    def compose(*simulator_options: str) -> Train:
        settings: Train = compose_settings([*options, *simulator_options], root, Train)
        return replace(settings, data=replace(settings.data, root=root))

    data = compose().data
    wavelengths = inputs.data_wavelengths(data)
    scenes = inputs.load_scenes(data, "train", wavelengths)
    crops = TrainingCrops(scenes, size=size, length=1, seed=seed, augment=build(data.augment))
    simulators = []
    for ideal, low, high in CAMERAS:
        noise = f"data.simulator.noise.snr_db=[{low},{high}]"
        simulator = compose(f"data.simulator.ideal={ideal}", noise).data.simulator
        simulators.append(inputs.build_simulator(simulator, wavelengths))
    return crops, tuple(simulators)


def measure(batch: int, size: int, seed: int, manifest: str, k: int) -> bytes:
    """Measure batch k of crops; return truth, y and camera as the bytes of `torch.save`."""
    torch.set_num_threads(1)
    crops, simulators = _sources(size, seed, manifest)
    batch_seed = combine_seeds(seed, k)
    torch.manual_seed(batch_seed)
    truth = torch.stack([crops[batch * k + i] for i in range(batch)])
    truth = merge_bands(truth, BANDS[k % len(BANDS)])
    simulate = simulators[k % len(simulators)]
    y, system = simulate(truth, torch.Generator().manual_seed(batch_seed))
    stream = io.BytesIO()
    torch.save((truth.half(), zero_bad_pixels(y, system), system), stream)
    return stream.getvalue()


def gather(settings: Any, pool: ProcessPoolExecutor) -> Iterator[Sample]:
    """Yield batches of crops with their reconstructions by the network of the package."""
    device = torch.device(settings.device)
    net = cassi.create_model("pretrained", precision="bf16-mixed").to(device)
    run = partial(measure, settings.batch, settings.size, settings.seed, settings.manifest)
    for content in pool.map(run, range(settings.batches)):
        truth, y, system = torch.load(io.BytesIO(content), map_location=device, weights_only=False)
        system = system.to(device)
        x, _, noise = net.run_start(y, system)
        assert noise is not None
        if float(noise.max()) < MAX_NOISE:
            yield Sample(truth, y, system, x.half(), noise)


def advance(denoiser: Denoiser, sample: Sample, window: int) -> Tensor:
    """Continue the refinement of a batch by some iterations; return the loss of the last one.

    The loss is weighted by the fraction of the iterations that are done, because the last cube is
    the result.
    """
    run = sample.run = sample.run or Run(denoiser, sample)
    run.detach()
    for _ in range(min(window, run.count - run.k)):
        x = run.step()
    if run.k == run.count:
        sample.run = None
    return LOSS(x, sample.truth.float()) * (run.k / run.count)


@torch.no_grad()
def measure_gain(denoiser: Denoiser, samples: list[Sample]) -> float:
    """Return by how many dB the refined cubes are better than the network's, on average."""
    gains = []
    for sample in samples:
        run, truth = Run(denoiser, sample), sample.truth.float()
        last = [run.step() for _ in range(run.count)][-1]
        gains.append(LOSS(sample.first.float(), truth) - LOSS(last, truth))
    return float(torch.stack(gains).mean()) * 20 / math.log(10)


def fit(
    denoiser: Denoiser, samples: list[Sample], seconds: float, folder: Path, settings: Any
) -> None:
    """Minimise the loss; write the average of the weights at intervals, and at the end."""
    validation, samples = samples[:VALIDATION_BATCHES], samples[VALIDATION_BATCHES:]
    network: Any = denoiser.network
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=settings.rate, betas=(0.9, 0.99), weight_decay=0
    )
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(settings.decay))
    start, step, progress, last_write = time.perf_counter(), 0, 0.0, 0.0
    # Progress is the larger fraction of steps and of time. The rate rises in the first 50 steps,
    # and then follows a cosine down to a hundredth.
    while progress < 1:
        rate = settings.rate * min((step + 1) / 50, 0.505 + 0.495 * math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = rate
        sample = random.choice(samples)
        loss = advance(denoiser, sample, settings.windows[progress > settings.short])
        optimizer.zero_grad()
        loss.backward()
        gradient_norm = nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        # If the gradient of a batch is not finite, the batch starts anew at iteration 1.
        if bool(gradient_norm.isfinite()):
            optimizer.step()
        else:
            sample.run = None
        average.update_parameters(network)
        step, elapsed_seconds = step + 1, time.perf_counter() - start
        progress = max(step / settings.steps, elapsed_seconds / seconds)
        if elapsed_seconds - last_write > settings.every or progress >= 1:
            last_write = elapsed_seconds
            average_denoiser = replace(denoiser, network=average.module, weights=None, learns=False)
            mean_gain = measure_gain(average_denoiser, validation)
            print(f"{step:6d} {mean_gain:+.3f} dB, {elapsed_seconds:.0f} s", flush=True)
            write(average.module, folder)


def write(net: nn.Module, folder: Path) -> None:
    """Write the weights into a folder, in half precision."""
    state = {name: value.half().contiguous() for name, value in net.state_dict().items()}
    with atomic_path(folder / "refiner.safetensors") as temporary:
        save_file(state, temporary)


def train_all(folder: Path, settings: Any) -> None:
    """Gather batches, train, and write the weights into a folder."""
    if "CASSI_DATA" not in os.environ:
        sys.exit("set CASSI_DATA to the folder that holds cave_train, spectra and tsa")
    torch.backends.cudnn.benchmark = True
    random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    start, samples = time.perf_counter(), list[Sample]()
    with ProcessPoolExecutor(settings.workers, get_context("spawn")) as pool:
        for sample in gather(settings, pool):
            samples.append(sample)
            # The processes read the scenes before their first batch. This time does not count.
            if len(samples) == 1:
                gather_start = time.perf_counter()
            if len(samples) % 10 == 0:
                print(f"{len(samples)} batches, {time.perf_counter() - start:.0f} s", flush=True)
            if time.perf_counter() - gather_start > MAX_GATHER_FRACTION * settings.seconds:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    print(f"{len(samples)} batches, {VALIDATION_BATCHES} of them held out", flush=True)
    if len(samples) < MIN_BATCHES:
        sys.exit(f"{MIN_BATCHES} batches are needed; give more batches= or seconds=")
    denoiser = refining_denoiser(weights=settings.weights, learns=True)
    denoiser = replace(denoiser, precision="32-true")
    network: Any = denoiser.network
    network.to(settings.device)
    seconds = settings.seconds - (time.perf_counter() - start)
    fit(denoiser, samples, seconds, folder, settings)
