"""Write docs/reference/leaderboard.md from what cassi-evaluate found.

    cassi-evaluate benchmark=leaderboard hydra.run.dir=runs/leaderboard
    cassi-evaluate benchmark=inversenet data=cave_test hydra.run.dir=runs/inversenet \
        'reconstructors=[gap_tv,auto,pretrained]' 'knowledge=[nominal,told,calibrated]'
    python -m scripts.benchmarks.video --json runs/video.json
    python -m scripts.docs.leaderboard runs/leaderboard runs/inversenet runs/video.json  # take over
    python -m scripts.docs.leaderboard                                   # write the page

What is taken over from folders of results (results.json, timing.json, benchmark.json) and from the
file is kept in docs/reference/leaderboard.json, from which the page follows to the byte, with
published_figures.yaml. A condition that is measured again takes the place of what stood there.
Other conditions than those of the two benchmarks are refused.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/leaderboard.md"
TEXT = Path(__file__).with_name("leaderboard.md")
CASES: Any = OmegaConf.to_container(
    OmegaConf.load(ROOT / "conf/benchmark/leaderboard.yaml").benchmark.cases
)
CONDITIONS = {
    "grey": "grey mask",
    "grey, 30 dB": "grey mask, 30 dB",
    "binary": "binary mask",
    "binary, 30 dB": "binary mask, 30 dB",
    "InverseNet II": "InverseNet II",
    "InverseNet III": "III",
    "InverseNet IV": "IV",
}
"""Condition → heading; the first is the one of which SSIM, SAM and seconds are shown."""
TRAINED = {"pretrained": "20 CAVE scenes"}
"""What the weights of a method have seen; solvers have seen nothing."""
VIDEOS = "video snapshots"
"""Beside the data sets: method → scene → PSNR."""
FIGURES = Path(__file__).with_name("published_figures.yaml")
MISSING = "–"

Table = dict[str, dict[str, dict[str, Any]]]
"""Data set → method → condition → values; `parameters` beside the conditions."""


def main(arguments: list[str] | None = None) -> None:
    """Take over results, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER|FILE")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args(arguments)
    kept = options.output.with_suffix(".json")
    table: Table = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for folder in options.folders:
        if folder.is_file():
            table[VIDEOS] = json.loads(folder.read_text(encoding="utf-8"))
        else:
            take_over(table, folder)
    kept.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    options.output.write_text(make_page(table), encoding="utf-8")


def take_over(table: Table, folder: Path) -> None:
    """Put the results of an evaluation into the table.

    Raises:
        OSError: the folder holds no results.
        ValueError: they are of a condition that the page does not have.
    """
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    timing = json.loads((folder / "timing.json").read_text(encoding="utf-8"))["timing"]
    settings, preset = results["settings"], results["preset"]
    methods = table.setdefault(settings["data"], {})
    protocol = (folder / "benchmark.json").is_file()
    for row, found in results["metrics"].items():
        method, condition = name_condition(row, settings, protocol)
        if condition is None or not found["mean"]:
            continue
        mean, times = found["mean"], timing[row]["mean"]
        values = {name: mean.get(f"{name}/{preset}") for name in ("psnr", "ssim")}
        values |= {"sam": mean.get("sam"), "scenes": len(found["scenes"]), "preset": preset}
        values["seconds"] = None if times.get("seconds") is None else round(times["seconds"], 2)
        entry = methods.setdefault(method, {})
        entry[condition] = {
            k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()
        }
        parameters = results["about"].get(row, {}).get("parameters")
        if parameters is not None:
            entry["parameters"] = parameters


def name_condition(row: str, settings: Mapping[str, Any], protocol: bool) -> tuple[str, str | None]:
    """Return the method of a row and its condition; None for a row that the page does not show.

    Raises:
        ValueError: the conditions are none of the page's.
    """
    method, _, known = row.partition(" (")
    known = known.removesuffix(")")
    if protocol:
        columns = {"": "II", "told": "III", "calibrated": "IV"}
        return method, f"InverseNet {columns[known]}" if known in columns else None
    changed = {name: settings.get(name) for name in ("noise", "mask", "twin")}
    wrong = sorted(name for name, value in changed.items() if _differs(value))
    if settings.get("cases") != CASES or wrong:
        got = ", ".join(wrong) or "other cases"
        raise ValueError(f"leaderboard: expected benchmark=leaderboard as it is, got {got}")
    return method, known


