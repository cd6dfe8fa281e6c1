"""Calibrate error bars: gather errors of methods on scenes with a truth, fit what predicts them.

    python scripts/release/uncertainty.py gather OUT [--seconds 200]  # again until it says "whole"
    python scripts/release/uncertainty.py fit OUT [--write]

`gather` reconstructs parts of the 20 training and 3 validation scenes of CAVE (`$CASSI_DATA`)
through several masks, numbers of bands, steps, noises and cameras that are a fraction of a pixel
off, and keeps truth, cube and evidence of each as a file in OUT. `fit` trains the regression in
five folds of scenes, prints what its intervals hold of the scenes that each fold has not seen,
takes the factors from these, and trains once more with all; `--write` puts it into the package.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import cassi
from cassi.apps.evaluate.data import load_benchmark
from cassi.apps.reconstructors import Recipe, compose_settings, settings_of, understand
from cassi.apps.settings import Evaluate
from cassi.config import build
from cassi.evaluation import Mismatch
from cassi.solvers.statistics import Statistics, signal_level
from cassi.uncertainty.evidence import Evidence, Trial, gather
from cassi.uncertainty.features import BRIGHTNESS, NAMES, TEXTURE, Features
from cassi.uncertainty.regions import shifted_errors
from cassi.uncertainty.scores import sparsification
from cassi.uncertainty.spread import FILE, GROUPS, LEVELS, NORMAL, REGIONS, Spread

METHODS = ("auto", "pretrained", "gap_tv")
TABLE, BINARY, NARROW, NOISY, ANY, FULL, SHIFTED, ANY_SHIFTED = 7, 1, 2, 3, 6, 5, 8, 4
ROUNDS = (TABLE, BINARY, NARROW, NOISY, SHIFTED, FULL, ANY_SHIFTED, ANY)
"""What cameras and noises are like: that of the published tables, another mask, fewer bands, …."""
TURNS = 2
"""How often all of them are gone through, with other parts of scenes and masks."""
LINES = 96
FOLDS = 5
SAMPLES = 6000
"""Values of each reconstruction that the regression is trained with."""
DEGREES = 4.0
"""Of freedom of Student's t distribution that errors are taken to have: their tails are heavy."""


@dataclass(frozen=True)
class Case:
    """A reconstruction with its truth and evidence."""

    name: str
    scene: str
    method: str
    round: int
    truth: Tensor
    evidence: Evidence
    system: cassi.SDCassi
    level: float


