"""Networks as ONNX files and traces, which run without this package."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

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


def export_onnx(network: nn.Module, system: Any, path: str | os.PathLike[str]) -> None:
    """Write a network with its camera as an ONNX file: input `y`, output `x`.

    The file holds one camera, one measurement `(1, K, H, W')` and float32. The operators of the
    camera are written as the sums and products that they stand for.

    Args:
        network: one of `cassi.create_model`, or any `net(y, system)`.
        system: a camera of one shot whose bands move by whole pixels.
        path: of the file.

    Raises:
        ImportError: onnx or onnxscript is not installed.
        ValueError: the camera has several shots.
        RuntimeError: torch cannot write an operator of the network in ONNX.
    """
    module = OfMeasurement(network, system).eval()
    like = next(iter([*system.parameters(), *system.buffers()]))
    y = torch.zeros(1, *system.measurement_shape, dtype=like.dtype, device=like.device)
    with torch.no_grad():
        program = torch.export.export(module, (y,), strict=False)
        program = program.run_decompositions(torch.export.default_decompositions() | PLAIN)
        written: Any = torch.onnx.export(
            program, (), None, dynamo=True, verbose=False, input_names=["y"], output_names=["x"]
        )
    written.save(os.fspath(path))
