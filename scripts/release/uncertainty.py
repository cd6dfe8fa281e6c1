"""Calibrate error bars: gather errors of methods on scenes with a truth, fit what predicts them.

    python -m scripts.release.uncertainty gather OUT [--seconds 200]  # again until it says "whole"
    python -m scripts.release.uncertainty fit OUT [--write]
    python -m scripts.release.uncertainty scale [--write]

`gather` reconstructs the 20 training scenes of CAVE (`$CASSI_DATA`), 256 pixels wide, through
several masks, numbers of bands, steps, noises and cameras that are a fraction of a pixel off, and
keeps truth, cube and evidence of each as a file in OUT. `fit` trains the regression in five folds
of scenes, prints what its intervals hold of the scenes that each fold has not seen, takes the
factors from these, and trains once more with all; `--write` puts it into the package. Both again
when a method, or the weights of `pretrained`, change, into an empty folder.

`scale` is enough for a small change. It measures the frames of the validation scenes that the gate
tests (scripts/release/weights.py), by `auto` and by `pretrained`: the regression has not seen these
scenes. It prints what 90 % intervals hold of each, and the factor with which the least and the most
are equally far from the bounds of the gate; `--write` multiplies all σ by it.
"""

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.optimize import brentq
from torch import Tensor
from torch.nn.functional import avg_pool2d

import cassi
from cassi.apps.reconstructors import Recipe, compose_settings, settings_of, understand
from cassi.config import build
from cassi.evaluation import Twin
from cassi.solvers.statistics import Statistics, signal_level
from cassi.uncertainty import estimate
from cassi.uncertainty.bootstrap import BootstrapResult, Trial, bootstrap
from cassi.uncertainty.error_model import (
    FILE,
    GROUPS,
    LEVELS,
    NORMAL,
    REGIONS,
    ErrorModel,
    load_error_model,
)
from cassi.uncertainty.features import BRIGHTNESS, NAMES, TEXTURE, Features
from cassi.uncertainty.regions import shifted_errors
from scripts.benchmarks.kinds import PANEL
from scripts.benchmarks.tables import Table
from scripts.docs.figures import format_fractions
from scripts.release.weights import BARS, EACH

