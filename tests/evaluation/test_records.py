"""Records, jobs and tables."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from scipy.stats import wilcoxon

from cassi.data.synthetic.twin import Twin
from cassi.evaluation import Job, Record, RecordFolder, write_results
from cassi.evaluation.comparison import signed_rank
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
    assert records.read_all() == [kept]


def test_what_is_not_whole_is_not_done(tmp_path):
    records = RecordFolder(tmp_path)
    records.write(Record(*JOB, key="k"))
    assert not records.is_done(JOB, "k")  # its cube is missing
    assert RecordFolder(tmp_path, keep_cubes=False).is_done(JOB, "k")
    records.write(Record(*JOB, key="k", error="no"), torch.rand(1, 2, 2))
    assert not records.is_done(JOB, "k")
    records.store.file.write_text('{"point": "", "sce')
    with pytest.warns(UserWarning, match="it is made again"):
        assert records.read(JOB) is None


@pytest.mark.parametrize("name", ["..", "a/b", ".hidden", "x" * 60, "snr=10"])
def test_names_stay_in_the_folder(tmp_path, name):
    records = RecordFolder(tmp_path / "r")
    records.write(Record(name, name, name, "k"), torch.rand(1, 2, 2))
    (file,) = (tmp_path / "r").rglob("*.npy")
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


def test_scenes_that_every_method_fails_on_do_not_count_on_the_page(tmp_path):
    rows = [record(scene, m) for scene in ("one", "two") for m in ("a", "b")]
    rows[3] = record("two", "b", error="no light")
    rows += [record("bad", m, error="NaN") for m in ("a", "b")]
    told = {"preset": "unit", "settings": {}, "environment": {}}
    text = write_results(tmp_path, rows, ["one", "two", "bad"], ["a", "b"], **told)
    assert [line.split("|")[2].strip() for line in text.splitlines()[2:4]] == ["30.00", "–"]
    assert "Means over 2 scenes; 1 failed with every method." in text
    means = json.loads((tmp_path / "results.json").read_text())["metrics"]
    assert means["a"]["mean"]["psnr/unit"] is None


def _scored(count):
    by_scene = {
        "gap_tv": lambda i: 25.0 + i % 3,
        "a_b": lambda i: 31.0 + i % 3,
        "c": lambda i: 31.0,
    }
    return [
        record(f"s{i}", name, metrics={"psnr/unit": float(value(i)), "sam": 5.0})
        for i in range(count)
        for name, value in by_scene.items()
    ], [f"s{i}" for i in range(count)]


@pytest.mark.parametrize("count", [5, 6, 9])
def test_tables_mark_the_best_and_say_how_sure_that_is(tmp_path, count):
    rows, scenes = _scored(count)
    told = {"preset": "unit", "settings": {"data": "cave_test"}, "environment": {}}
    write_results(tmp_path, rows, scenes, ["gap_tv", "a_b", "c"], **told)
    compared = json.loads((tmp_path / "results.json").read_text())["compared"]
    assert [(row["method"], row["best"], row["scenes"]) for row in compared] == [
        ("gap_tv", "a_b", count),
        ("c", "a_b", count),
    ]
    assert compared[0]["difference"] == 6.0
    page = (tmp_path / "results.md").read_text()
    if count < 6:
        assert compared[0]["p"] is None
        assert "too few scenes" in page
    else:
        differences = [row - 31.0 for row in (31.0 + i % 3 for i in range(count))]
        assert compared[1]["p"] == wilcoxon(differences).pvalue
        assert "too few scenes" not in page
    latex = (tmp_path / "results.tex").read_text()
    assert r"\label{tab:cassi-cave-test}" in latex
    assert f"Means over {count} scenes of cave\\_test." in latex
    best = [line for line in latex.splitlines() if r"a\_b &" in line]
    assert r"\textbf{3" in best[0]
    assert r"\underline{31.00}" in latex
    assert "**3" in page
    assert "<u>31.00</u>" in page
    # All are the same in SAM: none is the best.
    assert "textbf{5.00}" not in latex
    for name in ("table", "tabular"):
        assert latex.count(rf"\begin{{{name}}}") == latex.count(rf"\end{{{name}}}") == 1
    widths = {line.count("&") for line in latex.splitlines() if line.endswith(r"\\")}
    assert len(widths) == 1


def _latex(tmp_path, rows, **settings):
    told = {"preset": "unit", "settings": {"data": "cave_test", **settings}, "environment": {}}
    methods = list(dict.fromkeys(row.method for row in rows))
    write_results(tmp_path, rows, ["one"], methods, **told)
    return (tmp_path / "results.tex").read_text()


def test_captions_and_labels_say_the_condition(tmp_path):
    noise = [{"_target_": "cassi.data.simulation.WhiteNoise", "snr_db": snr} for snr in (20, 30)]
    system = {"_target_": "cassi.systems.SDCassi", "step": 2, "offsets": None}
    twin = asdict(Twin(shift=[0.0, 1.0]))
    plain, *others = (
        _latex(tmp_path, [record()], **settings)
        for settings in (
            {"system": system},
            *({"system": system, "noise": one} for one in noise),
            {"system": system, "mask": "my_mask.tif", "twin": twin},
            {"system": system, "noise": noise[0], "cases": {"a": {"noise": noise[1]}, "b": None}},
        )
    )
    assert "of cave\\_test, system SDCassi(step=2). PSNR" in plain
    assert "SDCassi(step=2), noise WhiteNoise(snr\\_db=20). PSNR" in others[0]
    assert "mask my\\_mask.tif, twin (shift={[}0.0, 1.0])." in others[2]
    assert "SDCassi(step=2). Cases: a; b. PSNR" in others[3]
    labels = [line for text in (plain, *others) for line in text.splitlines() if "label" in line]
    assert len(set(labels)) == len(labels) == 5


def test_wide_tables_are_split(tmp_path):
    values = dict.fromkeys(("sam", "rmse", "ergas", "width", "nll", "ause", "coverage/90"), 1.0)
    names = [f"a method of a long name ({number})" for number in range(12)]
    table = _latex(tmp_path, [record(method=name, metrics=values) for name in names])
    parts = table.split(r"\begin{tabular}")[1:]
    assert len(parts) > 1
    for part in parts:
        assert all(f"{name} &" in part for name in names)
        assert len({line.count("&") for line in part.splitlines() if line.endswith(r"\\")}) == 1
    page = (tmp_path / "results.md").read_text()
    assert max(map(len, page.splitlines()[2:])) < 170
    by_scene = page.partition("PSNR (dB) by scene")[2]
    assert all(by_scene.count(name) == 1 for name in names)


def test_equal_methods_differ_by_chance():
    assert signed_rank([0.0] * 6) == 1.0
    assert signed_rank([1.0] * 5) is None
