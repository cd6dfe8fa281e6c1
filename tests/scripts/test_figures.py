"""Pages show the figures of docs/figures.json, which follow from results."""

import json

import pytest

from scripts.docs import figures as script

SETTINGS = {"data": "tiny", "noise": None, "cases": script.CASES}


def results(folder, rows, preset="matlab-uint8", **settings):
    folder.mkdir()
    means = {
        row: {f"psnr/{preset}": psnr, f"ssim/{preset}": 0.9, "sam": 5.0}
        for row, psnr in rows.items()
    }
    content = {
        "preset": preset,
        "settings": SETTINGS | settings,
        "metrics": {row: {"mean": mean, "scenes": {"a": mean}} for row, mean in means.items()},
        "about": {"pretrained (grey)": {"parameters": 2_000_000}},
    }
    timing = {"timing": {row: {"mean": {"seconds": 1.25}} for row in rows}}
    (folder / "results.json").write_text(json.dumps(content))
    (folder / "timing.json").write_text(json.dumps(timing))
    return folder


def test_every_page_agrees_with_the_file():
    assert script.main(["--check"]) == 0


def test_results_become_a_table(tmp_path):
    rows = {"gap_tv (grey)": 25.0, "gap_tv (binary, 30 dB)": 23.456, "pretrained (grey)": 31.0}
    clean = results(tmp_path / "clean", rows)
    rows = {"gap_tv": 20.0, "gap_tv (told)": 22.0, "gap_tv (calibrated)": 21.5}
    wrong = results(tmp_path / "wrong", rows, "global-unit")
    (wrong / "benchmark.json").write_text("{}")
    figures = {}
    for folder in (clean, wrong):
        script.add_results(figures, folder)
    lines = script.make_leaderboard(figures).splitlines()
    assert [line for line in lines if line.startswith("| `")] == [
        "| `pretrained` | 20 CAVE scenes | 2.00 | 1.2 | 31.00 / 0.900 / 5.0° | – | – | – | – |",
        "| `gap_tv` | – | – | 1.2 | 25.00 / 0.900 / 5.0° | 23.46 | 20.00 | 22.00 | 21.50 |",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"noise": {"snr_db": 20}}, "got noise"),
        ({"twin": {"shift": [0.0, 1.0]}}, "got twin"),
        ({"mask": "other.mat"}, "got mask"),
        ({"cases": {}}, "got other cases"),
    ],
)
def test_other_conditions_are_refused(tmp_path, settings, said):
    folder = results(tmp_path / "other", {"gap_tv": 25.0}, **settings)
    with pytest.raises(ValueError, match=said):
        script.add_results({}, folder)


def test_other_figures_come_onto_the_pages(tmp_path, monkeypatch):
    """Tables and quotes are filled, and a page that has lost a quote is refused."""
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "FILE", tmp_path / "figures.json")
    monkeypatch.setattr(script, "PAGES", ("page.md",))
    monkeypatch.setattr(
        script, "QUOTES", {"page.md": ("it has {tsa.auto[0]:.2f}, {tsa.auto[1]:.3s}",)}
    )
    (tmp_path / "figures.json").write_text('{"tsa": {"auto": [30.5, 0.75]}}')
    (tmp_path / "video.json").write_text(
        '{"videos": {"a": {"kobe": 30, "traffic": 25, "runner": 35}}}'
    )
    page = tmp_path / "page.md"
    page.write_text("it has 1.00, .100\n\n<!-- figures: videos -->\n\nold\n\n<!-- end -->\n")
    script.main([str(tmp_path / "video.json")])
    lines = page.read_text().splitlines()
    assert lines[0] == "it has 30.50, .750"
    assert "| `a` | measured | 30.00 | 25.00 | 35.00 | 30.00 |" in lines
    assert any(line.startswith("| DeSCI | [Yuan et al.](https://") for line in lines)
    assert script.main(["--check"]) == 0
    page.write_text(page.read_text().replace("35.00", "36.00"))
    assert script.main(["--check"]) == 1
    page.write_text("it has none")
    with pytest.raises(ValueError, match="found it 0 times"):
        script.main([])


def test_every_paper_is_found_in_its_docstring():
    for name in script.list_models(shipped=False):
        authors, title, venue = script.read_source(script.find_model(name).make)
        assert name == "cassi_net" or (authors and title and venue), name


def test_an_empty_place_gets_its_table_alone(monkeypatch):
    monkeypatch.setattr(script, "TABLES", {"one": lambda _: "| 1 |", "two": lambda _: "| 2 |"})
    page = (
        "# A\n\n<!-- figures: one --><!-- end -->\n\n"
        "## B\n\n<!-- figures: two -->\nold\n<!-- end -->\n"
    )
    filled = script.fill("page.md", page, {})
    assert filled == (
        "# A\n\n<!-- figures: one -->\n\n| 1 |\n\n<!-- end -->\n\n"
        "## B\n\n<!-- figures: two -->\n\n| 2 |\n\n<!-- end -->\n"
    )
    assert script.fill("page.md", filled, {}) == filled
