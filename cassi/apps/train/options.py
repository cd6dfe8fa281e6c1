"""The options that a training was started with, for the runs that go on with it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

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
    """Read a list of plain texts, none of them a setting of Hydra, which may name any class."""
    listed: Any = None
    with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
        # This loader knows texts only.
        listed = yaml.load(saved.read_text(encoding="utf-8"), yaml.BaseLoader) or []
    texts = isinstance(listed, list) and all(isinstance(item, str) for item in listed)
    if not texts or any(_key(item).startswith("hydra") for item in listed):
        raise ValueError(f"{saved}: expected a list of options of cassi-train")
    return list(listed)


def _is_option(argument: str) -> bool:
    return "=" in argument and not argument.startswith("-")


def _key(option: str) -> str:
    return option.partition("=")[0].lstrip("+~")
