"""Which part of the jobs a command does that shares them with others: of a job array, of srun."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """Number `index`, from 0 on, of `count` shares, and where that is said."""

    index: int
    count: int
    source: str = "share"

    def __str__(self) -> str:
        """As a user writes it, from 1 on."""
        return f"{self.index + 1}/{self.count}"

    @property
    def writer(self) -> str:
        """A name for files of this share."""
        return f"share-{self.index + 1}-of-{self.count}"

    def take(self, jobs: Sequence[T]) -> Sequence[T]:
        """Return the jobs of this share: every `count`-th."""
        return jobs[self.index :: self.count]


ALL = Share(0, 1)


def find_share(told: str | None, environment: Mapping[str, str] = os.environ) -> Share:
    """Return the share of this command: `told`, such as "3/16", or what SLURM says.

    That is the task of an array, and in it the process of srun.
    """
    if told is not None:
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", told)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"share: expected such as 3/16, the third of sixteen, got {told!r}")
        return Share(int(found[1]) - 1, int(found[2]))
    # The script of a job has the numbers of a task too, and is none.
    script = "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment
    said = {name: int(text) for name, text in environment.items() if text.isdecimal()}
    index, count, sources = 0, 1, []
    number = said.get("SLURM_ARRAY_TASK_ID")
    if number is not None and (count := said.get("SLURM_ARRAY_TASK_COUNT", 1)) > 1:
        first, step = (said.get(f"SLURM_ARRAY_TASK_{name}", 0) for name in ("MIN", "STEP"))
        index, rest = divmod(number - first, step or 1)
        if rest or not 0 <= index < count:
            raise ValueError(
                f"share: task {number} of the job array is none of {count} in a row; give "
                "share=I/N, or share=1/1 for all"
            )
        sources.append("the job array")
    task, tasks = said.get("SLURM_PROCID", 0), said.get("SLURM_NTASKS", 1)
    if task < tasks > 1 and "SLURM_PROCID" in said and not script:
        index, count = index * tasks + task, count * tasks
        sources.append("srun")
    return Share(index, count, " and ".join(sources)) if sources else ALL
