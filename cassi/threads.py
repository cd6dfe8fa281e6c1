"""How torch's threads wait for each other, decided before torch is loaded, and how many there are.

The GNU OpenMP library lets a thread that has nothing to do turn in a loop for milliseconds. Where
other processes want the cores, the threads it waits for do not run meanwhile: the default method
then takes several times as long. A short turn costs a tenth on an idle machine.
"""

import os
import re
import time
from pathlib import Path

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def free_cores(root: Path = Path("/"), samples: int = 5) -> int:
    """Return how many processors this process can use without waiting for others, at least 1.

    The affinity, the limits of all control groups above this process (version 1 and 2) and
    `SLURM_CPUS_PER_TASK` say how many it may use. The threads of others that run at the same time
    take theirs: a thread that shares its processor holds up all threads that wait for it.

    Args:
        root: of the file system, where Linux tells this.
        samples: looks at the running threads, 2 ms apart; the fewest count.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    allowed = min(allowed or 1, _cgroup_cores(root))
    if (given := os.environ.get("SLURM_CPUS_PER_TASK", "")).isdigit():
        allowed = min(allowed, int(given))
    others = []
    for _ in range(samples):
        running = re.search(r"^procs_running (\d+)", _read(root / "proc/stat"), re.MULTILINE)
        others.append(int(running[1]) - 1 if running else 0)  # this one runs too
        time.sleep(0.002)
    return max(1, min(allowed, (os.cpu_count() or 1) - max(0, min(others))))


def _cgroup_cores(root: Path) -> int:
    """Return the processors that the strictest control group leaves, 1 at least."""
    least, mount = float("inf"), root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, place = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = mount / "cpu" if controllers else mount
        inner = base / place.lstrip("/")
        for folder in (inner, *inner.parents):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            words = " ".join(_read(folder / name) for name in names).split()
            share, period = (*words, "", "")[:2]
            if share.isdigit() and period.isdigit() and int(period):
                least = min(least, int(share) / int(period))
            if folder == base:
                break
    return max(1, int(least)) if least < float("inf") else 1 << 16


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
