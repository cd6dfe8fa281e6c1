"""Put better weights into the package: the gate that every training's result passes, or does not.

    python scripts/release/weights.py outputs/train/NAME/ema.safetensors
    python scripts/release/weights.py outputs/train/NAME/ema.safetensors --replace
    python scripts/release/weights.py FILE --parts instruments --pictures DIR

Compares the weights that the package has, the new ones and the solver that needs no training:

- cameras: PSNR on the validation scenes of CAVE (never the test scenes), through a panel of
  cameras, two of which are digital twins, not what they are taken for. The new weights must be
  better on average and nowhere more than a quarter of a decibel worse than the old;
- kinds: PSNR on scenes of ten kinds (scripts/benchmarks/kinds.py). Where the new weights are more
  than 0.2 dB below the solver, they must be no worse than the old ones;
- instruments: captures of two cameras, of which nobody knows the truth: the error at detector
  pixels held out may not grow by more than 2 %. With --pictures they are drawn, to be looked at.

The new weights replace the old where they pass all three; they are kept in half precision, and
judged so. Needs `$CASSI_DATA`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from safetensors.torch import load_file
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi.apps.reconstructors import store_models
from cassi.config import build
from cassi.data.atomic import atomic_path
from cassi.data.datasets import WholeScenes, load_split
from cassi.data.synthetic.twin import Twin
from cassi.metrics import psnr
from cassi.models.inference import prepare
from cassi.models.load import create_model, read_card, save_model
from cassi.models.pretrained import FILE, load_shipped
from cassi.solvers.heldout import measure_heldout
from cassi.training.module import merge_bands
from cassi.viz import save_rgb
from scripts.benchmarks.captures import load_capture
from scripts.benchmarks.kinds import compare_kinds, read_scenes
from scripts.benchmarks.tables import Table

BETTER, WORSE = 0.02, 0.25
"""dB: on average at least so much better, nowhere more than so much worse."""
BELOW_AUTO = 0.2
"""dB: on a kind of scenes at most so much below the solver, or no worse than the old weights."""
MORE_ERROR = 1.02
"""The error at pixels held out of a capture grows at most by this factor."""
PARTS = ("cameras", "kinds", "instruments")
CAPTURES = (("tsa_real", "scene1"), ("smem", "resolution_target"))


class Case(NamedTuple):
    """A camera of the panel, how noisy it is, and what it really is."""

    name: str
    camera: Callable[[Tensor], Any]
    bands: int = 28
    snr_db: float | None = None
    twin: Twin | None = None


def _twin(name: str) -> Twin:
    """Read a twin of `conf/twin`."""
    with initialize_config_module("cassi.conf", version_base="1.3"):
        values = OmegaConf.to_container(compose("evaluate", overrides=[f"twin={name}"]).twin)
    return Twin(**values)  # type: ignore[arg-type]


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


def make_panel() -> dict[str, Case]:
    """Return the cameras by which weights are judged: `PANEL`, and two twins."""
    twins = {"twin, mask off and blurred": "blurred", "twin, all a little off": "camera"}
    wrong = {name: Case(name, _single(), twin=_twin(twin)) for name, twin in twins.items()}
    return PANEL | wrong


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
    if case.twin is not None:
        frame = case.twin.measure(truth, system, torch.Generator().manual_seed(seed))
        known = case.twin.true_camera(system)
        y, system = frame - known.dark, system.weighted(bad_pixels=known.bad)
    return truth, y, system


def reconstructors(paths: list[Path]) -> Iterator[tuple[str, Any]]:
    """Yield a name and `(y, system) -> x` for each column of the table."""
    config = compose("reconstruct", overrides=["experiment=auto"])
    yield "auto", build(config.solver)
    for path in paths:
        name = "shipped" if path == FILE else path.parent.name
        net = load_shipped(path, "large")
        if path != FILE:
            net.half().float()  # as they would be shipped
        yield name, prepare(net, True, "32-true")


def fits(path: Path) -> bool:
    """Tell whether a file's weights are those of the network as it is now."""
    card = read_card(path)
    wanted = create_model(card.name, bands=card.bands, **card.settings).state_dict()
    return {k: v.shape for k, v in load_file(path).items()} == {
        k: v.shape for k, v in wanted.items()
    }


