"""Time methods on a device, and see how long it waits for the host; print a Markdown table.

    python -m scripts.benchmarks.trace --device cuda [--size 256] [--batches 1 16] [--trace FOLDER]

Methods are the default and the network of the package, in both sizes, on the bundled scene, whose
measurement is simulated. `busy` is the share of the time that kernels take, by torch's profiler.
With --trace its trace is written for every method, for chrome://tracing or ui.perfetto.dev.
"""

import gzip
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import cassi
from cassi.data.bundled import bundled_path
from cassi.data.io import load_cube
from cassi.metrics import psnr
from scripts.benchmarks.tables import Parser, Table

REPEATS = 3


def main() -> None:
    """Print a row for each method and batch."""
    parser = Parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, help="256, or 64 on a CPU")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--trace", type=Path, metavar="FOLDER")
    told = parser.parse_args()
    device = torch.device(told.device)
    size = told.size or (64 if device.type == "cpu" else 256)
    truth = load_cube(bundled_path("scene.tif")).data[..., :size, :size].to(device)
    mask = cassi.read_mask(str(bundled_path("mask.tif")))[..., :size, :size]
    system = cassi.SDCassi(mask, bands=truth.shape[1], step=2).to(device)
    methods: dict[str, Callable[..., Any]] = {
        "auto": cassi.methods.auto(),
        **{
            f"pretrained, {name}": cassi.create_model("pretrained", size=name).to(device)
            for name in ("small", "large")
        },
    }
    table = Table("method", "batch", "s", "frames/s", "busy %", "PSNR, dB")
    for name, method in methods.items():
        for batch in told.batches:
            x = truth.expand(batch, -1, -1, -1).contiguous()
            y = system(x)
            found = method(y, system)
            seconds = min(_seconds(lambda: method(y, system), device) for _ in range(REPEATS))  # noqa: B023
            file = None if told.trace is None else told.trace / f"{name}-{batch}.json"
            busy = _busy(lambda: method(y, system), device, file)  # noqa: B023
            cells = f"{seconds:.3g}", f"{batch / seconds:.3g}", f"{100 * busy:.0f}"
            table.print(name, batch, *cells, f"{float(psnr(found, x).mean()):.2f}")


def _seconds(run: Callable[[], Tensor], device: torch.device) -> float:
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _busy(run: Callable[[], Tensor], device: torch.device, file: Path | None) -> float:
    """Return the share of the time that the device computes; write a trace."""
    on_gpu = device.type == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=kinds) as found:
        seconds = _seconds(run, device)
    # Of a GPU, kernels alone: the operations that launched them are told the same times.
    kind, name = (
        (DeviceType.CUDA, "self_device_time_total")
        if on_gpu
        else (DeviceType.CPU, "self_cpu_time_total")
    )
    events = [event for event in found.key_averages() if event.device_type == kind]
    busy = sum(getattr(event, name) for event in events) / 1e6
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(file))
        with file.open("rb") as plain, gzip.open(f"{file}.gz", "wb") as packed:
            shutil.copyfileobj(plain, packed)
        file.unlink()
    return min(1.0, busy / seconds)


if __name__ == "__main__":
    main()
