"""Networks as ONNX files and traces, which run without this package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cassi.ops._plain import PLAIN


class OfMeasurement(nn.Module):
    """y ↦ network(y, system)."""

    def __init__(self, network: nn.Module, system: nn.Module) -> None:
        super().__init__()
        self.network, self.system = network, system

    def forward(self, y: Tensor) -> Tensor:
        """Reconstruct the cube: `(B, K, H', W')` → `(B, C, H, W)`."""
        x: Tensor = self.network(y, self.system)
        return x


DRAWS = (torch.normal, torch.rand, torch.randn)
"""What gives random numbers in networks that draw them when they reconstruct."""


class _Record(TorchFunctionMode):
    """Keeps the random numbers that are drawn, as of seed 0; or gives them again."""

    def __init__(self, again: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []
        self.again = None if again is None else iter(again)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in DRAWS and self.again is not None:
            return next(self.again)
        result = func(*args, **(kwargs or {}))
        if func in DRAWS:
            self.drawn.append(result)
        return result


def export(network: nn.Module, system: Any) -> torch.export.ExportedProgram:
    """Return a network with its camera as a program of torch: y → x.

    Random numbers that the network draws are constants of it, those after `torch.manual_seed(0)`.

    Args:
        network: one of `cassi.create_model`, or any `net(y, system)`.
        system: the camera.

    Raises:
        RuntimeError: which operations the network makes depends on the values of y.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    module = OfMeasurement(network, system).eval()
    like = next(iter([*system.parameters(), *system.buffers()]))
    y = torch.zeros(1, *system.measurement_shape, dtype=like.dtype, device=like.device)
    with torch.no_grad():
        with torch.random.fork_rng(), _Record() as record:
            torch.manual_seed(0)
            module(y)
        try:
            with _Record(record.drawn):
                return torch.export.export(module, (y,), strict=False)
        except GuardOnDataDependentSymNode as error:
            name = type(network).__name__
            raise RuntimeError(f"{name} decides by values of y what it computes") from error


def export_onnx(network: nn.Module, system: Any, path: str | os.PathLike[str]) -> None:
    """Write a network with its camera as an ONNX file: input `y`, output `x`.

    The file holds one camera, one measurement `(1, K, H, W')` and float32. The operators of the
    camera are written as the sums and products that they stand for. Random numbers that a network
    draws are those after `torch.manual_seed(0)`.

    Args:
        network: one of `cassi.create_model`, or any `net(y, system)`.
        system: a camera of one shot whose bands move by whole pixels.
        path: of the file.

    Raises:
        ImportError: onnx or onnxscript is not installed.
        ValueError: the camera has several shots.
        RuntimeError: torch cannot write an operator of the network in ONNX.
    """
    with torch.no_grad():
        program = export(network, system)
        program = program.run_decompositions(torch.export.default_decompositions() | PLAIN)
        # Not optimized: constants folded here change PADUT by 0.07. Those who read it optimize it.
        written: Any = torch.onnx.export(
            *(program, (), None),
            dynamo=True,
            verbose=False,
            optimize=False,
            input_names=["y"],
            output_names=["x"],
        )
    written.save(os.fspath(path))
