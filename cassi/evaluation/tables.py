"""Tables of the records of an evaluation, as CSV, Markdown, JSON and LaTeX."""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from cassi.checks import printable
from cassi.data.atomic import atomic_path
from cassi.data.formats.cells import csv_text, strict_json
from cassi.data.synthetic.twin import Twin
from cassi.evaluation.comparison import MIN_PAIRED_SCENES, Comparison, compare_best
from cassi.evaluation.records import Record, Values
from cassi.plugins import parts

MEAN = "mean"  # stands for the scene in rows of means
_ERROR_FIELDS = ("method", "scene", "error")
_HEADING = (
    "PSNR and SSIM by the preset `{}`; other presets are in results.csv. Operations count two per "
    "multiply-add; publications mostly count one."
)
UNKNOWN = "–"
MARKDOWN = ("**{}**", "<u>{}</u>")
LATEX = (r"\textbf{{{}}}", r"\underline{{{}}}")
"""Marks of the best value of a column, and of the second."""


class Column(NamedTuple):
    """A column of a table."""

    heading: str
    unit: str
    digits: int
    value: str  # name of the value in records, with `{preset}` if it depends on the preset
    best_is: str | None = None  # "higher" or "lower"; None if no value is the best
    unit_size: float = 1.0  # the value in records that the column shows as 1


_COLUMNS = (
    Column("PSNR", "dB", 2, "psnr/{preset}", "higher"),
    Column("SSIM", "", 4, "ssim/{preset}", "higher"),
    Column("SAM", "°", 2, "sam", "lower"),
    Column("RMSE", "", 4, "rmse", "lower"),
    Column("ERGAS", "%", 2, "ergas", "lower"),
    Column("residual", "", 4, "residual"),
    *(Column(f"in {n} % bars", "%", 1, f"coverage/{n}", unit_size=0.01) for n in (50, 80, 90, 95)),
    Column("width", "", 4, "width"),
    Column("NLL", "", 2, "nll"),
    Column("AUSE", "", 2, "ause"),
    Column("time", "s", 2, "seconds"),
    Column("least time", "s", 2, "least_seconds"),
    Column("memory", "MiB", 0, "peak_memory_bytes", unit_size=2**20),
    Column("parameters", "M", 2, "parameters", unit_size=1e6),
    Column("operations", "GFLOP", 2, "flops", unit_size=1e9),
)


def collect_values(record: Record) -> Values:
    """Return all values of a record as one flat table row."""
    return {**record.metrics, **record.timing, **record.about}


