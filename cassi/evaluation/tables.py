"""Records as tables: CSV, Markdown, JSON, LaTeX."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cassi.checks import printable
from cassi.data.atomic import atomic_path
from cassi.data.formats.cells import csv_text, strict_json
from cassi.data.synthetic.twin import Twin
from cassi.evaluation.records import Record, Values
from cassi.plugins import parts

MEAN = "mean"
_FAILURE = ("method", "scene", "error")
_HEADING = (
    "PSNR and SSIM by the preset `{}`; the others are in results.csv. Operations count two per "
    "multiply-add; publications mostly count one."
)
UNKNOWN = "–"
MARKDOWN = ("**{}**", "<u>{}</u>")
LATEX = (r"\textbf{{{}}}", r"\underline{{{}}}")
"""How the best value is shown, and the second."""


class Column(NamedTuple):
    """A column of a table."""

    heading: str
    unit: str
    digits: int
    value: str  # its name, with `{preset}` where it depends on that
    better: str | None = None  # "higher" or "lower"; None where no value is the best
    one: float = 1.0  # a value of 1 in the unit of the column


_COLUMNS = (
    Column("PSNR", "dB", 2, "psnr/{preset}", "higher"),
    Column("SSIM", "", 4, "ssim/{preset}", "higher"),
    Column("SAM", "°", 2, "sam", "lower"),
    Column("RMSE", "", 4, "rmse", "lower"),
    Column("ERGAS", "%", 2, "ergas", "lower"),
    Column("residual", "", 4, "residual"),
    *(Column(f"in {n} % bars", "%", 1, f"coverage/{n}", one=0.01) for n in (50, 80, 90, 95)),
    Column("width", "", 4, "width"),
    Column("NLL", "", 2, "nll"),
    Column("AUSE", "", 2, "ause"),
    Column("time", "s", 2, "seconds"),
    Column("least time", "s", 2, "least_seconds"),
    Column("memory", "MiB", 0, "peak_memory_bytes", one=2**20),
    Column("parameters", "M", 2, "parameters", one=1e6),
    Column("operations", "GFLOP", 2, "flops", one=1e9),
)


def values_of(record: Record) -> Values:
    """Return all values of a record as one flat table row."""
    return {**record.metrics, **record.timing, **record.about}


def average(records: Sequence[Record], methods: Sequence[str]) -> dict[str, Values]:
    """Average the results of each method over scenes.

    The mean is None where a scene has no value, because it failed for instance: means over
    different scenes cannot be compared.
    """
    result: dict[str, Values] = {}
    for method in methods:
        rows = [values_of(record) for record in records if record.method == method]
        failed = any(record.error for record in records if record.method == method)
        names = list(dict.fromkeys(name for row in rows for name in row))
        result[method] = {
            name: None if failed else _mean([row.get(name) for row in rows]) for name in names
        }
    return result


def write_results(
    folder: Path,
    records: Sequence[Record],
    scenes: Sequence[str],
    methods: Sequence[str],
    *,
    preset: str,
    settings: Mapping[str, object],
    environment: Mapping[str, object],
) -> str:
    """Write results.csv, .md, .tex, results.json and timing.json.

    results.json holds what is the same in every run; seconds, memory and the machine are in
    timing.json. A method that failed on a scene has no mean. On the page, results.md, scenes that
    every method failed on do not count, and it says so.

    Args:
        folder: where they go.
        records: one per method and scene.
        scenes: in the order of the tables.
        methods: in the order of the tables.
        preset: the one that Markdown and LaTeX show; the others have all.
        settings: of the evaluation, written into results.json.
        environment: device, versions, ….

    Returns:
        The Markdown table of the means.
    """
    order = {name: index for index, name in enumerate(methods)}
    place = {name: index for index, name in enumerate(scenes)}
    records = sorted(records, key=lambda record: (order[record.method], place[record.scene]))
    means = average(records, methods)
    done = {record.scene for record in records if not record.error}
    shown = average([record for record in records if record.scene in done], methods)
    compared = compare_best(records, shown, preset)
    lost = len({record.scene for record in records} - done)
    over = f"\nMeans over {len(done)} scenes; {lost} failed with every method.\n" if lost else ""
    page = [_HEADING.format(preset), "", markdown_means(shown, preset, marked=True) + over]
    page += [_markdown_compared(compared), _markdown_scenes(records, preset)]
    texts = {
        "results.csv": _csv(records, means),
        "results.md": "\n".join(part.removesuffix("\n") for part in page) + "\n",
        "results.tex": latex(means, preset, len(scenes), settings),
        "timing.json": strict_json(
            {"environment": environment, "timing": _tree(records, means, timed=True)}
        ),
        "results.json": strict_json(
            {
                "preset": preset,
                "settings": settings,
                "metrics": _tree(records, means, timed=False),
                "about": {record.method: record.about for record in records if record.about},
                "compared": [asdict(item) for item in compared],
                "errors": [{k: vars(r)[k] for k in _FAILURE} for r in records if r.error],
            }
        ),
    }
    write_texts(folder, texts)
    return markdown_means(shown, preset) + over


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files, name → content, into a folder."""
    for name, text in texts.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


