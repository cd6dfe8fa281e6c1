"""The leaderboard follows from results, to the byte."""

import json

import pytest

from scripts.docs import leaderboard as script

SETTINGS = {"data": "tiny", "noise": None}
SETTINGS |= {"cases": script.CASES}


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


def test_results_become_a_table_and_the_same_bytes_again(tmp_path):
    rows = {"gap_tv (grey)": 25.0, "gap_tv (binary, 30 dB)": 23.456, "pretrained (grey)": 31.0}
    clean = results(tmp_path / "clean", rows)
    wrong = results(
        tmp_path / "wrong",
        {"gap_tv": 20.0, "gap_tv (told)": 22.0, "gap_tv (calibrated)": 21.5},
        "global-unit",
    )
    (wrong / "benchmark.json").write_text("{}")
    page = tmp_path / "page.md"
    script.main([*map(str, (clean, wrong)), "--output", str(page)])
    lines = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    assert lines == [
        "| `pretrained` | 20 CAVE scenes | 2.00 | 1.2 | 31.00 / 0.900 / 5.0° | – | – | – | – |",
        "| `gap_tv` | – | – | 1.2 | 25.00 / 0.900 / 5.0° | 23.46 | 20.00 | 22.00 | 21.50 |",
    ]
    first = page.read_bytes()
    script.main(["--output", str(page)])
    assert page.read_bytes() == first


def test_video_snapshots_stand_beside_published_figures(tmp_path):
    file, page = tmp_path / "video.json", tmp_path / "page.md"
    file.write_text(json.dumps({"auto": {"kobe": 30.0, "traffic": 25.0, "runner": 35.0}}))
    script.main([str(file), "--output", str(page)])
    script.main(["--output", str(page)])  # of what is kept, in another order
    lines = page.read_text().splitlines()
    assert "| `auto` | measured | 30.00 | 25.00 | 35.00 | 30.00 |" in lines
    assert any(line.startswith("| DeSCI | [Yuan et al.](https://") for line in lines)


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
        script.take_over({}, folder)


def test_the_page_is_made_of_what_is_kept(tmp_path):
    kept = json.loads(script.PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    assert script.PAGE.read_text(encoding="utf-8") == script.make_page(kept)
