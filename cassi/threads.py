"""How torch's threads wait for each other, decided before torch is loaded, and how many there are.

The GNU OpenMP library lets a thread that has nothing to do turn in a loop for milliseconds. Where
other processes want the cores, the threads it waits for do not run meanwhile: the default method
then takes several times as long. A short turn costs a tenth on an idle machine.
"""

import os
import re
import time
from pathlib import Path

from cassi.control_groups import read_limits, read_text

_LOOKS = 5
"""At the running threads, 2 ms apart; the fewest count."""

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def free_cores(root: Path = Path("/")) -> int:
    """Return how many processors this process can use without waiting for others, at least 1.

    The affinity, the limits of all control groups above this process (version 1 and 2) and
    `SLURM_CPUS_PER_TASK` say how many it may use. The threads of others that run at the same time
    take theirs: a thread that shares its processor holds up all threads that wait for it.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    allowed = min(allowed or 1, _cgroup_cores(root))
    if (given := os.environ.get("SLURM_CPUS_PER_TASK", "")).isdigit():
        allowed = min(allowed, int(given))
    others = []
    for _ in range(_LOOKS):
        running = re.search(r"^procs_running (\d+)", read_text(root / "proc/stat"), re.MULTILINE)
        others.append(int(running[1]) - 1 if running else 0)  # this one runs too
        time.sleep(0.002)
    return max(1, min(allowed, (os.cpu_count() or 1) - max(0, min(others))))


def _cgroup_cores(root: Path) -> int:
    """Return the processors that the strictest control group leaves, 1 at least."""
    least = float("inf")
    own = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    for words in read_limits(root, "cpu", ["cpu.max"], own):
        share, period = (*words, "", "")[:2]
        if share.isdigit() and period.isdigit() and int(period):
            least = min(least, int(share) / int(period))
    return max(1, int(least)) if least < float("inf") else 1 << 16
