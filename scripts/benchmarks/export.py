"""Write networks as files that run without this package, and compare; print a Markdown table.

    python scripts/benchmarks/export.py [NAME …] [--size 32] [--bands 8] [--threads 1]
    python scripts/benchmarks/export.py dauhst_2stg --format aotinductor --size 256 --bands 28

One network of each architecture by default. Weights are random, those of seed 0. The difference is
the largest of any voxel; "of" is the largest value of the cube.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cassi
from cassi.apps.export import best, write_file
from cassi.apps.settings.commands import EXPORTS
from cassi.models.registry import list_architectures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list_architectures())
    parser.add_argument("--size", type=int, default=32, help="height and width of the mask")
    parser.add_argument("--bands", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--format", default="onnx", choices=EXPORTS)
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    print(f"| network | largest difference | of | torch, ms | {told.format}, ms | file, MB |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in told.names:
        print(row(name, told.format, told.size, told.bands), flush=True)


@torch.no_grad()
def row(name: str, format: str, size: int, bands: int) -> str:
    """Return the line of a network."""
    torch.manual_seed(0)
    settings: dict[str, Any] = (
        {"size": "small", "precision": "32-true"} if name == "pretrained" else {}
    )
    network = cassi.create_model(name, bands=bands, **settings).eval()
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(size, size, generator=generator) > 0.5).float()
    system = cassi.SDCassi(mask, bands=bands, step=2)
    y = system(torch.rand(1, bands, size, size, generator=generator))
    with tempfile.TemporaryDirectory() as folder:
        suffix = "onnx" if format == "onnx" else "pt2"
        try:
            theirs = write_file(format, network, system, y, Path(folder) / f"network.{suffix}", {})
        except ValueError as error:
            return f"| `{name}` | not exported: {str(error).splitlines()[0]} | | | | |"
        megabytes = sum(part.stat().st_size for part in Path(folder).iterdir()) / 1e6

    def ours() -> Tensor:
        torch.manual_seed(0)  # for a network that draws random numbers
        x: Tensor = network(y, system)
        return x

    x = ours()
    difference = float((theirs() - x).abs().max())
    times = " | ".join(f"{1000 * best(run):.3g}" for run in (ours, theirs))
    return (
        f"| `{name}` | {difference:.1e} | {float(x.abs().max()):.2f} | {times} | {megabytes:.1f} |"
    )


if __name__ == "__main__":
    main()
