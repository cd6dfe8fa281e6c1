"""Write the figures of docs/figures.json into the tables and sentences of the pages.

    cassi-evaluate benchmark=leaderboard hydra.run.dir=runs/leaderboard
    python -m scripts.benchmarks.video --json runs/video.json
    python -m scripts.docs.figures runs/leaderboard runs/video.json    # add figures, fill pages
    python -m scripts.docs.figures --check                             # list pages that disagree

A folder has results of `benchmark=leaderboard` or `benchmark=inversenet`. A file is one that a
benchmark writes with `--json`, or card.json of `scripts.release.weights`. On a page, a table is
between `<!-- figures: NAME -->` and `<!-- end -->`. `QUOTES` lists the figures in sentences, and
figures in tables that have several sources. Figures that others have published are in
`published_figures.yaml`.
"""

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import yaml
from omegaconf import OmegaConf

from cassi.models.load import create_model
from cassi.models.registry import find_model, list_models
from scripts.benchmarks.kinds import KINDS, PANEL

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs/figures.json"
PUBLISHED_FIGURES = yaml.safe_load(
    Path(__file__).with_name("published_figures.yaml").read_text("utf-8")
)
CASES: Any = OmegaConf.to_container(
    OmegaConf.load(ROOT / "conf/benchmark/leaderboard.yaml").benchmark.cases
)
# Condition → heading of its column. SSIM, SAM and seconds are shown for the first one.
CONDITIONS = {
    "grey": "grey mask",
    "grey, 30 dB": "grey mask, 30 dB",
    "binary": "binary mask",
    "binary, 30 dB": "binary mask, 30 dB",
    "InverseNet II": "InverseNet II",
    "InverseNet III": "III",
    "InverseNet IV": "IV",
}
# Training data of the weights of a method; solvers have none.
TRAINING_DATA = {"pretrained": "20 CAVE scenes"}
MISSING = "–"
Figures = dict[str, Any]
# For each page, pieces of its text with figures as fields of `str.format`. The format `s` is `f`
# without the zero before the point.
QUOTES: dict[str, tuple[str, ...]] = {
    "README.md": (
        "any camera | {tsa.auto[0]:.1f} dB",
        "the best in seconds | {tsa.pretrained[0]:.1f} dB",
        "without training data | {tsa.self_supervised[0]:.1f} dB",
        "the best in minutes | {tsa.adapted[0]:.1f} dB",
        "compare with the literature | {tsa.gap_tv[0]:.1f} dB",
    ),
    "docs/guides/methods.md": (
        "| gap_tv | {tsa.gap_tv[0]:.2f} | {tsa.gap_tv[1]:.3s} |",
        "| auto | {tsa.auto[0]:.2f} | {tsa.auto[1]:.3s} |",
        "| self_supervised | {tsa.self_supervised[0]:.2f} | {tsa.self_supervised[1]:.3s} |",
        "| pretrained, `adapt=true` | {tsa.adapted[0]:.2f} | {tsa.adapted[1]:.3s} |",
        "| pretrained | {tsa.pretrained[0]:.2f} | {tsa.pretrained[1]:.3s} |",
        "`auto` reaches {tsa_30.auto[0]:.2f} ({tsa_20.auto[0]:.2f}) dB",
    ),
    "docs/guides/pretrained.md": (
        "| TSA mask | {tsa.auto[0]:.2f} / {tsa.auto[1]:.3s} | {tsa.pretrained[0]:.2f} / "
        "{tsa.pretrained[1]:.3s} | {tsa.small[0]:.2f} / {tsa.small[1]:.3s} |",
        "not in the training | {binary.auto[0]:.2f} / {binary.auto[1]:.3s} | "
        "{binary.pretrained[0]:.2f} / {binary.pretrained[1]:.3s} |",
        "| TSA mask, noise of 30 dB | {tsa_30.auto[0]:.2f} / {tsa_30.auto[1]:.3s} | "
        "{tsa_30.pretrained[0]:.2f} / {tsa_30.pretrained[1]:.3s} |",
        "noise of 20 dB | {tsa_20.auto[0]:.2f} / {tsa_20.auto[1]:.3s} |",
    ),
    "docs/guides/self-supervised.md": (
        "| TSA mask | {tsa.auto[0]:.2f} | {tsa.pretrained[0]:.2f} | "
        "{tsa.self_supervised[0]:.2f} | {tsa.adapted[0]:.2f} |",
        "| random binary mask | {binary.auto[0]:.2f} | {binary.pretrained[0]:.2f} |",
        "30 dB of noise | {tsa_30.auto[0]:.2f} | {tsa_30.pretrained[0]:.2f} |",
    ),
    "docs/guides/video.md": tuple(
        f"{start} | {{videos[{name}][kobe]:.2f}} | {{videos[{name}][traffic]:.2f}} | "
        f"{{videos[{name}][runner]:.2f}} |"
        for start, name in {
            "| `gap_tv`": "gap_tv",
            "| `auto`, of bands": "auto, of bands",
            "| `video`, and `auto`": "auto",
            "| `video`, `solver.passes=4`": "video, 4 passes",
        }.items()
    ),
    "docs/reference/networks.md": ("on a CPU with {networks[threads]:.0f} threads",),
}
FIELD = re.compile(r"\{[^}]*\}")


