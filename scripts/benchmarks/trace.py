"""Time methods on a device, and see how long it waits for the host; print a Markdown table.

    python -m scripts.benchmarks.trace --device cuda [--size 256] [--batches 1 16] [--longest 20]
        [--trace FOLDER]

Methods are the default and the network of the package, in both sizes, on the bundled scene, whose
measurement is simulated. `busy` is the share of the time that kernels take, by torch's profiler.
With --longest the kernels that took most time follow each row, then the two kernels between which
the device idled longest. With --trace its trace is written for every method, for ui.perfetto.dev.
"""

import gzip
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
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
    parser.add_argument(
        "--longest", type=int, default=0, help="how many kernels, and pauses, to list"
    )
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
            used = _profile(lambda: method(y, system), device)  # noqa: B023
            cells = f"{seconds:.3g}", f"{batch / seconds:.3g}", f"{100 * _busy(used, device):.0f}"
            table.print(name, batch, *cells, f"{float(psnr(found, x).mean()):.2f}")
            for line in _longest(used, device, told.longest):
                print(line)
            if told.trace is not None:
                _write(used, told.trace / f"{name}-{batch}.json.gz")


def _seconds(run: Callable[[], Tensor], device: torch.device) -> float:
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _profile(run: Callable[[], Tensor], device: torch.device) -> profile:
    on_gpu = device.type == "cuda"
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    ) as used:
        _seconds(run, device)
    return used


def _spans(used: profile, device: torch.device) -> list[tuple[float, float, str]]:
    """Return when kernels began and ended, in µs, and their names, by their beginning."""
    # Of a GPU, kernels alone: the operations that launched them are told the same times.
    kind = DeviceType.CUDA if device.type == "cuda" else DeviceType.CPU
    spans = [
        (each.time_range.start, each.time_range.end, each.name)
        for each in used.events() or ()
        if each.device_type == kind and (kind == DeviceType.CUDA or each.cpu_parent is None)
    ]
    return sorted(spans)


def _pauses(spans: list[tuple[float, float, str]]) -> Iterator[tuple[float, str]]:
    """Yield how long nothing ran, in µs, and the kernels before and after."""
    for (_, end, name), (begin, _, following) in pairwise(spans):
        if begin > end:
            yield begin - end, f"{name[:60]} … {following[:60]}"


def _busy(used: profile, device: torch.device) -> float:
    """Return the share of the time, from the first kernel to the last one, that is no pause."""
    spans = _spans(used, device)
    return 1 - sum(each for each, _ in _pauses(spans)) / (spans[-1][1] - spans[0][0])


def _longest(used: profile, device: torch.device, most: int) -> Iterator[str]:
    """Yield lines of ms, number and name: `most` kernels, then `most` pauses."""
    spans = _spans(used, device)
    kernels = [(end - begin, name) for begin, end, name in spans]
    for what, times in ("runs", kernels), ("idles", list(_pauses(spans))):
        sums: defaultdict[str, list[float]] = defaultdict(list)
        for each, name in times:
            sums[name].append(each / 1e3)
        for name, all_of_it in sorted(sums.items(), key=lambda item: -sum(item[1]))[:most]:
            yield f"    {what} {sum(all_of_it):8.2f} ms in {len(all_of_it):5d}: {name[:121]}"


def _write(used: profile, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    plain = file.with_suffix("")
    used.export_chrome_trace(str(plain))
    with plain.open("rb") as source, gzip.open(file, "wb") as packed:
        shutil.copyfileobj(source, packed)
    plain.unlink()


if __name__ == "__main__":
    main()
