"""Set how torch's threads wait for each other, before torch is loaded, and count free cores.

The GNU OpenMP library lets an idle thread spin in a loop for milliseconds. The spinning thread
occupies a core. If other processes need the cores too, the threads for which it waits cannot run
meanwhile, and the default method takes several times as long. With a short spin the default method
takes a tenth longer on an idle machine.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cassi.control_groups import read_limits, read_text

# The running threads are counted this many times, 2 ms apart. The smallest count is taken, since
# short tasks of the system come and go.
_N_SAMPLES = 5

# This is set at import, because the library reads it when torch is loaded. The user's own setting
# of either variable stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread within a block, or within a decorated function.

    Operations on small tensors take as long with one thread as with many, which then only wait for
    each other.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def free_cores(root: Path = Path("/")) -> int:
    """Return how many processors this process can use without waiting for others, at least 1.

    The affinity, the limits of all control groups above this process (version 1 and 2) and
    `SLURM_CPUS_PER_TASK` limit how many it may use. Processors with running threads of other
    processes do not count: a thread that shares its processor delays all that wait for it.

    Args:
        root: root of the file system, "/" except in tests.
    """
    n_usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    n_usable = min(n_usable or 1, _cgroup_cores(root))
    if (slurm_cpus := os.environ.get("SLURM_CPUS_PER_TASK", "")).isdigit():
        n_usable = min(n_usable, int(slurm_cpus))
    other_threads = []
    for _ in range(_N_SAMPLES):
        running = re.search(r"^procs_running (\d+)", read_text(root / "proc/stat"), re.MULTILINE)
        other_threads.append(int(running[1]) - 1 if running else 0)  # without this process
        time.sleep(0.002)
    return max(1, min(n_usable, (os.cpu_count() or 1) - max(0, min(other_threads))))


def _cgroup_cores(root: Path) -> int:
    """Return the number of processors that the strictest control group allows, at least 1.

    Without a limit the result is 65536, more than any machine has.
    """
    fewest = float("inf")
    v1_files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    for words in read_limits(root, "cpu", ["cpu.max"], v1_files):
        quota, period = (*words, "", "")[:2]
        if quota.isdigit() and period.isdigit() and int(period):
            fewest = min(fewest, int(quota) / int(period))
    return max(1, int(fewest)) if fewest < float("inf") else 1 << 16
