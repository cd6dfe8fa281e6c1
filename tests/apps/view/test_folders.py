import csv
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cassi.apps.view import runs
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import CubeView, render_report
from cassi.apps.view.folders import (
    DEVIATION_FILE,
    list_results,
    make_thumbnail,
    read_result,
    render_evaluation,
)
from cassi.apps.view.jobs import Job
from cassi.data.io import write_cube
from cassi.evaluation import Record, write_results

pytest.importorskip("panel", reason="needs panel")
from cassi.apps.view.pages.look import resolve_result_folder


@pytest.fixture
def result(session):
    session.set_wavelengths("450-520")
    session.summarize()
    session.set_further_options("method=gap_tv\nsolver.iterations=3\noutput.report=false")
    shown = runs.reconstruct(session.settings(), session.options(), Job())
    runs.save_result(shown, session.output / "day" / "one")
    return shown, session.output / "day"


def test_results_are_listed_opened_and_become_more(result):
    shown, day = result
    entry, *others = list_results(AllowedPaths([day]))
    assert (entry.name, others) == ("one", [])
    assert entry.summary.startswith("3 iterations")
    allowed_paths = AllowedPaths([day])
    assert make_thumbnail(entry, allowed_paths).size == (64, 64)
    opened = read_result(entry, allowed_paths)
    np.testing.assert_array_equal(opened.cube, shown.cube)
    assert opened.wavelengths == tuple(range(450, 530, 10))
    assert opened.origin is None
    write_cube(day / "one" / DEVIATION_FILE, np.full_like(shown.cube, 0.5))
    assert read_result(entry, allowed_paths).deviation.max() == 0.5
    runs.save_result(shown, day / "two")
    assert [entry.name for entry in list_results(AllowedPaths([day]))] == ["one", "two"]
    assert list_results(AllowedPaths([day / "one"]))[0].name == "one"


def test_what_failed_and_what_is_damaged(result):
    _, day = result
    rows = [{"name": "one", "status": "done"}, {"name": "bad", "status": "failed", "error": "why"}]
    with (day / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["name", "status", "error"])
        writer.writeheader()
        writer.writerows(rows)
    (day / "other").mkdir()
    (day / "other" / "metrics.json").write_text("[]")
    (day / "worse").mkdir()
    (day / "worse" / "metrics.json").write_text("{")
    allowed_paths = AllowedPaths([day])
    bad, one, worse = list_results(allowed_paths)
    assert (bad.name, bad.folder, bad.summary) == ("bad", None, "failed: why")
    assert (worse.name, worse.folder) == ("worse", None)
    assert worse.summary.startswith("damaged: metrics.json: Expecting property name")
    assert make_thumbnail(bad, allowed_paths) is None
    with pytest.raises(ValueError, match="no result"):
        read_result(bad, allowed_paths)
    numbers = json.loads((day / "one" / "metrics.json").read_text())
    (day / "one" / "metrics.json").write_text(json.dumps(numbers | {"files": []}))
    with pytest.raises(ValueError, match="expected a cube"):
        read_result(one, allowed_paths)
    (day / "one" / "rgb.png").write_bytes(b"no picture")
    assert make_thumbnail(one, allowed_paths) is None


@pytest.fixture
def evaluations(tmp_path):
    """Folders as cassi-evaluate writes them: with and without a report."""
    day = tmp_path / "evaluated"
    records = [
        Record("", scene, method, "", {"psnr/unit": psnr})
        for method, psnr in (("gap_tv", 21.0), ("<b>auto", 31.5))
        for scene in ("toys", "beads")
    ]
    more = {"preset": "unit", "settings": {}, "environment": {}}
    for name in ("reported", "table"):
        (day / name).mkdir(parents=True)
        write_results(day / name, records, ["toys", "beads"], ["gap_tv", "<b>auto"], **more)
    (day / "reported" / "report.html").write_text("<h1>of the command</h1>")
    (day / "table" / "cases.png").write_bytes(b"bars")
    return day


def test_evaluations_are_listed_and_shown(evaluations):
    allowed_paths = AllowedPaths([evaluations])
    entries = {entry.name: entry for entry in list_results(allowed_paths)}
    assert {name: entry.summary for name, entry in entries.items()} == {
        "reported": "evaluation: 4 rows, best: <b>auto with 31.50 dB",
        "table": "evaluation: 4 rows, best: <b>auto with 31.50 dB",
    }
    assert all(entry.is_evaluation for entry in entries.values())
    pages = {
        name: render_evaluation(entry, allowed_paths).decode() for name, entry in entries.items()
    }
    assert pages["reported"].endswith("<h1>of the command</h1>")
    assert re.search("<td.*31.50", pages["table"])
    assert re.search("<td.*data:image/png", pages["table"], re.DOTALL)
    assert all("default-src 'none'" in page.partition("<h1>")[0] for page in pages.values())


def test_evaluations_that_are_damaged_or_lead_elsewhere(evaluations, tmp_path):
    allowed_paths = AllowedPaths([evaluations])
    (entry,) = [entry for entry in list_results(allowed_paths) if entry.name == "reported"]
    report = evaluations / "reported" / "report.html"
    report.rename(tmp_path / "report.html")
    report.symlink_to(tmp_path / "report.html")
    with pytest.raises(PermissionError, match="not below"):
        render_evaluation(entry, allowed_paths)
    good = json.loads((evaluations / "table" / "results.json").read_text())
    wrong = {"preset": 7}, {"metrics": []}, {"metrics": {"a": {"mean": {"psnr/unit": "high"}}}}
    for values in (*wrong, {"metrics": {"\ud800": good["metrics"]["gap_tv"]}}):
        (evaluations / "table" / "results.json").write_text(json.dumps(good | values))
        found = {each.name: each for each in list_results(allowed_paths)}
        assert found["reported"].is_evaluation
        if values != {"preset": 7}:  # no score is known then
            assert found["table"].summary.startswith("damaged: results.json: it is not what")
            with pytest.raises(ValueError, match="no result"):
                render_evaluation(found["table"], allowed_paths)
    (evaluations / "table" / "results.json").write_text("{}")  # of another program
    assert "table" not in {each.name for each in list_results(allowed_paths)}


