"""Time a training step beside that of a plain loop in torch: the same weights, masks and cubes.

    python -m scripts.benchmarks.training --processors native avx2 --json runs/training.json

A step simulates the measurement of a batch through masks of its own, reconstructs it, and changes
the weights by Adam. The plain loop is written as the public code of DAUHST and MST is: operators
are products with the shifted masks Φ, bands are shifted one after another, and all layers are those
of `torch.nn`. Both take turns in one process, and both keep freed memory, which `cassi-train` does.
Times are seconds of the processor, which other programs change little. `ratio` is the median over
the rounds of the plain time divided by ours. The losses must agree to 1e-4 in every round.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.apps.memory import keep_freed_memory
from cassi.data.simulation import MaskCrops, Simulator
from cassi.models.load import create_model
from cassi.training.losses import RMSE
from scripts.benchmarks.methods import PROCESSORS
from scripts.benchmarks.plain_networks import BANDS, STEP, PlainDAUHST, PlainGAPNet, shear
from scripts.benchmarks.tables import Parser, Table, write_json

Loss = Callable[[torch.Generator], Tensor]
NETWORKS = ("dauhst_2stg", "gap_net")


def main(arguments: list[str] | None = None) -> None:
    """Time every network with every set of instructions, and print a row for each."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--processors", nargs="+", choices=PROCESSORS, default=["native"])
    parser.add_argument("--size", type=int, default=128, help="rows and columns, a multiple of 32")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--worker", metavar="NETWORK", help="time this network in this process")
    options = parser.parse_args(arguments)
    if options.worker is not None:
        print(json.dumps(measure(options.worker, options.size, options.batch, options.rounds)))
        return
    table = Table("network", "processor", "plain s", "ours s", "ratio")
    words = sys.argv[1:] if arguments is None else arguments
    for name, processor in product(options.networks, options.processors):
        # Its instructions cannot change in a process any more.
        worker = [sys.executable, "-m", "scripts.benchmarks.training", *words, "--worker", name]
        environment = os.environ | PROCESSORS[processor]
        output = subprocess.run(worker, env=environment, stdout=subprocess.PIPE, check=True).stdout
        row = json.loads(output)
        table.print(name, processor, row["plain"], row["ours"], row["ratio"])
    write_json(options.json, "training", table.rows)


def measure(name: str, size: int, batch: int, rounds: int) -> dict[str, float]:
    """Return the seconds of both steps, medians over the rounds, and the ratio."""
    keep_freed_memory()
    torch.manual_seed(0)
    masks, x = MaskCrops(torch.rand(256, 256)), torch.rand(batch, BANDS, size, size)
    detector = size, size + STEP * (BANDS - 1)
    plain_net: nn.Module
    if name == "gap_net":
        ours, plain_net = create_model(name, bands=BANDS), PlainGAPNet()
    else:
        ours, plain_net = create_model(name, bands=BANDS, size=detector), PlainDAUHST(detector)
    plain_net.load_state_dict(ours.state_dict())
    simulate, loss = Simulator(masks, step=STEP), RMSE(batch=True)

    def our_loss(generator: torch.Generator) -> Tensor:
        y, system = simulate(x, generator)
        value: Tensor = loss(ours(y, system), x)
        return value

    def plain_loss(generator: torch.Generator) -> Tensor:
        mask = masks.draw(batch, size, size, generator)[:, 0].repeat(1, BANDS, 1, 1)
        phi = shear(mask)
        phi_s = torch.sum(phi**2, 1)
        phi_s[phi_s == 0] = 1
        return torch.sqrt(F.mse_loss(plain_net(torch.sum(shear(mask * x), 1), phi, phi_s), x))

    steps = make_step(plain_net, plain_loss), make_step(ours, our_loss)
    times = []
    for number in range(rounds + 1):
        (plain_time, expected), (our_time, value) = (step(number) for step in steps)
        if abs(value - expected) > 1e-4:
            raise SystemExit(f"{name}: expected the loss {expected:.6f}, got {value:.6f}")
        times.append((plain_time, our_time))
    plain_times, our_times = zip(*times[1:], strict=True)  # the first round prepares kernels
    ratios = [a / b for a, b in zip(plain_times, our_times, strict=True)]
    return {"plain": median(plain_times), "ours": median(our_times), "ratio": median(ratios)}


def make_step(net: nn.Module, compute_loss: Loss) -> Callable[[int], tuple[float, float]]:
    """Return a function that takes step n, and returns its seconds and the loss."""
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-4)

    def step(number: int) -> tuple[float, float]:
        start = time.process_time()
        optimizer.zero_grad()
        loss = compute_loss(torch.Generator().manual_seed(number))
        loss.backward()
        optimizer.step()
        return time.process_time() - start, loss.item()

    return step


if __name__ == "__main__":
    main()