def main() -> None:
    """Gather, or fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("gather", "fit"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=math.inf, help="then gather pauses")
    parser.add_argument("--write", action="store_true", help="into the package")
    parser.add_argument("--without", nargs="*", default=[], help="features that are left out")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.what == "gather":
        sys.exit(0 if gather_all(options.folder, options.seconds) else 3)
    fit(options.folder, options.epochs, options.without, options.write)


def gather_all(folder: Path, seconds: float) -> bool:
    """Reconstruct what is not there yet; return whether all is."""
    began, scenes, made = time.perf_counter(), Scenes(), {}
    for turn, kind in itertools.product(range(TURNS), ROUNDS):
        for method in METHODS:
            for index in range(len(scenes)):
                path = folder / f"{method}_{kind + 10 * turn}_{index:02d}.npz"
                if path.exists() or not is_chosen(method, kind, index, turn):
                    continue
                if time.perf_counter() - began > seconds:
                    return False
                truth, y, system = scenes.problem(index, kind, turn)
                key = (method, system.bands)
                if key not in made:
                    recipe = Recipe(settings_of(understand(method)), y.device)
                    made[key] = recipe.make(system.bands)[0]
                trial = Trial(y, system, made[key], Statistics(lambda y=y, s=system: [(y, s)]))  # type: ignore[misc]
                x = trial.run(y, system)
                found = gather(trial, x)
                _write(path, scenes.names[index], truth, y, system, found)
                print(path.name, scenes.names[index], float((x - truth).square().mean().sqrt()))
    print("whole")
    return True


def is_chosen(method: str, kind: int, index: int, turn: int) -> bool:
    """Tell whether a scene is reconstructed by a method through a kind of camera in a turn."""
    if index >= 20 and kind in (ANY_SHIFTED, FULL, ANY):
        return False
    if method == "gap_tv":
        return (index + kind + turn) % 6 == 0
    if method == "auto":
        return kind == TABLE or (index + kind + turn) % 3 == 0
    return index % 2 == turn % 2 if kind == TABLE else (index + 2 * kind + turn) % 5 == 0


class Scenes:
    """The scenes of CAVE that are no test scenes, and problems made of them."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["CASSI_DATA"])
        self.validation = load_benchmark(compose_settings(["data=cave"], kind=Evaluate))
        training = sorted(path.stem for path in (self.folder / "cave_train").glob("*.tif"))
        self.names = [*training, *self.validation.scenes]
        self.mask = cassi.read_mask(self.folder / "tsa" / "mask.mat")

    def __len__(self) -> int:
        return len(self.names)

    def problem(self, index: int, kind: int, turn: int) -> tuple[Tensor, Tensor, cassi.SDCassi]:
        """Return truth, measurement and the camera that is told, all drawn from the numbers."""
        random = torch.Generator().manual_seed(1000 * (kind + 10 * turn) + index)

        def real(low: float, high: float) -> float:
            return float(low + (high - low) * torch.rand((), generator=random))

        def whole(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=random))

        name, factor = self.names[index], 2
        if name in self.validation.scenes:
            truth = self.validation.load(name).truth
            assert truth is not None
            cube = truth[None]
        else:
            cube = cassi.read_cube(self.folder / "cave_train" / f"{name}.tif")
        factor = 1 if kind == FULL else whole(1, 3) if kind in (ANY, ANY_SHIFTED) else 2
        if name not in self.validation.scenes and factor > 1:
            cube = avg_pool2d(cube, factor)
        height, width = min(cube.shape[-2], LINES), min(cube.shape[-1], 256)
        top, left = whole(0, cube.shape[-2] - height), whole(0, cube.shape[-1] - width)
        truth = cube[..., top : top + height, left : left + width].contiguous()
        drawn = "binary" if kind == BINARY else "tsa"
        bands, step = (15, -1) if kind == NARROW else (28, 2)
        noise: str | None = None
        shift = None
        if kind == NOISY:
            noise = "white 30" if whole(0, 1) else "shot"
        if kind in (ANY_SHIFTED, FULL, ANY):
            drawn = ("tsa", "binary", "grey")[whole(0, 2)]
            bands, step = whole(4, 28), (-3, -2, -1, 1, 2, 3)[whole(0, 5)]
            if kind != FULL and whole(0, 1):
                noise = f"white {real(20, 45)}" if whole(0, 1) else "shot"
        if kind in (ANY_SHIFTED, SHIFTED):
            shift = [real(-0.7, 0.7), real(-0.7, 0.7)]
        if bands < 28:
            chosen = torch.linspace(0, 27, bands).round().long()
            if not whole(0, 1):
                first = whole(0, 28 - bands)
                if kind != NARROW:
                    chosen = torch.arange(first, first + bands)
            truth = truth[:, chosen].contiguous()
        if drawn == "tsa":
            top = 80 if kind == TABLE else whole(0, 160)
            mask = self.mask[..., top : top + height, :width]
            for axis in (-1, -2):
                if kind != TABLE and whole(0, 1):
                    mask = mask.flip(axis)
        else:
            mask = torch.rand((1, 1, height, width), generator=random)
            mask = (mask < 0.5).float() if drawn == "binary" else mask
        system = cassi.SDCassi(mask.contiguous(), bands, step=step)
        y = system(truth) if shift is None else Mismatch(shift=shift).measure(truth, system)
        if noise is not None:
            called, _, level = noise.partition(" ")
            options = [f"noise={called}", *([f"noise.snr_db={level}"] if level else [])]
            y = build(compose_settings(options).noise)(y, bands, random)
        return truth, y, system


def _write(
    path: Path, scene: str, truth: Tensor, y: Tensor, system: cassi.SDCassi, found: Evidence
) -> None:
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.savez(
            file,
            scene=scene,
            truth=truth.half().numpy(),
            x=found.x.half().numpy(),
            rep=found.repeated.half().numpy(),
            y=y.numpy(),
            mask=system.mask.numpy(),
            bands=system.bands,
            step=system.step,
            residual=found.residual.numpy(),
            heldout=found.heldout,
            expected=found.expected,
        )
    temporary.rename(path)