def _differs(value: Any) -> bool:
    """Tell whether a setting is anything but nothing: null, 0, or a mapping or list of those."""
    if isinstance(value, Mapping | list):
        return any(map(_differs, value.values() if isinstance(value, Mapping) else value))
    return bool(value)


def make_page(table: Table) -> str:
    """Return the page."""
    sets = sorted(table.keys() - {VIDEOS})
    parts = [f"## `data={data}`\n\n{make_table(table[data])}" for data in sets]
    text = TEXT.read_text(encoding="utf-8")
    text = text.replace("<!-- TABLES -->", "\n\n".join(parts) or "Nothing is measured yet.")
    return text.replace("<!-- VIDEOS -->", make_video_table(table.get(VIDEOS, {})))


def make_video_table(measured: Mapping[str, Mapping[str, float]]) -> str:
    """Make a row for every method, measured or published, the best first."""
    published = yaml.safe_load(FIGURES.read_text(encoding="utf-8"))["videos"]
    scenes, link = published["scenes"], "[{text}]({url})".format(**published["source"])
    rows = [
        ([found[scene] for scene in scenes], f"`{name}`", "measured")
        for name, found in measured.items()
    ]
    rows += [(values, name, link) for name, values in published["methods"].items()]
    lines = [f"| method | from | {' | '.join(scenes)} | mean |", "| --- " * (len(scenes) + 3) + "|"]
    for values, name, origin in sorted(rows, key=lambda row: -sum(row[0])):
        cells = " | ".join(f"{value:.2f}" for value in [*values, sum(values) / len(values)])
        lines.append(f"| {name} | {origin} | {cells} |")
    return "\n".join(lines)


def make_table(methods: Mapping[str, Mapping[str, Any]]) -> str:
    """Make a row for every method, the best first."""
    first = next(iter(CONDITIONS))
    shown = [name for name in CONDITIONS if any(name in entry for entry in methods.values())]

    def rank(method: str) -> tuple[float, str]:
        return -float((methods[method].get(first) or {}).get("psnr") or 0), method

    head = ["method", "trained on", "M", "s", *(CONDITIONS[name] for name in shown)]
    rows = [head, ["---"] * len(head)]
    for method in sorted(methods, key=rank):
        entry = methods[method]
        count = entry.get("parameters")
        seconds = (entry.get(first) or {}).get("seconds")
        row = [f"`{method}`", TRAINED.get(method, MISSING if count is None else "see its file")]
        row.append(MISSING if count is None else f"{count / 1e6:.2f}")
        row.append(MISSING if seconds is None else f"{seconds:.1f}")
        for name in shown:
            row.append(show(entry.get(name), whole=name == first, usual=most_scenes(methods)))
        rows.append(row)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", describe(methods)])


def show(values: Mapping[str, Any] | None, whole: bool, usual: int) -> str:
    """Format PSNR, SSIM and SAM beside it where the whole is asked for; fewer scenes are said."""
    if not values or values.get("psnr") is None:
        return MISSING
    text = f"{values['psnr']:.2f}"
    if whole and values.get("ssim") is not None:
        text += f" / {values['ssim']:.3f} / {values['sam']:.1f}°"
    return text if values["scenes"] == usual else f"{text} ({values['scenes']} scenes)"


def describe(methods: Mapping[str, Mapping[str, Any]]) -> str:
    """Say how many scenes the means are of that do not say it themselves."""
    return f"Means over {most_scenes(methods)} scenes, or as many as stand beside."


def most_scenes(methods: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the largest number of scenes that a mean is of."""
    found = [e[name]["scenes"] for e in methods.values() for name in CONDITIONS if name in e]
    return max(found, default=0)


if __name__ == "__main__":
    main()
