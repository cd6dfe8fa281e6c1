"""How threads wait is decided before torch is loaded, and only where nobody else has."""

import os
import subprocess
import sys

import pytest

CODE = (
    "import sys, os, importlib.abc\n"
    "class Look(importlib.abc.MetaPathFinder):\n"
    "    def find_spec(self, name, *rest):\n"
    "        if name == 'torch': print(os.environ.get('GOMP_SPINCOUNT'))\n"
    "sys.meta_path.insert(0, Look())\n"
    "import cassi"
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_threads_turn_briefly_unless_told_otherwise(given: dict[str, str], expected: str) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=kept | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [expected]
