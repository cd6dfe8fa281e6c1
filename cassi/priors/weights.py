"""Weights of networks, from files that can hold nothing but tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_NESTS = ("params_ema", "params", "state_dict", "model_state_dict", "model", "net")
_PREFIX = "module."


def load_weights(network: nn.Module, path: str | os.PathLike[str]) -> None:
    """Put the weights of a file into a network; every name and shape must agree.

    Args:
        network: changed in place.
        path: `.safetensors`, or what `torch.save` wrote of a `state_dict`: bare, or under one of
            the usual keys of a checkpoint (`params`, `state_dict`, `model`, …), with or without the
            prefix `module.` of parallel training. Nothing in it is executed.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not of these kinds, or does not fit the network.
    """
    file = Path(path).expanduser()
    state = _tensors(_read(file), file)
    expected = network.state_dict()
    name = type(network).__name__
    missing = [key for key in expected if key not in state]
    spare = [key for key in state if key not in expected]
    if missing or spare:
        parts = [f"{_some(missing)} missing"] if missing else []
        parts += [f"{_some(spare)} unknown"] if spare else []
        raise ValueError(f"weights {file}: not those of this {name}: {'; '.join(parts)}")
    for key, value in expected.items():
        if state[key].shape != value.shape:
            raise ValueError(
                f"weights {file}: not those of this {name}: {key} has the shape "
                f"{tuple(state[key].shape)}, expected {tuple(value.shape)}"
            )
    network.load_state_dict(state)


def _read(file: Path) -> Any:
    if not file.is_file():
        raise FileNotFoundError(f"weights: no file {file}")
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(file)
        except SafetensorError as error:
            raise ValueError(f"weights {file}: not a safetensors file ({error})") from None
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch.load fails in many ways on what is no checkpoint
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"weights {file}: expected a file of tensors written by torch.save ({reason[:120]})"
        ) from None


def _tensors(content: Any, file: Path) -> dict[str, Tensor]:
    for key in _NESTS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()
    ):
        raise ValueError(f"weights {file}: expected names and tensors, a state_dict")
    return {key.removeprefix(_PREFIX): value for key, value in content.items()}


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
