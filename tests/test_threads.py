"""How threads wait is decided before torch is loaded, and only where nobody else has."""

import os
import subprocess
import sys

import pytest

from cassi.threads import free_cores

CODE = (
    "import sys, os, importlib.abc\n"
    "class Look(importlib.abc.MetaPathFinder):\n"
    "    def find_spec(self, name, *rest):\n"
    "        if name == 'torch': raise SystemExit(os.environ.get('GOMP_SPINCOUNT', 'None'))\n"
    "sys.meta_path.insert(0, Look())\n"
    "from cassi import ops"
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_threads_turn_briefly_unless_told_otherwise(given, expected):
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=kept | given, capture_output=True, text=True, check=False
    )
    assert done.stderr.split() == [expected]


def machine(root, running, cgroup, limits):
    """Write what Linux tells of a machine below a folder."""
    files = {
        "proc/stat": f"cpu 1 2\nprocs_running {running}\n",
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{name}": text for name, text in limits.items()},
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V1 = {"cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_quota_us": "200000"}


@pytest.mark.parametrize(
    ("running", "cgroup", "limits", "expected"),
    [
        (1, "", {}, 8),
        (1, "0::/\n", {"cpu.max": "max 100000"}, 8),
        (3, "0::/a/b\n", {}, 6),
        (30, "0::/a/b\n", {}, 1),
        (1, "0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        (7, "0::/a/b\n", {"a/b/cpu.max": "50000 100000"}, 1),
        (1, "4:cpu,cpuacct:/a/b\n", {**V1, "cpu/a/cpu.cfs_period_us": "50000"}, 4),
        (1, "4:memory:/a\n", {"a/cpu.max": "100000 100000"}, 8),
    ],
)
def test_processors_that_are_free(monkeypatch, tmp_path, running, cgroup, limits, expected):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert free_cores(machine(tmp_path, running, cgroup, limits)) == expected
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    assert free_cores(tmp_path) == min(2, expected)