FEWEST = 6
"""Scenes of a paired test: of five the smallest p of Wilcoxon's test is 0.0625."""


@dataclass(frozen=True)
class Comparison:
    """A method beside the one with the best mean, on the same scenes."""

    method: str
    best: str
    measure: str  # "psnr/PRESET", or "residual" where there is no truth
    scenes: int  # that both have a value of
    difference: float  # mean over scenes of the best one's value minus the other's
    p: float | None  # of Wilcoxon's signed-rank test, two-sided; None for too few scenes


def compare_best(
    records: Sequence[Record], means: Mapping[str, Values], preset: str
) -> list[Comparison]:
    """Compare the method with the best mean with every other one, scene by scene.

    PSNR is compared, or the residual where there is no truth. p is not corrected for the number of
    comparisons.

    Source: Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1945.
    """
    known = any(f"psnr/{preset}" in record.metrics for record in records)
    measure, sign = (f"psnr/{preset}", 1) if known else ("residual", -1)
    scored = [name for name in means if means[name].get(measure) is not None]
    if len(scored) < 2:
        return []
    best = max(scored, key=lambda name: sign * (means[name][measure] or 0.0))
    values: dict[str, dict[str, float]] = {name: {} for name in means}
    for record in records:
        value = record.metrics.get(measure)
        if value is not None and math.isfinite(value) and record.error is None:
            values[record.method][record.scene] = value
    found = []
    for name in means:
        shared = [scene for scene in values[best] if scene in values[name]]
        if name == best or not shared:
            continue
        differences = [values[best][scene] - values[name][scene] for scene in shared]
        mean = math.fsum(differences) / len(shared)
        found.append(Comparison(name, best, measure, len(shared), mean, signed_rank(differences)))
    return found