def read_cases(folder: Path) -> Iterator[Case]:
    """Read what was gathered."""
    for path in sorted(folder.glob("*_*_??.npz")):
        method, kind, _ = path.stem.rsplit("_", 2)
        with np.load(path) as held:
            system = cassi.SDCassi(
                torch.from_numpy(held["mask"]), int(held["bands"]), step=int(held["step"])
            )
            truth, x, repeated = (
                torch.from_numpy(held[name]).float() for name in ("truth", "x", "rep")
            )
            residual = torch.from_numpy(held["residual"])
            numbers = float(held["heldout"]), float(held["expected"])
            level = float(signal_level(torch.from_numpy(held["y"]), system))
            scene = str(held["scene"])
        evidence = Evidence(x, repeated, residual, *numbers)
        yield Case(path.stem, scene, method, int(kind) % 10, truth, evidence, system, level)


@dataclass(frozen=True)
class Rows:
    """Some values of a case: features `(N, F)` and |error| in units of the signal level `(N,)`."""

    case: Case
    features: Tensor
    error: Tensor


def sample(case: Case, count: int) -> Rows:
    """Draw some values of a case."""
    features = Features(case.evidence, case.system, case.level)
    error = ((case.evidence.x - case.truth) / case.level).abs()[0].flatten(1)
    random = torch.Generator().manual_seed(0)
    rows, errors = [], []
    for band in range(features.bands):
        planes = features.band(band).flatten(1)
        at = torch.randint(0, planes.shape[1], (-(-count // features.bands),), generator=random)
        rows.append(planes[:, at].T)
        errors.append(error[band, at])
    return Rows(case, torch.cat(rows), torch.cat(errors))


def train(parts: Sequence[Rows], epochs: int, without: Sequence[str]) -> Spread:
    """Train by the likelihood of Student's t distribution."""
    torch.manual_seed(0)
    spread = Spread()
    features, error = torch.cat([p.features for p in parts]), torch.cat([p.error for p in parts])
    spread.center.copy_(features.mean(0))
    spread.scale.copy_(features.std(0).clamp_min(0.05))
    low, high = np.quantile(features.numpy(), (0.001, 0.999), axis=0)
    spread.lowest.copy_(torch.from_numpy(low))
    spread.highest.copy_(torch.from_numpy(high))
    for name in without:  # never changes, so it says nothing
        at = NAMES.index(name)
        spread.lowest[at] = spread.highest[at] = spread.center[at]
    size = 8192
    batches = -(-len(error) // size)
    optimizer = torch.optim.AdamW(spread.parameters(), lr=6e-3, weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=epochs * batches)
    for _ in range(epochs):
        for at in torch.randperm(len(error)).split(size):
            sigma = spread(features[at])
            squares = ((error[at] + 2e-5) / sigma.exp()).square()
            loss = (sigma + (DEGREES + 1) / 2 * torch.log1p(squares / DEGREES)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    return spread.requires_grad_(False)


def fit(folder: Path, epochs: int, without: Sequence[str], write: bool) -> None:
    """Train in folds of scenes, print what holds, take the factors, train with all."""
    parts = [sample(case, SAMPLES) for case in read_cases(folder)]
    names = sorted({part.case.scene for part in parts})
    fold_of = {name: at % FOLDS for at, name in enumerate(names)}
    spreads = []
    for fold in range(FOLDS):
        others = [part for part in parts if fold_of[part.case.scene] != fold]
        spreads.append(train(others, epochs, without))
    told = [spreads[fold_of[part.case.scene]](part.features).exp() for part in parts]
    whole = train(parts, epochs, without)
    features = torch.cat([part.features for part in parts])
    thirds = torch.arange(1, GROUPS) / GROUPS
    for row, at in enumerate((BRIGHTNESS, TEXTURE)):
        edges = np.quantile(features[:, at].numpy(), thirds.numpy())
        whole.edges[row] = torch.from_numpy(edges)
    right = [not _is_shifted(part.case) for part in parts]
    groups = [whole.group(part.features) for part in parts]
    ratios = [part.error / sigma for part, sigma in zip(parts, told, strict=True)]
    factors = torch.ones(GROUPS**2)
    chosen = [at for at, fine in enumerate(right) if fine]
    for group in range(GROUPS**2):
        held = torch.cat([ratios[at][groups[at] == group] for at in chosen])
        factors[group] = float(np.quantile(held.numpy(), 0.9)) / NORMAL
    whole.factors.copy_(factors.view(GROUPS, GROUPS))
    told = [sigma * factors[group] for sigma, group in zip(told, groups, strict=True)]
    ratios = [part.error / sigma for part, sigma in zip(parts, told, strict=True)]
    joined = torch.cat([ratios[at] for at in chosen]).numpy()
    whole.intervals.copy_(torch.from_numpy(np.quantile(joined, LEVELS)))
    whole.intervals[LEVELS.index(0.9)] = NORMAL
    for spread in spreads:
        for name in ("edges", "factors"):
            getattr(spread, name).copy_(getattr(whole, name))
    print("factors by brightness (down) and texture (right)\n", whole.factors)
    print("intervals", dict(zip(LEVELS, whole.intervals.tolist(), strict=True)))
    _print_coverage(parts, told)
    _fit_regions(parts, spreads, fold_of, whole)
    if write:
        from safetensors.torch import save_file

        about = {"width": 32, "scenes": names, "cases": len(parts), "features": list(NAMES)}
        state = {name: value.contiguous() for name, value in whole.state_dict().items()}
        save_file(state, FILE, {"about": json.dumps(about)})
        print(FILE, FILE.stat().st_size)


def _is_shifted(case: Case) -> bool:
    return case.round in (SHIFTED, ANY_SHIFTED)


def _print_coverage(parts: Sequence[Rows], told: Sequence[Tensor]) -> None:
    print("method | kind | cases | coverage, least, most | AUSE | of gradient | heldout/expected")
    for method in METHODS:
        for kind in ROUNDS:
            scenes: list[str] = []
            held: list[float] = []
            areas: list[float] = []
            gradients: list[float] = []
            ratio: list[float] = []
            for part, sigma in zip(parts, told, strict=True):
                case = part.case
                if (case.method, case.round) != (method, kind):
                    continue
                scenes.append(case.scene)
                held.append(float((part.error <= NORMAL * sigma).float().mean()))
                slopes = 10 ** part.features[:, NAMES.index("gradient")]
                areas.append(sparsification(part.error, sigma))
                gradients.append(sparsification(part.error, slopes))
                ratio.append(case.evidence.heldout / case.evidence.expected)
            if not scenes:
                continue
            far = [
                f"{scene[:12]} {share:.2f}"
                for scene, share in zip(scenes, held, strict=True)
                if not 0.82 <= share <= 0.96
            ]
            print(
                f"{method} | {kind} | {len(held)} | {np.mean(held):.3f} {min(held):.3f} "
                f"{max(held):.3f} | {np.mean(areas):.3f} | {np.mean(gradients):.3f} | "
                f"{min(ratio):.2f} {np.median(ratio):.2f} {max(ratio):.2f} | {', '.join(far)}",
                flush=True,
            )


def _fit_regions(
    parts: Sequence[Rows], spreads: Sequence[Spread], fold_of: dict[str, int], whole: Spread
) -> None:
    """Take the factors of means over squares from places in scenes that a fold has not seen."""
    ratios: dict[tuple[int, str], list[Tensor]] = {}
    random = torch.Generator().manual_seed(1)
    for part in parts[::2]:
        case = part.case
        if _is_shifted(case):
            continue
        features = Features(case.evidence, case.system, case.level)
        sigma, _ = spreads[fold_of[case.scene]].predict(features)
        pattern = case.evidence.repeated / case.level / sigma
        pattern = pattern / pattern.square().mean().sqrt()
        x, truth = case.evidence.x / case.level, case.truth / case.level
        height, width = x.shape[-2:]
        for side in REGIONS:
            for _ in range(3):
                top = int(torch.randint(0, height - side + 1, (), generator=random))
                left = int(torch.randint(0, width - side + 1, (), generator=random))
                where = torch.zeros(height, width)
                where[top : top + side, left : left + side] = 1
                mean, std, shape, bent = shifted_errors(x, sigma, pattern, where)
                true = (truth * where).sum((-2, -1)) / where.sum()
                if float(true.mean()) < 0.02:  # a spectrum of nothing has no shape
                    continue
                ratios.setdefault((side, "mean"), []).append(((mean - true).abs() / std)[0])
                other = true / true.mean(1, keepdim=True)
                ratios.setdefault((side, "shape"), []).append(((shape - other).abs() / bent)[0])
    print("side | factor of means | of shapes | coverage of means, of shapes before it")
    for at, side in enumerate(REGIONS):
        row: list[Any] = []
        for name, table in (("mean", whole.regions), ("shape", whole.spectra)):
            held = torch.cat(ratios[side, name]).numpy()
            table[at] = float(np.quantile(held, 0.9) / NORMAL)
            row += [float(table[at]), float((held <= NORMAL).mean())]
        print(f"{side} | {row[0]:.3f} | {row[2]:.3f} | {row[1]:.3f} {row[3]:.3f}", flush=True)


if __name__ == "__main__":
    main()
