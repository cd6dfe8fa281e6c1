"""Jobs of an evaluation."""

from typing import NamedTuple


class Job(NamedTuple):
    """One method on one scene, at one point of a sweep ("" where nothing is swept)."""

    point: str
    scene: str
    method: str
