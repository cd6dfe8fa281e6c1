"""Whole numbers, names that are nearly right, and files that may be read."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import cassi
from cassi.checks import check_opened_files, did_you_mean, not_negative, read_regular, whole_number
from cassi.priors.weights import read_file


@pytest.mark.parametrize("value", [1, 6, 2.0, True, "3", None, float("nan")])
def test_other_values_are_refused(value):
    with pytest.raises(ValueError, match=r"^n: expected a whole number from 2 to 5, got "):
        whole_number("n", value, 2, 5)
    if value != 6:
        with pytest.raises(ValueError, match=r"^n: expected a whole number of at least 2, got "):
            whole_number("n", value, 2)
    assert whole_number("n", 5, 2) == whole_number("n", 5, 2, 5) == 5


@pytest.mark.parametrize("value", [-0.5, True, "3", None, float("nan")])
def test_numbers_that_are_not_negative(value):
    assert (not_negative("n", 0), not_negative("n", 2.5)) == (0.0, 2.5)
    with pytest.raises(ValueError, match=r"^n: expected a number >= 0, got "):
        not_negative("n", value)


def test_near_names():
    known = ["gap_tv", "admm_tv", "BK7"]
    assert did_you_mean("gap_tw", known) == "; did you mean gap_tv?"
    assert did_you_mean("apm_tv", known) == "; did you mean gap_tv or admm_tv?"
    assert did_you_mean("apm_tv", known, n=1) == "; did you mean gap_tv?"
    assert did_you_mean("bk8", known, place="a.") == "; did you mean a.BK7?"
    assert did_you_mean("xyz", known) == did_you_mean(3, known) == ""


def test_a_file_is_read_only_where_it_is_regular_and_short(tmp_path):
    file, link = tmp_path / "a", tmp_path / "link"
    file.write_bytes(b"1234")
    link.symlink_to(file)
    assert read_regular(file, 4) == read_regular(link, 4) == b"1234"
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(link, 4, follow=False)
    os.truncate(file, 1 << 40)  # of nothing
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (file, "at most 67108864 bytes"),
        (tmp_path / "pipe", "regular file"),
        (Path("/dev/zero"), "regular file"),
        (Path("/proc/self/environ"), "at most 1 bytes"),  # has a size of 0
        (tmp_path, "Is a directory"),
    ):
        limit = {"max_bytes": 1} if "proc" in str(path) else {}
        with pytest.raises((ValueError, OSError), match=said):
            read_regular(path, **limit)


def test_what_is_opened_is_checked_in_a_block(tmp_path):
    def refuse(path):
        raise PermissionError(f"not {path.name}")

    cube, weights = tmp_path / "a.npy", tmp_path / "a.safetensors"
    cassi.write_cube(cube, torch.ones(3, 4, 5))
    save_file({"a": torch.ones(2)}, weights)
    (tmp_path / "curve.csv").write_text("500,1\n600,2\n")
    calls = {
        "a.npy": lambda: cassi.read_cube(cube),
        "a.safetensors": lambda: read_file(weights),
        "curve.csv": lambda: cassi.systems.Curve(file=tmp_path / "curve.csv"),
    }
    for name, call in calls.items():
        call()
        with check_opened_files(refuse), pytest.raises(PermissionError, match=f"not {name}"):
            call()
    calls["a.npy"]()
