"""Fixtures that several folders share."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data, or a skip that says where it was looked for."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("CASSI_DATA") or root.parent / "shared" / "data")
    if not (folder / "tsa" / "mask.mat").exists():
        pytest.skip(f"no real data in {folder}; set CASSI_DATA")
    return folder


@pytest.fixture
def assert_same_bits() -> Callable[[Callable[[], Iterable[Tensor]]], None]:
    """Check that a function returns the same bits in every run and for any number of threads."""

    def check(run: Callable[[], Iterable[Tensor]]) -> None:
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            first = list(run())
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True)), threads
        finally:
            torch.set_num_threads(before)

    return check
