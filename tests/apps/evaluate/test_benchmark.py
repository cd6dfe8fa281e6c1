"""cassi-evaluate with a published protocol: columns I to IV, and what is regained."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import cassi
from cassi.apps.evaluate.problems import CASES
from cassi.camera.displaced_camera import displaced_camera, no_displacement
from cassi.data.synthetic.twin import Twin
from cassi.evaluation.protocols import compute_shares
from scripts.docs import figures

PLAIN = ("report=false", "figures=false", "progress=false")
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "evaluation.md"
GAP = "{name: gap, method: gap_tv, overrides: {solver.iterations: 8}}"
CASE = "+benchmark.cases.mismatch."


@pytest.fixture(autouse=True)
def found(finds):
    """A calibration finds a shift of one pixel to the right, and nothing else."""
    finds({"along": 1.0})


def test_inversenet_has_a_table_of_four_columns_beside_the_other_results(evaluate, data, tmp_path):
    options = (*data, *PLAIN, f"reconstructors=[{GAP}]")
    outcome = evaluate(*options, "benchmark=inversenet", "scenes=[one]").ok()
    run = tmp_path / "run"
    table = json.loads((run / "benchmark.json").read_text())
    (row,) = table["rows"]
    scores = json.loads((run / "results.json").read_text())["metrics"]
    for column, name in (("I", "ideal"), ("III", "told"), ("IV", "calibrated")):
        assert row[column] == scores[f"gap ({name})"]["mean"]["psnr/global-unit"]
    assert row["II"] == scores["gap"]["mean"]["psnr/global-unit"]
    assert row["I"] > row["II"]
    assert row["rho"] == compute_shares(row)["rho"]
    published = {r["method"]: r for r in table["published"]}
    assert published["MST-L"]["rho"] == pytest.approx((27.33 - 20.83) / (34.81 - 20.83))
    assert published["HDNet"]["rho"] == 0
    assert "| MST-L (published) " in outcome.out
    # Measured anew, in another folder: no byte but times is another.
    given = ("benchmark=inversenet", "scenes=[one]", f"hydra.run.dir={tmp_path / 'again'}")
    evaluate(*options, *given).ok()
    for name in ("benchmark.csv", "benchmark.json", "benchmark.md", "results.json"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes(), name
    boards = []
    for folder in (run, tmp_path / "again"):
        figures.add_results(board := {}, folder)
        for condition in board["leaderboard"]["folder"]["gap"].values():
            del condition["seconds"]
        boards.append(board)
    assert boards[0] == boards[1]


def test_each_case_has_rows(evaluate, data, tmp_path):
    more = ("benchmark=inversenet", "+benchmark.cases.shift={twin: {shift: [0.0, 1.0]}}")
    evaluate(*data, *PLAIN, f"reconstructors=[{GAP}]", *more, "scenes=[one]").ok()
    table = json.loads((tmp_path / "run" / "benchmark.json").read_text())
    rows = {row["case"]: row for row in table["rows"]}
    assert list(rows) == ["mismatch", "shift"]
    assert len({row["I"] for row in rows.values()}) == 1  # the wrong camera has no part in it
    assert len({row["II"] for row in rows.values()}) == 2
    lines = (tmp_path / "run" / "benchmark.csv").read_text().splitlines()
    assert lines[0].startswith("case,method,I,II,III,IV,rho,regained")
    assert len(lines) == 1 + 2 + 4
    rows = json.loads((tmp_path / "run" / "results.json").read_text())["metrics"]
    assert {"gap (mismatch)", "gap (told) (shift)"} < set(rows)


def test_design_has_a_row_for_each_camera(evaluate, data, tmp_path):
    auto = "{name: auto, method: auto, overrides: {solver.iterations: 8}}"
    options = (*data, *PLAIN, "figures=true", f"reconstructors=[{auto}]", "scenes=[one]")
    evaluate(*options, "benchmark=design").ok()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    psnr = {row: each["mean"]["psnr/matlab-uint8"] for row, each in results["metrics"].items()}
    assert len(psnr) == 10
    assert "auto (step 2, half open)" in psnr
    assert len(set(psnr.values())) > 7  # a guide of so small a scene may be refused
    for suffix in (".png", ".pdf"):
        assert (tmp_path / "run" / f"cases{suffix}").stat().st_size > 1000


def test_cases_are_rows_of_the_one_table(evaluate, data, tmp_path):
    more = ("repeats=2", "benchmark.cases.binary.mask.density=0.4")
    outcome = evaluate(
        *data, *PLAIN, f"reconstructors=[{GAP}]", "benchmark=leaderboard", *more
    ).ok()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    rows = ["gap (grey)", "gap (grey, 30 dB)", "gap (binary)", "gap (binary, 30 dB)"]
    assert sorted(results["metrics"]) == sorted(rows)
    psnr = [results["metrics"][row]["mean"]["psnr/matlab-uint8"] for row in rows]
    assert len(set(psnr)) == 4
    assert results["settings"]["cases"]["binary"]["mask"]["density"] == 0.4
    timing = json.loads((tmp_path / "run" / "timing.json").read_text())["timing"]
    assert all(0 < timing[r]["mean"]["least_seconds"] <= timing[r]["mean"]["seconds"] for r in rows)
    assert [line.split(" |")[0] for line in outcome.out.splitlines()[2:6]] == [
        f"| {row}".ljust(len(line.split(" |")[0]))
        for row, line in zip(rows, outcome.out.splitlines()[2:6], strict=True)
    ]
    # A row is what a run under its conditions alone gives.
    alone = (*data, *PLAIN, f"reconstructors=[{GAP}]", "noise=white")
    evaluate(*alone, f"hydra.run.dir={tmp_path / 'alone'}").ok()
    other = json.loads((tmp_path / "alone" / "results.json").read_text())["metrics"]["gap"]
    assert other == results["metrics"]["gap (grey, 30 dB)"]


def test_no_share_of_nothing():
    row = {"I": 24.0, "II": 20.0, "III": 20.05, "IV": None}
    assert compute_shares(row) == {"rho": pytest.approx(0.0125), "regained": None}
    assert compute_shares({**row, "IV": 21.0})["regained"] is None
    assert compute_shares({"II": 20.0}) == {"rho": None, "regained": None}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["benchmark=inversent"], "did you mean inversenet"),
        ([CASE + "twin.tild=1", "benchmark=inversenet"], "cases.mismatch.twin.tild"),
        ([CASE + "data=kaist", "benchmark=inversenet"], "cases.mismatch.data"),
    ],
)
def test_what_the_user_can_mend_is_one_line(evaluate, data, options, said):
    assert said in evaluate(*data, *PLAIN, f"reconstructors=[{GAP}]", *options).refusal


@pytest.mark.parametrize("tilt", [0.0, 1.0])
@pytest.mark.parametrize("axis", [-1, -2])
def test_a_camera_is_given_the_coordinates_of_the_scene(axis, tilt):
    torch.manual_seed(0)
    nominal = cassi.SDCassi(torch.rand(20, 24), 3, step=2, axis=axis)
    x = torch.rand(1, 3, 20, 24)
    along, across = (1, 0) if axis == -1 else (0, 1)
    for pivot in (0.0, 0.5):
        twin = Twin(shift=[0.3, 0.4], dispersion=0.1, pivot=pivot, tilt=tilt)
        shift = [0.3, 0.4]
        shift[along] += 0.1 * (1 - 2 * pivot)
        middle = 4.2 * (0.5 - pivot)  # from the pivot to the middle of the spectrum
        shift[across] += middle * math.tan(math.radians(tilt)) * (-1 if axis == -1 else 1)
        turned = 2.1 * math.tan(math.radians(tilt)) * (-1 if axis == -1 else 1)
        # As a calibration finds it: the mask on whole pixels, the scene displaced.
        whole = round(shift[along])
        found = no_displacement() | {"across": shift[across], "step": 0.1, "tilt": turned}
        found |= {"along": whole, "bands": shift[along] - whole}
        assert (displaced_camera(nominal, found)(x) - twin.expose(x, nominal)).abs().max() > 0.01
        same = displaced_camera(nominal, found, pivot)
        torch.testing.assert_close(same(x), twin.expose(x, nominal), atol=2e-3, rtol=0)


def cases(*named):
    return "+benchmark={name: mine, cases: {" + ", ".join(named) + "}}"


def test_a_case_has_its_own_mask_file(evaluate, data, results, tmp_path):
    other = np.random.default_rng(1).uniform(0.1, 1, (16, 18))
    np.save(tmp_path / "other.npy", other)
    options = (*data, *PLAIN, f"reconstructors=[{GAP}]", "scenes=[one]")
    outcome = evaluate(*options, cases("usual: {}", "other: {mask: other.npy}")).ok()
    assert "changes nothing" not in outcome.err
    rows = results("results.json")["metrics"]
    evaluate(*options, cases("other: {mask: other.npy}"), "hydra.run.dir=single").ok()
    evaluate(*options, "mask=other.npy", "hydra.run.dir=alone").ok()
    alone = results("results.json", "alone")["metrics"]
    assert (
        rows["gap (other)"] == alone["gap"] == results("results.json", "single")["metrics"]["gap"]
    )
    assert rows["gap (other)"] != rows["gap (usual)"]


@pytest.mark.parametrize("same", ["seed: 3", "mask: mask.npy"])
def test_a_case_that_changes_nothing_is_said(evaluate, data, tmp_path, same):
    options = (*data, *PLAIN, f"reconstructors=[{GAP}]", "scenes=[one]")
    outcome = evaluate(*options, cases("usual: {}", f"same: {{{same}}}")).ok()
    assert "'same' changes nothing: its camera and measurement of one are those of 'usual'" in (
        outcome.err
    )


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("{mask: nothere.npy}", "a: mask: no file or folder nothere.npy"),
        ("{mask: 5}", "mask: expected a file, or a mask to draw, got 5"),
        ("5", "benchmark.cases.a: expected values of guide, mask, noise, seed, system, twin"),
        ("{guide: null}", "benchmark.cases.a.guide: expected values of response, noise by name"),
        ("{guide: {response: rgb}}", "benchmark.cases.a.guide: "),
        ("{twin: {shift: [0, 1]}}", "benchmark.cases.a.twin: expected a twin of all cases"),
        ("{align: false}", "there is guide, mask, noise, seed, system, twin"),
    ],
)
def test_a_case_that_cannot_be_applied_is_refused(evaluate, data, case, said):
    options = (*data, *PLAIN, f"reconstructors=[{GAP}]")
    assert said in evaluate(*options, cases("usual: {}", f"a: {case}")).refusal


def test_a_benchmark_of_ones_own_lies_in_a_folder_of_ones_own(evaluate, data, results, tmp_path):
    np.save(tmp_path / "other.npy", np.random.default_rng(1).uniform(0.1, 1, (16, 18)))
    guide = GUIDE.read_text().split("```yaml\n")[1].split("```")[0]
    assert f"A case may change {', '.join(f'`{name}`' for name in CASES)}." in GUIDE.read_text()
    (tmp_path / "mine" / "benchmark").mkdir(parents=True)
    text = guide.replace("other.tif", "other.npy").replace("[gap_tv, auto]", f"[{GAP}]")
    (tmp_path / "mine" / "benchmark" / "masks.yaml").write_text(text)
    evaluate(*data, *PLAIN, "--config-dir", "mine", "benchmark=masks").ok()
    rows = results("results.json")["metrics"]
    assert sorted(rows) == ["gap (another)", "gap (in noise)", "gap (measured)"]
