"""Measure whether samples and answers hold, on scenes with a truth.

    python -m scripts.benchmarks.answers [--split test] [--method pretrained] [--json FILE]

Each scene is measured through two masks, without noise and with white noise of 30 dB, and by a
digital twin. It is reconstructed with samples. The first table has, for each frame, the residual of
the samples over the noise, and the share of true ratios of two bands within the range of the
samples. The range of S samples holds a further one with probability (S − 1)/(S + 1). It also has
the seconds of the reconstruction with samples over those of the reconstruction alone.

The samples are asked for a normalised difference, means over squares of 8 and 32 pixels, abundances
of four materials of the scene, colour differences, and areas. The second table has, for each
question: the shares of true answers in the 68 % and the 90 % interval, and the latter by frame,
with the number of frames outside 80 to 98 %; the mean width of the 90 % interval over that of the
constant interval that holds as many answers, in the frame (median) and over all frames; the error
of the answers over the error of the same question to the cube (median); the error where there is an
answer over the error everywhere (median); and the share of withheld answers.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import cassi
from cassi.apps.reconstructors import Recipe, compose_settings, parse_item, settings_of
from cassi.apps.settings import Evaluate
from cassi.data.synthetic.twin import Twin
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS
from cassi.pipeline.align import align
from cassi.systems import System
from cassi.uncertainty import estimate
from cassi.uncertainty.answers import answer
from cassi.uncertainty.questions import Abundance, ColorDifference, Function, Index, Question
from cassi.uncertainty.samples import Samples
from cassi.viz.color import rendering_matrix, xyz_of_srgb
from scripts.benchmarks.kinds import draw_scene
from scripts.benchmarks.tables import Parser, Table, data_folder, write_json

NOISE_DB = 30

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
    matrix = torch.from_numpy(xyz_of_srgb(rendering_matrix(nm), is_encoded=False))
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
    indices = [int((directions @ directions.mean(0)).argmin())]
    while len(indices) < MATERIALS:
        likeness = (directions @ directions[indices].T).max(1).values
        indices.append(int(likeness.argmin()))
    return spectra[indices]


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
        result, true_value = answers[name], question(truth)
        is_kept = ~result.abstained
        is_inside = (result.low <= true_value) & (true_value <= result.high)
        frame = Frame(
            (result.value - true_value).abs()[is_kept],
            (question(samples.cube[0]) - true_value).abs()[is_kept],
            ((result.high - result.low) / 2)[:, is_kept],
            is_inside[:, is_kept],
            rms(result.value - true_value),
            float(result.abstained.double().mean()),
            true_value.ndim > 1,
        )
        record.frames.setdefault(name, []).append(frame)


def judge_samples(
    samples: Samples, truth: Tensor, noise: float | None
) -> tuple[float | None, float]:
    """Return residual of samples over the noise, if it is known, and the coverage of their hull.

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
    true_ratio = ratio(truth)
    hull = ((low <= true_ratio) & (true_ratio <= high))[is_lit].double().mean()
    residual = math.sqrt(squares_sum / len(samples))
    if noise == 0:
        # The residual of the cube is the only scale.
        noise = float((y - samples.system(samples.x)).square().mean().sqrt())
    return None if noise is None else residual / noise, float(hull)


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
        constants = [quantile(f.error, c) for f, c in zip(frames, coverages[:, -1], strict=True)]
        in_frame = [
            float(f.half[-1].mean()) / max(constant, 1e-12)
            for f, constant in zip(frames, constants, strict=True)
        ]
        ratios = [rms(f.error) / rms(f.cube_error) for f in frames]
        kept_errors = [rms(f.error) / f.error_of_all for f in frames]
        withheld = float(np.mean([f.withheld for f in frames]))
        ends = coverages[:, -1].min(), coverages[:, -1].max()
        row = {
            "question": name,
            "coverage": coverages.mean(0).tolist(),
            "by frame": ends,
            "outside": int(((coverages[:, -1] < 0.8) | (coverages[:, -1] > 0.98)).sum()),
            "frames": len(frames),
            "width in frame": float(np.median(in_frame)),
            "width": width,
            "error": float(np.median(ratios)),
            "kept": float(np.median(kept_errors)),
            "withheld": withheld,
        }
        rows.append(row)
        low, high = (f"{100 * end:.0f}" for end in ends)
        by_frame = f"{low} to {high} ({row['outside']} of {len(frames)})"
        means = [f"{100 * value:.1f}" for value in coverages.mean(0)]
        numbers = (row["width in frame"], width, row["error"], row["kept"], withheld)
        table.print(name, *means, by_frame, *(f"{number:.2f}" for number in numbers))
    return rows


