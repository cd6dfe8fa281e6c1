"""Fit the denoising network that refines to what it is for: cubes of the network of the package.

    python scripts/release/train_refiner.py OUT                 # needs $CASSI_DATA
    python scripts/release/train_refiner.py OUT --weights cassi/models/weights/denoiser.safetensors

It begins with the weights of the package, or with `--weights`, such as those of a denoiser of white
noise, as the first of them did. Crops of CAVE's training scenes are measured by the
cameras of `experiment=train_cassi_net_real`, most of them ideal, and go through the network of the
package; those cubes are computed once. Then each step takes some of them through the twenty
iterations of plug-and-play ADMM that refine (`cassi.methods.refining`), and back
through the last few of these, with TV and the directions of the subspace as constants. The loss is
the logarithm of the root mean square error of the mean with the start's cube. The moving average of
the weights goes into OUT/refiner.safetensors, in half precision.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import cassi
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Train
from cassi.apps.train import inputs
from cassi.data.atomic import atomic_path
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

BANDS = (28, 28, 28, 14, 28, 28, 20, 28)
"""Of the samples, in turn."""
NOISY = 0.06
"""Noise relative to the root mean square of y, beyond which a sample is left out."""
DECAY = 0.998
"""Of the moving average of the weights."""


class Sample(NamedTuple):
    """What the fit is given of a snapshot; cubes in half precision."""

    truth: Tensor
    y: Tensor
    system: Any
    x: Tensor
    """The network's cube."""
    first: Tensor
    """Its start's."""
    noise: Tensor


def gather(count: int, size: int, seed: int) -> list[Sample]:
    """Measure crops, and let the network of the package reconstruct them."""
    options = ["experiment=train_cassi_net_real", "data=cave", f"data.crop={size}", f"seed={seed}"]
    options += ["data.simulator.ideal=0.75", "data.simulator.noise.snr_db=[27,90]"]
    settings = compose_settings(options, os.environ["CASSI_DATA"], Train)
    settings = replace(settings, data=replace(settings.data, root=os.environ["CASSI_DATA"]))
    crops = inputs.load_data(settings).samples
    simulate = inputs.build_simulator(
        settings.data.simulator, inputs.data_wavelengths(settings.data)
    )
    net = cassi.create_model("pretrained", precision="bf16-mixed")
    found: list[Sample] = []
    for k in range(count):
        own = combine_seeds(seed, k)
        torch.manual_seed(own)
        truth = merge_bands(crops[k][None], BANDS[k % len(BANDS)])
        y, system = simulate(truth, torch.Generator().manual_seed(own))
        y = seen(y, system)
        x, first, noise = net.begin(y, system)
        assert first is not None
        assert noise is not None
        if float(noise.max()) < NOISY:
            found.append(Sample(truth.half(), y, system, x.half(), first.half(), noise))
        if (k + 1) % 50 == 0:
            print(f"{k + 1} of {count} snapshots", flush=True)
    return found


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


def fit(network: nn.Module, unrolled: Unrolled, samples: list[Sample], options: Any) -> None:
    """Minimise the loss; write the average of the weights now and then, and at the end."""
    loss_of = LogRMSE()
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=options.rate, betas=(0.9, 0.99), weight_decay=0
    )
    rising = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda k: min(
            (k + 1) / 50, 0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * k / options.steps))
        ),
    )
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    order: list[int] = []
    begun, gains = time.perf_counter(), []
    for step in range(options.steps):
        optimizer.zero_grad()
        for _ in range(options.batch):
            order = order or random.sample(range(len(samples)), len(samples))
            sample = samples[order.pop()]
            truth = sample.truth.float()
            loss = loss_of(unrolled(sample), truth)
            (loss / options.batch).backward()
            unrefined = torch.lerp(sample.x.float(), sample.first.float(), SHARES[1][0])
            gains.append(float(loss_of(unrefined, truth) - loss.detach()) * 20 / math.log(10))
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        rising.step()
        average.update_parameters(network)
        if (step + 1) % 50 == 0:
            recent = gains[-400:]
            print(
                f"{step + 1:6d} {sum(recent) / len(recent):+.3f} dB by refining, "
                f"{time.perf_counter() - begun:.0f} s",
                flush=True,
            )
        if (step + 1) % 250 == 0 or step + 1 == options.steps:
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
    parser.add_argument("--samples", type=int, default=1900)
    parser.add_argument("--size", type=int, default=128, help="of a crop, pixels")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--last", type=int, default=5, help="iterations to go back through")
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--weights", type=Path, help="to begin with; those of the package if none")
    parser.add_argument("--seed", type=int, default=501)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if "CASSI_DATA" not in os.environ:
        sys.exit("set CASSI_DATA to the folder that holds cave_train and tsa")
    torch.set_num_threads(options.threads)
    random.seed(options.seed)
    samples = gather(options.samples, options.size, options.seed)
    denoiser = refining_denoiser(weights=options.weights, learns=True)
    network = denoiser.network
    assert isinstance(network, nn.Module)
    fit(network, Unrolled(denoiser, options.last), samples, options)


if __name__ == "__main__":
    main()
