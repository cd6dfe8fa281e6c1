"""Rewrite the arguments of a command for Hydra, and read values from them."""

import os
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from cassi.config import verbatim

# Flags whose value may be the next word.
_CONFIG_FLAGS = {"--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"}
_FLAGS_WITH_VALUE = {"--experimental-rerun", "--package", "-p", "--cfg", "-c"} | _CONFIG_FLAGS
_HELP_FLAGS = {"--help", "--hydra-help", "--version", "--info", "--shell-completion"}
_FLAGS_WITHOUT_VALUE = {"--resolve", "--run", "--multirun"} | _HELP_FLAGS
INFO = "--info"
HYDRA_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
"""Words after `--info` that make it Hydra's own flag, which describes the config."""
FILE_SUFFIX = ".safetensors"
"""Suffix of a network that a training exported."""
QUOTES = ("'", '"')
# Keys that every system has. Other keys belong to one class, so a config may not have them yet.
_GEOMETRY_KEYS = ("bands", "step", "axis", "offsets", "detector")


def quoted(text: str) -> str:
    """Return text in quotes, so that Hydra and OmegaConf read it as exactly this text."""
    return in_quotes(verbatim(text))


def in_quotes(text: str) -> str:
    """Return text in quotes for Hydra; OmegaConf still resolves references in it."""
    # Hydra reads a backslash as an escape only before a quote, and at the end of the text.
    escaped_text = re.sub(r"(\\+)(?='|\Z)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped_text}'"


def arrange(arguments: list[str]) -> list[str]:
    """Return the arguments of a command with flags before options, as Hydra expects them.

    Raises:
        ValueError: a flag is unknown; it may be an option with two dashes too many.
    """
    flags: list[str] = []
    options: list[str] = []
    pending_flag = None  # the flag whose value may be the next word
    for word in arguments:
        if pending_flag is not None and (pending_flag in _FLAGS_WITH_VALUE or word in HYDRA_INFO):
            flags.append(word)
            pending_flag = None
            continue
        pending_flag = None
        if not word.startswith("-"):
            options.append(word)
            continue
        name, _, value = word.partition("=")
        # Hydra accepts a flag's name that is cut short, such as --multi.
        is_flag = any(flag.startswith(name) for flag in _FLAGS_WITH_VALUE | _FLAGS_WITHOUT_VALUE)
        if name.startswith("--") and not is_flag:
            raise ValueError(f"expected key=value, got {word}; write {name[2:]}={value or 'VALUE'}")
        flags.append(word)
        if word in _FLAGS_WITH_VALUE or word in ("--info", "-i"):
            pending_flag = word
    return flags + spell(options)


def spell(options: Iterable[str]) -> list[str]:
    """Return the options of a command in the form that Hydra takes.

    - A `~` at the beginning of a path becomes the home folder.
    - `GROUP=null` becomes `~GROUP`, which leaves a group out.
    - `model=FILE` becomes `model=file model.path=FILE`, `guide=FILE` becomes `guide.file=FILE`, and
      `camera=FILE` becomes `camera={file:FILE}`.
    - Options for keys inside `system.offsets` and `monochromatic` get a `++`. With `camera=FILE`,
      options for keys of the system and the noise get a `++` too.

    Raises:
        ValueError: `model=` has a file that is no exported network.
    """
    options = list(options)
    # Hydra refuses a key that the config does not have. These keys depend on the class of a curve,
    # or on the file of the camera, which Hydra does not read. `++` allows such keys.
    open_prefixes = ["system.offsets.", "monochromatic."]
    if any(option.startswith("camera=") for option in options):
        open_prefixes += ["system.", "noise."]
    return [
        argument for option in options for argument in _spell_option(option, tuple(open_prefixes))
    ]


def _spell_option(option: str, open_prefixes: tuple[str, ...]) -> list[str]:
    key, equals, value = option.partition("=")
    if (path_text := value.strip("'\"")).startswith("~") and "," not in path_text:
        # A shell does not replace `~` after an equals sign.
        value = quoted(os.path.expanduser(path_text))  # noqa: PTH111
        option = f"{key}={value}"
    if not equals:
        return [option]
    if key == "camera" and not value.startswith("{"):
        # Hydra would look for the name in the group `camera`, the folder of the package's cameras.
        return [f"camera={','.join(f'{{file:{name}}}' for name in _split_sweep(value))}"]
    if key == "guide" and not value.startswith("{"):
        return [f"guide.file={value}"]
    if key == "model" and (file := Path(value.strip("'\""))).suffix:
        return _spell_model(value, file)
    if value == "null" and key.partition("@")[0] in config_groups():
        return [f"~{key}"]
    is_geometry = key.startswith("system.") and key.removeprefix("system.") in _GEOMETRY_KEYS
    return [f"++{option}" if key.startswith(open_prefixes) and not is_geometry else option]


def _spell_model(value: str, file: Path) -> list[str]:
    if str(file).endswith(FILE_SUFFIX):
        return ["model=file", f"model.path={value if value[0] in QUOTES else in_quotes(value)}"]
    exported_file = file.parent.parent / "model.safetensors"
    is_checkpoint = file.parent.name == "checkpoints" and exported_file.is_file()
    advice = exported_file if is_checkpoint else f"NAME model.weights={file}"
    raise ValueError(f"model: expected NAME or FILE.safetensors; give model={advice}")


def _split_sweep(values: str) -> list[str]:
    """Return the values of a sweep, `a,b`; a comma in quotes does not separate."""
    return re.findall(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[^,]+", values)


def config_groups() -> set[str]:
    """Return the names of the groups that a config may leave out by `GROUP=null`."""
    folders = {entry.name for entry in resources.files("cassi.conf").iterdir() if entry.is_dir()}
    return (folders | {"model"}) - {"camera", "data", "hydra", "paths", "output"}


def paper_recipes() -> list[str]:
    """Return the recipes in the folder `paper`."""
    return [f"paper/{name}" for name in options_of("recipe/paper")]


def options_of(group: str) -> list[str]:
    """Return the options of a group: its files in the package, except parts of other files."""
    files = resources.files("cassi.conf").joinpath(*group.split("/")).iterdir()
    names = sorted(file.name.removesuffix(".yaml") for file in files)
    return [name for name in names if not name.startswith("_") and "." not in name]


def find_flag_values(arguments: Sequence[str], *flags: str) -> list[str]:
    """Return the values of flags in their order; "" for a flag without one."""
    values = []
    for word, following in zip(arguments, [*arguments, ""][1:], strict=True):
        flag, equals, value = word.partition("=")
        values += [value if equals else following] if flag in flags else []
    return values


def config_folders(arguments: Sequence[str]) -> list[Path]:
    """Return the folders that `--config-dir` and `--config-path` name."""
    names = ("--config-dir", "-cd", "--config-path", "-cp")
    return list(map(Path, find_flag_values(arguments, *names)))


def read_plugin_options(arguments: Sequence[str]) -> list[str]:
    """Return the plugins that the command line names; if it names none, those of the user's config.

    Raises:
        ValueError: the value is no list of files, or the config lies in the folder of a run.
    """
    values = [value for key, equals, value in (word.partition("=") for word in arguments)
              if equals and key.lstrip("+~") == "plugins"]  # fmt: skip
    if values:
        try:
            return _check_plugin_names(yaml.safe_load(values[-1]), "plugins")
        except yaml.YAMLError:
            raise ValueError(f"plugins: expected [FILE.py,…], got {values[-1]!r}") from None
    for file in find_named_configs(arguments, groups=False)[:1]:
        try:
            config: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError):
            return []  # Hydra reads this file later, and its message says what is wrong
        names = _check_plugin_names(
            config.get("plugins") if isinstance(config, dict) else None, str(file)
        )
        # A plugin is a program. The folder of a run may come from somebody else.
        if names and lies_in_run_folder(file):
            raise ValueError(
                f"plugins: {file} lies in the folder of a run, and a plugin is a program; name it "
                f"on the command line if it is yours, plugins=[{','.join(names)}]"
            )
        return names
    return []


def find_named_configs(arguments: Sequence[str], groups: bool = True) -> list[Path]:
    """Return the user's config files that a command line names.

    Args:
        arguments: arguments of the command.
        groups: also return the files that options choose from a group, as `method=NAME`.
    """
    choices = [
        word.lstrip("+").replace("=", "/", 1) for word in arguments if "=" in word and groups
    ]
    names = [*find_flag_values(arguments, "--config-name", "-cn")[-1:], *choices]
    files = [
        folder / f"{name.removesuffix('.yaml')}.yaml"
        for folder in config_folders(arguments)
        for name in names
    ]
    return [file for file in files if file.is_file()]


def lies_in_run_folder(config: Path) -> bool:
    """Tell whether a config lies in the folder of a run, so that a command may have written it."""
    folder = config.resolve().parent
    run_files = (".hydra", "checkpoints", "metrics.json", "results.json")
    return folder.name == ".hydra" or any((folder / name).exists() for name in run_files)


def _check_plugin_names(value: Any, place: str) -> list[str]:
    if value is None:
        return []
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) and item for item in names):
        raise ValueError(f"{place}: expected plugins: [FILE.py, …], got {value!r}")
    return names


def asks_for_info(arguments: Sequence[str], hydra_words: Sequence[str]) -> bool:
    """Tell whether the arguments have `--info` and none of `hydra_words` after it."""
    return any(word not in hydra_words for word in find_flag_values(arguments, INFO))


def suppress_output(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return arguments with which Hydra writes no files, and the folder of the results.

    The job of `--info` runs with these arguments and only prints the folder.
    """
    words = [word for word in arguments if word != INFO]
    folders = [word.partition("=")[2] for word in words if word.startswith("hydra.run.dir=")]
    output_folder = folders[-1] if folders else "outputs/reconstruct/DATE/TIME"
    words = [word for word in words if not word.startswith("hydra.run.dir=")]
    return [*words, "hydra.run.dir=.", "hydra.output_subdir=null"], output_folder