class _Figure(float):
    """A number that the format `.3s` shows without the zero before its point."""

    def __format__(self, form: str) -> str:
        digits = super().__format__(form.replace("s", "f"))
        return digits.removeprefix("0") if form.endswith("s") else digits


def fill(page: str, text: str, figures: Figures) -> str:
    """Return the text of a page with new tables and quotes.

    Raises:
        ValueError: a quote is not on the page exactly once.
    """
    for name, make in TABLES.items():
        begin, end = f"<!-- figures: {name} -->", "<!-- end -->"
        if begin in text:
            head, _, tail = text.partition(begin)
            text = f"{head}{begin}\n\n{make(figures)}\n\n{end}{tail.partition(end)[2]}"
    values = {name: _quotable(value) for name, value in figures.items()}
    for quote in QUOTES.get(page, ()):
        # The quote is found by its words, with any number at the position of a field.
        words = map(re.escape, FIELD.split(quote))
        text, count = re.subn(r"[\d.]+".join(words), quote.format(**values), text)
        if count != 1:
            raise ValueError(f"{page}: expected once {quote!r}, found it {count} times")
    return text


def _quotable(value: Any) -> Any:
    """Return figures in the form that the fields of a quote use: `{tsa.auto[0]:.3s}`."""
    if isinstance(value, dict):
        return _Quotable({name: _quotable(item) for name, item in value.items()})
    if isinstance(value, list):
        return [_quotable(item) for item in value]
    return _Figure(value) if isinstance(value, int | float) else value


class _Quotable(dict[str, Any]):
    """A dictionary whose values can also be read as attributes."""

    __getattr__ = dict.__getitem__


def merge(figures: Figures, new_figures: Figures) -> None:
    """Add new figures to the others; a new figure replaces an old one of the same name."""
    for name, value in new_figures.items():
        if isinstance(value, dict) and isinstance(figures.get(name), dict):
            merge(figures[name], value)
        else:
            figures[name] = value


def add_results(figures: Figures, folder: Path) -> None:
    """Add the results of an evaluation to the figures of the leaderboard.

    Raises:
        OSError: the folder has no results.
        ValueError: the results have a condition that the page does not have.
    """
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    timing = json.loads((folder / "timing.json").read_text(encoding="utf-8"))["timing"]
    settings, preset = results["settings"], results["preset"]
    methods = figures.setdefault("leaderboard", {}).setdefault(settings["data"], {})
    is_protocol = (folder / "benchmark.json").is_file()
    for row, metrics in results["metrics"].items():
        method, condition = name_condition(row, settings, is_protocol)
        if condition is None or not metrics["mean"]:
            continue
        means = metrics["mean"]
        values = {name: means.get(f"{name}/{preset}") for name in ("psnr", "ssim")}
        values |= {"sam": means.get("sam"), "scenes": len(metrics["scenes"])}
        values |= {"preset": preset, "seconds": timing[row]["mean"].get("seconds")}
        entry = methods.setdefault(method, {})
        entry[condition] = {
            name: round(value, 2 if name == "seconds" else 4) if isinstance(value, float) else value
            for name, value in values.items()
        }
        parameters = results["about"].get(row, {}).get("parameters")
        if parameters is not None:
            entry["parameters"] = parameters


