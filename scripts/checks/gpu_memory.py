"""Print the peak memory of the GPU in the calls that matter, MiB beyond what was there before.

python scripts/checks/gpu_memory.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from scripts.benchmarks.tables import Table

MIB = 1 << 20


def measure(call: Callable[[], object], device: torch.device) -> float:
    """Return what a call took at its peak, its results included."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / MIB


def main() -> None:
    """Measure at 28×256×256, step 2."""
    if not torch.cuda.is_available():
        raise SystemExit("expected a CUDA device, torch finds none")
    device = torch.device("cuda")
    system = cassi.SDCassi((torch.rand(256, 256) > 0.5).float(), bands=28, step=2).to(device)
    table = Table("28×256×256", "batch", "cube MiB", "peak MiB")
    for batch in (1, 16):
        x = torch.rand(batch, *system.cube_shape, device=device)
        y = system(x)

        def step(v: torch.Tensor, y: torch.Tensor) -> None:
            system.data_step(v.requires_grad_(), y, 0.1).sum().backward()

        calls: dict[str, Callable[[], object]] = {
            "forward": partial(system, x),
            "data step": partial(system.data_step, x, y, 0.1),
            "data step, gradient": partial(step, x.clone(), y),
        }
        if batch == 1:
            calls["reconstruct, gap_tv"] = partial(cassi.reconstruct, y, system, method="gap_tv")
            calls["reconstruct, pretrained"] = partial(cassi.reconstruct, y, system, "pretrained")
        for name, call in calls.items():
            call()  # once before: libraries take memory of their own
            cube = x.numel() * x.element_size() / MIB
            table.print(name, batch, f"{cube:.0f}", f"{measure(call, device):.0f}")


if __name__ == "__main__":
    main()
