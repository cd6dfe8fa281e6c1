"""Time published networks beside their authors' code: one process, the same weights and input.

    python -m scripts.benchmarks.authors saunet_1stg=CLONE lambda_net=CLONE lade_dun_3stg=CLONE

CLONE is a checkout of the authors' repository, which docs/reference/networks.md names. Its code is
executed, so the packages that it imports must be installed (for most, einops and timm).
`Tensor.cuda` is replaced by a function that does nothing, so the authors' network stays on the CPU.
Both networks get the weights of ours, a random 256×256 mask and a random scene, and are timed one
after the other. `difference` is the largest difference of the two cubes, relative to the largest
value of the authors' cube. `× authors` is our time over theirs: below 1, our network is faster.
bf16 is our network in bfloat16 by autocast, with channels_last.
"""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

import cassi
from cassi.models.camera_adapters import sheared_masks
from cassi.models.load import create_model
from scripts.benchmarks.tables import Parser, Table, time_calls

BANDS, STEP, SIZE = 28, 2, 256
Row = tuple[str, float, float, float]
Inputs = Callable[[Tensor, Tensor, cassi.SDCassi], tuple[Any, ...]]


class Authors(NamedTuple):
    """A network in its authors' repository, and how to make and call it.

    Attributes:
        folder: folder of the repository that goes to the front of the search path of modules.
        module: name of the module with the class.
        cls: name of the class.
        inputs: returns the arguments of a call, from y `(1, 1, H, W')`, Φ `(1, C, H, W')` and the
            camera.
        make: makes the network from the class.
    """

    folder: str
    module: str
    cls: str
    inputs: Inputs
    make: Callable[[Any], nn.Module]


def with_norm(y: Tensor, masks: Tensor, camera: cassi.SDCassi) -> tuple[Any, ...]:
    """Return y and (Φ, Σ_c Φ²). The sum is a divisor, so its zeros become 1."""
    norm = masks.square().sum(1)
    return y[:, 0], (masks, torch.where(norm == 0, 1, norm))


def with_masks(y: Tensor, masks: Tensor, camera: cassi.SDCassi) -> tuple[Any, ...]:
    """Return y and Φ."""
    return y[:, 0], masks


def with_scale(y: Tensor, masks: Tensor, camera: cassi.SDCassi) -> tuple[Any, ...]:
    """Return y·2/C and Φ."""
    return y[:, 0] * 2 / BANDS, masks


LADE_DUN = {
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
}
AUTHORS = {
    "lambda_net": Authors(
        "simulation/test_code",
        "architecture.Lambda_Net",
        "Lambda_Net",
        with_masks,
        lambda network: network(),
    ),
    "saunet_1stg": Authors(
        "model",
        "SAUNet",
        "SAUNet",
        with_norm,
        lambda network: network(num_iterations=1, num_blocks=[1, 1, 3]),
    ),
    "lade_dun_3stg": Authors(
        "train_code_syn",
        "architecture.LADE_DUN_arch",
        "LADE_DUN",
        with_scale,
        lambda network: network(SimpleNamespace(**LADE_DUN)),
    ),
}


def main(arguments: list[str] | None = None) -> list[Row]:
    """Time the networks of the command line; return the name, difference and ratios of each."""
    parser = Parser(__doc__)
    parser.add_argument("networks", nargs="+", metavar="NAME=CLONE")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each network")
    options = parser.parse_args(arguments)
    pairs = [text.partition("=")[::2] for text in options.networks]
    for name, clone in pairs:
        if name not in AUTHORS or not (Path(clone) / AUTHORS[name].folder).is_dir():
            parser.error(
                f"expected a name of {', '.join(AUTHORS)} and its clone, got {name}={clone}"
            )
    table = Table("network", "authors ms", "ours ms", "× authors", "bf16 ms", "× authors",
                  "difference")  # fmt: skip
    return [compare(name, Path(clone), options.seconds, table) for name, clone in pairs]


def stay_on_cpu(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return the tensor. This replaces `Tensor.cuda`, which the authors' code calls anywhere."""
    return tensor


@patch.object(Tensor, "cuda", stay_on_cpu)
@torch.inference_mode()
def compare(name: str, clone: Path, seconds: float, table: Table) -> Row:
    """Time one network and print its row."""
    torch.manual_seed(0)
    camera = cassi.SDCassi(torch.rand(SIZE, SIZE), bands=BANDS, step=STEP)
    y = camera(torch.rand(1, BANDS, SIZE, SIZE))
    ours = create_model(name, bands=BANDS).eval()
    theirs = load_authors(AUTHORS[name], clone, ours)
    their_inputs = AUTHORS[name].inputs(y, sheared_masks(y, camera), camera)

    half = create_model(name, bands=BANDS).eval().to(memory_format=torch.channels_last)
    half.load_state_dict(ours.state_dict())

    def run(network: nn.Module, *inputs: Any, use_bfloat16: bool = False) -> Tensor:
        # Some networks draw random numbers. Both networks must draw the same numbers.
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=use_bfloat16):
            output = network(*inputs)
        cube: Tensor = output[0] if isinstance(output, tuple | list) else output
        return cube

    runs = {
        "authors": partial(run, theirs, *their_inputs),
        "ours": partial(run, ours, y, camera),
        "bf16": partial(run, half, y, camera, use_bfloat16=True),
    }
    expected = runs["authors"]()
    difference = float((runs["ours"]() - expected).abs().max() / expected.abs().max())
    times = time_calls(runs, seconds)
    ratios = [times[key] / times["authors"] for key in ("ours", "bf16")]
    cells = (times["authors"], times["ours"], ratios[0], times["bf16"], ratios[1])
    table.print(name, *cells, difference)
    return name, difference, ratios[0], ratios[1]


def load_authors(authors: Authors, clone: Path, ours: nn.Module) -> nn.Module:
    """Make the authors' network and give it the weights of ours."""
    # Several repositories have a package of the same name. If its modules stayed loaded, the next
    # network would be made from the modules of the repository before.
    package = authors.module.partition(".")[0]
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[module]
    sys.path.insert(0, str(clone / authors.folder))
    try:
        cls = getattr(importlib.import_module(authors.module), authors.cls)
    finally:
        sys.path.pop(0)
    network = authors.make(cls)
    missing, unknown = network.load_state_dict(ours.state_dict(), strict=False)
    if unknown or any(key in dict(network.named_parameters()) for key in missing):
        raise SystemExit(
            f"{authors.cls}: expected the names of our weights, got none for {unknown}; "
            f"further names: {missing}"
        )
    return network.eval()


if __name__ == "__main__":
    main()
