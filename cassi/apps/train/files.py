"""Files in the folder of a training: checkpoints, options and networks; how a training resumes.

The folder may be a stranger's. Nothing in a checkpoint is executed, and only options of a training
are taken from it.
"""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cassi.apps.arguments import config_groups
from cassi.apps.settings import Train, to_dict, to_yaml
from cassi.checks import check_fetched, read_regular
from cassi.data.atomic import atomic_folder, atomic_path
from cassi.plugins import loaded_names, missing_plugins

if TYPE_CHECKING:
    from torch import Tensor

    from cassi.models.registry import Card

NETWORK_PREFIX = "net."
"""Prefix of the network's weights in a checkpoint of the training."""
PREVIOUS_CHECKPOINT = "previous.ckpt"
"""The checkpoint before last.ckpt, see `cassi.training.callbacks.keep_previous`."""


def checkpoint_folder(folder: Path) -> Path:
    """Return the folder of the checkpoints of a run."""
    return folder / "checkpoints"


def describe_missing_training(folder: Path) -> str:
    """Return the error for `ckpt=last` in a new folder; it names the newest training nearby."""
    # Trainings whose folders are named after the time lie in DAY/TIME, see conf/train.yaml.
    trainings = folder.parents[1].glob("*/*/checkpoints/last.ckpt")
    newest = max(trainings, key=lambda checkpoint: checkpoint.stat().st_mtime, default=None)
    folder_text = "DIR" if newest is None else newest.parents[1]
    return (
        f"ckpt=last: expected the folder of a training, got none; give hydra.run.dir={folder_text}"
    )


def find_checkpoint(ckpt: str | Path | None, folder: Path) -> Path | None:
    """Return the checkpoint to resume from, or None for a new training.

    If the folder has no checkpoints, `last` starts a new training. So a job of a queue can have
    `ckpt=last` from the beginning. If the last checkpoint is damaged, the one before it is used.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the folder has a training already, or its checkpoints are damaged.
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
        return _repair_checkpoint(last) if last.exists() else None
    path = Path(str(ckpt)).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"ckpt: no file {path}; give null, last or a .ckpt file")
    return path


def _repair_checkpoint(last: Path) -> Path:
    """Return the last checkpoint; if it is damaged, put the one before it in its place."""
    try:
        read_checkpoint(last)
    except ValueError as error:
        previous = last.with_name(PREVIOUS_CHECKPOINT)
        if not previous.exists():
            raise ValueError(f"{error}; start again in another folder") from None
        read_checkpoint(previous)
        warnings.warn(f"{error}; going on from the checkpoint before it", stacklevel=3)
        # When the next checkpoint is saved, last.ckpt replaces the previous one. So the damaged
        # last.ckpt must be gone by then.
        previous.replace(last)
    return last


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a training; nothing in it is executed.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no checkpoint, or damaged.
    """
    from cassi.training.tensors import read_tensors

    with path.open("rb") as file:
        check_fetched(path, file.read(64))
    try:
        content = read_tensors(path)
        # A file without one of these two keys raises KeyError, and so counts as damaged.
        return {key: content[key] for key in ("state_dict", "global_step", *content)}
    except OSError:
        raise
    except Exception:  # torch.load raises errors of many kinds for other files
        raise ValueError(f"ckpt: {path} is no checkpoint of cassi-train, or damaged") from None


def check_plugins(content: Mapping[str, object]) -> None:
    """Raise ValueError if the training of a checkpoint had plugins, and none is loaded now.

    A plugin file may have been renamed since. So the names are not compared, and any loaded plugin
    is accepted.
    """
    names = content.get("plugins")
    if (
        not loaded_names()
        and isinstance(names, list)
        and (missing := missing_plugins(names)) is not None
    ):
        raise ValueError(
            f"ckpt: this training needs {missing}; give it again, because it is a program"
        )


