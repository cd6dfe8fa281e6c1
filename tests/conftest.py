"""Fixtures that several folders share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data, or a skip that says where it was looked for."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("CASSI_DATA") or root.parent / "shared" / "data")
    if not (folder / "tsa" / "mask.mat").exists():
        pytest.skip(f"no real data in {folder}; set CASSI_DATA")
    return folder
