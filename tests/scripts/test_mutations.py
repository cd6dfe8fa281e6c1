"""What is asked about mutants, and how their share is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.checks import mutations

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_has_tests():
    for package in mutations.PACKAGES:
        assert (ROOT / "cassi" / package).is_dir()
        assert list((ROOT / "tests" / package).glob("test_*.py"))


def test_interval():
    assert mutations.interval(54, 60) == pytest.approx((0.7985, 0.9534), abs=1e-4)
