"""Time published networks beside their authors' code: one process, the same weights and input.

    python -m scripts.benchmarks.authors saunet_1stg=CLONE lambda_net=CLONE lade_dun_3stg=CLONE
    python -m scripts.benchmarks.authors dauhst_2stg=CLONE mst_s=CLONE --threads 1 --rounds 5

CLONE is a checkout of the repository that docs/reference/networks.md names, whose code is run with
what it imports (einops and timm, for most); `.cuda()` in it does nothing here. Both get the weights
of ours, a random 256×256 mask and a random scene, and take turns; the median of the rounds counts.
`difference` is that of the cubes, as a share of the largest value; a ratio below 1 says that ours
is faster, and bfloat16 is autocast with channels_last.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import cassi
from cassi.models.grid import initial_cube, moved_masks
from cassi.models.load import create_model
from scripts.benchmarks.tables import Parser, Table
from scripts.benchmarks.timing import Candidate, measure

BANDS, STEP, SIZE = 28, 2, 256
Inputs = Callable[[Tensor, Tensor, cassi.SDCassi], tuple[Any, ...]]


@dataclass(frozen=True)
class Authors:
    """Where a network is in its authors' repository, and how it is called there.

    Attributes:
        folder: that is put before the others where modules are looked for.
        module: that has the class.
        cls: the class.
        inputs: what it is given, from y `(1, 1, H, W')`, Φ `(1, C, H, W')` and the camera.
        settings: of the class, by name.
        options: of the class, as attributes of one object.
    """

    folder: str
    module: str
    cls: str
    inputs: Inputs
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] | None = None


def with_norm(y: Tensor, masks: Tensor, camera: cassi.SDCassi) -> tuple[Any, ...]:
    """Return y and (Φ, Σ Φ², its zeros raised to 1)."""
    norm = masks.square().sum(1)
    return y[:, 0], (masks, torch.where(norm == 0, 1, norm))


def with_masks(y: Tensor, masks: Tensor, camera: cassi.SDCassi) -> tuple[Any, ...]:
    """Return y and Φ."""
    return y[:, 0], masks


def scaled(y: Tensor, masks: Tensor, camera: cassi.SDCassi) -> tuple[Any, ...]:
    """Return y·2/C and Φ."""
    return y[:, 0] * 2 / BANDS, masks


def shifted_back(y: Tensor, masks: Tensor, camera: cassi.SDCassi) -> tuple[Any, ...]:
    """Return the windows of y·2/C and Φ."""
    return initial_cube(y, camera), masks


MST = "simulation/test_code"
AUTHORS = {
    "dauhst_2stg": Authors(MST, "architecture.DAUHST", "DAUHST", with_norm, {"num_iterations": 2}),
    "gap_net": Authors(MST, "architecture.GAP_Net", "GAP_net", with_norm),
    "lambda_net": Authors(MST, "architecture.Lambda_Net", "Lambda_Net", with_masks),
    "mst_s": Authors(
        MST,
        "architecture.MST",
        "MST",
        shifted_back,
        {"dim": 28, "stage": 2, "num_blocks": [2, 2, 2]},
    ),
    "saunet_1stg": Authors(
        "model",
        "SAUNet",
        "SAUNet",
        with_norm,
        {"num_iterations": 1, "num_blocks": [1, 1, 3]},
    ),
    "lade_dun_3stg": Authors(
        "train_code_syn",
        "architecture.LADE_DUN_arch",
        "LADE_DUN",
        scaled,
        options={
            "train_phase": 2,
            "test_mode": True,
            "stage": 3,
            "body_share_params": 0,
            "in_dim": 28,
            "out_dim": 28,
            "dim": 28,
            "DW_Expand": 1,
            "FFN_Expand": 2.66,
            "bias": False,
            "LayerNorm_type": "BiasFree",
            "act_fn_name": "gelu",
            "ffn_name": "Gated_Dconv_FeedForward",
            "timesteps": 16,
            "linear_start": 0.1,
            "linear_end": 0.99,
        },
    ),
}


def main(arguments: list[str] | None = None) -> list[tuple[str, float, float, float]]:
    """Time what is named; return difference and both ratios, by name."""
    options = make_parser().parse_args(arguments)
    table = Table("network", "authors ms", "ours ms", "× authors", "bf16 ms", "× authors",
                  "difference")  # fmt: skip
    rows = []
    for name, clone in options.networks:
        rows.append(compare(name, clone, options.rounds, table))
    return rows


def make_parser() -> argparse.ArgumentParser:
    """Describe the options."""

    def network(text: str) -> tuple[str, Path]:
        name, _, clone = text.partition("=")
        if name not in AUTHORS or not clone:
            raise argparse.ArgumentTypeError(
                f"expected NAME=CLONE with NAME one of {', '.join(AUTHORS)}, got {text!r}"
            )
        found = Path(clone) / AUTHORS[name].folder
        if not found.is_dir():
            raise argparse.ArgumentTypeError(f"{clone}: no folder {AUTHORS[name].folder} in it")
        return name, Path(clone)

    parser = Parser(__doc__)
    parser.add_argument("networks", nargs="+", type=network, metavar="NAME=CLONE")
    parser.add_argument("--rounds", type=int, default=3)
    return parser


def stay(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    """Stand in for `Tensor.cuda`, which authors' code calls wherever it is."""
    return tensor