METHODS = ("auto", "pretrained", "gap_tv")
TABLE, SHIFTED, NOISY, BINARY, NARROW, FULL, ANY, ANY_SHIFTED = range(8)
KINDS = {
    TABLE: "nominal",
    SHIFTED: "mask moved",
    NOISY: "noise",
    BINARY: "binary mask",
    NARROW: "15 bands, step -1",
    FULL: "full resolution",
    ANY: "any camera",
    ANY_SHIFTED: "any, mask moved",
}
"""What cameras and noises are like: that of the published tables first."""
SIDE, LEAST = 256, 96
"""Columns of a frame; and lines that one of any camera has at least."""
LINES = {"auto": SIDE, "pretrained": SIDE // 2, "gap_tv": SIDE}
"""Of a frame: what `auto` finds depends on how much of the scene it sees, a network hardly."""
FOLDS = 5
EDGES = (0.001, 0.999)
"""Shares of the values below the range of a feature, and inside or below."""
PLACES = 2
"""Of each size, in every third reconstruction, at which means over regions are compared."""
SAMPLES, BANDS = 6000, 10
"""Values of each reconstruction that the regression is trained with, and of how many bands."""
DEGREES = 4.0
"""Of freedom of Student's t distribution that errors are taken to have: their tails are heavy."""


@dataclass(frozen=True)
class Case:
    """A reconstruction with its truth and evidence."""

    path: Path
    scene: str
    method: str
    kind: int
    truth: Tensor
    evidence: BootstrapResult
    system: cassi.SDCassi
    level: float


def main() -> None:
    """Gather, or fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("gather", "fit", "scale"))
    parser.add_argument("folder", type=Path, nargs="?", help="of gathered cases")
    parser.add_argument("--seconds", type=float, default=math.inf, help="then gather pauses")
    parser.add_argument("--methods", nargs="*", default=METHODS, help="that gather runs")
    parser.add_argument("--write", action="store_true", help="into the package")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "scale":
        scale(options.write)
    elif options.folder is None:
        parser.error(f"{options.what}: name a folder")
    elif options.what == "fit":
        fit(options.folder, options.epochs, options.write)
    else:
        options.folder.mkdir(parents=True, exist_ok=True)
        sys.exit(0 if gather_all(options.folder, options.methods, options.seconds) else 3)


def gather_all(folder: Path, methods: Sequence[str], seconds: float) -> bool:
    """Reconstruct what is not there yet; return whether all is."""
    began, scenes, made = time.perf_counter(), Scenes(), {}
    for index, kind, method in itertools.product(range(len(scenes)), KINDS, methods):
        path = folder / f"{method}_{kind}_{index:02d}.pt"
        if path.exists() or not is_chosen(method, kind, index):
            continue
        if time.perf_counter() - began > seconds:
            return False
        truth, y, system = scenes.problem(index, kind, LINES[method])
        key = (method, system.bands)
        if key not in made:
            recipe = Recipe(settings_of(understand(method)), y.device)
            made[key] = recipe.make(system.bands)[0]
        trial = Trial(y, system, made[key], Statistics(lambda y=y, s=system: [(y, s)]))  # type: ignore[misc]
        x = trial.run(y, system).x
        found, level = bootstrap(trial, x), float(signal_level(y, system))
        _write(Case(path, scenes.names[index], method, kind, truth, found, system, level))
        print(path.name, scenes.names[index], float((x - truth).square().mean().sqrt()), flush=True)
    print("whole")
    return True


def is_chosen(method: str, kind: int, index: int) -> bool:
    """Tell whether a scene is reconstructed by a method through a kind of camera."""
    every = {
        "auto": (1, 3, 4, 4, 4, 5, 5, 5),
        "pretrained": (6, 6, 12, 12, 12, 12, 12, 12),
        "gap_tv": (12,) * len(KINDS),
    }
    return (index + kind + METHODS.index(method)) % every[method][kind] == 0


class Scenes:
    """The training scenes of CAVE, and problems made of them."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["CASSI_DATA"])
        self.names = sorted(path.stem for path in (self.folder / "cave_train").glob("*.tif"))
        self.mask = cassi.read_mask(self.folder / "tsa" / "mask.mat")

    def __len__(self) -> int:
        return len(self.names)

    def problem(self, index: int, kind: int, lines: int) -> tuple[Tensor, Tensor, cassi.SDCassi]:
        """Return truth, measurement and the camera that is told, all drawn from the numbers."""
        random = torch.Generator().manual_seed(1000 * kind + index)

        def real(low: float, high: float) -> float:
            return float(low + (high - low) * torch.rand((), generator=random))

        def whole(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=random))

        name, free = self.names[index], kind in (ANY, ANY_SHIFTED)
        cube = cassi.read_cube(self.folder / "cave_train" / f"{name}.tif")
        cube = avg_pool2d(cube, 1 if kind == FULL else whole(1, 3) if free else 2)
        height = whole(LEAST, lines) if free else lines
        height, width = min(cube.shape[-2], height), min(cube.shape[-1], SIDE)
        top, left = whole(0, cube.shape[-2] - height), whole(0, cube.shape[-1] - width)
        truth = cube[..., top : top + height, left : left + width].contiguous()
        drawn = "binary" if kind == BINARY else "tsa"
        bands, step = (15, -1) if kind == NARROW else (28, 2)
        noise: str | None = None
        shift = None
        if kind == NOISY:
            noise = "white 30" if whole(0, 1) else "shot"
        if kind in (FULL, ANY, ANY_SHIFTED):
            drawn = ("tsa", "binary", "grey")[whole(0, 2)]
            bands, step = whole(4, 28), (-3, -2, -1, 1, 2, 3)[whole(0, 5)]
            if kind != FULL and whole(0, 1):
                noise = f"white {real(20, 45)}" if whole(0, 1) else "shot"
        if kind in (SHIFTED, ANY_SHIFTED):
            size, angle = real(0.2, 0.7), real(0, 2 * math.pi)
            shift = [size * math.cos(angle), size * math.sin(angle)]
        if bands < 28:
            chosen = torch.linspace(0, 27, bands).round().long()
            if kind != NARROW and not whole(0, 1):
                first = whole(0, 28 - bands)
                chosen = torch.arange(first, first + bands)
            truth = truth[:, chosen].contiguous()
        if drawn == "tsa":
            mask = self.mask
            if kind != TABLE:
                mask = mask.roll((whole(0, SIDE - 1), whole(0, SIDE - 1)), (-2, -1))
            mask = mask[..., :height, :width]
        else:
            mask = torch.rand((1, 1, height, width), generator=random)
            mask = (mask < 0.5).float() if drawn == "binary" else mask
        system = cassi.SDCassi(mask.contiguous(), bands, step=step)
        y = system(truth) if shift is None else Twin(shift=shift).expose(truth, system)
        if noise is not None:
            called, _, level = noise.partition(" ")
            options = [f"noise={called}", *([f"noise.snr_db={level}"] if level else [])]
            y = build(compose_settings(options).noise)(y, bands, random)
        return truth, y, system


