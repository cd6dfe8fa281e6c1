"""Put better weights into the package: the gate that every training's result passes, or does not.

    python -m scripts.release.weights FILE OUT             # again after a break: it goes on
    python -m scripts.release.weights FILE OUT --replace   # put FILE into the package if it passes
    python -m scripts.release.weights OUT                  # the weights of the package

Every row of the panel (scripts/benchmarks/kinds.py) is measured by `solver=auto`, by the weights of
the package, and by those of the file, in half precision, as they would be shipped. Validation
scenes are used, never test scenes. OUT keeps every row as it is known: name a new folder when a
method changes. The last line is PASS, or the rows that fail:

- in no row may the new weights be more than 0.1 dB below auto, but for captures: held-out pixels
  compare weights, not methods;
- in no row may they be more than 0.25 dB below the weights of the package, and their mean over the
  panel must be at least 0.02 dB above;
- 90 % intervals of error bars must hold 88 to 92 % of the values on average, and 83 to 96 % of each
  frame (scripts/release/uncertainty.py calibrates them).

OUT/card.json has the figures of the model card: `python -m scripts.docs.figures OUT/card.json` puts
them onto the page. Needs `$CASSI_DATA`.
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
from cassi.models.pretrained import FILE, load_shipped
from cassi.uncertainty import estimate, score
from scripts.benchmarks.kinds import PANEL, Row, compare
from scripts.docs.figures import format_fractions

BETTER, WORSE = 0.02, 0.25
"""dB: on average at least so much better than the weights of the package, nowhere more than so much
worse."""
BELOW_AUTO = 0.1
"""dB: nowhere more than so much below the solver that needs no training."""
BARS = ("TSA mask", "TSA mask, 30 dB", "binary mask", "binary mask, 30 dB", "16 bands", "step -3")
"""Rows whose error bars are tested."""
ON_AVERAGE, EACH = (0.88, 0.92), (0.83, 0.96)
"""Shares of the values that 90 % intervals may hold."""

Rows = dict[str, dict[str, float]]
"""dB of every method, by row."""


def make_methods(path: Path) -> dict[str, Any]:
    """Return the reconstructors by name: auto, those of the package, and those of the file."""
    found: dict[str, Any] = {"auto": auto()}
    if FILE.is_file() and (path == FILE or fits(FILE)):
        found["package"] = prepare(load_shipped(FILE, "large"), True, "32-true")
    if path != FILE:
        network = load_shipped(path, "large")
        network.half().float()  # as they would be shipped
        found["new"] = prepare(network, True, "32-true")
    return found


def fits(path: Path) -> bool:
    """Tell whether a file's weights are those of the network as it is now."""
    card = read_card(path)
    wanted = create_model(card.name, bands=card.bands, **card.settings).state_dict()
    return {k: v.shape for k, v in load_file(path).items()} == {
        k: v.shape for k, v in wanted.items()
    }


def measure_bars(row: Row, run: Any) -> list[float]:
    """Return the share of the values that 90 % intervals hold, of each scene."""
    held = []
    for truth, y, system in row.problems():
        x = run(y, system)
        std = estimate(y, system, run, x).std
        held.append(score(x[0], std[0], truth[0])["coverage/90"])  # type: ignore[index]
    return held


class Kept:
    """What is measured already: a file of figures, written after every row.

    Args:
        folder: where it is.
        files: of the weights. The figures of other weights are refused.
    """

    def __init__(self, folder: Path, files: Mapping[str, Path]) -> None:
        self.path = folder / "gate.json"
        of = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
        self.figures: dict[str, Any] = {"of": of, "rows": {}, "bars": {}}
        if self.path.exists():
            self.figures = json.loads(self.path.read_text())
            if self.figures["of"] != of:
                raise SystemExit(f"{folder}: holds the figures of other weights; name a new folder")

    def note(self, part: str, name: str, figure: Any) -> None:
        """Keep the figure of a row."""
        self.figures[part][name] = figure
        with atomic_path(self.path) as temporary:
            temporary.write_text(json.dumps(self.figures, indent=1))