def check_steps(checkpoint: Path, folder: Path, finished_steps: int, max_steps: int) -> None:
    """Raise ValueError if a checkpoint from another folder has made all steps already.

    In its own folder the training is just finished, and its result is written again.
    """
    if (
        checkpoint.resolve().parent != checkpoint_folder(folder).resolve()
        and 0 < max_steps <= finished_steps
    ):
        raise ValueError(
            f"trainer.max_steps: expected more than the {finished_steps} steps of {checkpoint}, "
            f"got {max_steps}"
        )


def select_network_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the network's weights from the `state_dict` of a checkpoint."""
    return {
        key.removeprefix(NETWORK_PREFIX): value
        for key, value in state.items()
        if key.startswith(NETWORK_PREFIX)
    }


def export(
    folder: Path, settings: Train, card: Card, best_summary: Mapping[str, object]
) -> list[Path]:
    """Write the trained network: model.safetensors, model.yaml and maybe ema.safetensors.

    model.safetensors has the weights that were best on the validation scenes; with a moving average
    these are averaged weights. ema.safetensors has the average at the end of the training.

    Args:
        folder: folder of the training.
        settings: settings of the training, for model.yaml.
        card: description of the network.
        best_summary: numbers about the best weights, which go into their file.

    Returns:
        The files of weights, the best first.
    """
    from cassi.models.load import save_model

    last = read_checkpoint(checkpoint_folder(folder) / "last.ckpt")
    weights = [("model.safetensors", _read_best(folder, last), dict(best_summary))]
    if "averaging_state" in last:
        weights.append(("ema.safetensors", last, {}))
    with atomic_folder(folder) as stage:
        for name, content, scores in weights:
            summary = {**card.training, "step": content["global_step"], **scores}
            state = select_network_weights(content["state_dict"])
            save_model(stage / name, state, replace(card, training=summary), settings.half)
        # The settings are written last, so that a reader who finds them also finds the weights.
        (stage / "model.yaml").write_text(to_yaml(to_dict(settings)), encoding="utf-8")
    return [folder / name for name, _, _ in weights]


def _read_best(folder: Path, last: dict[str, Any]) -> dict[str, Any]:
    best = checkpoint_folder(folder) / "best.ckpt"
    if not best.exists():
        return last  # without validation scenes there are no best weights
    try:
        return read_checkpoint(best)
    except ValueError as error:
        warnings.warn(f"{error}; the last weights are written instead", stacklevel=3)
        return last


RUN_ID_FILE = "services.json"
"""File beside the checkpoints: the names that services gave a run."""


