"""The options that a training was started with, for the runs that go on with it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from cassi.apps.arguments import config_groups
from cassi.apps.settings import Train
from cassi.apps.train.files import checkpoint_folder
from cassi.data.atomic import atomic_path

OPTIONS = "options.yaml"


def save_options(folder: Path, options: Sequence[str]) -> None:
    """Keep the options of a run beside its checkpoints, for those that go on with it.

    Hydra's own copy would not do: a run that is refused overwrites it.
    """
    checkpoint_folder(folder).mkdir(parents=True, exist_ok=True)
    with atomic_path(checkpoint_folder(folder) / OPTIONS) as temporary:
        temporary.write_text(yaml.safe_dump(list(options), allow_unicode=True), encoding="utf-8")


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
    earlier = _read_options(saved)
    return [option for option in earlier if _key(option) not in given] + arguments


def _read_options(saved: Path) -> list[str]:
    """Read a list of texts, all of them options of a training; the file may be a stranger's.

    A flag of Hydra, or a setting of Hydra's own, can name any class or file of pickles. The name of
    a group's file with a path in it can lead to one that has such settings.
    """
    listed: Any = None
    with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
        # This loader knows texts only.
        listed = yaml.load(saved.read_text(encoding="utf-8"), yaml.BaseLoader) or []
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
    return not is_group or re.fullmatch(r"\w[\w-]*|\[[\w, -]*\]|", value) is not None


def _is_option(argument: str) -> bool:
    return "=" in argument and not argument.startswith("-")


def _key(option: str) -> str:
    return option.partition("=")[0].lstrip("+~")
