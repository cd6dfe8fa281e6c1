"""Job arrays: commands that share the jobs without an engine."""

import pytest
from shared import snapshots_in

from cassi.apps import folders
from cassi.shares import ALL_JOBS, Share, find_share

ARRAY = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "5"}
TASK = {"SLURM_PROCID": "1", "SLURM_NTASKS": "3"}


@pytest.fixture
def day(write_day):
    """Options for three snapshots."""
    return write_day("abc")


@pytest.mark.parametrize(
    ("told", "environment", "expected"),
    [
        (None, {}, (0, 1)),
        ("3/16", ARRAY, (2, 16)),
        (None, ARRAY, (2, 4)),
        (None, ARRAY | {"SLURM_ARRAY_TASK_STEP": "2"}, (1, 4)),
        (None, TASK, (1, 3)),
        (None, TASK | {"SLURM_JOB_ID": "8"}, (0, 1)),  # the script of a job is none of its tasks
        (None, TASK | {"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0"}, (1, 3)),
        (None, ARRAY | TASK, (7, 12)),
        ("1/1", ARRAY | TASK, (0, 1)),
    ],
)
def test_where_a_share_is_said(told, environment, expected):
    found = find_share(told, environment)
    assert (found.index, found.count) == expected


def test_an_array_with_gaps_is_refused():
    with pytest.raises(ValueError, match="job array of 4 tasks without gaps, got one with task 9"):
        find_share(None, ARRAY | {"SLURM_ARRAY_TASK_ID": "9"})


def test_shares_are_all_and_do_not_overlap():
    taken = [job for index in range(4) for job in Share(index, 4).take(range(10))]
    assert sorted(taken) == list(range(10))
    assert ALL_JOBS.take(range(3)) == range(3)
    assert str(Share(2, 16)) == "3/16"


def test_the_last_share_writes_the_table(reconstruct, day, tmp_path, monkeypatch):
    (tmp_path / "day" / "d.npy").write_text("no array")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "1")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    first = reconstruct(*day).ok()
    assert "share 1/2, of the job array: 2 of 4 snapshots" in first.out
    assert "2 are left to other shares; the last one writes results.csv" in first.out
    assert not (tmp_path / "run" / "results.csv").exists()
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    assert reconstruct(*day).status == 1  # d.npy
    assert list(snapshots_in(tmp_path / "run")) == ["a", "b", "c", "d"]
    again = reconstruct(*day, "share=1/1")
    assert "4 snapshots, 3 of them done before" in again.out


def test_runs_of_an_evaluation_are_shared(evaluate, tmp_path):
    options = ("reconstructors=[{name: a, method: gap_tv, overrides: {solver.iterations: 1}}]",
               "data=bundled", "report=false", "figures=false", "progress=false",
               "benchmark=noise", "align=false", "data.evaluation.crop=64")  # fmt: skip
    assert "1 runs are left to other shares" in evaluate(*options, "share=1/2").ok().out
    assert not (tmp_path / "run" / "results.csv").exists()
    evaluate(*options, "share=2/2").ok()
    evaluate(*options, f"hydra.run.dir={tmp_path / 'one'}").ok()
    shared, alone = ((tmp_path / name / "results.json").read_bytes() for name in ("run", "one"))
    assert shared == alone


def test_shares_need_a_common_folder(reconstruct, day):
    said = reconstruct(*day, "share=1/2", "hydra.run.dir='new/${now:%H}'").refusal
    assert "share 1/2, of share: expected a folder that all shares write into" in said
    assert "share: expected null for one snapshot" in reconstruct("share=1/2").refusal


def test_shares_hold_a_folder_together_and_nobody_else_does(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "MAX_LOCK_WAIT_SECONDS", 0.0)
    first, second, third = {}, {}, {}
    with monkeypatch.context() as patch:
        for held in (first, second):
            patch.setattr(folders, "_descriptors", held)
            folders.lock_folder(tmp_path, is_shared=True)
        patch.setattr(folders, "_descriptors", third)
        with pytest.raises(ValueError, match="is being written by"):
            folders.lock_folder(tmp_path)
        for held in (first, second):
            patch.setattr(folders, "_descriptors", held)
            folders._close_locks()