def read_run_ids(folder: Path) -> dict[str, str]:
    """Return the names that services gave a run, by class of logger; {} without a valid file."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        ids = json.loads(read_regular(checkpoint_folder(folder) / RUN_ID_FILE, 1 << 12))
        # The names become arguments of a logger. Any other text could be an address or a path.
        return {kind: name for kind, name in ids.items() if re.fullmatch(r"[\w-]{1,64}", name)}
    return {}


def write_run_ids(folder: Path, ids: Mapping[str, str]) -> None:
    """Write the names that services gave a run beside its checkpoints."""
    _write_beside_checkpoints(folder, RUN_ID_FILE, json.dumps(dict(ids)))


def _write_beside_checkpoints(folder: Path, name: str, text: str) -> None:
    checkpoint_folder(folder).mkdir(parents=True, exist_ok=True)
    with atomic_path(checkpoint_folder(folder) / name) as temporary:
        temporary.write_text(text, encoding="utf-8")


OPTIONS_FILE = "options.yaml"
"""File beside the checkpoints: the options that the training was started with."""


def save_options(folder: Path, options: Sequence[str]) -> None:
    """Write the options of a run beside its checkpoints, for a command that resumes it.

    Hydra keeps a copy, too, but a later command that is refused overwrites it.
    """
    _write_beside_checkpoints(
        folder, OPTIONS_FILE, yaml.safe_dump(list(options), allow_unicode=True)
    )


def add_earlier_options(arguments: list[str]) -> list[str]:
    """Put the options of an earlier training before the options of the command that resumes it.

    An option of the resuming command replaces the earlier one. Plugins, which are programs, and
    loggers that send to another machine are refused: the folder may be a stranger's.

    Args:
        arguments: words of the command line.

    Returns:
        All words, the earlier options first.

    Raises:
        ValueError: the file of options is damaged, or has an option that must be given again.
    """
    options_by_key = {_key_of(argument): argument for argument in arguments if _is_option(argument)}
    folder = options_by_key.get("hydra.run.dir", "").partition("=")[2].strip("'\"")
    options_file = checkpoint_folder(Path(folder)) / OPTIONS_FILE
    if options_by_key.get("ckpt") != "ckpt=last" or not folder or not options_file.is_file():
        return arguments
    earlier_options = [
        option for option in _read_options(options_file) if _key_of(option) not in options_by_key
    ]
    # A new choice of loggers replaces all earlier options of loggers, which may not fit it.
    if "logger" in options_by_key:
        earlier_options = [
            option for option in earlier_options if not _belongs_to(option, "logger")
        ]
    for option in earlier_options:
        # `$` in an option of a logger may be an interpolation, which can give any value.
        if _belongs_to(option, "plugins"):
            reason = "a plugin is a program"
        elif _belongs_to(option, "logger") and re.search(r"wandb|mlflow|\$", option, re.IGNORECASE):
            reason = "it may send what is logged to another machine"
        else:
            continue
        # The option is quoted, so that nobody pastes a stranger's words into a shell by mistake.
        raise ValueError(
            f"{options_file}: this training was started with {option[:200]!r}; {reason}, so give "
            f"it again, or another {_key_of(option).partition('.')[0]}=…, beside ckpt=last"
        )
    return earlier_options + arguments


def _belongs_to(option: str, name: str) -> bool:
    return re.split(r"[.@/]", _key_of(option))[0] == name


# A stranger's file must not fill the memory. The options of a command are much shorter.
_MAX_OPTIONS_BYTES = 1 << 20


def _read_options(file: Path) -> list[str]:
    """Read a list of options of a training, from a file that may be a stranger's.

    A flag or a setting of Hydra itself could name any class, or a file of pickles. A path in the
    name of a config could lead to a file with such settings. Both are refused.
    """
    options: object = None
    with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
        # BaseLoader makes texts, lists and dicts only, and no other objects.
        options = yaml.load(read_regular(file, _MAX_OPTIONS_BYTES), yaml.BaseLoader) or []
    if not isinstance(options, list):
        raise ValueError(f"{file}: expected a list of options of cassi-train")
    for item in options:
        if not (isinstance(item, str) and _is_training_option(item)):
            raise ValueError(
                f"{file}: expected a list of options of cassi-train; {str(item)[:80]!r} is none"
            )
    return options


def _is_training_option(option: str) -> bool:
    """Tell whether an option sets a value or chooses a config of cassi-train, and nothing else."""
    key, equals, value = option.partition("=")
    match = re.fullmatch(r"[+~]*(([A-Za-z]\w*)[\w./@:-]*)", key)
    if match is None or ".." in key or "hydra" in key.lower():
        return False
    if not equals and not key.startswith("~"):  # only a deletion, `~KEY`, has no value
        return False
    groups = config_groups() | {"data", "paths"}
    if match[2] not in groups | {field.name for field in fields(Train)}:
        return False
    group = match[1].partition("@")[0]
    # The value for a group is NAME, FOLDER/NAME or a list of names, and never a path.
    is_group = "/" in group or "@" in key or group in groups
    return not is_group or re.fullmatch(r"\w[\w-]*(/\w[\w-]*)?|\[[\w, -]*\]|", value) is not None


def _is_option(argument: str) -> bool:
    return "=" in argument and not argument.startswith("-")


def _key_of(option: str) -> str:
    return option.partition("=")[0].lstrip("+~")
