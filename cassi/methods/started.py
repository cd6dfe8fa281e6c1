"""A method that starts from the cube of another method."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import Unpack

from cassi.methods.wrapper import ReconstructorWrapper, check_method
from cassi.solvers import LinearSystem, Reconstructor, Solution, Statistics
from cassi.solvers.base import Options, Pass
from cassi.solvers.linear_system import zero_bad_pixels


@dataclass(frozen=True)
class Started(ReconstructorWrapper):
    """Run a method from the cube of another method, the start, with the noise level of the start.

        method(y, start(y))

    If `run` gets a first cube `x0`, the start does not run. If a run resumes, it takes the start's
    cube from its checkpoint.

    Args:
        method: takes a first cube.
        start: makes the first cube; its iterations are not counted.

    Raises:
        TypeError: a method has no `run`.
    """

    start: Reconstructor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_method("start", self.start)

    @property
    def halo(self) -> int:
        """Number of lines beside a part of a scene that influence the result of the part."""
        return max(self.method.halo, self.start.halo)

    @property
    def shares_batch(self) -> bool:
        """Whether the result of a sample is independent of the other samples of its batch."""
        return self.method.shares_batch and self.start.shares_batch

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        if options.get("x0") is None:
            statistics = options.get("statistics")
            statistics = statistics or Statistics(lambda: [(zero_bad_pixels(y, system), system)])
            checkpoint = options.get("checkpoint")
            first = None if checkpoint is None else checkpoint.read("start")
            if first is None:
                solution = self.start.run(y, system, statistics=statistics).checked()
                first = Pass(0, solution.x, [], solution.noise)
                if checkpoint is not None:
                    checkpoint.write("start", first)
            options["x0"], options["statistics"] = first.x.to(y), statistics
            # Held-out pixels may have given the start an upper bound of the noise, which is better
            # than the estimate from smooth windows.
            if first.noise is not None:
                options["statistics"] = statistics.with_noise(first.noise.to(y))
        return self.method.run(y, system, **options)
