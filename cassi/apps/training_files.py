"""What a training leaves in its folder, and how another run goes on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from cassi.data.atomic import atomic_path, atomic_paths
from cassi.models.saved import Card, save_model

PREFIX = "net."
"""Of the network's weights in a checkpoint of the training."""
OPTIONS = "options.yaml"


def checkpoint_folder(folder: Path) -> Path:
    """Return where the checkpoints of a run lie."""
    return folder / "checkpoints"


def find_start(ckpt: Any, folder: Path) -> Path | None:
    """Return the checkpoint to go on from, or None to start anew.

    `last` in a folder without one starts anew, so that a job that is stopped and queued again may
    always ask for it.

    Raises:
        OSError: the named checkpoint is not there.
        ValueError: a new training would overwrite an earlier one.
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
        return last if last.exists() else None
    path = Path(str(ckpt)).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"ckpt: no file {path}; give null, last or a .ckpt file")
    return path


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of the training; nothing in it is executed.

    Raises:
        ValueError: it is not one.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        return {key: content[key] for key in ("state_dict", "global_step", *content)}
    except OSError:
        raise
    except Exception:  # torch.load fails in many ways on what is no checkpoint
        raise ValueError(f"ckpt: {path} is no checkpoint of cassi-train") from None


def network_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the network's weights of a checkpoint's `state_dict`."""
    return {
        key.removeprefix(PREFIX): value for key, value in state.items() if key.startswith(PREFIX)
    }


def export(folder: Path, config: DictConfig, card: Card, best: Mapping[str, Any]) -> list[Path]:
    """Write model.safetensors and model.yaml, and ema.safetensors where there is an average.

    The first holds the best weights on the validation scenes, which are the moving average's where
    there is one; the last the average at the end.

    Args:
        folder: of the run.
        config: of the training; goes into model.yaml.
        card: name, settings and bands of the network.
        best: more about the best weights, for people to read.

    Returns:
        The files of weights.
    """
    checkpoints = checkpoint_folder(folder)
    last = read_checkpoint(checkpoints / "last.ckpt")
    # Without validation scenes nothing is better than the last weights.
    chosen = checkpoints / "best.ckpt"
    chosen = chosen if chosen.exists() else checkpoints / "last.ckpt"
    files = [(folder / "model.safetensors", read_checkpoint(chosen), dict(best))]
    if "averaging_state" in last:
        files.append((folder / "ema.safetensors", last, {}))
    for file, content, more in files:
        summary = {"step": content["global_step"], **more}
        weights = network_weights(content["state_dict"])
        # The settings last: they announce the weights.
        with atomic_paths(file, folder / "model.yaml") as (tensors, settings):
            save_model(tensors, weights, replace(card, training={**card.training, **summary}))
            OmegaConf.save(config, settings, resolve=True)
    return [file for file, _, _ in files]


def save_options(folder: Path, options: Sequence[str]) -> None:
    """Keep the options of a run beside its checkpoints, for those that go on with it.

    Hydra's own copy would not do: a run that is refused overwrites it.
    """
    checkpoint_folder(folder).mkdir(parents=True, exist_ok=True)
    with atomic_path(checkpoint_folder(folder) / OPTIONS) as temporary:
        OmegaConf.save(OmegaConf.create(list(options)), temporary)


def add_earlier_options(arguments: list[str]) -> list[str]:
    """Put the options that a training was started with before those that resume it.

    An option given again wins.

    Args:
        arguments: of the command, with `ckpt=last` and `hydra.run.dir=DIR` where a run goes on.
    """
    given = {_key(argument): argument for argument in arguments if _is_option(argument)}
    folder = given.get("hydra.run.dir", "").partition("=")[2].strip("'\"")
    saved = checkpoint_folder(Path(folder)) / OPTIONS
    if given.get("ckpt") != "ckpt=last" or not folder or not saved.is_file():
        return arguments
    earlier = [str(item) for item in OmegaConf.to_container(OmegaConf.load(saved)) or []]
    return [option for option in earlier if _key(option) not in given] + arguments


def _is_option(argument: str) -> bool:
    return "=" in argument and not argument.startswith("-")


def _key(option: str) -> str:
    return option.partition("=")[0].lstrip("+~")