NOT_A_RESULT = {
    "absolute": {"files": ["/etc/cube.npy"]},
    "upwards": {"files": ["../two/cube.tif"]},
    "files": {"files": 7},
    "name": {"files": [None]},
    "warnings": {"warnings": 5},
    "half a pair": {"warnings": [{"about": "mask", "message": "\ud800"}]},
    "lengths": {"cube_shape": "abc"},
    "iterations": {"iterations": "many"},
    "seconds": {"seconds": []},
    "metrics": {"metrics": {"other": 1}},
    "wavelengths": {"wavelengths_error": ["many"] * 8},
    "heldout": {"heldout": {"error": 10**400}},
}


def test_whatever_metrics_say_the_other_results_stay(result):
    _, day = result
    good = json.loads((day / "one" / "metrics.json").read_text())
    texts = {name: json.dumps(good | wrong) for name, wrong in NOT_A_RESULT.items()}
    texts["deep"] = '{"cube_shape": ' + "[" * 40 + "]" * 40 + "}"
    texts["deeper"] = '{"cube_shape": ' + "[" * 100_000 + "]" * 100_000 + "}"
    texts["long"] = json.dumps(good | {"more": "x" * 2**24})
    for name, text in texts.items():
        (day / name).mkdir()
        (day / name / "metrics.json").write_text(text)
    for name in ("pipe", "link", "nothing"):
        (day / name).mkdir()
    os.mkfifo(day / "pipe" / "metrics.json")
    outside = day.parent / "metrics.json"
    outside.write_text(json.dumps(good))
    (day / "link" / "metrics.json").symlink_to(outside)
    (day / "nothing" / "metrics.json").symlink_to(day / "gone")
    (day / "results.csv").write_text("name,status\n" + "x" * 200_000 + ",failed\n")
    undecodable = Path(os.fsdecode(os.fsencode(day) + b"/\xff"))
    shutil.copytree(day / "one", undecodable)
    found = {entry.name: entry for entry in list_results(AllowedPaths([day]))}
    damaged = {name for name, entry in found.items() if entry.summary.startswith("damaged: ")}
    assert damaged == {*texts, "pipe", "link", "nothing", "results.csv"}
    assert all(found[name].folder is None for name in damaged)
    assert found.keys() - damaged == {"one", "\ufffd"}


@pytest.mark.parametrize(("errors", "name"), [([2, 2], "605 ± 2 nm"), ([2] * 3, "605 nm")])
def test_a_report_names_bands_with_errors_that_are_of_these_bands(errors, name):
    numbers = {"wavelengths_error": errors}
    shown = CubeView("a", np.ones((2, 4, 4)), (605.0, 610.0), numbers=numbers)
    assert json.dumps(name) in render_report(shown, []).decode()


def test_a_result_opens_nothing_outside_of_the_folders(result):
    _, day = result
    allowed_paths, one = AllowedPaths([day]), day / "one"
    (entry,) = list_results(allowed_paths)
    for name in ("cube.tif", "rgb.png"):
        (one / name).rename(day.parent / name)
        (one / name).symlink_to(day.parent / name)
    with pytest.raises(PermissionError, match="not below"):
        read_result(entry, allowed_paths)
    assert make_thumbnail(entry, allowed_paths) is None
    for name in ("cube.tif", "rgb.png"):
        (one / name).unlink()
        os.mkfifo(one / name)
    with pytest.raises(ValueError, match="regular file"):
        read_result(entry, allowed_paths)
    assert make_thumbnail(entry, allowed_paths) is None


def test_pictures_that_harm_are_left_out(result, tmp_path, monkeypatch):
    """PostScript, for which Pillow starts a program, and a picture larger than its file."""
    _, day = result
    (entry,) = list_results(AllowedPaths([day]))
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    picture = day / "one" / "rgb.png"
    picture.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    )
    assert make_thumbnail(entry, AllowedPaths([day])) is None
    assert not (tmp_path / "started").exists()
    Image.new("1", (2**13 + 1, 2**13)).save(picture)
    assert make_thumbnail(entry, AllowedPaths([day])) is None


def test_names_of_results(tmp_path):
    assert resolve_result_folder(tmp_path, " day/one ") == tmp_path / "day" / "one"
    for name in ("", "/etc", "../one", ".one", "a/../../b"):
        with pytest.raises(ValueError, match="expected one below"):
            resolve_result_folder(tmp_path, name)


def test_a_report_has_the_cubes_of_one_shape(result):
    shown, _ = result
    less = replace(shown, name="cropped", cube=shown.cube[:, 1:])
    more = replace(shown, name="sure", deviation=np.full_like(shown.cube, 0.1))
    written = render_report(shown, [shown, less, more]).decode()
    page = json.loads(re.search(r'class="scene">(.*?)</script>', written)[1])
    assert [name for name, _ in page["methods"]] == [shown.name, "sure"]
    assert [name for name, _ in page["bars"]] == ["sure"]
    assert dict(dict(page["metrics"])[shown.name])["seconds"] == shown.numbers["seconds"]
