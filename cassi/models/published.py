"""Weights that others have trained, by the name of their network."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from cassi.models.registry import create_model, list_models
from cassi.priors.weights import MisfitError, load_weights


def load_published(
    name: str,
    path: str | os.PathLike[str],
    bands: int = 28,
    *,
    ema: bool | None = None,
    **settings: Any,
) -> nn.Module:
    """Make a network with the weights of its authors' file, `net(y, system) -> x`.

    Files are taken as they are: a `state_dict`, a checkpoint that holds one, with or without a
    moving average, safetensors; `cassi.priors.load_weights` lists them all. Only tensors are read,
    and nothing is loaded unless every name and shape fits. A pickled network (`torch.save(net)`)
    is refused: reading it would run whatever it names.

    Args:
        name: one of `list_models()`.
        path: the file.
        bands: number C of bands.
        ema: where a file holds both the weights as the optimizer left them and their moving
            average, None (the default) and True take the average: PADUT, RDLUF-MixS² and
            DERNN-LNLT report figures of the average. False takes the others. Where a file holds no
            average, None takes what there is and True raises.
        settings: further arguments of the network's class, as in `create_model`: weights trained
            for other ones (`size`, `stages`, …) need them again.

    Returns:
        The network, in evaluation mode.

    Raises:
        OSError: the file cannot be read.
        ValueError: there is no such network, or the file does not hold its weights. The message
            counts the tensors that are missing, unknown or of another shape, names the first of
            them, and the network whose weights they are where one is registered.
    """
    return create_model(name, bands=bands, weights=path, ema=ema, **settings)


def load_into(
    network: nn.Module, name: str, path: str | os.PathLike[str], ema: bool | None
) -> None:
    """Load a file into the network that was made under a name; see `load_published`."""
    try:
        load_weights(network, path, ema=ema)
    except MisfitError as error:
        bands = int(getattr(network, "bands", 28))
        fitting = [other for other in list_models() if _shapes(other, bands) == error.shapes]
        hint = f"; they fit {' and '.join(fitting)}" if fitting else ""
        raise ValueError(f"{error}{hint}") from None
    network.eval()


def _shapes(name: str, bands: int) -> dict[str, torch.Size]:
    """Return the shapes of a network's weights, made without memory."""
    try:
        with torch.device("meta"):
            state = create_model(name, bands=bands).state_dict()
    except (ValueError, RuntimeError, NotImplementedError):
        return {}  # not for these bands, or it computes something of its weights
    return {key: value.shape for key, value in state.items()}
