"""Jobs of an evaluation."""

from typing import NamedTuple


class Job(NamedTuple):
    """One method on one scene, of one case of a benchmark ("" where there is one alone)."""

    point: str
    scene: str
    method: str
