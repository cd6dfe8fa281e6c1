"""Calibrate samples and answers with the cases that scripts/release/uncertainty.py gathered.

    python -m scripts.release.answers OUT [--write]

Samples are drawn for the reconstructions through the true camera of OUT. The σ of a case comes from
regressions that were not trained with its scene; `uncertainty fit OUT` has written them for all
sides. The samples answer the questions of scripts/benchmarks/answers.py. For each question, the
command finds the number k of standard deviations within which 90 % of the true answers are. The σ
of means over squares is multiplied by their k over `NUMBER_WIDTH`. The half widths for numbers are
the k of these means, and those for maps the k of the maps. `--write` puts all into the package.
Repeat the command until it changes the σ by less than 5 %; a file in OUT keeps the factors. Remove
this file after `uncertainty fit --write`, and start again.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from cassi.solvers.statistics import root_mean_square
from cassi.uncertainty.answers import ANSWER_LEVELS, load_half_widths
from cassi.uncertainty.error_model import FILE, SIDES, ErrorModel
from cassi.uncertainty.estimate import uncertainty_of
from cassi.uncertainty.samples import draw_samples
from scripts.benchmarks.answers import Record, ask, report, thin
from scripts.release.uncertainty import ANY_SHIFTED, SHIFTED, Case, read_case, write_tensors

# Number of samples of each cube.
COUNT = 16
# Half width of a 90 % interval of a number, in standard deviations over the samples: the k that
# means over squares get. For normal errors and 8 independent pairs of samples, Student's t is 1.86.
# Errors have heavier tails. With 1.86, the hull of the samples held 95.0 % of the ratios of two
# bands in the validation scenes, where 88 to 94 % are wanted.
NUMBER_WIDTH = 2.1
# The question for each side of squares.
SQUARES = {8: "mean of 8 x 8", 32: "mean of 32 x 32"}


def main() -> None:
    """Calibrate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write into the package")
    parser.add_argument("--pattern", default="*_?_??.pt", help="files of the cases")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folds = {
        side: torch.load(options.folder / f"folds_{side}.pt", weights_only=False) for side in SIDES
    }
    factors_file = options.folder / "factors.json"
    factors = dict.fromkeys(SQUARES, 1.0)
    if factors_file.exists():
        factors = {int(side): value for side, value in json.loads(factors_file.read_text()).items()}
    record = Record()
    for path in sorted(options.folder.glob(options.pattern)):
        add_case(read_case(path), folds, factors, record)
    k = {name: find_widths(record, name) for name in record.frames}
    print({name: [round(value, 2) for value in widths] for name, widths in k.items()})
    changes = {side: k[name][-1] / NUMBER_WIDTH for side, name in SQUARES.items()}
    print("factors of σ", factors, "times", changes)
    factors_file.write_text(json.dumps({side: factors[side] * changes[side] for side in SQUARES}))
    maps = [name for name, frames in record.frames.items() if frames[0].is_map]
    half_widths = [
        [
            float(np.exp(np.mean([np.log(k[name][i]) for name in names])))
            for i in range(len(ANSWER_LEVELS))
        ]
        for names in (SQUARES.values(), maps)
    ]
    print("half widths of numbers and maps", half_widths)
    report(record)
    if options.write:
        with safe_open(FILE, "pt") as file:
            tensors = {
                f"{side}.factors": file.get_tensor(f"{side}.factors") * change
                for side, change in changes.items()
            }
        write_tensors(tensors | {"half_widths": torch.tensor(half_widths)})


def add_case(
    case: Case,
    folds: Mapping[int, Mapping[str, ErrorModel]],
    factors: Mapping[int, float],
    record: Record,
) -> None:
    """Draw samples of a case, and ask them; cases with a shifted mask are left out."""
    if case.kind in (SHIFTED, ANY_SHIFTED):
        return
    models = {}
    for side, factor in factors.items():
        models[side] = ErrorModel()
        models[side].load_state_dict(folds[side][case.scene].state_dict())
        models[side].factors *= factor
    evidence = case.evidence
    if evidence.noise == 0:
        evidence = replace(evidence, noise=float(root_mean_square(evidence.residual)))
    uncertainty = uncertainty_of(evidence, case.system, case.level, folds[1][case.scene])
    samples = draw_samples(evidence, case.system, case.level, uncertainty.std, models, COUNT)
    ask(samples, case.truth[0], record)


def find_widths(record: Record, name: str) -> list[float]:
    """Return the number of standard deviations within which the true answers are, by level."""
    pairs = [thin(frame) for frame in record.frames[name]]
    half_width = load_half_widths()[int(record.frames[name][0].is_map), -1]
    deviation = torch.cat([half for _, half in pairs]) / half_width
    ratio = torch.cat([error for error, _ in pairs]) / deviation.clamp_min(1e-9)
    return [float(np.quantile(ratio.numpy(), level)) for level in ANSWER_LEVELS]


if __name__ == "__main__":
    main()
