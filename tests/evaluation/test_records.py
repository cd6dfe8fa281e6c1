"""Records, jobs and tables."""

import json
import math

import pytest
import torch

from cassi.evaluation import Job, Record, RecordFolder, write_results
from cassi.evaluation.tables import average

JOB = Job("", "a scene/1", "gap|tv")


def record(scene="one", method="a", **more):
    values = {"psnr/unit": 30.0, "ssim/unit": None, "residual": 0.1, **more.pop("metrics", {})}
    timing = {"seconds": 1.5, "peak_memory_bytes": 2**20}
    about = {"parameters": None, "flops": None}
    return Record("", scene, method, "k", values, timing, about, [(0.1, 20.0)], **more)


def test_a_record_is_found_again_by_its_key(tmp_path):
    records = RecordFolder(tmp_path)
    kept = Record(*JOB, key="k", metrics={"sam": 1.0 / 3, "psnr/unit": math.inf})
    records.write(kept, torch.rand(2, 3, 4))
    assert records.read(JOB) == records.read(JOB, "k") == kept
    assert records.read(JOB, "other") is None
    assert records.is_done(JOB, "k")
    assert not records.is_done(JOB, "other")
    assert records.read_cube(JOB).shape == (2, 3, 4)
    assert records.all() == [kept]


def test_what_is_not_whole_is_not_done(tmp_path):
    records = RecordFolder(tmp_path)
    records.write(Record(*JOB, key="k"))
    assert not records.is_done(JOB, "k")  # its cube is missing
    assert RecordFolder(tmp_path, keep_cubes=False).is_done(JOB, "k")
    records.write(Record(*JOB, key="k", error="no"), torch.rand(1, 2, 2))
    assert not records.is_done(JOB, "k")
    (file,) = tmp_path.rglob("*.json")
    file.write_text('{"point": "", "sce')
    with pytest.warns(UserWarning, match="it is damaged"):
        assert records.read(JOB) is None


@pytest.mark.parametrize("name", ["..", "a/b", ".hidden", "x" * 60, "snr=10"])
def test_names_stay_in_the_folder(tmp_path, name):
    records = RecordFolder(tmp_path / "r")
    records.write(Record(name, name, name, "k"))
    (file,) = (tmp_path / "r").rglob("*.json")
    assert len(file.resolve().relative_to(tmp_path / "r").parts) == 3
    assert records.read(Job(name, name, name)).scene == name


def test_means_are_of_all_scenes_or_none():
    rows = [record("one"), record("two", metrics={"psnr/unit": 31.0, "ssim/unit": 0.5})]
    mean = average(rows, ["a"])["a"]
    assert mean["psnr/unit"] == 30.5
    assert mean["ssim/unit"] is None
    failed = average([*rows, record("three", error="no")], ["a"])["a"]
    assert failed["psnr/unit"] is None


def test_tables(tmp_path):
    rows = [
        record("two", "b_1", metrics={"psnr/unit": math.inf}),
        record("two", "a"),
        record("one", "a", metrics={"psnr/unit": 20.0}),
        Record("", "one", "b_1", "", error="no light"),
    ]
    order = {"preset": "unit", "settings": {"seed": 0}, "environment": {"device": "cpu"}}
    text = write_results(tmp_path, rows, ["one", "two"], ["b_1", "a"], **order)
    head = [cell.strip() for cell in text.splitlines()[0].split("|")]
    assert head[1:5] == ["method", "PSNR (dB)", "residual", "time (s)"]
    assert "25.00" in text
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["metrics"]["b_1"]["scenes"]["two"]["psnr/unit"] is None  # strict JSON
    assert found["metrics"]["a"]["mean"]["psnr/unit"] == 25.0
    assert "seconds" not in json.dumps(found)
    assert found["errors"] == [{"method": "b_1", "scene": "one", "error": "no light"}]
    markdown = (tmp_path / "results.md").read_text()
    assert "- b_1, one: no light" in markdown
    assert r"b\_1 & " in (tmp_path / "results.tex").read_text()
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [
        *(["b_1", "one"], ["b_1", "two"], ["a", "one"], ["a", "two"]),
        *(["b_1", "mean"], ["a", "mean"]),
    ]
    # The order in which the scenes were done does not matter.
    whole = (tmp_path / "results.json").read_bytes()
    write_results(tmp_path, rows[::-1], ["one", "two"], ["b_1", "a"], **order)
    assert (tmp_path / "results.json").read_bytes() == whole
