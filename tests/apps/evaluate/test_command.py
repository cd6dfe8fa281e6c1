"""cassi-evaluate from end to end on three tiny scenes."""

import numpy as np
import pytest
import torch
from shared import runs_in

import cassi

PLAIN = ("report=false", "figures=false", "progress=false")
SHORT = "{name: gap, method: gap_tv, overrides: {solver.iterations: 4}}"
OTHER = "{name: longer, method: gap_tv, overrides: {solver.iterations: 6}}"
NETWORK = "{model: gap_net, weights: random, overrides: {model.stages: 1}}"


def reconstructors(*specs):
    return f"reconstructors=[{','.join(specs)}]"


def test_tables_of_solvers_and_a_network(evaluate, data, results, tmp_path):
    outcome = evaluate(*data, *PLAIN, reconstructors(SHORT, NETWORK)).ok()
    folder = tmp_path / "run"
    names = ("csv", "json", "md", "tex")
    assert all((folder / f"results.{suffix}").is_file() for suffix in names)
    found = results("results.json")
    assert list(found["metrics"]["gap"]["scenes"]) == ["one", "three", "two"]
    assert found["about"]["gap"] == {"flops": None, "parameters": None}
    assert found["about"]["gap_net"]["flops"] > found["about"]["gap_net"]["parameters"] > 0
    # The same numbers as by hand.
    mask = np.load(tmp_path / "mask.npy")
    system = cassi.SDCassi(mask, bands=5, step=1)
    truth = cassi.read_cube(tmp_path / "cubes" / "two.npz")
    cube = torch.from_numpy(np.load(folder / "records" / "two" / "gap.npy"))
    scores = found["metrics"]["gap"]["scenes"]["two"]
    for preset in cassi.metrics.list_presets():
        assert scores[f"psnr/{preset}"] == cassi.metrics.psnr(cube, truth[0], preset).item()
    y = system(truth)
    assert scores["residual"] == pytest.approx(
        ((y - system(cube[None])).norm() / y.norm()).item(), rel=1e-5
    )
    values = [s["psnr/unit"] for s in found["metrics"]["gap"]["scenes"].values()]
    assert found["metrics"]["gap"]["mean"]["psnr/unit"] == pytest.approx(np.mean(values))
    rows = results("results.csv")
    assert [(r["method"], r["scene"]) for r in rows[:4]] == [
        ("gap", "one"), ("gap", "three"), ("gap", "two"), ("gap_net", "one"),
    ]  # fmt: skip
    timing = results("timing.json")
    assert timing["timing"]["gap"]["mean"]["seconds"] > 0
    assert r"gap\_net & " in (folder / "results.tex").read_text()
    assert "| gap_net " in outcome.out


def test_only_what_changed_is_done_again(evaluate, data, tmp_path):
    records = tmp_path / "run" / "records"
    evaluate(*data, *PLAIN, reconstructors(SHORT)).ok()
    first, whole = runs_in(records), (tmp_path / "run" / "results.json").read_bytes()
    evaluate(*data, *PLAIN, reconstructors(SHORT)).ok()
    assert runs_in(records) == first
    assert (tmp_path / "run" / "results.json").read_bytes() == whole
    # Another method leaves the first one's records alone.
    evaluate(*data, *PLAIN, reconstructors(SHORT, OTHER)).ok()
    assert first.items() <= runs_in(records).items()
    # Noise, and a longer run under the same name, change results.
    evaluate(*data, *PLAIN, reconstructors(SHORT), "noise=white").ok()
    noisy = runs_in(records)
    assert all(noisy[path] != first[path] for path in first)
    again = SHORT.replace("4", "5")
    evaluate(*data, *PLAIN, reconstructors(again), "noise=white").ok()
    assert all(runs_in(records)[path] != noisy[path] for path in first)


def test_a_scene_that_fails_is_reported_and_the_rest_goes_on(evaluate, data, results, tmp_path):
    (tmp_path / "cubes" / "three.npz").write_bytes(b"damaged")
    outcome = evaluate(*data, *PLAIN, reconstructors(SHORT))
    assert outcome.status == 1
    assert "gap, three failed: " in outcome.err
    assert "Traceback" not in outcome.err
    found = results("results.json")
    assert list(found["metrics"]["gap"]["scenes"]) == ["one", "two"]
    assert found["metrics"]["gap"]["mean"]["sam"] is None
    assert [error["scene"] for error in found["errors"]] == ["three"]
    assert "failed" in (tmp_path / "run" / "results.md").read_text()
    # Mended, it is made up for.
    cube = torch.rand(5, 16, 18, generator=torch.Generator().manual_seed(0))
    cassi.write_cube(tmp_path / "cubes" / "three.npz", cube, [450, 500, 550, 600, 650])
    evaluate(*data, *PLAIN, reconstructors(SHORT)).ok()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["scenes=[four]"], "'four' is not there; there is"),
        (["preset=mathlab"], "expected a metric preset among"),
        (["data=bundle"], "did you mean bundled"),
        (["figure=papre"], "did you mean paper"),
        (["mask=none.npy"], "mask: no file or folder none.npy"),
        (["figure.zoom=[1,2]"], "figure.zoom: expected null, auto or"),
        (["figure.regions=[1,2]"], "figure.regions: expected null or"),
        (["guide.response=pan"], "gap, which takes no guide"),
        (["guide.response=rgb"], "there is no 'rgb'; there is pan, cie"),
        (["repeats=0"], "repeats"),
    ],
)
def test_what_the_user_can_mend_is_one_line(evaluate, data, options, said):
    assert said in evaluate(*data, *PLAIN, reconstructors(SHORT), *options).refusal


