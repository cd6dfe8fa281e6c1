"""cassi-evaluate with a twin: three rows of each reconstructor."""

import numpy as np
import pytest

import cassi
from cassi.evaluation import Job, RecordFolder, Twin

PLAIN = ("report=false", "figures=false", "progress=false")
GAP = "{name: gap, method: gap_tv, overrides: {solver.iterations: 30}}"
NETWORK = "{model: gap_net, weights: random, overrides: {model.stages: 1}}"
ROWS = ["gap", "gap (calibrated)", "gap (told)"]


@pytest.fixture
def found(finds):
    """The shift of `twin=shifted` is found; the scenes are too small for a calibration."""
    return finds({"across": 0.4, "along": -0.3})


def test_each_method_has_three_rows(evaluate, data, found, results, tmp_path):
    outcome = evaluate(
        *(*data, f"reconstructors=[{GAP},{NETWORK}]", "twin=shifted"),
        *("figures=false", "progress=false"),
    ).ok()
    metrics = results("results.json")["metrics"]
    rows = results("results.csv")
    names = list(dict.fromkeys(row["method"] for row in rows))
    assert names == [*ROWS, "gap_net", "gap_net (calibrated)", "gap_net (told)"]
    assert len(found) == 3  # once for each scene, for both methods
    scores = {name: metrics[name]["mean"] for name in ROWS}
    assert scores["gap (told)"]["psnr/unit"] > scores["gap"]["psnr/unit"] + 0.5
    assert scores["gap (told)"]["residual"] < scores["gap"]["residual"]
    # The right camera was found, the frame had no other defect, and the same method runs.
    for name in ("psnr/unit", "sam", "residual"):
        expected = pytest.approx(scores["gap (told)"][name], rel=1e-4)
        assert scores["gap (calibrated)"][name] == expected
    timing = results("timing.json")["timing"]
    assert timing["gap (calibrated)"]["mean"]["camera_seconds"] >= 0
    assert timing["gap"]["mean"]["camera_seconds"] >= 0
    settings = results("results.json")["settings"]
    assert settings["twin"]["shift"] == [0.4, -0.3]
    assert settings["knowledge"] == ["nominal", "calibrated", "told"]
    assert "| gap (told) " in outcome.out
    assert "gap (told)" in (tmp_path / "run" / "results.md").read_text()
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_frame_is_the_twins(evaluate, data, results, tmp_path):
    """The residual by hand, of a camera that is bent, dark, and has dead pixels."""
    options = ("twin.curvature=0.2", "twin.dark=0.01", "twin.dead=0.02", "twin=blurred")
    chosen = (f"reconstructors=[{GAP}]", "knowledge=[told,nominal]", "scenes=[two]")
    evaluate(*data, *PLAIN, *chosen, *options).ok()
    system = cassi.SDCassi(np.load(tmp_path / "mask.npy"), bands=5, step=1)
    truth = cassi.read_cube(tmp_path / "cubes" / "two.npz")
    twin = Twin(
        shift=[0.4, -0.3], mask_blur=0.6, shot="binomial", bits=11, curvature=0.2, dark=0.01,
        dead=0.02,
    )  # fmt: skip
    y = twin.measure(truth, system, cassi.evaluation.scene_generator(0, "two"))
    true = twin.true_camera(system)
    for row, frame, camera in (("gap", y, system), ("gap (told)", true.correct(y), true.camera)):
        cube = RecordFolder(tmp_path / "run" / "records").read_cube(Job("", "two", row))
        residual = (frame - camera(cube[None])).norm() / frame.norm()
        scores = results("results.json")["metrics"][row]["scenes"]["two"]
        assert scores["residual"] == pytest.approx(residual.item(), rel=1e-4)


def test_a_camera_that_is_not_found_fails_its_rows_alone(evaluate, data, results):
    outcome = evaluate(*data, *PLAIN, f"reconstructors=[{GAP}]", "twin=shifted", "scenes=[one]")
    assert outcome.status == 1
    assert "gap (calibrated), one failed: " in outcome.err
    assert "Traceback" not in outcome.err
    metrics = results("results.json")["metrics"]
    assert "one" in metrics["gap (told)"]["scenes"]
    assert not metrics["gap (calibrated)"]["scenes"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["mismatch.rotation=1"], "'mismatch': it is twin now: twin=none twin.shift="),
        (["twin=shot", "twin.blur=1"], "twin.blur"),
        (["twin=shot", "knowledge=[tolt]"], "did you mean told"),
        (["twin=shot", "knowledge=[]"], "knowledge: expected different names, got []"),
    ],
)
def test_what_the_user_can_mend_is_one_line(evaluate, data, options, said):
    assert said in evaluate(*data, *PLAIN, f"reconstructors=[{GAP}]", *options).refusal


def test_measurements_are_refused(evaluate, tmp_path, data):
    for name in ("one", "two"):
        truth = cassi.read_cube(tmp_path / "cubes" / f"{name}.npz")
        y = cassi.SDCassi(np.load(tmp_path / "mask.npy"), bands=5, step=1)(truth)
        (tmp_path / "frames").mkdir(exist_ok=True)
        np.save(tmp_path / "frames" / f"{name}.npy", y[0, 0].numpy())
    options = (*data, "data.root=null", f"data.measurements={tmp_path / 'frames'}")
    outcome = evaluate(*options, *PLAIN, f"reconstructors=[{GAP}]", "twin=shot")
    assert "twin: expected data with true cubes" in outcome.refusal
    assert "data=folder" in outcome.refusal


@pytest.mark.thorough
def test_a_snapshot_tells_where_the_mask_is(evaluate, results):
    """The real calibration, on the middle of the bundled scene."""
    options = ("data=bundled", "data.evaluation.crop=64", "twin=shifted", "reconstructors=[gap_tv]")
    evaluate(*options, *PLAIN, "align=false").ok()
    rows = results("results.json")["metrics"]
    nominal, calibrated, told = (
        rows[name]["mean"]["psnr/unit"]
        for name in ("gap_tv", "gap_tv (calibrated)", "gap_tv (told)")
    )
    assert calibrated - nominal > 0.8 * (told - nominal) > 0.5
