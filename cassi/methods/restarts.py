"""Methods one after another, each from the result of the method before it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from cassi.methods.wrapper import check_method
from cassi.solvers import Callback, Iteration, LinearSystem, Reconstructor, Solution
from cassi.solvers.base import CallbackWrapper, Options, Pass, unpack_options


@dataclass(frozen=True)
class Restarts:
    """Run methods one after another, each from the result of the method before it.

        x ← (1 − w) pass_k(y, x) + w x₀,   k = 1, 2, …

    The caller gives the first cube x₀. In a `cassi.methods.Started` another method makes it.

    Args:
        passes: at least one method that takes a first cube.
        weight: w, in [0, 1).

    Raises:
        ValueError: there is no pass, or the weight is out of range.
        TypeError: a method has no `run`.
    """

    passes: Sequence[Reconstructor]
    weight: float = 0.0
    network: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not self.passes:
            raise ValueError("Restarts passes: expected at least one, got none")
        for method in self.passes:
            check_method("Restarts passes", method)
        if not 0 <= self.weight < 1:
            raise ValueError(f"weight: expected a share from 0 to below 1, got {self.weight}")

    @property
    def iterations(self) -> int:
        """The largest number of times that `run` calls the callback."""
        return sum(method.iterations for method in self.passes)

    @property
    def halo(self) -> int:
        """Number of lines beside a part of a scene that influence the result of the part."""
        return max(method.halo for method in self.passes)

    @property
    def shares_batch(self) -> bool:
        """Whether the result of a sample is independent of the other samples of its batch."""
        return all(method.shares_batch for method in self.passes)

    @torch.no_grad()
    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`.

        A checkpoint stores the result of every pass. A run with the checkpoint of an earlier run
        continues after the last pass that is stored. A callback that returns True ends all passes.
        """
        x0, callback, objective, statistics = unpack_options(options)
        checkpoint = options.get("checkpoint")
        start, n_finished, history, x = time.perf_counter(), 0, list[Iteration](), x0
        last_pass = None if checkpoint is None else checkpoint.read("pass")
        if last_pass is not None:
            n_finished, x, history = last_pass.passes, last_pass.x.to(y), list(last_pass.history)
            start -= history[-1].seconds
        # This is the result if the checkpoint has all passes. Otherwise the loop replaces it.
        solution = Solution(y if x is None else x, history, "iterations")
        for k, method in enumerate(self.passes[n_finished:], n_finished):
            counter = CountingCallback(callback, history, time.perf_counter() - start)
            solution = method.run(
                y, system, x0=x, callback=counter, objective=objective, statistics=statistics
            )
            x = solution.x
            # A pass that was stopped is not stored, so a resumed run repeats it.
            if counter.is_stopped or solution.reason == "diverged":
                break
            if x0 is not None and self.weight > 0:
                x = torch.lerp(x, x0, self.weight)
                solution = replace(solution, x=x)
            if checkpoint is not None:
                checkpoint.write("pass", Pass(k + 1, x, history))
        return replace(solution, history=history)

    def __call__(self, y: Tensor, system: LinearSystem) -> Tensor:
        """Reconstruct: `(B, K, H, W')` → `(B, C, H, W)`."""
        return self.run(y, system).x


class CountingCallback(CallbackWrapper):
    """A callback that counts iterations and seconds across several runs.

    `history` has the iterations of the earlier runs, which took `seconds`. The iterations of this
    run are appended to `history`.
    """

    def __init__(self, callback: Callback | None, history: list[Iteration], seconds: float) -> None:
        n_earlier = len(history)

        def shift(iteration: Iteration) -> Iteration:
            return replace(
                iteration,
                index=iteration.index + n_earlier,
                seconds=iteration.seconds + seconds,
            )

        super().__init__(callback, iteration=shift)
        self.history, self.is_stopped = history, False

    def __call__(self, iteration: Iteration, x: Tensor | None) -> bool:
        """Append an iteration to the history, and pass it on to the inner callback."""
        self.history.append(self.iteration(iteration))
        self.is_stopped = super().__call__(iteration, x)
        return self.is_stopped
