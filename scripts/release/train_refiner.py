"""Fit the denoising network that refines to what it is for: cubes of the network of the package.

    python scripts/release/train_refiner.py OUT                 # needs $CASSI_DATA
    python scripts/release/train_refiner.py OUT --device cuda --batch 32 --last 20 --seconds 200

It begins with the weights of the package, or with `--weights`. Crops of CAVE's training scenes,
and drawn ones with measured spectra, are measured by the cameras of
`experiment=train_cassi_net_spectra`, most of them ideal, and go through the network of the package;
those cubes are computed once. Then each step takes a batch of them through the twenty iterations of
plug-and-play ADMM that refine (`cassi.methods.refining`), and back through the last few of these,
with TV and the directions of the subspace as constants. The loss is the logarithm of the root mean
square error of the mean with the start's cube. The moving average of the weights goes into
OUT/refiner.safetensors, in half precision.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import cassi
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Train
from cassi.apps.train import inputs
from cassi.config import build
from cassi.data.atomic import atomic_path
from cassi.data.datasets import TrainingCrops
from cassi.methods.refining import refining
from cassi.models.inference import SHARES
from cassi.models.pretrained import SMOOTHER, refining_denoiser
from cassi.solvers.base import begin
from cassi.solvers.heldout import weighted_mean
from cassi.solvers.linear_system import begin_system, seen
from cassi.solvers.refine import no_closer
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
GATHERING = 0.4
"""Share of `--seconds` in which batches are made, at most."""
DECAY = 0.998
"""Of the moving average of the weights."""


class Sample(NamedTuple):
    """What the fit is given of a batch of snapshots; cubes in half precision."""

    truth: Tensor
    y: Tensor
    system: Any
    x: Tensor
    """The network's cubes."""
    first: Tensor
    """Its starts'."""
    noise: Tensor


@cache
def _sources(size: int, seed: int, manifest: str) -> tuple[TrainingCrops, tuple[Any, ...]]:
    """Return crops, and a simulator for each of `CAMERAS`."""
    root = os.environ["CASSI_DATA"]
    options = ["experiment=train_cassi_net_spectra", "data=cave", f"data.crop={size}", "folder=."]
    options += [f"data.augment.patterns={DRAWN}", f"data.manifest={manifest}"]

    def settings(*more: str) -> Train:
        composed: Train = compose_settings([*options, *more], root, Train)
        return replace(composed, data=replace(composed.data, root=root))

    data = settings().data
    wavelengths = inputs.data_wavelengths(data)
    scenes = inputs.load_scenes(data, "train", wavelengths)
    crops = TrainingCrops(scenes, size=size, length=1, seed=seed, augment=build(data.augment))
    simulators = []
    for ideal, low, high in CAMERAS:
        noise = f"data.simulator.noise.snr_db=[{low},{high}]"
        own = settings(f"data.simulator.ideal={ideal}", noise).data.simulator
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


def gather(options: Any, pool: ProcessPoolExecutor) -> Iterator[Sample]:
    """Let the network of the package reconstruct batches of crops."""
    device = torch.device(options.device)
    net = cassi.create_model("pretrained", precision="bf16-mixed").to(device)
    run = partial(measure, options.batch, options.size, options.seed, options.manifest)
    for made in pool.map(run, range(options.batches)):
        truth, y, system = torch.load(io.BytesIO(made), map_location=device, weights_only=False)
        system = system.to(device)
        x, first, noise = net.begin(y, system)
        assert first is not None
        assert noise is not None
        if float(noise.max()) < NOISY:
            yield Sample(truth, y, system, x.half(), first.half(), noise)


class Unrolled:
    """The iterations that refine, with gradients through the last ones.

    Args:
        denoiser: a prior that learns.
        last: iterations that gradients go through.
    """

    def __init__(self, denoiser: Any, last: int) -> None:
        self.denoiser, self.last = denoiser, last

    def __call__(self, sample: Sample) -> Tensor:
        """Return the cube that is compared with the truth."""
        x, first = sample.x.float(), sample.first.float()
        solver: Any = refining(float(sample.noise.max()), _Smoothed(self.denoiser))
        system, algorithm, count = sample.system, solver.algorithm, solver.iterations
        level = signal_level(sample.y, system)
        y = sample.y / level
        rho = damped_schedule(as_schedule(algorithm.rho), sample.noise, y, system)
        prior, running = begin(solver.prior), begin_system(system)
        state = algorithm.init(y, running, x / level)
        for k in range(count):
            with torch.set_grad_enabled(torch.is_grad_enabled() and k >= count - self.last):
                strength = as_schedule(solver.sigma)(k, count)
                state = algorithm.step(state, y, running, prior, strength, rho(k, count))
        stepped = system.data_step(state.x, y, rho(count - 1, count))
        refined = no_closer(state.x, stepped, y, system, sample.noise) * level
        return weighted_mean((first, x, refined), SHARES[2])


