"""Files whose names mean something to a terminal, a table, a page or a config."""

import csv
import html
import json
import os
import re
from pathlib import Path

from markdown_it import MarkdownIt

from cassi.checks import printable
from cassi.data.formats.cells import plain_cell
from cassi.evaluation.tables import format_latex, format_markdown

NAMES = [
    os.fsdecode(b"no utf-8 \xff"),
    *("a|b", "two\nlines", "`code`", "<script>alert(1)<b>", "\x1b[2j", "=1+1", "+1+1", "-1+1"),
    *("@sum", "%s{}{0}", "a&lt;b_c$d#~^\\end", "${oc.env:home}", "*bold*", "[a](http:b)", "'q\""),
    *("# a", "![x](y)", "\u202eabc", "é", "~~x~~", "$x$", "_a_", "<!--scenes-->"),
]
SHOWN = [printable(name) for name in NAMES]
METHODS = "reconstructors=[{{name: {}, method: gap_tv, overrides: {{solver.iterations: 1}}}}]"


def cells(page):
    """Return the texts of all tables of a page in Markdown, as a reader shows them."""
    shown = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(page)
    assert not re.search("<(script|img|a|del|em|code)", shown.replace("<code>matlab-uint8", ""))
    return [html.unescape(text) for text in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", shown)]


def test_an_evaluation_of_scenes_with_strange_names(evaluate, camera, tmp_path):
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    for name in NAMES:
        os.link(camera.truth, scenes / f"{name}.npz")
    (scenes / "<b>\x1b|.npz").write_text("no scene")
    done = evaluate(
        *("data=folder", f"data.root={scenes}", "data.wavelengths=[450,500,550,600,650]"),
        *(*camera.given("mask"), METHODS.format("'_|<b>$'"), "figures=false", "report=true"),
    )
    assert done.status == 1
    assert "Traceback" not in done.err
    assert "\x1b" not in done.out + done.err
    run = tmp_path / "run"
    with (run / "results.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["scene"] for row in rows} >= set(map(plain_cell, SHOWN))
    assert sum(row["error"] != "" for row in rows) == 1
    numbers = json.loads((run / "results.json").read_text())
    assert set(numbers["metrics"]["_|<b>$"]["scenes"]) == set(SHOWN)
    assert set(cells((run / "results.md").read_text())) >= {*SHOWN, "_|<b>$", "<b>\\x1b|"}
    page = (run / "report.html").read_text()
    assert "<script>alert" not in page
    assert page.count("<!--scenes-->") == 0


def test_snapshots_with_strange_names(reconstruct, camera, tmp_path, results):
    day = tmp_path / "day"
    day.mkdir()
    for name in NAMES:
        os.link(camera.measurement, day / f"{name}.npy")
    (day / "\x1bbad.npy").write_text("no snapshot")
    quick = ("solver=gap", "solver.iterations=1", "output.report=true")
    done = reconstruct(f"measurement={day}", *camera.given("mask"), *quick)
    assert done.status == 1
    assert "Traceback" not in done.err
    assert "\x1b" not in done.out + done.err
    rows = {row["name"] for row in results("results.csv")}
    assert rows == {*map(plain_cell, SHOWN), "\\x1bbad"}
    assert all((tmp_path / "run" / name / "cube.tif").is_file() for name in SHOWN)


def test_texts_of_tables():
    assert cells(format_markdown([["scene", *NAMES]])) == ["scene", *SHOWN]
    rows = [["scene", "dB"], *([name, "1"] for name in NAMES)]
    assert cells(format_markdown(rows))[2::2] == SHOWN
    table = format_latex({name: {"sam": 1.0} for name in NAMES}, "", 1, {"data": "|".join(NAMES)})
    assert "\x1b" not in table
    assert not re.search(r"\\\\\s*[\[*]", table)
    assert len(table.splitlines()) == 12 + len(NAMES)


def test_options_and_folders_that_are_no_utf_8(reconstruct, camera, tmp_path, monkeypatch):
    name = os.fsdecode(b"\xff.npy")
    os.link(camera.measurement, tmp_path / name)
    options = (f"measurement={name}", *camera.given("mask"))
    assert "measurement=\\udcff.npy: expected a name in UTF-8" in reconstruct(*options).refusal
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / os.fsdecode(b"\xff")).mkdir()
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "run" / os.fsdecode(b"\xff"))
    assert "run/\\udcff: expected a name in UTF-8" in reconstruct(*camera.given()).refusal
    assert [path.name for path in (tmp_path / "run").iterdir()] == [os.fsdecode(b"\xff")]