def signed_rank(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of Wilcoxon's signed-rank test; None for fewer than six differences.

    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    0.03125
    """
    from scipy.stats import wilcoxon

    if len(differences) < FEWEST:
        return None
    if not any(differences):
        return 1.0
    return float(wilcoxon(differences).pvalue)


def _markdown_compared(compared: Sequence[Comparison]) -> str:
    if not compared:
        return ""
    residual = compared[0].measure == "residual"
    unit, digits = ("", 4) if residual else (" (dB)", 2)
    rows = [["method", "scenes", f"best − method{unit}", "p"]]
    for item in compared:
        p = f"too few scenes, fewer than {FEWEST}" if item.p is None else f"{item.p:.2g}"
        rows.append([item.method, str(item.scenes), number(item.difference, digits), p])
    what = "Relative residual" if residual else "PSNR"
    head = f"{what} of the best, {plain_markdown(compared[0].best)}, and the others by scene"
    note = "p is Wilcoxon's signed-rank test over scenes, two-sided, for one comparison by itself."
    return f"\n{head}\n\n{markdown(rows)}\n{note}\n"


def markdown_means(means: Mapping[str, Values], preset: str, *, marked: bool = False) -> str:
    """Return a Markdown table, one row per method; marked, the best is bold, the second underlined.

    >>> print(markdown_means({"a": {"sam": 2.0}, "b": {"sam": 1.0}}, "", marked=True), end="")
    | method   |     SAM (°) |
    |:---------|------------:|
    | a        | <u>2.00</u> |
    | b        |    **1.00** |
    """
    columns = _used(means.values(), preset)
    table = _marked(means, columns, preset, MARKDOWN if marked else ())
    rows = [[name, *cells] for name, cells in zip(means, table, strict=True)]
    return _markdown_split([["method", *map(_title, columns)], *rows])


def _marked(
    means: Mapping[str, Values],
    columns: Sequence[Column],
    preset: str,
    marks: Sequence[str],
) -> list[list[str]]:
    """Return the cells of every method; equal ones, as they are shown, have the same mark."""
    table = [[_cell(values, column, preset) for column in columns] for values in means.values()]
    for place, column in enumerate(columns):
        shown = {cell: float(cell) for row in table if (cell := row[place]) not in (UNKNOWN, "nan")}
        best = sorted(set(shown.values()), reverse=column.better == "higher")[: len(marks)]
        if column.better is None or len(set(shown.values())) < 2:
            continue
        for row in table:
            if shown.get(row[place]) in best:
                row[place] = marks[best.index(shown[row[place]])].format(row[place])
    return table


def _markdown_scenes(records: Sequence[Record], preset: str) -> str:
    methods = list(dict.fromkeys(record.method for record in records))
    scenes = list(dict.fromkeys(record.scene for record in records))
    found = {(record.method, record.scene): record for record in records}
    rows = [["scene", *methods]]
    for scene in scenes:
        cells = []
        for method in methods:
            record = found.get((method, scene))
            values = {} if record is None else values_of(record)
            name = f"psnr/{preset}" if f"psnr/{preset}" in values else "residual"
            cells.append(
                "failed"
                if record and record.error
                else number(values.get(name), 4 if name == "residual" else 2)
            )
        rows.append([scene, *cells])
    known = any(f"psnr/{preset}" in record.metrics for record in records)
    text = f"\n{'PSNR (dB)' if known else 'Relative residual'} by scene\n\n"
    text += _markdown_split(rows)
    told = (f"{r.method}, {r.scene}: {r.error}" for r in records if r.error)
    failed = [f"- {plain_markdown(line)}" for line in told]
    return text + ("\n" + "\n".join(["Failed:", "", *failed]) + "\n" if failed else "")


def _csv(records: Sequence[Record], means: Mapping[str, Values]) -> str:
    rows: list[dict[str, object]] = [
        {"method": r.method, "scene": r.scene, **values_of(r), "error": r.error} for r in records
    ]
    rows += [{"method": name, "scene": MEAN, **values} for name, values in means.items()]
    return csv_text(rows)


def latex(
    means: Mapping[str, Values], preset: str, scenes: int, settings: Mapping[str, Any]
) -> str:
    """Return a table environment of LaTeX, which needs the package booktabs.

    Caption and label say data, camera, noise, and cases.
    """
    columns = _used(means.values(), preset)
    table = _marked(means, columns, preset, LATEX)
    titles = [_escaped(_title(column)).replace("°", r"$^\circ$") for column in columns]
    rows = [[_escaped(name), *cells] for name, cells in zip(means, table, strict=True)]
    data, condition = str(settings.get("data") or ""), conditions(settings)
    of = f" of {_escaped(data)}" if data else ""
    over = f"{scenes} scene{'' if scenes == 1 else 's'}{of}"
    over = ", ".join([over, *(_escaped(f"{k} {v}") for k, v in condition.items())])
    cases = "; ".join(settings.get("cases") or ())
    label = "-".join(["cassi", data, *condition.values(), cases])
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"  \centering",
        rf"  \caption{{Means over {over}. {f'Cases: {_escaped(cases)}. ' if cases else ''}"
        rf"PSNR and SSIM by the preset {_escaped(preset)}. "
        r"The best is bold, the second underlined.}",
        rf"  \label{{tab:{re.sub('[^A-Za-z0-9]+', '-', label).strip('-')}}}",
    ]
    for number, (head, *body) in enumerate(_split([["method", *titles], *rows], LATEX_WIDTH)):
        lines += [
            *([r"  \par\medskip"] if number else []),
            rf"  \begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"    \toprule",
            f"    {' & '.join(head)} " r"\\",
            r"    \midrule",
            *(f"    {' & '.join(cells)}".replace(UNKNOWN, "--") + r" \\" for cells in body),
            r"    \bottomrule",
            r"  \end{tabular}",
        ]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


LATEX_WIDTH, MARKDOWN_WIDTH = 80, 150
"""Characters of a row: LaTeX's article class prints about 80 in a line, with space for columns."""
_MARKUP = re.compile(r"\\[a-z]+|[{}$]|\*\*|</?u>")


def _split(rows: Sequence[Sequence[str]], width: int) -> list[list[list[str]]]:
    """Split a table that is too wide into several, each with the first column."""
    first, *others = (
        max(len(_MARKUP.sub("", row[place])) for row in rows) + 3 for place in range(len(rows[0]))
    )
    groups: list[list[int]] = [[]]
    used = first
    for place, needed in enumerate(others, 1):
        if groups[-1] and used + needed > width:
            groups.append([])
            used = first
        groups[-1].append(place)
        used += needed
    return [[[row[0], *(row[place] for place in group)] for row in rows] for group in groups]


def _markdown_split(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(markdown(part) for part in _split(rows, MARKDOWN_WIDTH))


def conditions(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what the measurements of all rows have in common: camera, mask, noise, ….

    What a case changes is left out.

    >>> conditions({"noise": {"_target_": "cassi.WhiteNoise", "snr_db": 30}, "seed": 0})
    {'noise': 'WhiteNoise(snr_db=30)'}
    """
    cases = (settings.get("cases") or {}).values()
    changed = {key.partition(".")[0] for case in cases for key in case or ()}
    names = [n for n in ("system", "mask", "noise", "twin", "guide") if n not in changed]
    return {name: _brief(settings[name]) for name in names if settings.get(name) is not None}


def _brief(value: object) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    kind = str(value.get("_target_", "")).rpartition(".")[2]
    usual = {} if kind else asdict(Twin())  # of a twin only the defects count
    values = (
        f"{key}={_brief(item)}"
        for key, item in value.items()
        if key != "_target_" and item is not None and not (key in usual and item == usual[key])
    )
    return f"{kind}({', '.join(values)})"


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    special |= {"[": "{[}", "*": "{*}"}  # of the end of the line before, where a row begins so
    return "".join(special.get(c, f"\\{c}" if c in "#$%&_{}" else c) for c in printable(text))


def _used(rows: Collection[Values], preset: str) -> list[Column]:
    return [
        column
        for column in _columns()
        if any(row.get(column.value.format(preset=preset)) is not None for row in rows)
    ]


def _columns() -> list[Column]:
    """Return every column; the user's own metrics stand before the residual."""
    own = [Column(heading=name, value=name, **p.about) for name, p in parts("metric").items()]
    place = [column.heading for column in _COLUMNS].index("residual")
    return [*_COLUMNS[:place], *own, *_COLUMNS[place:]]


def _title(column: Column) -> str:
    return f"{column.heading} ({column.unit})" if column.unit else column.heading


def _cell(values: Values, column: Column, preset: str) -> str:
    value = values.get(column.value.format(preset=preset))
    return number(None if value is None else value / column.one, column.digits)


def number(value: float | None, digits: int) -> str:
    """Format a number; a dash where it is unknown."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


_MARKDOWN = re.compile(r"[\\`*<>\[\]|&~$]|(?<!\w)_|_(?!\w)")


def plain_markdown(text: str) -> str:
    r"""Return Markdown that shows a text as it is, in a line.

    >>> plain_markdown("<b>_a|b_c*\n")
    '\\<b\\>\\_a\\|b_c\\*\\\\n'
    """
    return _MARKDOWN.sub(r"\\\g<0>", printable(text))


def markdown(rows: Sequence[Sequence[str]], names: int = 1) -> str:
    """Return a table in Markdown; its first columns hold texts, as many as `names`."""
    from tabulate import tabulate

    first, *others = rows
    head = [plain_markdown(cell) for cell in first]
    body = [[*map(plain_markdown, row[:names]), *row[names:]] for row in others]
    align = ["left", *["right"] * (len(head) - 1)]
    return tabulate(body, head, "pipe", colalign=align, disable_numparse=True) + "\n"


def _tree(
    records: Sequence[Record], means: Mapping[str, Values], timed: bool
) -> dict[str, dict[str, object]]:
    tree: dict[str, dict[str, object]] = {}
    for method, mean in means.items():
        rows = [record for record in records if record.method == method]
        names = {name for r in rows for name in (r.timing if timed else r.metrics)}
        tree[method] = {
            MEAN: {name: value for name, value in mean.items() if name in names},
            "scenes": {r.scene: r.timing if timed else r.metrics for r in rows if not r.error},
        }
    return tree


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    # fsum is exact: the order of the scenes does not matter.
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None