def find_faults(rows: Rows, bars: Mapping[str, list[float]]) -> list[str]:
    """Return what speaks against the last method of every row, and against its error bars."""
    faults, gains = [], []
    for name, scores in rows.items():
        *_, new = scores.values()
        if new < scores["auto"] - BELOW_AUTO and not PANEL[name].is_capture:
            faults.append(f"{name}: {new - scores['auto']:+.2f} dB beside auto")
        if "new" in scores and "package" in scores:
            gains.append(new - scores["package"])
            if gains[-1] < -WORSE:
                faults.append(f"{name}: {gains[-1]:+.2f} dB beside the weights of the package")
    if gains and mean(gains) < BETTER:
        faults.append(f"mean of the panel: {mean(gains):+.2f} dB beside the weights of the package")
    every = [share for shares in bars.values() for share in shares]
    for name, shares in bars.items():
        if not all(EACH[0] <= share <= EACH[1] for share in shares):
            faults.append(f"error bars, {name}: {format_fractions(shares)}")
    if every and not ON_AVERAGE[0] <= mean(every) <= ON_AVERAGE[1]:
        faults.append(f"error bars, mean of all: {100 * mean(every):.1f} %")
    return faults


def make_card(rows: Rows, bars: Mapping[str, list[float]], faults: list[str]) -> dict[str, Any]:
    """Return the figures of the model card."""
    methods = list(next(iter(rows.values())))
    return {
        "date": f"{date.today():%d %B %Y}",
        "methods": methods,
        "rows": {row: [round(scores[name], 2) for name in methods] for row, scores in rows.items()},
        "bars": {row: [round(share, 4) for share in shares] for row, shares in bars.items()},
        "faults": faults,
    }


def main() -> None:
    """Measure what is not yet known, and judge; replace the weights where asked and passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path, nargs="?", default=FILE, help="of cassi-train")
    parser.add_argument("out", type=Path, help="a folder for what is measured")
    parser.add_argument("--replace", action="store_true", help="ship them if they pass")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    if os.environ.get("CASSI_DATA") is None:
        raise SystemExit("set CASSI_DATA to the folder that holds cave_raw and tsa")
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = Kept(arguments.out, {"package": FILE, "new": arguments.weights})
    methods = make_methods(arguments.weights)
    *_, last = methods
    rows, bars = kept.figures["rows"], kept.figures["bars"]
    for name, row in PANEL.items():
        if name not in rows:
            kept.note("rows", name, compare(row, methods))
        scores = ", ".join(f"{method} {value:.2f}" for method, value in rows[name].items())
        print(f"{name}: {scores} dB", flush=True)
    for name in BARS:
        if name not in bars:
            kept.note("bars", name, measure_bars(PANEL[name], methods[last]))
        print(f"error bars, {name}: {format_fractions(bars[name])}", flush=True)
    faults = find_faults(rows, bars)
    card = {"card": make_card(rows, bars, faults)}
    (arguments.out / "card.json").write_text(json.dumps(card, indent=1), encoding="utf-8")
    print(*(faults or ["PASS"]), sep="\n")
    if faults:
        sys.exit(1)
    if arguments.replace:
        put(arguments.weights, {name: round(scores[last], 2) for name, scores in rows.items()})


def put(path: Path, scores: Mapping[str, float]) -> None:
    """Put a file's weights into the package, in half precision, with what they score."""
    card = read_card(path)
    training = {**card.training, "validation_psnr": dict(scores)}
    FILE.parent.mkdir(exist_ok=True)
    halves = {key: value.half() for key, value in load_file(path).items()}
    with atomic_path(FILE) as temporary:
        save_model(temporary, halves, replace(card, training=training))
    print(f"{path} -> {FILE}, {FILE.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
