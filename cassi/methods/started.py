"""A method that starts from the cube of another one."""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import Unpack

from cassi.methods.wrapper import Wrapper, check_method
from cassi.solvers import LinearSystem, Reconstructor, Solution, Statistics
from cassi.solvers.base import Options, Pass
from cassi.solvers.linear_system import seen


@dataclass(frozen=True)
class Started(Wrapper):
    """Run a method from the cube of another one, and with the noise level that this one found.

        method(y, start(y))

    A first cube that is given is in place of the start's. A run that resumes takes the start's cube
    from its checkpoint.

    Args:
        method: takes a first cube.
        start: makes it; its iterations are not counted.

    Raises:
        TypeError: a method has no `run`.
    """

    start: Reconstructor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_method("start", self.start)

    @property
    def halo(self) -> int:
        """Number of lines around a part of a scene that influence its result."""
        return max(self.method.halo, self.start.halo)

    @property
    def shares_batch(self) -> bool:
        """Whether the result of a sample is independent of the other samples of its batch."""
        return self.method.shares_batch and self.start.shares_batch

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        if options.get("x0") is None:
            known = options.get("statistics") or Statistics(lambda: [(seen(y, system), system)])
            checkpoint = options.get("checkpoint")
            first = None if checkpoint is None else checkpoint.read("start")
            if first is None:
                found = self.start.run(y, system, statistics=known).checked()
                first = Pass(0, found.x, [], found.noise)
                if checkpoint is not None:
                    checkpoint.write("start", first)
            options["x0"], options["statistics"] = first.x.to(y), known
            if first.noise is not None:
                options["statistics"] = known.with_noise(first.noise.to(y))
        return self.method.run(y, system, **options)