class _Smoothed:
    """Total variation, whose derivative is taken for one, and then the denoiser."""

    def __init__(self, denoiser: Any, smooth: Any = None) -> None:
        self.denoiser, self.smooth = denoiser, smooth

    def begin(self) -> _Smoothed:
        return _Smoothed(self.denoiser, SMOOTHER.begin())

    def turn(self, rotation: Tensor) -> None:
        self.smooth.turn(rotation)

    def __call__(self, x: Tensor, sigma: Any) -> Tensor:
        smoothed = self.smooth(x.detach(), sigma)
        u: Tensor = self.denoiser(x + (smoothed - x).detach(), sigma)
        return u


def fit(
    network: nn.Module, unrolled: Unrolled, samples: list[Sample], seconds: float, options: Any
) -> None:
    """Minimise the loss; write the average of the weights now and then, and at the end."""
    loss_of = LogRMSE()
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=options.rate, betas=(0.9, 0.99), weight_decay=0
    )
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    order: list[int] = []
    begun, gains, step, done = time.perf_counter(), list[Tensor](), 0, 0.0
    while done < 1:
        rate = options.rate * min((step + 1) / 50, 0.51 + 0.49 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        order = order or random.sample(range(len(samples)), len(samples))
        sample = samples[order.pop()]
        truth = sample.truth.float()
        loss = loss_of(unrolled(sample), truth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(network)
        unrefined = torch.lerp(sample.x.float(), sample.first.float(), SHARES[1][0])
        gains.append((loss_of(unrefined, truth) - loss.detach()) * 20 / math.log(10))
        step, passed = step + 1, time.perf_counter() - begun
        done = max(step / options.steps, passed / seconds)
        if step % 50 == 0 or done >= 1:
            gain = float(torch.stack(gains[-100:]).mean())
            print(f"{step:6d} {gain:+.3f} dB by refining, {passed:.0f} s", flush=True)
        if step % 250 == 0 or done >= 1:
            write(average.module, options.out)


def write(network: nn.Module, out: Path) -> None:
    """Write the weights in half precision."""
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    state = {name: value.half().contiguous() for name, value in network.state_dict().items()}
    with atomic_path(out / "refiner.safetensors") as temporary:
        save_file(state, temporary)


def main() -> None:
    """Gather, fit, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--batches", type=int, default=950)
    parser.add_argument("--batch", type=int, default=2, help="snapshots, of as many masks")
    parser.add_argument("--size", type=int, default=128, help="of a crop, pixels")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of all, at most")
    parser.add_argument("--last", type=int, default=5, help="iterations to go back through")
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--weights", type=Path, help="to begin with; those of the package if none")
    parser.add_argument("--seed", type=int, default=501)
    parser.add_argument("--manifest", default="cave", help="of the scenes in $CASSI_DATA")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes that measure")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if "CASSI_DATA" not in os.environ:
        sys.exit("set CASSI_DATA to the folder that holds cave_train, spectra and tsa")
    torch.set_num_threads(options.threads)
    random.seed(options.seed)
    begun, samples = time.perf_counter(), list[Sample]()
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        for sample in gather(options, pool):
            samples.append(sample)
            if len(samples) % 10 == 0:
                print(f"{len(samples)} batches, {time.perf_counter() - begun:.0f} s", flush=True)
            if time.perf_counter() - begun > GATHERING * options.seconds:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    if not samples:
        sys.exit("no batch is ready; give more --batches or --seconds")
    denoiser = refining_denoiser(weights=options.weights, learns=True)
    network = denoiser.network
    assert isinstance(network, nn.Module)
    network.to(options.device)
    seconds = options.seconds - (time.perf_counter() - begun)
    fit(network, Unrolled(denoiser, options.last), samples, seconds, options)


if __name__ == "__main__":
    main()
