"""What a training leaves in its folder, and how another run goes on from there."""

import contextlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from cassi.apps.arguments import config_groups
from cassi.apps.settings import Train, to_dict, to_yaml
from cassi.checks import check_fetched, read_regular
from cassi.data.atomic import atomic_folder, atomic_path
from cassi.models.load import Card, save_model
from cassi.plugins import loaded_names, needed
from cassi.training.tensors import read_tensors

PREFIX = "net."
"""Of the network's weights in a checkpoint of the training."""
PREVIOUS = "previous.ckpt"
"""Beside last.ckpt, see `cassi.training.callbacks.keep_previous`."""


def checkpoint_folder(folder: Path) -> Path:
    """Return where the checkpoints of a run lie."""
    return folder / "checkpoints"


def name_folder(folder: Path) -> str:
    """Say which folder `ckpt=last` needs, beside a new one that is named after the time."""
    trainings = folder.parents[1].glob("*/*/checkpoints/last.ckpt")
    newest = max(trainings, key=lambda last: last.stat().st_mtime, default=None)
    place = "DIR" if newest is None else newest.parents[1]
    return f"ckpt=last: expected the folder of a training, got none; give hydra.run.dir={place}"


def find_start(ckpt: str | Path | None, folder: Path) -> Path | None:
    """Return the checkpoint to go on from, or None to start anew.

    `last` in a folder without one starts anew, so that a job that is stopped and queued again may
    always ask for it. The one before the last takes the place of a last one that is damaged.
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
    """Read a checkpoint of the training; nothing in it is executed."""
    with path.open("rb") as file:
        check_fetched(path, file.read(64))
    try:
        content = read_tensors(path)
        return {key: content[key] for key in ("state_dict", "global_step", *content)}
    except OSError:
        raise
    except Exception:  # torch.load fails in many ways on what is no checkpoint
        raise ValueError(f"ckpt: {path} is no checkpoint of cassi-train, or damaged") from None


def check_plugins(content: Mapping[str, object]) -> None:
    """Raise ValueError where a checkpoint is of a training with plugins, and none is loaded.

    Files may have new names by now: what the settings name of them has been found.
    """
    names = content.get("plugins")
    if not loaded_names() and isinstance(names, list) and (missing := needed(names)) is not None:
        raise ValueError(f"ckpt: this training needs {missing}; give it again, it is a program")


def check_steps(start: Path, folder: Path, done: int, wanted: int) -> None:
    """Raise ValueError where a checkpoint of another folder leaves nothing to train in this one."""
    if start.resolve().parent != checkpoint_folder(folder).resolve() and 0 < wanted <= done:
        raise ValueError(
            f"trainer.max_steps: expected more than the {done} steps of {start}, got {wanted}"
        )


def network_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the network's weights of a checkpoint's `state_dict`."""
    return {
        key.removeprefix(PREFIX): value for key, value in state.items() if key.startswith(PREFIX)
    }


def export(folder: Path, settings: Train, card: Card, best: Mapping[str, object]) -> list[Path]:
    """Write model.safetensors and model.yaml, and ema.safetensors where there is an average.

    The first holds the best weights on the validation scenes, which are the moving average's where
    there is one; the last the average at the end. Of the best ones `best` says more, for people to
    read.
    """
    last = read_checkpoint(checkpoint_folder(folder) / "last.ckpt")
    weights = [("model.safetensors", _read_best(folder, last), dict(best))]
    if "averaging_state" in last:
        weights.append(("ema.safetensors", last, {}))
    with atomic_folder(folder) as stage:
        for name, content, more in weights:
            summary = {**card.training, "step": content["global_step"], **more}
            state = network_weights(content["state_dict"])
            save_model(stage / name, state, replace(card, training=summary), settings.half)
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


RUN_IDS = "services.json"