def _write(case: Case) -> None:
    temporary, half = case.path.with_suffix(".part"), case.evidence
    half = replace(half, x=half.x.half(), repeated=half.repeated.half())
    torch.save(replace(case, truth=case.truth.half(), evidence=half), temporary)
    temporary.rename(case.path)


def read_case(path: Path) -> Case:
    """Read what was gathered of a reconstruction."""
    case: Case = torch.load(path, weights_only=False)
    whole = case.evidence
    whole = replace(whole, x=whole.x.float(), repeated=whole.repeated.float())
    return replace(case, truth=case.truth.float(), evidence=whole)


@dataclass(frozen=True)
class Rows:
    """Some values of a case: features `(N, F)` and |error| in units of the signal level `(N,)`."""

    path: Path
    scene: str
    method: str
    kind: int
    features: Tensor
    error: Tensor

    @property
    def is_right(self) -> bool:
        """Tell whether the camera is the one that methods are told of."""
        return self.kind not in (SHIFTED, ANY_SHIFTED)


def sample(path: Path) -> Rows:
    """Draw some values of a case, or read those that were drawn; they are kept beside it."""
    kept = path.with_suffix(".rows")
    if kept.exists():
        names, drawn = torch.load(kept, weights_only=False)
        if names == NAMES:
            return cast(Rows, drawn)
    case = read_case(path)
    seen = Features(case.evidence, case.system, case.level)
    error = ((case.evidence.x - case.truth) / case.level).abs()[0].flatten(1)
    random = torch.Generator().manual_seed(0)
    count = min(BANDS, seen.bands)
    rows, errors = [], []
    for band in torch.linspace(0, seen.bands - 1, count).round().int().tolist():
        planes = seen.band(band).flatten(1)
        at = torch.randint(0, planes.shape[1], (SAMPLES // count,), generator=random)
        rows.append(planes[:, at].T)
        errors.append(error[band, at])
    part = Rows(path, case.scene, case.method, case.kind, torch.cat(rows), torch.cat(errors))
    torch.save((NAMES, part), kept)
    return part


def train(parts: Sequence[Rows], epochs: int) -> ErrorModel:
    """Train by the likelihood of Student's t distribution."""
    torch.manual_seed(0)
    model = ErrorModel()
    features, error = torch.cat([p.features for p in parts]), torch.cat([p.error for p in parts])
    model.center.copy_(features.mean(0))
    model.scale.copy_(features.std(0).clamp_min(0.05))
    low, high = np.quantile(features.numpy(), EDGES, axis=0)
    model.lowest.copy_(torch.from_numpy(low))
    model.highest.copy_(torch.from_numpy(high))
    size = 8192
    batches = -(-len(error) // size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=epochs * batches)
    for _ in range(epochs):
        for at in torch.randperm(len(error)).split(size):
            sigma = model(features[at])
            squares = ((error[at] + 2e-5) / sigma.exp()).square()
            loss = (sigma + (DEGREES + 1) / 2 * torch.log1p(squares / DEGREES)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    return model.requires_grad_(False)


def fit(folder: Path, epochs: int, write: bool) -> None:
    """Train in folds of scenes, print what holds, take the factors, train with all."""
    parts = [sample(path) for path in sorted(folder.glob("*_?_??.pt"))]
    names = sorted({part.scene for part in parts})
    fold_of = {name: at % FOLDS for at, name in enumerate(names)}
    models = [
        train([part for part in parts if fold_of[part.scene] != fold], epochs)
        for fold in range(FOLDS)
    ]
    whole = train(parts, epochs)
    features = torch.cat([part.features for part in parts])
    thirds = np.arange(1, GROUPS) / GROUPS
    for row, at in enumerate((BRIGHTNESS, TEXTURE)):
        whole.edges[row] = torch.from_numpy(np.quantile(features[:, at].numpy(), thirds))
    told = [models[fold_of[part.scene]](part.features).exp() for part in parts]
    groups = [whole.group(part.features) for part in parts]
    factors = torch.ones(GROUPS**2)
    for group in range(GROUPS**2):
        held = [
            (part.error / sigma)[own == group]
            for part, sigma, own in zip(parts, told, groups, strict=True)
            if part.is_right
        ]
        factors[group] = float(np.quantile(torch.cat(held).numpy(), 0.9)) / NORMAL
    for model in (whole, *models):
        model.edges.copy_(whole.edges)
        model.factors.copy_(factors.view(GROUPS, GROUPS))
    told = [sigma * factors[group] for sigma, group in zip(told, groups, strict=True)]
    right = [p.error / s for p, s in zip(parts, told, strict=True) if p.is_right]
    whole.intervals.copy_(torch.from_numpy(np.quantile(torch.cat(right).numpy(), LEVELS)))
    whole.intervals[LEVELS.index(0.9)] = NORMAL
    print("factors by brightness (down) and texture (right)\n", whole.factors)
    print("intervals", dict(zip(LEVELS, whole.intervals.tolist(), strict=True)))
    print_coverage(parts, told)
    fit_regions(parts, [models[fold_of[part.scene]] for part in parts], whole)
    if write:
        about = {"width": 32, "scenes": names, "cases": len(parts), "features": list(NAMES)}
        write_model(whole, {"about": json.dumps(about)})


def write_model(model: ErrorModel, about: dict[str, str]) -> None:
    """Put the regression into the package."""
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, FILE, about)
    print(FILE, FILE.stat().st_size)


@torch.no_grad()
def scale(write: bool) -> None:
    """Multiply σ by what suits frames of unseen scenes."""
    model = load_error_model()
    ratios: list[Tensor] = []
    for method, row in itertools.product(("auto", "pretrained"), BARS):
        run: Any = None
        for truth, y, system in PANEL[row].problems():
            assert truth is not None
            run = run or Recipe(settings_of(understand(method)), y.device).make(truth.shape[1])[0]
            x = run(y, system)
            ratios.append(((x - truth).abs() / estimate(y, system, run, x).std).flatten())
            print(f"{method}, {row}: {coverage(ratios[-1]):.1%}", flush=True)

    def excess(factor: float) -> float:
        shares = [coverage(ratio / factor) for ratio in ratios]
        return min(shares) + max(shares) - sum(EACH)

    factor = brentq(excess, 0.5, 2, xtol=1e-4)
    shares = [coverage(ratio / factor) for ratio in ratios]
    print(f"times {factor:.3f}: {format_fractions(shares)}")
    if write:
        model.factors *= factor
        with safe_open(FILE, "pt") as file:
            about = file.metadata()
        write_model(model, about)


def coverage(ratio: Tensor) -> float:
    """Return the share of errors, in units of σ, that 90 % intervals hold."""
    return float((ratio <= NORMAL).float().mean())


def print_coverage(parts: Sequence[Rows], sigmas: Sequence[Tensor]) -> None:
    """Print what intervals of scenes apart hold, by method and camera."""
    table = Table("method", "camera", "cases", "held")
    held: dict[tuple[str, int], list[float]] = {}
    for part, sigma in zip(parts, sigmas, strict=True):
        held.setdefault((part.method, part.kind), []).append(coverage(part.error / sigma))
    for (method, kind), shares in sorted(held.items()):
        table.print(method, KINDS[kind], len(shares), format_fractions(shares))


def fit_regions(parts: Sequence[Rows], models: Sequence[ErrorModel], whole: ErrorModel) -> None:
    """Take the factors of means over squares from places in scenes that a fold has not seen."""
    ratios: dict[tuple[int, str], list[Tensor]] = {}
    random = torch.Generator().manual_seed(1)
    for part, model in list(zip(parts, models, strict=True))[::3]:
        if not part.is_right:
            continue
        case = read_case(part.path)
        sigma, _ = model.predict(Features(case.evidence, case.system, case.level))
        pattern = case.evidence.repeated / case.level / sigma
        pattern = pattern / pattern.square().mean().sqrt()
        x, truth = case.evidence.x / case.level, case.truth / case.level
        height, width = x.shape[-2:]
        for side, _ in itertools.product(REGIONS, range(PLACES)):
            top = int(torch.randint(0, height - side + 1, (), generator=random))
            left = int(torch.randint(0, width - side + 1, (), generator=random))
            where = torch.zeros(height, width)
            where[top : top + side, left : left + side] = 1
            mean, std, shape, bent = shifted_errors(x, sigma, pattern, where)
            true = (truth * where).sum((-2, -1)) / where.sum()
            if float(true.mean()) < 0.02:  # a spectrum of nothing has no shape
                continue
            other = true / true.mean(1, keepdim=True)
            ratios.setdefault((side, "mean"), []).append(((mean - true).abs() / std)[0])
            ratios.setdefault((side, "shape"), []).append(((shape - other).abs() / bent)[0])
    table = Table("side", "factor of means", "factor of shapes")
    for at, side in enumerate(REGIONS):
        for name, factors in (("mean", whole.regions), ("shape", whole.spectra)):
            factors[at] = float(np.quantile(torch.cat(ratios[side, name]).numpy(), 0.9) / NORMAL)
        table.print(side, float(whole.regions[at]), float(whole.spectra[at]))


if __name__ == "__main__":
    main()
