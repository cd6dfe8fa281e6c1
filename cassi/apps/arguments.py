"""What stands on the command line, in the form in which Hydra takes it."""

import os
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from cassi.config import verbatim

_VALUED = {
    *("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"),
    *("--experimental-rerun", "--package", "-p", "--cfg", "-c"),
}
"""Flags that the next word belongs to."""
_BARE = {"--help", "--hydra-help", "--version", "--resolve", "--run", "--multirun", "--info"}
_BARE |= {"--shell-completion"}
INFO = "--info"
HYDRA_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
"""Words after `--info`, which then is Hydra's: what it is made of."""
FILE_SUFFIX = ".safetensors"
"""Of a network that a training exported."""
QUOTES = ("'", '"')
_GEOMETRY = ("bands", "step", "axis", "offsets", "detector")


def quoted(text: str) -> str:
    """Return text in quotes, as a value that Hydra and OmegaConf take for this very text."""
    return in_quotes(verbatim(text))


def in_quotes(text: str) -> str:
    """Return text in quotes, as Hydra wants them; OmegaConf resolves references in it."""
    escaped = re.sub(r"(\\+)(?='|\Z)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def arrange(arguments: list[str]) -> list[str]:
    """Return the arguments of a command with flags before values, as Hydra wants them."""
    flags: list[str] = []
    values: list[str] = []
    words = iter(arguments)
    pending = None
    for word in words:
        if pending is not None and (pending in _VALUED or word in HYDRA_INFO):
            flags.append(word)
            pending = None
            continue
        pending = None
        if word.startswith("-"):
            name, _, value = word.partition("=")
            if name.startswith("--") and not any(o.startswith(name) for o in _VALUED | _BARE):
                raise ValueError(
                    f"expected key=value, got {word}; write {name[2:]}={value or 'VALUE'}"
                )
            flags.append(word)
            pending = word if word in _VALUED or word in ("--info", "-i") else None
        else:
            values.append(word)
    return flags + spell(values)


def spell(options: Iterable[str]) -> list[str]:
    """Return options as Hydra takes them.

    A path may begin with `~`, which a shell leaves as it is behind an equals sign.
    `GROUP=null` leaves a group out. Files have a short form: `model=FILE` is `model=file
    model.path=FILE`, `guide=FILE` is `guide.file=FILE`, and `camera=FILE` is `camera={file:FILE}`,
    as Hydra would look for it in the folder of the package's cameras. A value inside of
    `system.offsets` may be new there: a curve's, and one inside of `monochromatic`, a frame's.
    Beside the file of a camera so may any value of the system and the noise that it has.
    """
    options = list(options)
    inside = ["system.offsets.", "monochromatic."]
    if any(option.startswith("camera=") for option in options):
        inside += ["system.", "noise."]
    return [each for option in options for each in _spell(option, tuple(inside))]


def _spell(option: str, inside: tuple[str, ...]) -> list[str]:
    key, equals, value = option.partition("=")
    if (bare := value.strip("'\"")).startswith("~") and "," not in bare:
        value = quoted(os.path.expanduser(bare))  # noqa: PTH111
        option = f"{key}={value}"
    if not equals:
        return [option]
    if key == "camera" and not value.startswith("{"):
        return [f"camera={','.join(f'{{file:{name}}}' for name in _separated(value))}"]
    if key == "guide" and not value.startswith("{"):
        return [f"guide.file={value}"]
    if key == "model" and (file := Path(value.strip("'\""))).suffix:
        return _spell_model(value, file)
    if value == "null" and key.partition("@")[0] in config_groups():
        return [f"~{key}"]
    own = key.startswith("system.") and key.removeprefix("system.") in _GEOMETRY
    return [f"++{option}" if key.startswith(inside) and not own else option]


def _spell_model(value: str, file: Path) -> list[str]:
    if str(file).endswith(FILE_SUFFIX):
        return ["model=file", f"model.path={value if value[0] in QUOTES else in_quotes(value)}"]
    exported = file.parent.parent / "model.safetensors"
    whole = file.parent.name == "checkpoints" and exported.is_file()
    given = exported if whole else f"NAME model.weights={file}"
    raise ValueError(f"model: expected NAME or FILE.safetensors; give model={given}")


def _separated(values: str) -> list[str]:
    """Return the values of a sweep, those in quotes whole."""
    return re.findall(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[^,]+", values)


def config_groups() -> set[str]:
    """Return the names of the groups of which one option or none is chosen."""
    found = {entry.name for entry in resources.files("cassi.conf").iterdir() if entry.is_dir()}
    return (found | {"model"}) - {"camera", "data", "hydra", "paths", "output"}


def paper_recipes() -> list[str]:
    """Return the recipes in the folder `paper`."""
    return [f"paper/{name}" for name in options_of("recipe/paper")]


def options_of(group: str) -> list[str]:
    """Return the names of the files of the package in a folder of configs, but for parts."""
    files = resources.files("cassi.conf").joinpath(*group.split("/")).iterdir()
    names = sorted(file.name.removesuffix(".yaml") for file in files)
    return [name for name in names if not name.startswith("_") and "." not in name]


def flag_values(arguments: Sequence[str], *flags: str) -> list[str]:
    """Return the values of flags, in their order; "" where a flag is the last word."""
    found = []
    for word, following in zip(arguments, [*arguments, ""][1:], strict=True):
        flag, equals, value = word.partition("=")
        found += [value if equals else following] if flag in flags else []
    return found


def config_folders(arguments: Sequence[str]) -> list[Path]:
    """Return the folders that `--config-dir` and `--config-path` name."""
    names = ("--config-dir", "-cd", "--config-path", "-cp")
    return list(map(Path, flag_values(arguments, *names)))


def told_plugins(arguments: Sequence[str]) -> list[str]:
    """Return the plugins that a user names: on the command line, else in the config named there.

    Not from a config in the folder of a run, which another may have written.
    """
    values = [v for key, e, v in (word.partition("=") for word in arguments)
              if e and key.lstrip("+~") == "plugins"]  # fmt: skip
    if values:
        try:
            return _names(yaml.safe_load(values[-1]), "plugins")
        except yaml.YAMLError:
            raise ValueError(f"plugins: expected [FILE.py,…], got {values[-1]!r}") from None
    for file in named_configs(arguments, groups=False)[:1]:
        try:
            config: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError):
            return []  # Hydra says what is wrong with it
        found = _names(config.get("plugins") if isinstance(config, dict) else None, str(file))
        if found and is_of_a_run(file):
            raise ValueError(
                f"plugins: {file} lies in the folder of a run, and a plugin is a program; name it "
                f"on the command line if it is yours, plugins=[{','.join(found)}]"
            )
        return found
    return []


def named_configs(arguments: Sequence[str], groups: bool = True) -> list[Path]:
    """Return the user's config files that a command line names.

    With `groups` also those that options choose from a group, as `method=NAME`.
    """
    chosen = [word.lstrip("+").replace("=", "/", 1) for word in arguments if "=" in word and groups]
    names = [*flag_values(arguments, "--config-name", "-cn")[-1:], *chosen]
    files = [
        folder / f"{name.removesuffix('.yaml')}.yaml"
        for folder in config_folders(arguments)
        for name in names
    ]
    return [file for file in files if file.is_file()]


def is_of_a_run(config: Path) -> bool:
    """Tell whether a config is what a run has left behind, of which its user may know nothing."""
    folder = config.resolve().parent
    left = (".hydra", "checkpoints", "metrics.json", "results.json")
    return folder.name == ".hydra" or any((folder / name).exists() for name in left)


def _names(value: Any, place: str) -> list[str]:
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, str) and item for item in listed):
        raise ValueError(f"{place}: expected plugins: [FILE.py, …], got {value!r}")
    return listed


def asked(arguments: Sequence[str], known: Sequence[str]) -> bool:
    """Tell whether `--info` stands there by itself, without a word of Hydra's after it."""
    return any(word not in known for word in flag_values(arguments, INFO))


def write_nothing(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return arguments that let Hydra write nothing, and where results would go."""
    kept = [word for word in arguments if word != INFO]
    folders = [word.partition("=")[2] for word in kept if word.startswith("hydra.run.dir=")]
    into = folders[-1] if folders else "outputs/reconstruct/DATE/TIME"
    kept = [word for word in kept if not word.startswith("hydra.run.dir=")]
    return [*kept, "hydra.run.dir=.", "hydra.output_subdir=null"], into