@patch.object(Tensor, "cuda", stay)
@torch.inference_mode()
def compare(name: str, clone: Path, rounds: int, table: Table) -> tuple[str, float, float, float]:
    """Time one network and print its row."""
    torch.manual_seed(0)
    camera = cassi.SDCassi(torch.rand(SIZE, SIZE), bands=BANDS, step=STEP)
    y = camera(torch.rand(1, BANDS, SIZE, SIZE))
    ours = create_model(name, bands=BANDS).eval()
    theirs = load_authors(AUTHORS[name], clone, ours)
    given = AUTHORS[name].inputs(y, moved_masks(y, camera), camera)

    half = create_model(name, bands=BANDS).eval().to(memory_format=torch.channels_last)
    half.load_state_dict(ours.state_dict())

    def run(network: nn.Module, *given: Any, halved: bool = False) -> Tensor:
        torch.manual_seed(0)  # for networks that draw random numbers
        with torch.autocast("cpu", torch.bfloat16, enabled=halved):
            found = network(*given)
        cube: Tensor = found[0] if isinstance(found, tuple | list) else found
        return cube

    runs = {
        "authors": partial(run, theirs, *given),
        "ours": partial(run, ours, y, camera),
        "bf16": partial(run, half, y, camera, halved=True),
    }
    wanted = runs["authors"]()
    difference = float((runs["ours"]() - wanted).abs().max() / wanted.abs().max())
    timings = measure([Candidate(key, call) for key, call in runs.items()], rounds)
    times = {key: timing.ms for key, timing in timings.items()}
    ratios = [times[key] / times["authors"] for key in ("ours", "bf16")]
    table.print(name, f"{times['authors']:.0f}", f"{times['ours']:.0f}", f"{ratios[0]:.2f}",
                f"{times['bf16']:.0f}", f"{ratios[1]:.2f}", f"{difference:.1e}")  # fmt: skip
    return name, difference, ratios[0], ratios[1]


def load_authors(authors: Authors, clone: Path, ours: nn.Module) -> nn.Module:
    """Make the authors' network and give it the weights of ours."""
    for module in [
        m for m in sys.modules if m.partition(".")[0] == authors.module.partition(".")[0]
    ]:
        del sys.modules[module]  # another clone's, of the same name
    sys.path.insert(0, str(clone / authors.folder))
    try:
        make = getattr(importlib.import_module(authors.module), authors.cls)
    finally:
        sys.path.pop(0)
    if authors.options is not None:
        network: nn.Module = make(SimpleNamespace(**authors.options))
    else:
        network = make(**authors.settings)
    missing, unknown = network.load_state_dict(ours.state_dict(), strict=False)
    if unknown or any(key in dict(network.named_parameters()) for key in missing):
        raise SystemExit(f"{authors.cls}: expected our names of weights, differing in {unknown}")
    return network.eval()


if __name__ == "__main__":
    main()
