"""Time a training step of networks: forward, backward, Adam.

    python scripts/benchmarks/train.py
    python scripts/benchmarks/train.py --models dauhst_2stg gap_net --size 256 --batch 1
    python scripts/benchmarks/train.py --models dauhst_2stg --original dauhst_2stg=DAUHST.py
    python scripts/benchmarks/train.py --device cuda --batch 4

Every case (a network in float32, or in bfloat16 with channels_last) runs in a process of its own,
which tells its peak memory; the processes take turns, one step each, so that what disturbs the
machine disturbs all alike. `operator` is the share of a step spent in `cassi::` operators.
`--original NAME=FILE` adds the authors' network of that name, out of a copy of their source file
(gap_net, admm_net and the dauhst networks), on the same input.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi.apps.memory import keep_freed_memory
from cassi.models.load import create_model
from cassi.models.registry import list_models
from scripts.benchmarks.apart import peak_mib
from scripts.benchmarks.tables import Table, write_csv

STAGES = {"dauhst_2stg": 2, "dauhst_3stg": 3, "dauhst_5stg": 5, "dauhst_9stg": 9}
CLASSES = {"gap_net": "GAP_net", "admm_net": "ADMM_net"}
"""Names of the classes; any `dauhst_…` is `DAUHST`."""


@dataclass(frozen=True)
class Case:
    """One network in one precision."""

    model: str
    precision: str
    original: Path | None = None

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.model}, {'authors' if self.original else 'ours'}, {self.precision}"


@dataclass(frozen=True)
class Result:
    """What was measured of a case."""

    case: Case
    ms: float
    cpu_ms: float
    peak_mb: float
    operator: float


def main(arguments: list[str] | None = None) -> list[Result]:
    """Measure and print the table."""
    options = make_parser().parse_args(arguments)
    originals = dict(item.split("=", 1) for item in options.original)
    cases = []
    for model in options.models:
        if model not in list_models(shipped=False):
            raise SystemExit(
                f"--models: no network {model!r}; there is {', '.join(list_models(shipped=False))}"
            )
        if model in originals:
            cases.append(Case(model, "float32", Path(originals[model])))
        cases += [Case(model, "float32"), Case(model, "bfloat16")]
    results = measure(cases, options)
    print_table(results)
    if options.csv:
        write_csv(options.csv, [{**asdict(r), "case": r.case.name} for r in results])
    return results


def make_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["dauhst_2stg"], metavar="NAME")
    parser.add_argument("--original", nargs="+", default=[], metavar="NAME=FILE")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", type=int, default=256, help="rows and columns of the cube")
    parser.add_argument("--bands", type=int, default=28)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of every case")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--checkpointing", action="store_true", help="where a network offers it")
    return parser


def measure(cases: list[Case], options: argparse.Namespace) -> list[Result]:
    """Let one process per case take steps in turn."""
    context = get_context("spawn")
    workers = []
    for case in cases:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, case, options), daemon=True)
        process.start()
        theirs.close()
        ours.recv()  # built and warm
        workers.append((case, process, ours))
    times: dict[Case, list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for case, _, pipe in workers:
            pipe.send("step")
            times[case].append(pipe.recv())
    results = []
    for case, process, pipe in workers:
        pipe.send("finish")
        peak, operator = pipe.recv()
        process.join()
        wall, cpu = (1e3 * median(values) for values in zip(*times[case], strict=True))
        results.append(Result(case, wall, cpu, peak, operator))
    return results


def work(pipe: Connection, case: Case, options: argparse.Namespace) -> None:
    """Take a training step whenever told to; the last message asks for memory and the profile."""
    if case.original is None:
        keep_freed_memory()  # as cassi-train does; the authors' scripts do not
    torch.set_num_threads(options.threads)
    step = make_step(case, options)
    for _ in range(2):
        step()
    pipe.send("ready")
    while pipe.recv() == "step":
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        pipe.send((time.perf_counter() - wall, time.process_time() - cpu))
    # Before the profiler, which takes memory itself.
    peak = peak_mib(options.device)
    pipe.send((peak, operator_share(step, options.device)))


def make_step(case: Case, options: argparse.Namespace) -> Any:
    """Return a function that takes one training step on random data."""
    torch.manual_seed(0)
    device = torch.device(options.device)
    side, bands = options.size, options.bands
    system = cassi.SDCassi(torch.rand(side, side), bands=bands, step=2).to(device)
    x = torch.rand(options.batch, bands, side, side, device=device)
    y = system(x)
    if case.original is None:
        settings: dict[str, Any] = {"checkpointing": True} if options.checkpointing else {}
        net = create_model(case.model, bands=bands, **settings)
    else:
        net = load_original(case.original, case.model, STAGES.get(case.model))
    half = case.precision == "bfloat16"
    net = net.to(device, memory_format=torch.channels_last if half else torch.preserve_format)
    predict = predictor(net, y, system, case.original is not None)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            estimate = predict()
        loss = (estimate.float() - x).square().mean().sqrt()
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def load_original(file: Path, name: str, stages: int | None) -> nn.Module:
    """Make the authors' network out of their source file.

    Args:
        file: `DAUHST.py` (needs the package einops), `GAP_Net.py` or `ADMM_Net.py`.
        name: our name of the network.
        stages: iterations, for a class that takes them.

    Raises:
        OSError: no such file.
        ValueError: this network cannot be compared.
    """
    if not file.is_file():
        raise FileNotFoundError(f"--original: no file {file}")
    wanted = "DAUHST" if name.startswith("dauhst_") else CLASSES.get(name)
    if wanted is None:
        raise ValueError(f"--original: expected gap_net, admm_net or a dauhst, got {name}")
    if not torch.cuda.is_available():
        # Their code puts tensors on a GPU wherever it makes one.
        stay: Any = lambda self, *_, **__: self  # noqa: E731
        torch.Tensor.cuda = stay  # type: ignore[method-assign]
    specification = importlib.util.spec_from_file_location("original_network", file)
    if specification is None or specification.loader is None:
        raise ValueError(f"--original: expected a Python file, got {file}")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    make = getattr(module, wanted)
    network: nn.Module = make(num_iterations=stages) if wanted == "DAUHST" else make()
    return network


def predictor(net: nn.Module, y: Tensor, system: cassi.SDCassi, original: bool) -> Any:
    """Return a function that runs the network; an original is given y, Φ and Φs."""
    if not original:
        return lambda: net(y, system)
    ones = torch.zeros_like(y).expand(-1, system.bands, -1, -1).clone()
    width = system.mask.shape[-1]
    for band in range(system.bands):
        ones[:, band, :, 2 * band : 2 * band + width] = system.mask[0, 0]
    gram = ones.square().sum(1)
    gram[gram == 0] = 1
    return lambda: net(y[:, 0], (ones, gram))


def operator_share(step: Any, device: str) -> float:
    """Return the part of a step's time that is spent in this package's operators."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(activities=activities) as run:
        step()
    of = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    events = run.key_averages()
    total = sum(getattr(event, of) for event in events)
    ours = sum(getattr(event, of) for event in events if event.key.startswith("cassi"))
    return float(ours / max(total, 1e-9))


def print_table(results: list[Result]) -> None:
    """Print the results, with the ratio to the authors' code where that was timed."""
    base = {r.case.model: r for r in results if r.case.original is not None}
    table = Table("case", "ms per step", "CPU ms", "peak MB", "operator", "× authors")
    for r in results:
        reference = base.get(r.case.model)
        ratio = f"{reference.ms / r.ms:.2f}" if reference else ""
        share = "" if r.case.original else f"{r.operator:.1%}"
        table.print(r.case.name, f"{r.ms:.0f}", f"{r.cpu_ms:.0f}", f"{r.peak_mb:.0f}", share, ratio)


if __name__ == "__main__":
    main()
