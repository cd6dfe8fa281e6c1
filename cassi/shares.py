"""Split jobs among several copies of a command: by the setting `share=`, a job array or srun."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """One of `count` shares of the jobs.

    Attributes:
        index: number of the share, from 0 on.
        count: number of shares.
        source: where the numbers come from, for messages.
    """

    index: int
    count: int
    source: str = "share"

    def __str__(self) -> str:
        """Return the share as a user writes it, counted from 1."""
        return f"{self.index + 1}/{self.count}"

    @property
    def writer(self) -> str:
        """A name that tells the files of this share from those of the others."""
        return f"share-{self.index + 1}-of-{self.count}"

    def take(self, jobs: Sequence[T]) -> Sequence[T]:
        """Return the jobs of this share: every `count`-th one, so that shares are about equal."""
        return jobs[self.index :: self.count]


ALL_JOBS = Share(0, 1)


def find_share(setting: str | None, environment: Mapping[str, str] = os.environ) -> Share:
    """Return the share of this command: by the setting if it is set, else by SLURM's variables.

    SLURM numbers the tasks of a job array, and in each task the processes of srun.

    Args:
        setting: `share=`, such as "3/16"; None: not set.
        environment: environment variables.

    Raises:
        ValueError: the setting is no share; or numbers are missing in the job array, and nobody
            would do the jobs of these numbers.
    """
    if setting is not None:
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", setting)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"share: expected such as 3/16, the third of sixteen, got {setting!r}")
        return Share(int(match[1]) - 1, int(match[2]))
    # SLURM also sets the numbers of a process in the batch script, which srun did not start.
    is_batch_script = "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment
    variables = {name: int(text) for name, text in environment.items() if text.isdecimal()}
    index, count, sources = 0, 1, []
    array_task = variables.get("SLURM_ARRAY_TASK_ID")
    if array_task is not None and (count := variables.get("SLURM_ARRAY_TASK_COUNT", 1)) > 1:
        first, step = (variables.get(f"SLURM_ARRAY_TASK_{name}", 0) for name in ("MIN", "STEP"))
        index, remainder = divmod(array_task - first, step or 1)
        if remainder or not 0 <= index < count:
            raise ValueError(
                f"share: expected a job array of {count} tasks without gaps, got one with task "
                f"{array_task}; give share=I/N, or share=1/1 for all jobs"
            )
        sources.append("the job array")
    process, n_processes = variables.get("SLURM_PROCID", 0), variables.get("SLURM_NTASKS", 1)
    # Each task of the array may run several processes, which share its jobs again.
    if process < n_processes > 1 and "SLURM_PROCID" in variables and not is_batch_script:
        index, count = index * n_processes + process, count * n_processes
        sources.append("srun")
    return Share(index, count, " and ".join(sources)) if sources else ALL_JOBS
