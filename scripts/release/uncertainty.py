"""Calibrate error bars: gather errors of methods on scenes with a truth, and fit a regression.

    python -m scripts.release.uncertainty gather OUT [--seconds 200]  # repeat until it says "whole"
    python -m scripts.release.uncertainty fit OUT [--sides 1 8 32] [--write]
    python -m scripts.release.uncertainty scale [--write]

`gather` reconstructs the 20 training scenes of CAVE (`$CASSI_DATA`), 256 pixels wide, with several
masks, numbers of bands, steps and noises, and with masks that are shifted by a fraction of a pixel.
It writes truth, cube and evidence of each reconstruction to a file in OUT. `fit` divides the scenes
into five folds. For each fold it trains the regression without the fold's scenes, and prints the
coverage of the intervals on these scenes. It computes the factors of σ from the same predictions,
and trains once more with all scenes. `--write` puts the result into the package. Repeat both
commands, with an empty folder, when a method or the weights of `pretrained` change.

There is a regression for single values (side 1), and for means over squares of 8 and of 32 pixels.
`--sides` fits some of them. After that, scripts/release/answers.py calibrates samples and answers.

`scale` is enough for a small change. By `auto` and by `pretrained`, it reconstructs the frames of
the validation scenes that scripts/release/weights.py tests. The regression was not trained with
these scenes. It prints the coverage of 90 % intervals on each. It also prints the factor of σ with
which the least and the largest coverage are equally far from the limits of the test. `--write`
multiplies all σ by this factor.
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
from cassi.apps.reconstructors import Recipe, compose_settings, parse_item, settings_of
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
    SIDES,
    ErrorModel,
    load_error_model,
)
from cassi.uncertainty.features import (
    BRIGHTNESS,
    NAMES,
    TEXTURE,
    Features,
)
from cassi.uncertainty.local_mean import mean_over_squares
from cassi.uncertainty.regions import shifted_errors
from scripts.benchmarks.kinds import PANEL
from scripts.benchmarks.tables import Table
from scripts.docs.figures import format_fractions
from scripts.release.weights import BAR_ROWS, FRAME_COVERAGE

METHODS = ("auto", "pretrained", "gap_tv")
TABLE, SHIFTED, NOISY, BINARY, NARROW, FULL, ANY, ANY_SHIFTED = range(8)
# Kinds of cameras and noise, by number. `TABLE` is the kind of the published tables.
KINDS = {
    TABLE: "nominal",
    SHIFTED: "mask shifted",
    NOISY: "noise",
    BINARY: "binary mask",
    NARROW: "15 bands, step -1",
    FULL: "full resolution",
    ANY: "any camera",
    ANY_SHIFTED: "any, mask shifted",
}
# First: columns of a frame. Second: least number of lines of a frame of `ANY` or `ANY_SHIFTED`.
COLUMNS, MIN_LINES = 256, 96
# Lines of a frame for each method. The result of `auto` depends on how much of the scene a frame
# shows. The result of a network hardly depends on it, so `pretrained` gets half of the lines.
LINES = {"auto": COLUMNS, "pretrained": COLUMNS // 2, "gap_tv": COLUMNS}
FOLDS = 5
# The range of a feature is limited by its quantiles at these two levels.
FEATURE_RANGE = (0.001, 0.999)
# Regions of each size, in every third reconstruction, whose means are compared with the truth.
REGIONS_PER_SIZE = 2
# From each reconstruction, `SAMPLES` values are trained with, drawn from at most `BANDS` bands.
SAMPLES, BANDS = 6000, 10
# Standard deviation of the noise that is added to features in training, in units of their own, by
# side. There are few large squares in 20 scenes, and a regression learns them by heart. In folds of
# scenes, the standard deviation of the logarithm of a frame's factor on σ falls from 0.42 to 0.25
# for squares of 8 pixels, and from 0.45 to 0.32 for 32, with noise of 1.2. For single values the
# noise changes nothing (docs/development/experiments/samples.md).
DISTURBANCE = {1: 0.0, 8: 1.0, 32: 1.0}
# Degrees of freedom of Student's t distribution, the model of the errors: it has heavy tails.
DEGREES = 4.0


@dataclass(frozen=True)
class Case:
    """A reconstruction with its truth and evidence. It is pickled: fields keep their names."""

    path: Path
    scene: str
    method: str
    kind: int
    truth: Tensor
    evidence: BootstrapResult
    system: cassi.SDCassi
    level: float


def main() -> None:
    """Gather, fit or scale."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("gather", "fit", "scale"))
    parser.add_argument("folder", type=Path, nargs="?", help="folder of gathered cases")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time limit of gather")
    parser.add_argument("--methods", nargs="*", default=METHODS, help="methods that gather runs")
    parser.add_argument("--write", action="store_true", help="write into the package")
    parser.add_argument(
        "--sides", type=int, nargs="*", default=SIDES, help="squares that fit takes"
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "scale":
        scale(options.write)
    elif options.folder is None:
        parser.error(f"{options.what}: name a folder")
    elif options.what == "fit":
        for side in options.sides:
            fit(options.folder, side, options.epochs, options.write)
    else:
        options.folder.mkdir(parents=True, exist_ok=True)
        sys.exit(0 if gather_all(options.folder, options.methods, options.seconds) else 3)


def gather_all(folder: Path, methods: Sequence[str], seconds: float) -> bool:
    """Reconstruct the cases that have no file yet; return whether all are there."""
    start, scenes, reconstructors = time.perf_counter(), Scenes(), {}
    for index, kind, method in itertools.product(range(len(scenes)), KINDS, methods):
        path = folder / f"{method}_{kind}_{index:02d}.pt"
        if path.exists() or not is_chosen(method, kind, index):
            continue
        if time.perf_counter() - start > seconds:
            return False
        truth, y, system = scenes.problem(index, kind, LINES[method])
        key = (method, system.bands)
        if key not in reconstructors:
            recipe = Recipe(settings_of(parse_item(method)), y.device)
            reconstructors[key] = recipe.make(system.bands)[0]
        statistics = Statistics(lambda y=y, s=system: [(y, s)])  # type: ignore[misc]
        trial = Trial(y, system, reconstructors[key], statistics)
        x = trial.run(y, system).x
        evidence, level = bootstrap(trial, x), float(signal_level(y, system))
        _write(Case(path, scenes.names[index], method, kind, truth, evidence, system, level))
        print(path.name, scenes.names[index], float((x - truth).square().mean().sqrt()), flush=True)
    print("whole")
    return True


def is_chosen(method: str, kind: int, index: int) -> bool:
    """Tell whether a method reconstructs a scene through a kind of camera.

    Slow methods and rare kinds of cameras only take every fourth, sixth, … scene.
    """
    intervals = {
        "auto": (1, 3, 4, 4, 4, 5, 5, 5),
        "pretrained": (6, 6, 12, 12, 12, 12, 12, 12),
        "gap_tv": (12,) * len(KINDS),
    }
    return (index + kind + METHODS.index(method)) % intervals[method][kind] == 0


class Scenes:
    """The training scenes of CAVE, and problems made of them."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["CASSI_DATA"])
        self.names = sorted(path.stem for path in (self.folder / "cave_train").glob("*.tif"))
        self.mask = cassi.read_mask(self.folder / "tsa" / "mask.mat")

    def __len__(self) -> int:
        return len(self.names)

    def problem(self, index: int, kind: int, lines: int) -> tuple[Tensor, Tensor, cassi.SDCassi]:
        """Return the truth, the measurement and the camera that methods get.

        Index and kind give the seed of all random numbers. If these are drawn in another order, the
        problem is another one.
        """
        random = torch.Generator().manual_seed(1000 * kind + index)

        def uniform(low: float, high: float) -> float:
            return float(low + (high - low) * torch.rand((), generator=random))

        def integer(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=random))

        name, is_any = self.names[index], kind in (ANY, ANY_SHIFTED)
        cube = cassi.read_cube(self.folder / "cave_train" / f"{name}.tif")
        reduction = 1 if kind == FULL else 2
        if is_any:
            reduction = integer(1, 3)
        cube = avg_pool2d(cube, reduction)
        height = integer(MIN_LINES, lines) if is_any else lines
        height, width = min(cube.shape[-2], height), min(cube.shape[-1], COLUMNS)
        top, left = integer(0, cube.shape[-2] - height), integer(0, cube.shape[-1] - width)
        truth = cube[..., top : top + height, left : left + width].contiguous()
        mask_kind = "binary" if kind == BINARY else "tsa"
        bands, step = (15, -1) if kind == NARROW else (28, 2)
        noise: str | None = None
        shift = None
        if kind == NOISY:
            noise = "white 30" if integer(0, 1) else "shot"
        if kind in (FULL, ANY, ANY_SHIFTED):
            mask_kind = ("tsa", "binary", "grey")[integer(0, 2)]
            bands, step = integer(4, 28), (-3, -2, -1, 1, 2, 3)[integer(0, 5)]
            if kind != FULL and integer(0, 1):
                noise = f"white {uniform(20, 45)}" if integer(0, 1) else "shot"
        if kind in (SHIFTED, ANY_SHIFTED):
            length, angle = uniform(0.2, 0.7), uniform(0, 2 * math.pi)
            shift = [length * math.cos(angle), length * math.sin(angle)]
        if bands < 28:
            # If there are fewer bands, they are spread over the whole range, or are neighbours.
            selection = torch.linspace(0, 27, bands).round().long()
            if kind != NARROW and not integer(0, 1):
                first = integer(0, 28 - bands)
                selection = torch.arange(first, first + bands)
            truth = truth[:, selection].contiguous()
        if mask_kind == "tsa":
            mask = self.mask
            if kind != TABLE:
                roll = integer(0, COLUMNS - 1), integer(0, COLUMNS - 1)
                mask = mask.roll(roll, (-2, -1))
            mask = mask[..., :height, :width]
        else:
            mask = torch.rand((1, 1, height, width), generator=random)
            mask = (mask < 0.5).float() if mask_kind == "binary" else mask
        system = cassi.SDCassi(mask.contiguous(), bands, step=step)
        y = system(truth) if shift is None else Twin(shift=shift).expose(truth, system)
        if noise is not None:
            noise_name, _, level = noise.partition(" ")
            options = [f"noise={noise_name}", *([f"noise.snr_db={level}"] if level else [])]
            y = build(compose_settings(options).noise)(y, bands, random)
        return truth, y, system


def _write(case: Case) -> None:
    """Write a case, with cubes in half precision. The rename makes the file appear complete."""
    temporary, evidence = case.path.with_suffix(".part"), case.evidence
    evidence = replace(evidence, x=evidence.x.half(), repeated_error=evidence.repeated_error.half())
    torch.save(replace(case, truth=case.truth.half(), evidence=evidence), temporary)
    temporary.rename(case.path)


def read_case(path: Path) -> Case:
    """Read a case, and convert its cubes to single precision."""
    case: Case = torch.load(path, weights_only=False)
    evidence = case.evidence
    evidence = replace(
        evidence, x=evidence.x.float(), repeated_error=evidence.repeated_error.float()
    )
    return replace(case, truth=case.truth.float(), evidence=evidence)


@dataclass(frozen=True)
class Rows:
    """Random values of a case: features `(N, F)`, and |error| over the signal level `(N,)`."""

    path: Path
    scene: str
    method: str
    kind: int
    features: Tensor
    error: Tensor

    @property
    def is_right(self) -> bool:
        """Whether methods get the true camera."""
        return self.kind not in (SHIFTED, ANY_SHIFTED)


def sample(path: Path, side: int = 1) -> Rows:
    """Draw random values, or means over squares, of a case.

    A file beside the case keeps them for the next time.
    """
    rows_path = path.with_suffix(f".{side}.rows")
    if rows_path.exists():
        names, rows = torch.load(rows_path, weights_only=False)
        if names == NAMES:  # otherwise the features have changed, and the file is out of date
            return cast(Rows, rows)
    case = read_case(path)
    features = Features(case.evidence, case.system, case.level, side)
    error = mean_over_squares((case.evidence.x - case.truth) / case.level, side)
    error = error.abs()[0].flatten(1)
    random = torch.Generator().manual_seed(0)
    # There are few large squares in a band, so all bands are taken.
    count = min(BANDS, features.bands) if side == 1 else features.bands
    feature_rows, errors = [], []
    for band in torch.linspace(0, features.bands - 1, count).round().int().tolist():
        planes = features.band(band).flatten(1)
        pixels = torch.randint(0, planes.shape[1], (SAMPLES // count,), generator=random)
        feature_rows.append(planes[:, pixels].T)
        errors.append(error[band, pixels])
    values = torch.cat(feature_rows), torch.cat(errors)
    rows = Rows(path, case.scene, case.method, case.kind, *values)
    torch.save((NAMES, rows), rows_path)
    return rows


def train(parts: Sequence[Rows], epochs: int, disturbance: float = 0.0) -> ErrorModel:
    """Train the regression of log σ by the likelihood of Student's t distribution.

    Args:
        parts: rows of the cases.
        epochs: number of passes over the rows.
        disturbance: standard deviation of noise on the features, see `DISTURBANCE`.
    """
    torch.manual_seed(0)
    model = ErrorModel()
    features, error = torch.cat([p.features for p in parts]), torch.cat([p.error for p in parts])
    model.center.copy_(features.mean(0))
    model.scale.copy_(features.std(0).clamp_min(0.05))
    low, high = np.quantile(features.numpy(), FEATURE_RANGE, axis=0)
    model.lowest.copy_(torch.from_numpy(low))
    model.highest.copy_(torch.from_numpy(high))
    size = 8192
    batches = math.ceil(len(error) / size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=epochs * batches)
    for _ in range(epochs):
        for index in torch.randperm(len(error)).split(size):
            rows = features[index]
            log_sigma = model(rows + disturbance * model.scale * torch.randn_like(rows))
            # The constant bounds the likelihood of an error of 0.
            squares = ((error[index] + 2e-5) / log_sigma.exp()).square()
            loss = (log_sigma + (DEGREES + 1) / 2 * torch.log1p(squares / DEGREES)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    return model.requires_grad_(False)


def fit(folder: Path, side: int, epochs: int, write: bool) -> None:
    """Train in folds of scenes and with all scenes; compute the factors, and print the coverage.

    For factors and coverage, each case is predicted by the model that was not trained with its
    scene. These models are written to the folder, for scripts/release/answers.py.
    """
    parts = [sample(path, side) for path in sorted(folder.glob("*_?_??.pt"))]
    names = sorted({part.scene for part in parts})
    fold_of = {name: index % FOLDS for index, name in enumerate(names)}
    models = [
        train([part for part in parts if fold_of[part.scene] != fold], epochs, DISTURBANCE[side])
        for fold in range(FOLDS)
    ]
    full_model = train(parts, epochs, DISTURBANCE[side])
    features = torch.cat([part.features for part in parts])
    thirds = np.arange(1, GROUPS) / GROUPS
    for row, feature in enumerate((BRIGHTNESS, TEXTURE)):
        edges = np.quantile(features[:, feature].numpy(), thirds)
        full_model.edges[row] = torch.from_numpy(edges)
    sigmas = [models[fold_of[part.scene]](part.features).exp() for part in parts]
    groups = [full_model.group(part.features) for part in parts]
    # The factor of a group of brightness and texture makes its 90 % intervals hold 90 %.
    factors = torch.ones(GROUPS**2)
    for group in range(GROUPS**2):
        ratios = [
            (part.error / sigma)[part_groups == group]
            for part, sigma, part_groups in zip(parts, sigmas, groups, strict=True)
            if part.is_right
        ]
        factors[group] = float(np.quantile(torch.cat(ratios).numpy(), 0.9)) / NORMAL
    for model in (full_model, *models):
        model.edges.copy_(full_model.edges)
        model.factors.copy_(factors.view(GROUPS, GROUPS))
    sigmas = [sigma * factors[group] for sigma, group in zip(sigmas, groups, strict=True)]
    ratios = [p.error / s for p, s in zip(parts, sigmas, strict=True) if p.is_right]
    full_model.intervals.copy_(torch.from_numpy(np.quantile(torch.cat(ratios).numpy(), LEVELS)))
    full_model.intervals[LEVELS.index(0.9)] = NORMAL
    print("factors by brightness (down) and texture (right)\n", full_model.factors)
    print("intervals", dict(zip(LEVELS, full_model.intervals.tolist(), strict=True)))
    print_coverage(parts, sigmas)
    torch.save({name: models[fold] for name, fold in fold_of.items()}, folder / f"folds_{side}.pt")
    if side == 1:
        fit_regions(parts, [models[fold_of[part.scene]] for part in parts], full_model)
    if write:
        summary = {"width": 32, "scenes": names, "cases": len(parts), "features": list(NAMES)}
        write_model(full_model, side, {"about": json.dumps(summary)})


def write_model(model: ErrorModel, side: int, metadata: dict[str, str]) -> None:
    """Put the regression for squares of a side into the package."""
    state = {f"{side}.{name}": value for name, value in model.state_dict().items()}
    write_tensors(state, metadata)


def write_tensors(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Replace some tensors of the package's file; metadata stay if none are given."""
    with safe_open(FILE, "pt") as file:
        state = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        metadata = metadata or file.metadata()
    state |= {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(state, FILE, metadata)
    print(FILE, FILE.stat().st_size)


@torch.no_grad()
def scale(write: bool) -> None:
    """Fit one factor of σ to the frames of the validation scenes; with `write`, apply it."""
    model = load_error_model()
    ratios: list[Tensor] = []
    for method, row in itertools.product(("auto", "pretrained"), BAR_ROWS):
        run: Any = None
        for truth, y, system in PANEL[row].problems():
            assert truth is not None
            run = run or Recipe(settings_of(parse_item(method)), y.device).make(truth.shape[1])[0]
            x = run(y, system)
            ratios.append(((x - truth).abs() / estimate(y, system, run, x).std).flatten())
            print(f"{method}, {row}: {measure_coverage(ratios[-1]):.1%}", flush=True)

    # This is 0 if the least and the largest coverage are equally far from their limits.
    def excess(factor: float) -> float:
        coverages = [measure_coverage(ratio / factor) for ratio in ratios]
        return min(coverages) + max(coverages) - sum(FRAME_COVERAGE)

    factor = brentq(excess, 0.5, 2, xtol=1e-4)
    coverages = [measure_coverage(ratio / factor) for ratio in ratios]
    print(f"times {factor:.3f}: {format_fractions(coverages)}")
    if write:
        write_tensors({"1.factors": model.factors * factor})


def measure_coverage(ratio: Tensor) -> float:
    """Return the fraction of errors that are within 90 % intervals; `ratio` is |error| / σ."""
    return float((ratio <= NORMAL).float().mean())


def print_coverage(parts: Sequence[Rows], sigmas: Sequence[Tensor]) -> None:
    """Print the coverage of 90 % intervals, by method and kind of camera."""
    table = Table("method", "camera", "cases", "held")
    coverages: dict[tuple[str, int], list[float]] = {}
    for part, sigma in zip(parts, sigmas, strict=True):
        coverages.setdefault((part.method, part.kind), []).append(
            measure_coverage(part.error / sigma)
        )
    for (method, kind), fractions in sorted(coverages.items()):
        table.print(method, KINDS[kind], len(fractions), format_fractions(fractions))


def fit_regions(
    parts: Sequence[Rows], models: Sequence[ErrorModel], full_model: ErrorModel
) -> None:
    """Fit the factors of `full_model` for means over square regions, and for the shapes of spectra.

    A shape is a spectrum divided by its mean. `models` has, for each part, the model that was not
    trained with the part's scene.
    """
    ratios: dict[tuple[int, str], list[Tensor]] = {}
    random = torch.Generator().manual_seed(1)
    for part, model in list(zip(parts, models, strict=True))[::3]:
        if not part.is_right:
            continue
        case = read_case(part.path)
        sigma, _ = model.predict(Features(case.evidence, case.system, case.level))
        pattern = case.evidence.repeated_error / case.level / sigma
        pattern = pattern / pattern.square().mean().sqrt()
        x, truth = case.evidence.x / case.level, case.truth / case.level
        height, width = x.shape[-2:]
        for side, _ in itertools.product(REGIONS, range(REGIONS_PER_SIZE)):
            top = int(torch.randint(0, height - side + 1, (), generator=random))
            left = int(torch.randint(0, width - side + 1, (), generator=random))
            region = torch.zeros(height, width)
            region[top : top + side, left : left + side] = 1
            mean, std, shape, shape_std = shifted_errors(x, sigma, pattern, region)
            true_mean = (truth * region).sum((-2, -1)) / region.sum()
            # A nearly black spectrum is left out, because its shape is noise.
            if float(true_mean.mean()) < 0.02:
                continue
            true_shape = true_mean / true_mean.mean(1, keepdim=True)
            shape_ratio = (shape - true_shape).abs() / shape_std
            ratios.setdefault((side, "mean"), []).append(((mean - true_mean).abs() / std)[0])
            ratios.setdefault((side, "shape"), []).append(shape_ratio[0])
    table = Table("side", "factor of means", "factor of shapes")
    for index, side in enumerate(REGIONS):
        for name, factors in (("mean", full_model.regions), ("shape", full_model.spectra)):
            quantile = np.quantile(torch.cat(ratios[side, name]).numpy(), 0.9)
            factors[index] = float(quantile / NORMAL)
        table.print(side, float(full_model.regions[index]), float(full_model.spectra[index]))


if __name__ == "__main__":
    main()
