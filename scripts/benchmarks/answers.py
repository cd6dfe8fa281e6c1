"""Measure whether samples and answers hold, on scenes with a truth.

    python -m scripts.benchmarks.answers FOLDER [--masks tsa binary] [--methods auto] [--json FILE]

Each scene of the folder is measured through each mask, clean and with white noise of 30 dB, and by
a random camera with a simulated sensor. It is reconstructed with samples, and the samples are asked
for a normalised difference, means of squares of 8 and 32 pixels, abundances of four materials of
the scene, colour differences, and areas. The table has, for each question, the share of true
answers in the 68 % and 90 % intervals, over all frames and by frame; the width of the 90 % interval
over that of the narrowest constant interval with the same coverage, in the frame and over all
frames; the error of the answers over the error of the same question to the cube; and the error
where there is an answer over the error everywhere, with the share that is withheld.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import cassi
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS
from cassi.uncertainty.answers import answer
from cassi.uncertainty.questions import Abundance, ColorDifference, Function, Index, Question
from cassi.uncertainty.samples import Samples
from cassi.viz.color import rendering_matrix
from scripts.benchmarks.tables import Table

# Pixels with less light than this, relative to the mean of the scene, have no index: it would be
# the ratio of two errors.
MIN_LIGHT = 0.1
MATERIALS = 4
# At most so many values of a question enter the statistics over all frames.
MAX_VALUES = 6000


def squares(side: int) -> Question:
    """Return the question for the mean spectra of all squares of a side."""
    return Function(lambda x: avg_pool2d(x, side).flatten())


def questions_of(truth: Tensor) -> dict[str, Question]:
    """Return the questions to a scene with the truth `(C, H, W)`.

    Materials and thresholds come from the truth, because answers need the same ones.
    """
    bands = len(truth)
    nm = BENCHMARK_WAVELENGTHS if bands == 28 else tuple(np.linspace(450, 650, bands).tolist())
    low, high = nm[bands // 4], nm[3 * bands // 4]
    index = Index(f"(w{high} - w{low}) / (w{high} + w{low})".replace(".", "_"), nm)
    matrix = torch.from_numpy(rendering_matrix(nm))
    white = float(truth.mean(0).quantile(0.995))
    threshold = float(index(truth).median())
    light = float(truth.mean())

    def areas(x: Tensor) -> Tensor:
        is_above = (index(x) > threshold) & (x.mean(0) > MIN_LIGHT * light)
        return avg_pool2d(is_above.float()[None], 32).flatten()

    spectra = find_materials(truth)
    names = tuple(f"material {number}" for number in range(1, len(spectra) + 1))
    return {
        "normalised difference": index,
        "mean of 8 x 8": squares(8),
        "mean of 32 x 32": squares(32),
        "abundances": Abundance(spectra, names),
        "colour difference": ColorDifference(matrix, (50.0, 0.0, 0.0), white),
        "area in 32 x 32": Function(areas, bounds=(0.0, 1.0)),
    }


def find_materials(truth: Tensor) -> Tensor:
    """Return spectra that differ most in their direction, of squares with much light, `(M, C)`."""
    spectra = avg_pool2d(truth, 8).flatten(1).T
    light = spectra.mean(1)
    spectra = spectra[light > 0.3 * light.mean()]
    directions = spectra / spectra.norm(dim=1, keepdim=True)
    chosen = [int((directions @ directions.mean(0)).argmin())]
    while len(chosen) < MATERIALS:
        likeness = (directions @ directions[chosen].T).max(1).values
        chosen.append(int(likeness.argmin()))
    return spectra[chosen]


@dataclass
class Frame:
    """What one frame says of a question; tensors are over the answers that are not withheld.

    Attributes:
        error: |answer − truth|.
        cube_error: |question to the cube − truth|.
        half: half widths of the intervals, `(levels, …)`.
        is_inside: whether the truth is in the intervals, `(levels, …)`.
        error_of_all: root mean square error, also where the answer is withheld.
        withheld: share of withheld answers.
        is_map: whether the answer is a map.
    """

    error: Tensor
    cube_error: Tensor
    half: Tensor
    is_inside: Tensor
    error_of_all: float
    withheld: float
    is_map: bool


@dataclass
class Record:
    """Frames by question, and what the samples of each frame say."""

    frames: dict[str, list[Frame]] = field(default_factory=dict)
    rows: list[dict[str, object]] = field(default_factory=list)


def ask(samples: Samples, truth: Tensor, record: Record) -> None:
    """Ask the questions of a scene, and add the frame to a record."""
    questions = questions_of(truth)
    answers = answer(samples, questions)
    for name, question in questions.items():
        given, true = answers[name], question(truth)
        is_kept = ~given.abstained
        inside = (given.low <= true) & (true <= given.high)
        frame = Frame(
            (given.value - true).abs()[is_kept],
            (question(samples.cube[0]) - true).abs()[is_kept],
            ((given.high - given.low) / 2)[:, is_kept],
            inside[:, is_kept],
            rms(given.value - true),
            float(given.abstained.double().mean()),
            true.ndim > 1,
        )
        record.frames.setdefault(name, []).append(frame)


def judge_samples(samples: Samples, truth: Tensor, noise: float) -> dict[str, float]:
    """Return the residual of samples over the noise, and the coverage of their hull.

    The hull is the range of the samples' ratios of two bands. It holds a further sample with a
    probability of (S − 1)/(S + 1).
    """
    bands = len(truth)
    first, second = bands // 4, 3 * bands // 4
    floor = MIN_LIGHT / 2 * float(truth.mean())

    def ratio(x: Tensor) -> Tensor:
        return x[second].clamp_min(0) / x[first].clamp_min(floor)

    low = torch.full_like(truth[0], math.inf)
    high, squares_sum = -low, 0.0
    y = samples.y
    for sample in samples:
        low, high = torch.minimum(low, ratio(sample)), torch.maximum(high, ratio(sample))
        squares_sum += float((y - samples.system(sample[None])).square().mean())
    is_lit = truth.mean(0) > MIN_LIGHT * truth.mean()
    true = ratio(truth)
    hull = ((low <= true) & (true <= high))[is_lit].double().mean()
    residual = math.sqrt(squares_sum / len(samples))
    return {"residual": residual / max(noise, samples.noise * 1e-9), "hull": float(hull)}


def cameras(folder: Path | None, masks: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the masks by name, 256 pixels square."""
    random = torch.Generator().manual_seed(7)
    for name in masks:
        if name == "binary":
            yield name, (torch.rand(1, 1, 256, 256, generator=random) < 0.5).float()
        else:
            assert folder is not None
            yield name, cassi.read_mask(folder / "tsa" / "mask.mat")