def name_condition(
    row: str, settings: Mapping[str, Any], is_protocol: bool
) -> tuple[str, str | None]:
    """Return the method and the condition of a row.

    The condition is None if the page does not show it.

    Raises:
        ValueError: the settings are not those of the page's conditions.
    """
    method, _, condition = row.partition(" (")
    condition = condition.removesuffix(")")
    # A row is "METHOD (CONDITION)"; in a protocol the condition is the knowledge of the camera.
    if is_protocol:
        columns = {"": "II", "told": "III", "calibrated": "IV"}
        return method, f"InverseNet {columns[condition]}" if condition in columns else None
    changes = sorted(name for name in ("noise", "mask", "twin") if _is_set(settings.get(name)))
    if settings.get("cases") != CASES or changes:
        text = ", ".join(changes) or "other cases"
        raise ValueError(f"leaderboard: expected benchmark=leaderboard as it is, got {text}")
    return method, condition


def _is_set(value: Any) -> bool:
    """Tell whether a setting, or a value inside it, is other than null, 0 and empty."""
    if isinstance(value, Mapping | list):
        return any(map(_is_set, value.values() if isinstance(value, Mapping) else value))
    return bool(value)


def make_leaderboard(figures: Figures) -> str:
    """Return a table for every data set, with a row for every method, the best first."""
    return "\n\n".join(
        f"## `data={data}`\n\n{_make_ranking(methods)}"
        for data, methods in sorted(figures.get("leaderboard", {}).items())
    )


def _make_ranking(methods: Mapping[str, Mapping[str, Any]]) -> str:
    first = next(iter(CONDITIONS))
    conditions = [name for name in CONDITIONS if any(name in entry for entry in methods.values())]
    n_scenes = max(
        entry[name]["scenes"] for entry in methods.values() for name in conditions if name in entry
    )

    def format_cell(values: Mapping[str, Any], all_metrics: bool) -> str:
        if values.get("psnr") is None:
            return MISSING
        text = f"{values['psnr']:.2f}"
        if all_metrics and values.get("ssim") is not None:
            text += f" / {values['ssim']:.3f} / {values['sam']:.1f}°"
        return text if values["scenes"] == n_scenes else f"{text} ({values['scenes']} scenes)"

    def rank(method: str) -> tuple[float, str]:
        return -float(methods[method].get(first, {}).get("psnr") or 0), method

    rows = []
    for method in sorted(methods, key=rank):
        entry = methods[method]
        count, seconds = entry.get("parameters"), entry.get(first, {}).get("seconds")
        training_data = TRAINING_DATA.get(method, MISSING if count is None else "see its file")
        row = [f"`{method}`", training_data, MISSING if count is None else f"{count / 1e6:.2f}"]
        row.append(MISSING if seconds is None else f"{seconds:.1f}")
        row += [format_cell(entry.get(name, {}), name == first) for name in conditions]
        rows.append(row)
    head = ["method", "trained on", "M", "s", *(CONDITIONS[name] for name in conditions)]
    note = f"Means over {n_scenes} scenes, or over the number of scenes in brackets."
    return f"{format_table(head, rows)}\n\n{note}"


def make_videos(figures: Figures) -> str:
    """Return a row for every method for video, measured or published, the best first."""
    publication = PUBLISHED_FIGURES["videos"]
    scenes, link = publication["scenes"], "[{text}]({url})".format(**publication["source"])
    rows = [
        ([psnr[scene] for scene in scenes], f"`{name}`", "measured")
        for name, psnr in figures["videos"].items()
    ]
    rows += [(values, name, link) for name, values in publication["methods"].items()]
    cells = [
        [name, origin, *(f"{value:.2f}" for value in [*values, mean(values)])]
        for values, name, origin in sorted(rows, key=lambda row: -sum(row[0]))
    ]
    return format_table(["method", "from", *scenes, "mean"], cells)


