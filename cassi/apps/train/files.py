"""What a training leaves in its folder, and how another run goes on from there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from cassi.apps.settings import Train, to_dict, to_yaml
from cassi.data.atomic import atomic_folder
from cassi.models.load import Card, save_model
from cassi.training.tensors import read_tensors

PREFIX = "net."
"""Of the network's weights in a checkpoint of the training."""
PREVIOUS = "previous.ckpt"
"""Beside last.ckpt, see `cassi.training.callbacks.keep_previous`."""


def checkpoint_folder(folder: Path) -> Path:
    """Return where the checkpoints of a run lie."""
    return folder / "checkpoints"


def find_start(ckpt: Any, folder: Path) -> Path | None:
    """Return the checkpoint to go on from, or None to start anew.

    `last` in a folder without one starts anew, so that a job that is stopped and queued again may
    always ask for it. The one before the last takes the place of a last one that is damaged.

    Raises:
        OSError: the named checkpoint is not there.
        ValueError: a new training would overwrite an earlier one; or there are only damaged ones.
    """
    last = checkpoint_folder(folder) / "last.ckpt"
    if ckpt is None:
        if last.exists():
            raise ValueError(
                f"hydra.run.dir: {folder} holds a training; go on with ckpt=last, or choose "
                "another folder"
            )
        return None
    if ckpt == "last":
        return _undamaged(last) if last.exists() else None
    path = Path(str(ckpt)).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"ckpt: no file {path}; give null, last or a .ckpt file")
    return path


def _undamaged(last: Path) -> Path:
    try:
        read_checkpoint(last)
    except ValueError as error:
        previous = last.with_name(PREVIOUS)
        if not previous.exists():
            raise ValueError(f"{error}; start again in another folder") from None
        read_checkpoint(previous)
        warnings.warn(f"{error}; going on from the one before it", stacklevel=3)
        # Under its name, so that the next one saved does not put the damaged one in its place.
        previous.replace(last)
    return last


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of the training; nothing in it is executed.

    Raises:
        OSError: there is no such file.
        ValueError: it is none, or it is damaged.
    """
    try:
        content = read_tensors(path)
        return {key: content[key] for key in ("state_dict", "global_step", *content)}
    except OSError:
        raise
    except Exception:  # torch.load fails in many ways on what is no checkpoint
        raise ValueError(f"ckpt: {path} is no checkpoint of cassi-train, or damaged") from None


def network_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the network's weights of a checkpoint's `state_dict`."""
    return {
        key.removeprefix(PREFIX): value for key, value in state.items() if key.startswith(PREFIX)
    }


def export(folder: Path, settings: Train, card: Card, best: Mapping[str, Any]) -> list[Path]:
    """Write model.safetensors and model.yaml, and ema.safetensors where there is an average.

    The first holds the best weights on the validation scenes, which are the moving average's where
    there is one; the last the average at the end.

    Args:
        folder: of the run.
        settings: of the training; go into model.yaml.
        card: name, settings and bands of the network.
        best: more about the best weights, for people to read.

    Returns:
        The files of weights.
    """
    last = read_checkpoint(checkpoint_folder(folder) / "last.ckpt")
    weights = [("model.safetensors", _read_best(folder, last), dict(best))]
    if "averaging_state" in last:
        weights.append(("ema.safetensors", last, {}))
    with atomic_folder(folder) as stage:
        for name, content, more in weights:
            summary = {**card.training, "step": content["global_step"], **more}
            state = network_weights(content["state_dict"])
            save_model(stage / name, state, replace(card, training=summary))
        # The settings last: they announce the weights.
        (stage / "model.yaml").write_text(to_yaml(to_dict(settings)), encoding="utf-8")
    return [folder / name for name, _, _ in weights]


def _read_best(folder: Path, last: dict[str, Any]) -> dict[str, Any]:
    best = checkpoint_folder(folder) / "best.ckpt"
    if not best.exists():
        return last  # without validation scenes nothing is better
    try:
        return read_checkpoint(best)
    except ValueError as error:
        warnings.warn(f"{error}; the last weights are written instead", stacklevel=3)
        return last