def report(record: Record) -> list[dict[str, object]]:
    """Print the table of the questions, and return its rows."""
    rows: list[dict[str, object]] = []
    heads = ("question", "68 %", "90 %", "by frame", "width in frame", "width", "error", "kept")
    table = Table(*heads, "withheld")
    for name, frames in record.frames.items():
        coverages = np.array([[float(i.double().mean()) for i in f.is_inside] for f in frames])
        parts = [thin(frame) for frame in frames]
        error, half = (torch.cat([p[i] for p in parts]) for i in (0, 1))
        width = float(half.mean()) / quantile(error, float(coverages[:, -1].mean()))
        in_frame = [
            float(f.half[-1].mean())
            / max(quantile(f.error, float(f.is_inside[-1].double().mean())), 1e-12)
            for f in frames
        ]
        ratios = [rms(f.error) / rms(f.cube_error) for f in frames]
        kept = [rms(f.error) / f.error_of_all for f in frames]
        withheld = float(np.mean([f.withheld for f in frames]))
        ends = coverages[:, -1].min(), coverages[:, -1].max()
        row = {
            "question": name,
            "coverage": coverages.mean(0).tolist(),
            "by frame": ends,
            "frames outside 80 to 98 %": int(
                ((coverages[:, -1] < 0.8) | (coverages[:, -1] > 0.98)).sum()
            ),
            "frames": len(frames),
            "width in frame": float(np.median(in_frame)),
            "width": width,
            "error": float(np.median(ratios)),
            "kept": float(np.median(kept)),
            "withheld": withheld,
        }
        rows.append(row)
        by_frame = f"{100 * ends[0]:.0f} to {100 * ends[1]:.0f} ({row['frames outside 80 to 98 %']}/{len(frames)})"
        means = [f"{100 * value:.1f}" for value in coverages.mean(0)]
        numbers = (row["width in frame"], width, row["error"], row["kept"], withheld)
        table.print(name, *means, by_frame, *(f"{number:.2f}" for number in numbers))
    return rows


def thin(frame: Frame) -> tuple[Tensor, Tensor]:
    """Return errors and half widths of at most `MAX_VALUES` random values."""
    random = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(frame.error), generator=random)[:MAX_VALUES]
    return frame.error[chosen], frame.half[-1][chosen]


def quantile(values: Tensor, fraction: float) -> float:
    """Return a quantile of values."""
    return float(np.quantile(values.numpy(), fraction))


def rms(values: Tensor) -> float:
    """Return the root mean square."""
    return float(values.double().square().mean().sqrt())