def make_networks(figures: Figures) -> str:
    """Return a row for every registered network: its costs, and its published figures."""
    costs = figures["networks"]["cases"]
    columns = ["network", "stages", "M", "GFLOPs"]
    for case in costs:
        columns += [f"{case}, s f32", "bf16", "MiB f32", "bf16"]
    rows = []
    for name in list_models(shipped=False):
        # On this device parameters have shapes but no memory.
        with torch.device("meta"):
            count = sum(p.numel() for p in create_model(name).parameters())
        operations = costs["cpu 256²"].get(name, {}).get("float32", {}).get("gflops")
        row = [f"`{name}`", str(find_stages(name)), f"{count / 1e6:.2f}"]
        row.append(f"{operations:.1f}" if operations else MISSING)
        for networks in costs.values():
            cases = [networks.get(name, {}).get(dtype, {}) for dtype in ("float32", "bfloat16")]
            row += [f"{case['ms'] / 1000:.2f}" if case else MISSING for case in cases]
            row += [f"{case['peak_mb']:.0f}" if case else MISSING for case in cases]
        scores = PUBLISHED_FIGURES["networks"].get(name, {})
        if "psnr" in scores:
            row.append(f"{scores['psnr']:.2f} / {scores['ssim']:.3f}")
        else:
            row.append(MISSING)
        authors, _, venue = read_source(find_model(name).make)
        rows.append([*row, f"{authors}, {venue}" if authors else MISSING])
    return format_table([*columns, "PSNR / SSIM", "paper"], rows)


def make_sources(figures: Figures) -> str:
    """Return a row for every class of networks: its summary, its paper, the authors' code."""
    classes: dict[Any, list[str]] = {}
    for name in list_models(shipped=False):
        classes.setdefault(find_model(name).make, []).append(name)
    rows = []
    for cls, names in classes.items():
        authors, title, venue = read_source(cls)
        paper = f"{authors}, *{title}*, {venue}" if authors else MISSING
        source = PUBLISHED_FIGURES["networks"].get(names[0], {}).get("source")
        link = "`cassi-train`"
        if source:
            link = "[{text}]({url})".format(**PUBLISHED_FIGURES["sources"][source])
        summary = (inspect.getdoc(cls) or "").partition("\n")[0].removesuffix(".")
        rows.append([" ".join(f"`{name}`" for name in names), summary, paper, link])
    return format_table(["networks", "what it is", "paper", "code and weights"], rows)


def find_stages(name: str) -> int | str:
    """Return the number of stages of a network, by its settings or the default of its class."""
    entry = find_model(name)
    parameter = inspect.signature(entry.make).parameters.get("stages")
    return entry.settings.get("stages", MISSING if parameter is None else parameter.default)


def read_source(cls: Any) -> tuple[str, str, str]:
    """Return authors, title and venue from the docstring of a class, or empty strings."""
    text = " ".join((inspect.getdoc(cls) or "").split())
    match = re.search(r'Source: ([^"]+), "(.+?)",? ([A-Za-z ]+ \d{4})', text)
    return (match[1], match[2].rstrip(","), match[3]) if match else ("", "", "")


def make_verdict(figures: Figures) -> str:
    """Return a paragraph on the mean gain of the weights, and the verdict of their gate."""
    card = figures["card"]
    gains = {
        name: scores[-1] - scores[0]
        for name, scores in card["rows"].items()
        if not PANEL[name].is_capture
    }
    worst = min(gains, key=gains.__getitem__)
    lines = [
        f"Measured on {card['date']}, without test scenes. On average over {len(gains)} rows the "
        f"weights gain {mean(gains.values()):.2f} dB over `auto`. The least gain is "
        f"{gains[worst]:+.2f} dB ({worst}). The gate says "
        f"{'**FAIL**' if card['faults'] else '**PASS**'}."
    ]
    return "\n".join([*lines, *(f"- {fault}" for fault in card["faults"])])


def make_gains(figures: Figures, kinds: bool) -> str:
    """Return a row for every kind of scene, or (`kinds` false) for every camera and capture."""
    card = figures["card"]
    baseline, *methods = card["methods"]
    rows = [
        [name, f"{auto:.2f}", *(f"{score - auto:+.2f}" for score in scores)]
        for name, (auto, *scores) in card["rows"].items()
        if (name in KINDS) is kinds
    ]
    columns = ["", f"{baseline}, dB", *(f"{name} − {baseline}" for name in methods)]
    return format_table(columns, rows)


def make_bars(figures: Figures) -> str:
    """Return a row for every camera whose error bars were tested."""
    bars = figures["card"]["bars"]
    all_fractions = [fraction for fractions in bars.values() for fraction in fractions]
    rows_by_name = {**bars, "all": all_fractions}
    rows = [[name, format_fractions(fractions)] for name, fractions in rows_by_name.items()]
    return format_table(["camera", "held"], rows)


