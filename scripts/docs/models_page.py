"""Write docs/reference/networks.md: every network, what it costs, what was published of it.

    python -m scripts.benchmarks.models --sizes 256 660 --csv docs/reference/networks_cpu.csv
    python -m scripts.docs.models_page

Descriptions and papers are those of the classes' docstrings, published figures those of
`published_figures.yaml`, measured ones those of `docs/reference/networks_*.csv`.
"""

import argparse
import csv
import inspect
import re
from pathlib import Path
from typing import Any

import yaml

from cassi.models.load import create_model
from cassi.models.registry import find_model, list_models

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/networks.md"
TABLES = tuple(PAGE.with_name(f"networks_{device}.csv") for device in ("cpu", "cuda"))
FIGURES = Path(__file__).with_name("published_figures.yaml")
TEXT = Path(__file__).with_name("models_page.md")
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
MISSING = "–"

Measured = dict[tuple[str, str, str, str], dict[str, str]]
"""Rows of the tables by device, size, network and precision."""


def main(arguments: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args(arguments)
    options.output.write_text(make_page(), encoding="utf-8")


def make_page() -> str:
    """Return the page."""
    published = yaml.safe_load(FIGURES.read_text(encoding="utf-8"))
    measured = read_measurements()
    parts = {
        "NETWORKS": make_networks_table(published["networks"], measured),
        "CLASSES": make_classes_table(published),
        "MACHINE": describe_machine(measured),
    }
    text = TEXT.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    return text


def read_measurements() -> Measured:
    """Read the tables that were measured so far."""
    found = {}
    for table in TABLES:
        if table.is_file():
            with table.open(newline="", encoding="utf-8") as stream:
                for row in csv.DictReader(stream):
                    found[row["device"], row["size"], row["model"], row["precision"]] = row
    return found


def make_networks_table(published: dict[str, Any], measured: Measured) -> str:
    """Make a row for every registered network."""
    cases = sorted({(device, int(size)) for device, size, _, _ in measured})
    columns = ["network", "stages", "M", "GFLOPs"]
    for device, size in cases:
        columns += [f"{device} {size}², s f32", "bf16", "MiB f32", "bf16"]
    columns += ["PSNR / SSIM", "paper"]
    rows = []
    for name in list_models(shipped=False):
        entry, count = find_model(name), count_parameters(name)
        counted = measured.get(("cpu", "256", name, "float32"), {})
        row = [f"`{name}`", str(find_stages(name)), f"{count / 1e6:.2f}"]
        row.append(f"{float(counted['gflops']):.1f}" if counted.get("ms") else MISSING)
        for device, size in cases:
            found = [measured.get((device, str(size), name, p), {}) for p in PRECISIONS]
            row += [show(case, "ms", 1e-3, ".2f") for case in found]
            row += [show(case, "peak_mb", 1.0, ".0f") for case in found]
        figures = published.get(name, {})
        known = "psnr" in figures
        row.append(f"{figures['psnr']:.2f} / {figures['ssim']:.3f}" if known else MISSING)
        authors, _, venue = read_source(entry.make)
        row.append(f"{authors}, {venue}" if authors else MISSING)
        rows.append(row)
    return format_table(columns, rows)


def make_classes_table(published: dict[str, Any]) -> str:
    """Make a row for every class: what it is, where it was described, whose code it equals."""
    rows, seen = [], set()
    for name in list_models(shipped=False):
        cls = find_model(name).make
        if cls in seen:
            continue
        seen.add(cls)
        names = [
            f"`{other}`" for other in list_models(shipped=False) if find_model(other).make is cls
        ]
        authors, title, venue = read_source(cls)
        paper = f"{authors}, *{title}*, {venue}" if authors else MISSING
        source = published["networks"].get(name, {}).get("source")
        where = published["sources"][source] if source else None
        link = f"[{where['text']}]({where['url']})" if where else "`cassi-train`"
        summary = (inspect.getdoc(cls) or "").partition("\n")[0].removesuffix(".")
        rows.append([" ".join(names), summary, paper, link])
    return format_table(["networks", "what it is", "paper", "code and weights"], rows)


def describe_machine(measured: Measured) -> str:
    """Say what the times were measured on."""
    threads = sorted({row["threads"] for (device, *_), row in measured.items() if device == "cpu"})
    return f"{' or '.join(threads)} threads" if threads else "not measured yet"


def show(row: dict[str, str], key: str, factor: float, digits: str) -> str:
    """Format what was measured; nothing where the network did not run."""
    value = float(row.get(key) or 0)
    return format(value * factor, digits) if value else MISSING


def count_parameters(name: str) -> int:
    """Count the parameters of a network."""
    return sum(p.numel() for p in create_model(name).parameters())


def find_stages(name: str) -> int | str:
    """Return how many stages a network unrolls, by its settings or its class's default."""
    entry = find_model(name)
    if "stages" in entry.settings:
        return int(entry.settings["stages"])
    parameter = inspect.signature(entry.make).parameters.get("stages")
    return MISSING if parameter is None else int(parameter.default)


def read_source(cls: Any) -> tuple[str, str, str]:
    """Return authors, title and venue from the docstring of a class, or empty strings."""
    text = " ".join((inspect.getdoc(cls) or "").split())
    found = re.search(r'Source: ([^"]+), "(.+?)",? ([A-Za-z ]+ \d{4})', text)
    return (found[1], found[2].rstrip(","), found[3]) if found else ("", "", "")


def format_table(columns: list[str], rows: list[list[str]]) -> str:
    """Format a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
