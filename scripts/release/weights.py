"""Test new weights, and let them replace the weights of the package if they pass.

    python -m scripts.release.weights FILE OUT             # the same command resumes after a stop
    python -m scripts.release.weights FILE OUT --replace   # put FILE into the package if it passes
    python -m scripts.release.weights OUT                  # the weights of the package

Every row of the panel (scripts/benchmarks/kinds.py) is measured with `solver=auto`, with the
weights of the package, and with those of the file. The latter are rounded to half precision, as
they would be shipped. Validation scenes are used, never test scenes. OUT keeps every measured row,
so name a new folder when a method changes. The output ends with PASS, or with the rows that fail:

- In no row may the new weights be more than 0.1 dB below auto. Captures are excepted, because their
  score by held-out pixels can compare weights, but not methods.
- In no row may the new weights be more than 0.25 dB below the weights of the package. Their mean
  over the panel must be at least 0.02 dB above.
- The 90 % intervals of the error bars must contain 88 to 92 % of the values on average, and 83 to
  96 % of the values of each frame (scripts/release/uncertainty.py calibrates them).

OUT/card.json has the figures of the model card; `python -m scripts.docs.figures OUT/card.json` puts
them onto the page. `$CASSI_DATA` is needed.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from safetensors.torch import load_file

from cassi.data.atomic import atomic_path
from cassi.methods.automatic import auto
from cassi.models.inference import prepare
from cassi.models.load import create_model, read_card, save_model
from cassi.models.pretrained import WEIGHTS_FILE, load_shipped
from cassi.uncertainty import estimate, score
from scripts.benchmarks.kinds import PANEL, Row, compare
from scripts.docs.figures import format_fractions

# Both are relative to the weights of the package. First: least mean gain over the rows. Second:
# largest loss in a single row.
MIN_MEAN_GAIN_DB, MAX_LOSS_DB = 0.02, 0.25
# Largest loss in a row relative to `auto`, which needs no training.
MAX_BELOW_AUTO_DB = 0.1
# Rows whose error bars are tested.
BAR_ROWS = (
    "TSA mask",
    "TSA mask, 30 dB",
    "binary mask",
    "binary mask, 30 dB",
    "16 bands",
    "step -3",
)
# Least and largest allowed fraction of the values within 90 % intervals. First: for the mean over
# all frames. Second: for each frame.
MEAN_COVERAGE, FRAME_COVERAGE = (0.88, 0.92), (0.83, 0.96)

# For each row, the score of each method, dB.
Rows = dict[str, dict[str, float]]


def make_methods(path: Path) -> dict[str, Any]:
    """Return the reconstructors by name: "auto", "package" and "new" (the weights of the file)."""
    methods: dict[str, Any] = {"auto": auto()}
    # If the network has changed, the weights of the package may not fit it any more.
    if WEIGHTS_FILE.is_file() and (path == WEIGHTS_FILE or fits(WEIGHTS_FILE)):
        methods["package"] = prepare(load_shipped(WEIGHTS_FILE, "large"), True, "32-true")
    if path != WEIGHTS_FILE:
        network = load_shipped(path, "large")
        network.half().float()  # rounded, as they would be shipped
        methods["new"] = prepare(network, True, "32-true")
    return methods


def fits(path: Path) -> bool:
    """Tell whether a file has the names and shapes of the network's weights."""
    card = read_card(path)
    expected = create_model(card.name, bands=card.bands, **card.settings).state_dict()
    shapes = {name: value.shape for name, value in load_file(path).items()}
    return shapes == {name: value.shape for name, value in expected.items()}


def measure_bars(row: Row, run: Any) -> list[float]:
    """Return, for each scene, the fraction of its values that are within 90 % intervals."""
    coverages = []
    for truth, y, system in row.problems():
        x = run(y, system)
        std = estimate(y, system, run, x).std
        coverages.append(score(x[0], std[0], truth[0])["coverage/90"])  # type: ignore[index]
    return coverages


class FigureFile:
    """A file of measured figures, which is written after each row.

    Args:
        folder: folder of the file.
        files: the files of weights, by name. A file with figures of other weights ends the program.
    """

    def __init__(self, folder: Path, files: Mapping[str, Path]) -> None:
        self.path = folder / "gate.json"
        hashes = {
            name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()
        }
        self.figures: dict[str, Any] = {"of": hashes, "rows": {}, "bars": {}}
        if self.path.exists():
            self.figures = json.loads(self.path.read_text())
            if self.figures["of"] != hashes:
                raise SystemExit(f"{folder}: holds the figures of other weights; name a new folder")

    def note(self, part: str, name: str, figure: Any) -> None:
        """Write the figure of a row into a part of the file, "rows" or "bars"."""
        self.figures[part][name] = figure
        with atomic_path(self.path) as temporary:
            temporary.write_text(json.dumps(self.figures, indent=1))