def test_two_processes_give_the_bytes_of_one(evaluate, data, tmp_path):
    options = (*data, *PLAIN, reconstructors(SHORT, NETWORK), "noise=shot")
    evaluate(*options, f"hydra.run.dir={tmp_path / 'one'}").ok()
    evaluate(*options, "processes=2", f"hydra.run.dir={tmp_path / 'two'}").ok()
    first, second = ((tmp_path / name / "results.json").read_bytes() for name in ("one", "two"))
    assert first == second


def launcher(name):
    """Options that choose one of Hydra's launchers, or a skip."""
    if name == "basic":
        return ("--multirun",)
    if name == "joblib":
        return ("--multirun", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1")
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the extra slurm")
    return ("--multirun", "hydra/launcher=submitit_local")


@pytest.mark.parametrize(
    "name",
    [
        "basic",
        pytest.param("joblib", marks=pytest.mark.release),
        pytest.param("submitit", marks=pytest.mark.thorough),
    ],
)
def test_a_multirun_makes_one_table(name, evaluate, data, results, tmp_path):
    options = (*data, *PLAIN, reconstructors(SHORT, NETWORK))
    many = (*launcher(name), f"hydra.sweep.dir={tmp_path / 'many'}")
    evaluate(*options, f"hydra.run.dir={tmp_path / 'one'}").ok()
    if name == "basic":
        # Names that are not there: the message comes, and mended, the command makes up for it.
        outcome = evaluate(*many, *options, "scenes=[one],[two,tree]")
        assert outcome.status == 2
        last = outcome.err.splitlines()[-1]
        assert last.startswith("cassi-evaluate: error: a job failed: scenes: 'tree' is not there")
        done = runs_in(tmp_path / "many" / "job0" / "records")
    evaluate(*many, *options, "scenes=[one],[two,three]").ok()
    if name == "basic":
        assert runs_in(tmp_path / "many" / "job0" / "records") == done
    one, both = (results("results.json", folder) for folder in ("one", "many"))
    assert one["metrics"] == both["metrics"]
    assert one["about"] == both["about"]


def test_a_multirun_over_conditions_makes_one_table_that_says_what_differs(
    evaluate, data, results, tmp_path
):
    np.save(tmp_path / "other.npy", np.random.default_rng(1).uniform(0.1, 1, (16, 18)))
    many = ("--multirun", f"hydra.sweep.dir={tmp_path / 'many'}", "noise.snr_db=20,30")
    varied = (f"mask={tmp_path / 'mask.npy'},other.npy", f"reconstructors=[{SHORT}],[{OTHER}]")
    evaluate(*data[:2], *data[3:], *PLAIN, "noise=white", *many, *varied, "scenes=[one],[two]").ok()
    metrics = results("results.json", "many")["metrics"]
    assert len(metrics) == 8
    assert all(list(rows["scenes"]) == ["one", "two"] for rows in metrics.values())
    options = (*data[:2], *data[3:], *PLAIN, "noise=white", "mask=other.npy", "noise.snr_db=30")
    evaluate(*options, reconstructors(OTHER), "scenes=[one,two]").ok()
    alone = results("results.json")["metrics"]["longer"]
    assert metrics["longer (noise.snr_db=30, mask=other.npy)"] == alone
    table = (tmp_path / "many" / "results.tex").read_text()
    assert r"gap (noise.snr\_db=20, mask=other.npy)" in table
    assert "WhiteNoise" not in table.partition("Cases: ")[0]  # the levels of noise differ
    assert "noise WhiteNoise(snr\\_db=30)." in (tmp_path / "run" / "results.tex").read_text()


def test_a_multirun_over_twins_or_reconstructors_of_one_name(evaluate, data, results, tmp_path):
    many = ("--multirun", f"hydra.sweep.dir={tmp_path / 'many'}", "scenes=[one]")
    knows = "knowledge=[nominal,told]"
    evaluate(*data, *PLAIN, *many, reconstructors(SHORT), "twin=none,shifted", knows).ok()
    rows = ["gap", "gap (told)"]
    assert list(results("results.json", "many")["metrics"]) == sorted(
        f"{row} (twin={twin})" for row in rows for twin in ("none", "shifted")
    )
    again = ("--multirun", f"hydra.sweep.dir={tmp_path / 'again'}", "scenes=[one]")
    longer = OTHER.replace("longer", "gap")
    evaluate(*data, *PLAIN, *again, f"reconstructors=[{SHORT}],[{longer}]").ok()
    assert len(results("results.json", "again")["metrics"]) == 2


def test_pictures_and_report(evaluate, data, tmp_path):
    options = (*data, "progress=false", "scenes=[one]", reconstructors(SHORT, NETWORK))
    evaluate(*options).ok()
    folder = tmp_path / "run"
    assert "one" in (folder / "report.html").read_text()
    picture = folder / "figures" / "one.png"
    plain = picture.read_bytes()
    assert list((folder / "figures" / "one_convergence").glob("*.png"))
    # Drawn again when the layout changes.
    evaluate(*options, "figure=paper", "cubes=false").ok()
    assert picture.read_bytes() != plain
    assert picture.with_suffix(".pdf").is_file()
    assert not list((folder / "records").rglob("*.npy"))
