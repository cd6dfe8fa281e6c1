"""Write networks as ONNX files and compare onnxruntime with torch; print a Markdown table.

    python scripts/benchmarks/export.py [NAME …] [--size 32] [--bands 8] [--threads 1]

One network of each architecture by default. Weights are random, those of seed 0. The difference is
the largest of any voxel; "of" is the largest value of the cube.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import cassi
from cassi.models.export import export_onnx
from cassi.models.registry import list_architectures

REPEATS = 5


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list_architectures())
    parser.add_argument("--size", type=int, default=32, help="height and width of the mask")
    parser.add_argument("--bands", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    print("| network | largest difference | of | torch, ms | onnxruntime, ms | file, MB |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in told.names:
        print(row(name, told.size, told.bands, told.threads), flush=True)


@torch.no_grad()
def row(name: str, size: int, bands: int, threads: int) -> str:
    """Return the line of a network."""
    import onnxruntime

    torch.manual_seed(0)
    network = cassi.create_model(name, bands=bands).eval()
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(size, size, generator=generator) > 0.5).float()
    system = cassi.SDCassi(mask, bands=bands, step=2)
    y = system(torch.rand(1, bands, size, size, generator=generator))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.onnx"
        try:
            export_onnx(network, system, file)
        except RuntimeError as error:
            return f"| `{name}` | not exported: {str(error).splitlines()[0]} | | | | |"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(file, options)
        megabytes = sum(part.stat().st_size for part in Path(folder).iterdir()) / 1e6

    def ours() -> Tensor:
        torch.manual_seed(0)  # for a network that draws random numbers
        x: Tensor = network(y, system)
        return x

    def theirs() -> Tensor:
        return torch.from_numpy(session.run(["x"], {"y": y.numpy()})[0])

    x = ours()
    difference = float((theirs() - x).abs().max())
    times = " | ".join(f"{1000 * best(run):.3g}" for run in (ours, theirs))
    return (
        f"| `{name}` | {difference:.1e} | {float(x.abs().max()):.2f} | {times} | {megabytes:.1f} |"
    )


def best(run: Callable[[], Tensor]) -> float:
    """Return the seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