def thin(frame: Frame) -> tuple[Tensor, Tensor]:
    """Return errors and half widths of at most `MAX_VALUES` random values."""
    random = torch.Generator().manual_seed(0)
    indices = torch.randperm(len(frame.error), generator=random)[:MAX_VALUES]
    return frame.error[indices], frame.half[-1][indices]


def quantile(values: Tensor, fraction: float) -> float:
    """Return a quantile of values."""
    return float(np.quantile(values.numpy(), fraction))


def rms(values: Tensor) -> float:
    """Return the root mean square."""
    return float(values.double().square().mean().sqrt())


def frames_of(scene: Tensor, seed: int) -> Iterator[tuple[str, Tensor, System, float | None]]:
    """Yield the frames of a scene `(1, C, H, W)`: name, measurement, camera, and noise level.

    The masks are one of an instrument and a random binary one. The last frame is by a digital twin,
    whose mask, dispersion and sensor differ from the nominal camera; its noise level is not known.
    """
    bands, height, width = scene.shape[1:]
    random = torch.Generator().manual_seed(seed)
    tsa = cassi.read_mask(data_folder("tsa") / "mask.mat")[..., :height, :width]
    binary = (torch.rand(1, 1, height, width, generator=random) < 0.5).float()
    for name, mask in {"TSA": tsa, "binary": binary}.items():
        system = cassi.SDCassi(mask.contiguous(), bands, step=2)
        y = system(scene)
        yield f"{name} mask", y, system, 0.0
        level = float(y.square().mean().sqrt()) * 10 ** (-NOISE_DB / 20)
        noisy = y + level * torch.randn(y.shape, generator=random)
        yield f"{name} mask, {NOISE_DB} dB", noisy, system, level
    system = cassi.SDCassi(tsa.contiguous(), bands, step=2)
    twin: Twin = compose_settings(["twin=camera"], kind=Evaluate).twin
    true_camera = twin.true_camera(system)
    y = twin.measure(scene, system, random) - true_camera.dark
    camera = system.weighted(bad_pixels=true_camera.bad)
    alignment = align(y, camera)
    yield "bench", y, camera if alignment is None else alignment.system, None


def read_scenes(split: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the scenes of CAVE that nothing was fitted on: 3 for validation, 5 for the test."""
    if split == "test":
        for path in sorted(data_folder("cave_test").glob("*.mat")):
            yield path.stem, cassi.read_cube(path)
    else:
        for index in range(3):
            random = torch.Generator().manual_seed(index)
            yield f"validation {index}", draw_scene("scenes", index, 256, random)[None]


def main() -> None:
    """Measure all frames of a split, and print the tables."""
    parser = Parser((__doc__ or "").split("\n\n")[0])
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--samples", type=int, default=16)
    options = parser.parse_args()
    record, rows = Record(), []
    table = Table("scene", "frame", "residual over noise", "hull, %", "times the seconds")
    for seed, (name, scene) in enumerate(read_scenes(options.split)):
        for kind, y, camera, noise in frames_of(scene, seed):
            method = Recipe(settings_of(parse_item(options.method)), y.device)
            reconstructor = method.make(scene.shape[1])[0]
            start = time.perf_counter()
            x = reconstructor.run(y, camera).x
            seconds = time.perf_counter() - start
            start = time.perf_counter()
            bars = estimate(y, camera, reconstructor, x, samples=options.samples)
            assert bars.samples is not None
            for _ in bars.samples:
                pass
            ratio = 1 + (time.perf_counter() - start) / seconds
            residual, hull = judge_samples(bars.samples, scene[0], noise)
            ask(bars.samples, scene[0], record)
            cells = {"residual": residual, "hull": hull, "seconds": ratio}
            rows.append({"scene": name, "frame": kind, **cells})
            table.print(name, kind, "" if residual is None else residual, 100 * hull, ratio)
    print()
    questions = report(record)
    results = {"frames": rows, "questions": questions}
    write_json(options.json, "answers", {f"{options.split}, {options.method}": results})


if __name__ == "__main__":
    main()