def average(records: Sequence[Record], methods: Sequence[str]) -> dict[str, Values]:
    """Average the results of each method over scenes.

    If a scene has no value, for example because the method failed on it, the mean is None, because
    means over different scenes cannot be compared.
    """
    result: dict[str, Values] = {}
    for method in methods:
        rows = [collect_values(record) for record in records if record.method == method]
        has_failure = any(record.error for record in records if record.method == method)
        names = list(dict.fromkeys(name for row in rows for name in row))
        result[method] = {
            name: None if has_failure else _average_values([row.get(name) for row in rows])
            for name in names
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

    results.json has the values that do not change from run to run. timing.json has seconds, memory
    and the machine. If a method failed on a scene, it has no mean. But the means in results.md
    leave out scenes on which every method failed, and the page gives their number.

    Args:
        folder: the folder of the files.
        records: one per method and scene.
        scenes: in the order of the tables.
        methods: in the order of the tables.
        preset: preset of PSNR and SSIM in Markdown and LaTeX; the other files have all presets.
        settings: the settings of the evaluation, written into results.json.
        environment: device, versions, ….

    Returns:
        The Markdown table of the means.
    """
    order = {name: index for index, name in enumerate(methods)}
    scene_order = {name: index for index, name in enumerate(scenes)}
    records = sorted(records, key=lambda record: (order[record.method], scene_order[record.scene]))
    means = average(records, methods)
    # A scene on which every method fails would leave the page without means.
    scored_scenes = {record.scene for record in records if not record.error}
    scored_records = [record for record in records if record.scene in scored_scenes]
    page_means = average(scored_records, methods)
    comparisons = compare_best(records, page_means, preset)
    remark = ""
    if n_failed := len({record.scene for record in records} - scored_scenes):
        remark = f"\nMeans over {len(scored_scenes)} scenes; {n_failed} failed with every method.\n"
    page = [format_means(page_means, preset, mark_best=True) + remark]
    page += [_format_comparisons(comparisons), _format_scenes(records, preset)]
    # Times differ from run to run, but results.json must not. So times have a file of their own.
    times = _group_by_method(records, means, lambda r: r.timing)
    timing = {"environment": environment, "timing": times}
    results = {"preset": preset, "settings": settings} | {
        "metrics": _group_by_method(records, means, lambda r: r.metrics),
        "about": {record.method: record.about for record in records if record.about},
        "compared": [asdict(item) for item in comparisons],
        "errors": [{k: vars(r)[k] for k in _ERROR_FIELDS} for r in records if r.error],
    }
    texts = {
        "results.csv": _format_csv(records, means),
        "results.md": _join_page(_HEADING.format(preset), "", *page),
        "results.tex": format_latex(means, preset, len(scenes), settings),
        "timing.json": strict_json(timing),
        "results.json": strict_json(results),
    }
    write_texts(folder, texts)
    return format_means(page_means, preset) + remark


def _join_page(*parts: str) -> str:
    return "\n".join(part.removesuffix("\n") for part in parts) + "\n"


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files, name → content, into a folder."""
    for name, text in texts.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _format_comparisons(comparisons: Sequence[Comparison]) -> str:
    if not comparisons:
        return ""
    measure, unit, digits = "PSNR", " (dB)", 2
    if comparisons[0].measure == "residual":
        measure, unit, digits = "Relative residual", "", 4
    rows = [["method", "scenes", f"best − method{unit}", "p"]]
    for item in comparisons:
        too_few = f"too few scenes, fewer than {MIN_PAIRED_SCENES}"
        p = too_few if item.p is None else f"{item.p:.2g}"
        rows.append([item.method, str(item.scenes), format_number(item.difference, digits), p])
    best = escape_markdown(comparisons[0].best)
    head = f"{measure} of the best, {best}, and the others by scene"
    note = "p is Wilcoxon's signed-rank test over scenes, two-sided, for one comparison by itself."
    return f"\n{head}\n\n{format_markdown(rows)}\n{note}\n"


def format_means(means: Mapping[str, Values], preset: str, *, mark_best: bool = False) -> str:
    """Return a Markdown table, one row per method.

    With `mark_best` the best value of a column is bold and the second is underlined.

    >>> print(format_means({"a": {"sam": 2.0}, "b": {"sam": 1.0}}, "", mark_best=True), end="")
    | method   |     SAM (°) |
    |:---------|------------:|
    | a        | <u>2.00</u> |
    | b        |    **1.00** |
    """
    columns = _select_columns(means.values(), preset)
    table = _mark_cells(means, columns, preset, MARKDOWN if mark_best else ())
    rows = [[name, *cells] for name, cells in zip(means, table, strict=True)]
    return _format_split([["method", *map(_column_title, columns)], *rows])


def _mark_cells(
    means: Mapping[str, Values],
    columns: Sequence[Column],
    preset: str,
    marks: Sequence[str],
) -> list[list[str]]:
    """Return the cells of every method, with a mark around the best and the second of a column."""
    table = [
        [_format_cell(values, column, preset) for column in columns] for values in means.values()
    ]
    for index, column in enumerate(columns):
        # Numbers are compared as they are printed: a reader would not understand why one of two
        # equal numbers is marked.
        numbers = {row[index] for row in table} - {UNKNOWN, "nan"}
        ranking = sorted({float(n) for n in numbers}, reverse=column.best_is == "higher")
        if column.best_is is None or len(ranking) < 2:
            continue
        for row in table:
            rank = ranking.index(float(row[index])) if row[index] in numbers else len(marks)
            if rank < len(marks):
                row[index] = marks[rank].format(row[index])
    return table


def _format_scenes(records: Sequence[Record], preset: str) -> str:
    methods = list(dict.fromkeys(record.method for record in records))
    scenes = list(dict.fromkeys(record.scene for record in records))
    table = {(record.method, record.scene): record for record in records}
    rows = [["scene", *methods]]
    for scene in scenes:
        rows.append([scene, *(_format_scene_cell(table.get((m, scene)), preset) for m in methods)])
    has_psnr = any(f"psnr/{preset}" in record.metrics for record in records)
    text = f"\n{'PSNR (dB)' if has_psnr else 'Relative residual'} by scene\n\n"
    text += _format_split(rows)
    errors = (f"{r.method}, {r.scene}: {r.error}" for r in records if r.error)
    lines = [f"- {escape_markdown(error)}" for error in errors]
    return text + ("\n" + "\n".join(["Failed:", "", *lines]) + "\n" if lines else "")


def _format_scene_cell(record: Record | None, preset: str) -> str:
    """Return the PSNR of a record, or its residual where there is no truth."""
    if record is not None and record.error:
        return "failed"
    values = {} if record is None else collect_values(record)
    if f"psnr/{preset}" in values:
        return format_number(values[f"psnr/{preset}"], 2)
    return format_number(values.get("residual"), 4)


def _format_csv(records: Sequence[Record], means: Mapping[str, Values]) -> str:
    rows: list[dict[str, object]] = [
        {"method": r.method, "scene": r.scene, **collect_values(r), "error": r.error}
        for r in records
    ]
    rows += [{"method": name, "scene": MEAN, **values} for name, values in means.items()]
    return csv_text(rows)


def format_latex(
    means: Mapping[str, Values], preset: str, scenes: int, settings: Mapping[str, Any]
) -> str:
    """Return a table environment of LaTeX. It needs the package booktabs.

    Caption and label name the data set, the camera, the noise and the cases.
    """
    columns = _select_columns(means.values(), preset)
    table = _mark_cells(means, columns, preset, LATEX)
    titles = [_escape_latex(_column_title(column)).replace("°", r"$^\circ$") for column in columns]
    rows = [[_escape_latex(name), *cells] for name, cells in zip(means, table, strict=True)]
    data, condition = str(settings.get("data") or ""), select_conditions(settings)
    subject = f"{scenes} scene" if scenes == 1 else f"{scenes} scenes"
    subject += f" of {_escape_latex(data)}" if data else ""
    subject = ", ".join([subject, *(_escape_latex(f"{k} {v}") for k, v in condition.items())])
    cases = "; ".join(settings.get("cases") or ())
    cases_text = f"Cases: {_escape_latex(cases)}. " if cases else ""
    label = "-".join(["cassi", data, *condition.values(), cases])
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"  \centering",
        rf"  \caption{{Means over {subject}. {cases_text}"
        rf"PSNR and SSIM by the preset {_escape_latex(preset)}. "
        r"The best is bold, the second underlined.}",
        rf"  \label{{tab:{re.sub('[^A-Za-z0-9]+', '-', label).strip('-')}}}",
    ]
    for index, (head, *body) in enumerate(
        _split_columns([["method", *titles], *rows], LATEX_WIDTH)
    ):
        lines += [
            *([r"  \par\medskip"] if index else []),
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
"""Largest number of characters in a row of a LaTeX and of a Markdown table. LaTeX's article class
prints about 80, spaces included."""
_MARKUP = re.compile(r"\\[a-z]+|[{}$]|\*\*|</?u>")  # characters that take no space in print


def _split_columns(rows: Sequence[Sequence[str]], width: int) -> list[list[list[str]]]:
    """Split a wide table into several, each of which begins with the first column."""
    # 3 characters are the space between two columns.
    first_width, *widths = (
        max(len(_MARKUP.sub("", row[column])) for row in rows) + 3 for column in range(len(rows[0]))
    )
    groups: list[list[int]] = [[]]
    group_width = first_width
    for column, column_width in enumerate(widths, 1):
        if groups[-1] and group_width + column_width > width:
            groups.append([])
            group_width = first_width
        groups[-1].append(column)
        group_width += column_width
    return [[[row[0], *(row[column] for column in group)] for row in rows] for group in groups]


def _format_split(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(format_markdown(part) for part in _split_columns(rows, MARKDOWN_WIDTH))


def select_conditions(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that the measurements of all rows share: camera, mask, noise, ….

    A setting that a case changes is left out.

    >>> select_conditions({"noise": {"_target_": "cassi.WhiteNoise", "snr_db": 30}, "seed": 0})
    {'noise': 'WhiteNoise(snr_db=30)'}
    """
    cases = (settings.get("cases") or {}).values()
    case_keys = {key.partition(".")[0] for case in cases for key in case or ()}
    names = [n for n in ("system", "mask", "noise", "twin", "guide") if n not in case_keys]
    return {name: _summarise(settings[name]) for name in names if settings.get(name) is not None}


def _summarise(value: object) -> str:
    """Return a short text of a setting: the class of a node, and its values."""
    if not isinstance(value, Mapping):
        return str(value)
    kind = str(value.get("_target_", "")).rpartition(".")[2]
    # A node without a class is a twin. The defaults of a twin stand for a camera without defects.
    # So only values that differ from the defaults are listed.
    defaults = {} if kind else asdict(Twin())
    values = (
        f"{key}={_summarise(item)}"
        for key, item in value.items()
        if key != "_target_"
        and item is not None
        and not (key in defaults and item == defaults[key])
    )
    return f"{kind}({', '.join(values)})"


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    # LaTeX reads a [ or * at the start of a row as an option of the line break before it.
    special |= {"[": "{[}", "*": "{*}"}
    return "".join(special.get(c, f"\\{c}" if c in "#$%&_{}" else c) for c in printable(text))


def _select_columns(rows: Collection[Values], preset: str) -> list[Column]:
    return [
        column
        for column in _list_columns()
        if any(row.get(column.value.format(preset=preset)) is not None for row in rows)
    ]


def _list_columns() -> list[Column]:
    """Return every column; metrics of the user stand before the residual."""
    user_columns = [
        Column(
            name,
            part.properties["unit"],
            part.properties["digits"],
            name,
            part.properties["better"],
        )
        for name, part in parts("metric").items()
    ]
    index = [column.heading for column in _COLUMNS].index("residual")
    return [*_COLUMNS[:index], *user_columns, *_COLUMNS[index:]]


def _column_title(column: Column) -> str:
    return f"{column.heading} ({column.unit})" if column.unit else column.heading


def _format_cell(values: Values, column: Column, preset: str) -> str:
    value = values.get(column.value.format(preset=preset))
    return format_number(None if value is None else value / column.unit_size, column.digits)


def format_number(value: float | None, digits: int) -> str:
    """Format a number; a dash where it is unknown."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


# Characters that Markdown reads as markup. An underscore inside a word is no markup.
_MARKDOWN_SPECIAL = re.compile(r"[\\`*<>\[\]|&~$]|(?<!\w)_|_(?!\w)")


def escape_markdown(text: str) -> str:
    r"""Return Markdown that shows a text as it is, in one line.

    >>> escape_markdown("<b>_a|b_c*\n")
    '\\<b\\>\\_a\\|b_c\\*\\\\n'
    """
    return _MARKDOWN_SPECIAL.sub(r"\\\g<0>", printable(text))


def format_markdown(rows: Sequence[Sequence[str]], names: int = 1) -> str:
    """Return a table in Markdown. The first row is the heading.

    The first `names` columns have texts of users, and special characters in them are escaped.
    """
    from tabulate import tabulate

    heading, *body_rows = rows
    head = [escape_markdown(cell) for cell in heading]
    body = [[*map(escape_markdown, row[:names]), *row[names:]] for row in body_rows]
    align = ["left", *["right"] * (len(head) - 1)]
    return tabulate(body, head, "pipe", colalign=align, disable_numparse=True) + "\n"


def _group_by_method(
    records: Sequence[Record],
    means: Mapping[str, Values],
    values_of_record: Callable[[Record], Values],
) -> dict[str, dict[str, object]]:
    """Return the values by method: the means, and the values of each scene."""
    tree: dict[str, dict[str, object]] = {}
    for method, mean in means.items():
        rows = [record for record in records if record.method == method]
        names = {name for record in rows for name in values_of_record(record)}
        tree[method] = {
            MEAN: {name: value for name, value in mean.items() if name in names},
            "scenes": {r.scene: values_of_record(r) for r in rows if not r.error},
        }
    return tree


def _average_values(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is unknown."""
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    # fsum is exact: the order of the scenes does not matter.
    return math.fsum(numbers) / len(numbers)