def find_faults(rows: Rows, bars: Mapping[str, list[float]]) -> list[str]:
    """Return the limits that the last method or its error bars miss, in a row or in the mean."""
    faults, gains = [], []
    for name, scores in rows.items():
        *_, level = scores.values()
        if level < scores["auto"] - MAX_BELOW_AUTO_DB and not PANEL[name].is_capture:
            faults.append(f"{name}: {level - scores['auto']:+.2f} dB beside auto")
        if "new" in scores and "package" in scores:
            gains.append(level - scores["package"])
            if gains[-1] < -MAX_LOSS_DB:
                faults.append(f"{name}: {gains[-1]:+.2f} dB beside the weights of the package")
    if gains and mean(gains) < MIN_MEAN_GAIN_DB:
        faults.append(f"mean of the panel: {mean(gains):+.2f} dB beside the weights of the package")
    low, high = FRAME_COVERAGE
    for name, coverages in bars.items():
        if not all(low <= coverage <= high for coverage in coverages):
            faults.append(f"error bars, {name}: {format_fractions(coverages)}")
    all_coverages = [coverage for coverages in bars.values() for coverage in coverages]
    if all_coverages and not MEAN_COVERAGE[0] <= mean(all_coverages) <= MEAN_COVERAGE[1]:
        faults.append(f"error bars, mean of all: {100 * mean(all_coverages):.1f} %")
    return faults


def make_card(rows: Rows, bars: Mapping[str, list[float]], faults: list[str]) -> dict[str, Any]:
    """Return the figures of the model card."""
    methods = list(next(iter(rows.values())))
    return {
        "date": f"{date.today():%d %B %Y}",
        "methods": methods,
        "rows": {row: [round(scores[name], 2) for name in methods] for row, scores in rows.items()},
        "bars": {row: [round(value, 4) for value in coverages] for row, coverages in bars.items()},
        "faults": faults,
    }


def main() -> None:
    """Measure missing rows, and judge the weights; with `--replace` ship them if they pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "weights", type=Path, nargs="?", default=WEIGHTS_FILE, help="file of cassi-train"
    )
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--replace", action="store_true", help="ship them if they pass")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    if os.environ.get("CASSI_DATA") is None:
        raise SystemExit("set CASSI_DATA to the folder that holds cave_raw and tsa")
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = FigureFile(arguments.out, {"package": WEIGHTS_FILE, "new": arguments.weights})
    methods = make_methods(arguments.weights)
    *_, last = methods
    rows, bars = file.figures["rows"], file.figures["bars"]
    for name, row in PANEL.items():
        if name not in rows:
            file.note("rows", name, compare(row, methods))
        scores = ", ".join(f"{method} {value:.2f}" for method, value in rows[name].items())
        print(f"{name}: {scores} dB", flush=True)
    for name in BAR_ROWS:
        if name not in bars:
            file.note("bars", name, measure_bars(PANEL[name], methods[last]))
        print(f"error bars, {name}: {format_fractions(bars[name])}", flush=True)
    faults = find_faults(rows, bars)
    card = {"card": make_card(rows, bars, faults)}
    (arguments.out / "card.json").write_text(json.dumps(card, indent=1), encoding="utf-8")
    print(*(faults or ["PASS"]), sep="\n")
    if faults:
        sys.exit(1)
    if arguments.replace:
        levels = {name: round(scores[last], 2) for name, scores in rows.items()}
        replace_weights(arguments.weights, levels)


def replace_weights(path: Path, scores: Mapping[str, float]) -> None:
    """Put a file's weights into the package, in half precision, with their scores (dB)."""
    card = read_card(path)
    training = {**card.training, "validation_psnr": dict(scores)}
    WEIGHTS_FILE.parent.mkdir(exist_ok=True)
    halves = {key: value.half() for key, value in load_file(path).items()}
    with atomic_path(WEIGHTS_FILE) as temporary:
        save_model(temporary, halves, replace(card, training=training))
    print(f"{path} -> {WEIGHTS_FILE}, {WEIGHTS_FILE.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