def judge_cameras(
    panel: dict[str, Case], methods: dict[str, Any], root: str
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Print the PSNR of every camera; return it, and what speaks against the last method."""
    with initialize_config_module("cassi.conf", version_base="1.3"):
        scenes, mask = load_scenes(root), cassi.read_mask(Path(root) / "tsa" / "mask.mat")
    table: dict[str, dict[str, float]] = {}
    printed = Table("camera", *methods)
    for case in panel.values():
        problems = [measure(case, cube, mask, k) for k, cube in enumerate(scenes)]
        scores = {
            name: mean(float(psnr(run(y, s), x).mean()) for x, y, s in problems)
            for name, run in methods.items()
        }
        table[case.name] = scores
        printed.print(case.name, *(f"{value:.2f}" for value in scores.values()))
    means = {n: mean(scores[n] for scores in table.values()) for n in methods}
    printed.print("mean of the panel", *(f"{value:.2f}" for value in means.values()))
    *_, new = methods
    if "shipped" not in methods:
        return table, []
    gains = {camera: scores[new] - scores["shipped"] for camera, scores in table.items()}
    worst, gain = min(gains, key=lambda name: gains[name]), means[new] - means["shipped"]
    if gain >= BETTER and gains[worst] >= -WORSE:
        return table, []
    return table, [f"{gain:+.2f} dB on average, {worst} {gains[worst]:+.2f} dB"]


def judge_kinds(methods: dict[str, Any], root: str) -> list[str]:
    """Print the PSNR of every kind of scenes; return what speaks against the last method."""
    found, (*_, new) = compare_kinds(methods, read_scenes(root)), methods
    return [
        f"{kind}: {scores[new] - scores['auto']:+.2f} dB beside auto"
        for kind, scores in found.items()
        if scores[new] < min(scores["auto"] - BELOW_AUTO, scores.get("shipped", torch.inf))
    ]


def judge_instruments(methods: dict[str, Any], pictures: Path | None) -> list[str]:
    """Print the errors at pixels held out; return what speaks against the last method."""
    printed, faults, (*_, new) = Table("capture", *methods), [], methods
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    for camera, name in CAPTURES:
        y, system, wavelengths = load_capture(camera, name)
        errors = {key: measure_heldout(y, system, run).error for key, run in methods.items()}
        printed.print(f"{camera} {name}", *(f"{error:.4f}" for error in errors.values()))
        if errors[new] > MORE_ERROR * errors.get("shipped", torch.inf):
            faults.append(f"{camera} {name}: error at pixels held out {errors[new]:.4f}")
        if pictures is None:
            continue
        for key, run in methods.items():
            picture = pictures / f"{camera}_{name}_{key}.png"
            save_rgb(picture, run.run(y, system).x[0], wavelengths)
    return faults


def main() -> None:
    """Print the table; replace the weights where asked and better."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path, help="a file that cassi-train exported")
    parser.add_argument("--replace", action="store_true", help="ship them where they are better")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of the captures")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    root = os.environ.get("CASSI_DATA")
    if root is None:
        raise SystemExit("set CASSI_DATA to the folder that holds cave_raw and tsa")
    if arguments.replace and len(set(arguments.parts)) < len(PARTS):
        raise SystemExit("--replace: expected all parts of the gate")
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    old = [FILE] if FILE.is_file() and fits(FILE) else []
    store_models()
    with initialize_config_module("cassi.conf", version_base="1.3"):
        methods = dict(reconstructors([*old, arguments.weights]))
    *_, new = methods
    table: dict[str, dict[str, float]] = {}
    faults: list[str] = []
    if "cameras" in arguments.parts:
        table, faults = judge_cameras(make_panel(), methods, root)
    if "kinds" in arguments.parts:
        faults += judge_kinds(methods, root)
    if "instruments" in arguments.parts:
        faults += judge_instruments(methods, arguments.pictures)
    if faults:
        print("not better:", *faults, sep="\n  ")
        sys.exit(1)
    if arguments.replace:
        card = read_card(arguments.weights)
        scores = {name: round(scores[new], 2) for name, scores in table.items()}
        training = {**card.training, "validation_psnr": scores}
        FILE.parent.mkdir(exist_ok=True)
        with atomic_path(FILE) as temporary:
            halves = {key: value.half() for key, value in load_file(arguments.weights).items()}
            save_model(temporary, halves, replace(card, training=training))
        print(f"{arguments.weights} -> {FILE}, {FILE.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
