"""Which part of the jobs a command does that shares them with others: of a job array, of srun."""

from __future__ import annotations

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
    """Return the share of this command.

    Args:
        told: the setting `share`, such as "3/16"; None for what SLURM says: the task of an array,
            and in it the process of srun.
        environment: variables by name.

    Raises:
        ValueError: the text is no share, or the array has gaps.
    """
    if told is not None:
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", told)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"share: expected such as 3/16, the third of sixteen, got {told!r}")
        return Share(int(found[1]) - 1, int(found[2]))
    array, tasks = _array(environment), _tasks(environment)
    if array.count == 1 or tasks.count == 1:
        return tasks if array.count == 1 else array
    index = array.index * tasks.count + tasks.index
    return Share(index, array.count * tasks.count, f"{array.source} and {tasks.source}")


def _array(environment: Mapping[str, str]) -> Share:
    number, count, first = (_number(environment, f"ARRAY_TASK_{n}") for n in ("ID", "COUNT", "MIN"))
    if number is None or count is None:
        return ALL
    index, rest = divmod(number - (first or 0), _number(environment, "ARRAY_TASK_STEP") or 1)
    if rest or not 0 <= index < count:
        raise ValueError(
            f"share: task {number} of the job array is none of {count} in a row; give share=I/N, "
            "or share=1/1 for all"
        )
    return Share(index, count, "the job array")


def _tasks(environment: Mapping[str, str]) -> Share:
    index, count = (_number(environment, name) for name in ("PROCID", "NTASKS"))
    # The script of a job has these numbers too, and is not one of its tasks.
    script = "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment
    if index is None or count is None or script or not 0 <= index < count:
        return ALL
    return Share(index, count, "srun")


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(f"SLURM_{name}", "")
    return int(text) if text.isdecimal() else None
