"""Put better weights into the package: the gate that every training's result passes, or does not.

    python scripts/release/weights.py outputs/train/NAME/ema.safetensors
    python scripts/release/weights.py outputs/train/NAME/ema.safetensors --replace

Reconstructs the validation scenes of CAVE (never the test scenes) through a panel of cameras, by
the weights that the package has, by the new ones, and by the solver that needs no training, and
prints the PSNR of each. The new ones replace the old where they are better on average and nowhere
more than a quarter of a decibel worse. Needs `$CASSI_DATA`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra import compose, initialize_config_module
from safetensors.torch import load_file
from torch import Tensor

import cassi
from cassi.apps.reconstructors import store_models
from cassi.config import build
from cassi.data.atomic import atomic_path
from cassi.data.datasets import WholeScenes, load_split
from cassi.metrics import psnr
from cassi.models.inference import prepare
from cassi.models.load import create_model, read_card, save_model
from cassi.models.pretrained import FILE, SIZES, load_shipped
from cassi.training.module import merge_bands

BETTER, WORSE = 0.02, 0.25
"""dB: on average at least so much better, nowhere more than so much worse."""


class Case(NamedTuple):
    """A camera of the panel and how noisy it is."""

    name: str
    camera: Callable[[Tensor], Any]
    bands: int = 28
    snr_db: float | None = None


def _random(density: float, seed: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(256, 256, generator=generator) < density).float()


def _grey() -> Tensor:
    return torch.rand(256, 256, generator=torch.Generator().manual_seed(8))


def _single(bands: int = 28, step: int = 2, **more: Any) -> Callable[[Tensor], Any]:
    return lambda mask: cassi.SDCassi(mask, bands, step, **more)


PANEL = {
    case.name: case
    for case in (
        Case("TSA mask", _single()),
        Case("TSA mask, 30 dB", _single(), snr_db=30),
        Case("TSA mask, 20 dB", _single(), snr_db=20),
        Case("binary mask", lambda _: _single()(_random(0.5))),
        Case("binary mask, 30 dB", lambda _: _single()(_random(0.5)), snr_db=30),
        Case("binary, 20 % open", lambda _: _single()(_random(0.2))),
        Case("grey mask", lambda _: _single()(_grey())),
        Case("step 1", _single(step=1)),
        Case("step -3", _single(step=-3)),
        Case("rows, binary", lambda _: _single(step=1, axis=-2)(_random(0.5))),
        Case("16 bands", _single(16), bands=16),
        Case("8 bands, binary", lambda _: _single(8)(_random(0.5)), bands=8),
        Case("4 bands", _single(4), bands=4),
    )
}
MORE = {
    case.name: case
    for case in (
        Case("dual disperser", lambda _: cassi.DDCassi(_random(0.5), 28, 2)),
        Case(
            "two shots",
            lambda _: _single()(torch.stack((_random(0.5, 1), _random(0.5, 2)))[:, None]),
        ),
        Case("blurred", lambda m: cassi.BlurredCassi(m, 28, 2, line_spread=0.8, point_spread=0.6)),
    )
}
"""Cameras that the network was never trained on, to see how far it goes: `--more`."""


def load_scenes(root: str) -> list[Tensor]:
    """Read the validation scenes as training sees them: (1, 28, 256, 256) each."""
    wavelengths = compose("train", overrides=["data=cave"]).data.wavelengths
    scenes = load_split(root, "validation", manifest="cave", wavelengths=list(wavelengths))
    whole = WholeScenes(scenes, downsample=2)
    return [whole[k][None] for k in range(len(whole))]


def measure(case: Case, cube: Tensor, mask: Tensor, seed: int) -> tuple[Tensor, Tensor, Any]:
    """Return the truth, its measurement and the camera."""
    truth, system = merge_bands(cube, case.bands), case.camera(mask)
    y = system(truth)
    if case.snr_db is not None:
        noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
        y = y + noise * y.square().mean().sqrt() * 10 ** (-case.snr_db / 20)
    return truth, y, system


def reconstructors(paths: list[Path], arguments: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield a name and `(y, system) -> x` for each column of the table."""
    config = compose("reconstruct", overrides=["experiment=auto"])
    if not arguments.no_auto:
        yield "auto", build(config.solver, prior=build(config.prior))
    for path in paths:
        name = "shipped" if path == FILE else path.parent.name
        net = load_shipped(path, arguments.size)
        yield name, prepare(net, not arguments.raw, arguments.precision)


def fits(path: Path) -> bool:
    """Tell whether a file's weights are those of the network as it is now."""
    card = read_card(path)
    wanted = create_model(card.name, bands=card.bands, **card.settings).state_dict()
    return {k: v.shape for k, v in load_file(path).items()} == {
        k: v.shape for k, v in wanted.items()
    }


def main() -> None:
    """Print the table; replace the weights where asked and better."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path, help="a file that cassi-train exported")
    parser.add_argument("--replace", action="store_true", help="ship them where they are better")
    parser.add_argument("--more", action="store_true", help="show further kinds of cameras")
    parser.add_argument("--size", choices=sorted(SIZES), default="large")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--raw", action="store_true", help="without refinement")
    parser.add_argument("--no-auto", action="store_true", help="leave out the solver")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    root = os.environ.get("CASSI_DATA")
    if root is None:
        raise SystemExit("set CASSI_DATA to the folder that holds cave_raw and tsa")
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    old = [FILE] if FILE.is_file() and fits(FILE) else []
    store_models()
    table: dict[str, dict[str, float]] = {}
    panel = PANEL | MORE if arguments.more else PANEL
    with initialize_config_module("cassi.conf", version_base="1.3"):
        methods = dict(reconstructors([*old, arguments.weights], arguments))
        scenes, mask = load_scenes(root), cassi.read_mask(Path(root) / "tsa" / "mask.mat")
    print(f"| camera | {' | '.join(methods)} |\n|---|{'---|' * len(methods)}")
    for case in panel.values():
        problems = [measure(case, cube, mask, k) for k, cube in enumerate(scenes)]
        scores = {
            name: sum(float(psnr(run(y, s), x).mean()) for x, y, s in problems) / len(problems)
            for name, run in methods.items()
        }
        table[case.name] = scores
        print(f"| {case.name} | {' | '.join(f'{v:.2f}' for v in scores.values())} |", flush=True)
    means = {n: sum(table[c][n] for c in PANEL) / len(PANEL) for n in methods}
    print(f"| mean of the panel | {' | '.join(f'{v:.2f}' for v in means.values())} |")
    *_, new = methods
    if old:
        losses = {c: table[c]["shipped"] - table[c][new] for c in PANEL}
        if means[new] < means["shipped"] + BETTER or max(losses.values()) > WORSE:
            worst = max(losses, key=lambda name: losses[name])
            gain = means[new] - means["shipped"]
            print(f"not better: {gain:+.2f} dB on average, {worst} {-losses[worst]:+.2f} dB")
            sys.exit(1)
    if arguments.replace:
        card = read_card(arguments.weights)
        scores = {name: round(table[name][new], 2) for name in PANEL}
        training = {**card.training, "validation_psnr": scores}
        FILE.parent.mkdir(exist_ok=True)
        with atomic_path(FILE) as temporary:
            save_model(temporary, load_file(arguments.weights), replace(card, training=training))
        print(f"{arguments.weights} -> {FILE}, {FILE.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
