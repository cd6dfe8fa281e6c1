"""Load the networks of the authors' public code from a user's own copy of it, for comparison."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

CLASSES = {"gap_net": "GAP_net", "admm_net": "ADMM_net"}
"""Names of the classes; any `dauhst_…` is `DAUHST`."""


def load_original(file: Path, name: str, stages: int | None) -> nn.Module:
    """Make the authors' network out of their source file.

    Args:
        file: `DAUHST.py` (needs the package einops), `GAP_Net.py` or `ADMM_Net.py`.
        name: our name of the network.
        stages: iterations, for a class that takes them.

    Raises:
        OSError: no such file.
        ValueError: this network cannot be compared.
    """
    if not file.is_file():
        raise FileNotFoundError(f"--original: no file {file}")
    wanted = "DAUHST" if name.startswith("dauhst_") else CLASSES.get(name)
    if wanted is None:
        raise ValueError(f"--original: expected gap_net, admm_net or a dauhst, got {name}")
    if not torch.cuda.is_available():
        # Their code puts tensors on a GPU wherever it makes one.
        stay: Any = lambda self, *_, **__: self  # noqa: E731
        torch.Tensor.cuda = stay  # type: ignore[method-assign]
    specification = importlib.util.spec_from_file_location("original_network", file)
    if specification is None or specification.loader is None:
        raise ValueError(f"--original: expected a Python file, got {file}")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    make = getattr(module, wanted)
    network: nn.Module = make(num_iterations=stages) if wanted == "DAUHST" else make()
    return network