def read_run_ids(folder: Path) -> dict[str, str]:
    """Return the names that services gave a run, by kind of logger; {} where none is told."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        ids = json.loads(read_regular(checkpoint_folder(folder) / RUN_IDS, 1 << 12))
        return {kind: i for kind, i in ids.items() if re.fullmatch(r"[\w-]{1,64}", i)}
    return {}


def write_run_ids(folder: Path, ids: Mapping[str, str]) -> None:
    """Keep the names that services gave a run beside its checkpoints."""
    _write_beside(folder, RUN_IDS, json.dumps(dict(ids)))


def _write_beside(folder: Path, name: str, text: str) -> None:
    checkpoint_folder(folder).mkdir(parents=True, exist_ok=True)
    with atomic_path(checkpoint_folder(folder) / name) as temporary:
        temporary.write_text(text, encoding="utf-8")


OPTIONS = "options.yaml"


def save_options(folder: Path, options: Sequence[str]) -> None:
    """Keep the options of a run beside its checkpoints, for those that go on with it.

    Hydra's own copy would not do: a run that is refused overwrites it.
    """
    _write_beside(folder, OPTIONS, yaml.safe_dump(list(options), allow_unicode=True))


def add_earlier_options(arguments: list[str]) -> list[str]:
    """Put the options that a training was started with before those that resume it.

    An option given again wins. Plugins, which are programs, and loggers that send to another
    machine are not taken from there: the folder may be a stranger's.
    """
    given = {_key(argument): argument for argument in arguments if _is_option(argument)}
    folder = given.get("hydra.run.dir", "").partition("=")[2].strip("'\"")
    saved = checkpoint_folder(Path(folder)) / OPTIONS
    if given.get("ckpt") != "ckpt=last" or not folder or not saved.is_file():
        return arguments
    earlier = [option for option in _read_options(saved) if _key(option) not in given]
    if "logger" in given:  # whoever says where numbers go says all of it
        earlier = [option for option in earlier if not _is_of(option, "logger")]
    for option in earlier:
        if _is_of(option, "plugins"):
            why = "a plugin is a program"
        elif _is_of(option, "logger") and re.search(r"wandb|mlflow|\$", option, re.IGNORECASE):
            why = "it may send what is logged to another machine"
        else:
            continue
        # Only quoted: nobody is to paste a stranger's words into a shell.
        raise ValueError(
            f"{saved}: this training was started with {option[:200]!r}; {why}, so give it again, "
            f"or another {_key(option).partition('.')[0]}=…, beside ckpt=last"
        )
    return earlier + arguments


def _is_of(option: str, name: str) -> bool:
    return re.split(r"[.@/]", _key(option))[0] == name


_LARGEST_OPTIONS = 1 << 20  # bytes


def _read_options(saved: Path) -> list[str]:
    """Read a list of texts, all of them options of a training; the file may be a stranger's.

    A flag of Hydra, or a setting of Hydra's own, can name any class or file of pickles. The name of
    a group's file with a path in it can lead to one that has such settings.
    """
    listed: object = None
    with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
        # This loader knows texts only.
        listed = yaml.load(read_regular(saved, _LARGEST_OPTIONS), yaml.BaseLoader) or []
    if not isinstance(listed, list):
        raise ValueError(f"{saved}: expected a list of options of cassi-train")
    for item in listed:
        if not (isinstance(item, str) and _is_of_training(item)):
            raise ValueError(
                f"{saved}: expected a list of options of cassi-train; {str(item)[:80]!r} is none"
            )
    return listed


def _is_of_training(option: str) -> bool:
    key, equals, value = option.partition("=")
    found = re.fullmatch(r"[+~]*(([A-Za-z]\w*)[\w./@:-]*)", key)
    if found is None or ".." in key or "hydra" in key.lower():
        return False
    if not equals and not key.startswith("~"):
        return False
    groups = config_groups() | {"data", "paths"}
    if found[2] not in groups | {field.name for field in fields(Train)}:
        return False
    chosen = found[1].partition("@")[0]
    is_group = "/" in chosen or "@" in key or chosen in groups
    return not is_group or re.fullmatch(r"\w[\w-]*(/\w[\w-]*)?|\[[\w, -]*\]|", value) is not None


def _is_option(argument: str) -> bool:
    return "=" in argument and not argument.startswith("-")


def _key(option: str) -> str:
    return option.partition("=")[0].lstrip("+~")