def make_samples(figures: Figures) -> str:
    """Return the residuals, hulls and times of samples, by scenes and method."""
    rows = []
    for name, results in figures["answers"].items():
        frames = results["frames"]
        residuals = [f["residual"] for f in frames if f["frame"].endswith("dB")]
        hulls = [f["hull"] for f in frames]
        times = sorted(f["seconds"] for f in frames)
        span = f"{min(residuals):.2f} to {max(residuals):.2f}"
        rows.append([name, span, format_fractions(hulls), f"{times[len(times) // 2]:.1f}"])
    return format_table(["scenes, method", "residual over noise, 30 dB", "hull", "times"], rows)


def make_answers(figures: Figures) -> str:
    """Return coverage, width and error of answers, by scenes, method and question."""
    columns = ["scenes, method", "question", "68 %", "90 %", "by frame", "out", "width in a frame"]
    rows = []
    for name, results in figures["answers"].items():
        for row in results["questions"]:
            shares = [f"{100 * share:.1f}" for share in row["coverage"]]
            low, high = (f"{100 * end:.0f}" for end in row["by frame"])
            numbers = [row[key] for key in ("width in frame", "width", "error", "kept", "withheld")]
            cells = [name, row["question"], *shares, f"{low} to {high}"]
            cells += [f"{row['outside']} of {row['frames']}", *(f"{n:.2f}" for n in numbers)]
            rows.append(cells)
    return format_table([*columns, "over frames", "error", "kept", "withheld"], rows)


def make_measured(names: tuple[str, ...], figures: Figures) -> str:
    """Return the table that a benchmark printed; its first row has the names of the columns."""
    table: Any = figures
    for name in names:
        table = table[name]
    return format_table(table[0], table[1:])


def format_fractions(fractions: list[float]) -> str:
    """Format the mean of fractions, and the least and the largest, as percentages."""
    low, high = min(fractions), max(fractions)
    return f"{100 * mean(fractions):.1f} ({100 * low:.1f}, {100 * high:.1f}) %"


def format_table(columns: list[str], rows: list[list[str]]) -> str:
    """Format a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# Functions that return a table, by the name of the table on its page.
TABLES: dict[str, Callable[[Figures], str]] = {
    "leaderboard": make_leaderboard,
    "videos": make_videos,
    "networks": make_networks,
    "sources of networks": make_sources,
    "verdict on the weights": make_verdict,
    "gains by scene": lambda figures: make_gains(figures, True),
    "gains by camera": lambda figures: make_gains(figures, False),
    "error bars": make_bars,
    "samples": make_samples,
    "answers": make_answers,
    **{
        ", ".join(names): partial(make_measured, names)
        for names in (
            *(("commands",), ("methods",), ("folder",), ("training",)),
            *(("deadlines", "one frame"), ("deadlines", "sequence")),
        )
    },
}
PAGES = (
    *QUOTES,
    *("docs/reference/leaderboard.md", "docs/reference/model-card.md"),
    *("docs/development/experiments/samples.md", "docs/development/experiments/deadline.md"),
    "docs/reference/speed.md",
)


def main(arguments: list[str] | None = None) -> int:
    """Add figures and fill the pages; with `--check` return 1 if a page disagrees."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("results", nargs="*", type=Path, metavar="FOLDER|FILE")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    figures: Figures = json.loads(FILE.read_text(encoding="utf-8"))
    for path in options.results:
        if path.is_dir():
            add_results(figures, path)
        else:
            merge(figures, json.loads(path.read_text(encoding="utf-8")))
    stale_pages = []
    for page in PAGES:
        file = ROOT / page
        text = file.read_text(encoding="utf-8")
        new_text = fill(page, text, figures)
        if new_text != text:
            stale_pages.append(page)
        if not options.check:
            file.write_text(new_text, encoding="utf-8")
    if options.check:
        print(*(f"{page}: other figures than docs/figures.json" for page in stale_pages), sep="\n")
        return int(bool(stale_pages))
    text = json.dumps(figures, indent=1, sort_keys=False, ensure_ascii=False)
    FILE.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
