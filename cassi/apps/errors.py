"""Turn errors of libraries and of the machine into a `UsageError`: one line for the user.

`to_usage_error` asks one function per origin of an error: Hydra, OmegaConf, YAML, the machine, and
the checks of this package. The first one that knows the error gives the line. An error that none of
them knows is a defect of the program, and keeps its traceback.
"""

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from cassi.apps.arguments import (
    config_folders,
    config_groups,
    find_named_configs,
    paper_recipes,
)
from cassi.apps.camera.yaml_slips import find_slip
from cassi.apps.settings import MOVED_SETTINGS, unknown_key
from cassi.checks import did_you_mean, printable, raised_here, read_regular
from cassi.data.atomic import describe_oserror
from cassi.plugins import plugin_lines

# torch and its libraries raise a RuntimeError for these causes; only the text tells them apart.
_MEMORY_TEXTS = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_LOST_PROCESS_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "NCCL communicator was aborted",
)
# Groups that plugins of the user may add options to.
_PLUGIN_GROUPS = ("model", "loss", "prior", "data")
_NOT_YAML = "the config file is not valid YAML: "
# First words of messages of Hydra, which has one class of error for many mistakes.
_HYDRA_MERGING = "Error merging override "
_HYDRA_AMBIGUOUS = "Ambiguous value for argument "
_QUOTES_ADVICE = "a value with such signs needs quotes of its own"


class UsageError(ValueError):
    """An error whose cause the user can mend: a file, a value, an option, memory.

    Its text is the line that commands print. It is raised from the error that it explains.
    """


class JobError(Exception):
    """A job of a sweep failed."""


def debugging() -> bool:
    """Tell whether the user asks for tracebacks: `CASSI_DEBUG=1`."""
    return os.environ.get("CASSI_DEBUG", "0") not in ("", "0")


def to_usage_error(error: BaseException) -> UsageError | None:
    """Return an error as a `UsageError`; None for a defect of the program."""
    if isinstance(error, UsageError):
        return error
    for explain in _EXPLANATIONS:
        if (message := explain(error)) is not None:
            return UsageError(printable(_explain_slip(error, message) or message))
    return None


@contextlib.contextmanager
def config_errors() -> Iterator[None]:
    """Raise errors of Hydra and OmegaConf in a block as `UsageError`."""
    from hydra.errors import HydraException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        usage_error = to_usage_error(error)
        assert usage_error is not None  # every error of these two has an explanation
        raise usage_error from error


def is_usage_error(error: BaseException) -> bool:
    """Tell whether the user can mend the cause of an error: a file, a value, an option, memory."""
    return to_usage_error(error) is not None


def describe(error: BaseException) -> str:
    """Return an error in one line: what came, what was expected and what to do."""
    return str(to_usage_error(error) or printable(_text_of(error)))


def describe_failure(error: BaseException) -> str:
    """Return the reason of a failure in one line; for a defect, with the line of code."""
    if (usage_error := to_usage_error(error)) is not None:
        return str(usage_error)
    message = " ".join(str(error).split())
    frame = (plugin_lines(error) or traceback.extract_tb(error.__traceback__))[-1]
    return f"{type(error).__name__}: {message} ({frame.filename}:{frame.lineno})"


def _explain_slip(error: BaseException, message: str) -> str | None:
    """Return the slip in a user's config that led to an error; None if there is no slip.

    A slip is a tab, or a missing blank after a colon. The YAML parser names file and line of its
    error. For any other error, the configs of the command line are searched.
    """
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        files, cause, prefix = [Path(error.problem_mark.name)], error, _NOT_YAML
    else:
        files, cause, prefix = find_named_configs(sys.argv[1:]), ValueError(message), ""
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            if (slip := find_slip(read_regular(file).decode(), cause)) is not None:
                return f"{prefix}{file}, {slip}"
    return None


def _explain_hydra(error: BaseException) -> str | None:
    from hydra import errors

    # Hydra does not check all kinds of values, so Python may raise an error within Hydra's code.
    if isinstance(error, ValueError | TypeError) and _is_raised_in_hydra(error):
        return f"the options do not fit the config: {_first_line(error)}"
    if isinstance(error, errors.MissingConfigException):
        name, options = str(error.missing_cfg_file), error.options
        return _explain_missing(name) if options is None else _explain_choice(name, options)
    is_composition = isinstance(error, errors.ConfigCompositionException)
    message = _explain_composition(error) if is_composition else None
    if message is not None:
        return message
    if isinstance(error, errors.HydraException) and str(error).startswith(_HYDRA_AMBIGUOUS):
        option = str(error).splitlines()[0].removeprefix(_HYDRA_AMBIGUOUS).strip(" '")
        key, _, value = option.partition("=")
        return f"{option}: a comma lists values; {_QUOTES_ADVICE}, '{key}=\"{value}\"'"
    if isinstance(error, errors.OverrideParseException):
        option = " ".join(error.override.split())
        if "=" not in option:
            return f"expected key=value, got {option}; a file is measurement=FILE"
        is_open = any(option.count(a) != option.count(b) for a, b in ("[]", "{}", "()"))
        advice = "close the bracket" if is_open else f"{_QUOTES_ADVICE}, 'KEY=\"VALUE\"'"
        return f"expected key=value, got {option}; {advice}"
    return _text_of(error) if isinstance(error, errors.HydraException) else None


def _is_raised_in_hydra(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and f"{os.sep}hydra{os.sep}_internal{os.sep}" in frames[-1].filename


def _explain_composition(error: BaseException) -> str | None:
    """Return the message for an option whose key is not in the config, or is of another kind."""
    cause = error.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        if (message := _explain_empty_group(error)) is not None:
            return message
        # Every config of this package has `seed`. If it is missing, the config has no `defaults`.
        if "." not in str(cause.full_key) and "seed" not in (cause.parent_node or ()):
            hint = f"a config of your own begins with defaults: [{_config_name()}, _self_]"
            return f"no config value {str(cause.full_key)!r}; {hint}"
        return unknown_key(cause)
    if str(error).startswith(_HYDRA_MERGING):
        option = str(error).removeprefix(_HYDRA_MERGING).splitlines()[0].strip()
        key = option.partition("=")[0].lstrip("+")
        return (
            f"{option}: {key} has values by name already, and this is another kind of value; set "
            f"it in one place alone, or give both ~{key} and '+{option.lstrip('+')}'"
        )
    return None


def _explain_empty_group(error: BaseException) -> str | None:
    """Return the message for a value of a group in which no option is chosen."""
    match = re.match(r"Could not override '([^.']+)\.([^']+)'", str(error))
    if match is None or match[1] not in config_groups():
        return None
    cause = error.__cause__
    if not isinstance(cause, OmegaConfBaseException) or str(cause.full_key) != match[1]:
        return None
    return f"{match[1]}.{match[2]}: nothing is chosen there; give {match[1]}=NAME with it"


def _explain_missing(name: str) -> str:
    """Return the message for a config that does not exist, with the names that do."""
    # "GROUP/NAME" stands in a list of defaults, where the option would be GROUP=NAME.
    if (hint := MOVED_SETTINGS.get(name.replace("/", "=", 1))) is not None:
        return f"no config {name!r}: {hint}"
    folders = config_folders(sys.argv[1:])
    if not folders:
        return f"no config {name!r}; name the folder of yours with --config-dir DIR"
    names = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})
    suggestion = did_you_mean(name, names) or f"; there is {', '.join(names) or 'none'}"
    return f"no config {name!r} in {', '.join(map(str, folders))}{suggestion}"


def _explain_choice(name: str, options: Sequence[str]) -> str:
    """Return the message for an option that a group does not have, with the options it has."""
    group, _, choice = name.rpartition("/")
    if group.endswith("/paper"):
        group, choice = group.removesuffix("/paper"), f"paper/{choice}"
    if (hint := MOVED_SETTINGS.get(f"{group}={choice}")) is not None:
        return f"no {group} named {choice!r}: {hint}"
    # Files whose names begin with an underscore are parts of others.
    options = [option for option in options if not option.startswith("_")]
    if group == "recipe":
        options += paper_recipes()
    plugin_hint = "; one of your own needs plugins=FILE.py" if group in _PLUGIN_GROUPS else ""
    available = f"; available: {', '.join(options)}{plugin_hint}"
    return f"no {group} named {choice!r}{did_you_mean(choice, options) or available}"


def _explain_omegaconf(error: BaseException) -> str | None:
    if not isinstance(error, OmegaConfBaseException):
        return None
    if error.full_key:
        return f"config value {error.full_key}: {_first_line(error)}"
    return _text_of(error)


def _explain_yaml(error: BaseException) -> str | None:
    return _NOT_YAML + " ".join(str(error).split()) if isinstance(error, YAMLError) else None


def _explain_machine(error: BaseException) -> str | None:
    """Explain errors of files, memory and lost processes, whatever library raises them."""
    if isinstance(error, OSError):
        if not error.strerror:
            return _text_of(error)
        # Hydra makes the folder of a run before the job begins.
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        is_run_folder = any(f.name == "run_job" and "hydra" in f.filename for f in frames)
        prefix = "hydra.run.dir: cannot make " if is_run_folder else ""
        return f"{prefix}{describe_oserror(error)}"
    if not isinstance(error, MemoryError | RuntimeError):
        return None
    text, kinds = str(error), {kind.__name__ for kind in type(error).__mro__}
    # On the CPU torch raises a plain RuntimeError, on a GPU a subclass.
    if kinds & {"MemoryError", "OutOfMemoryError"} or any(part in text for part in _MEMORY_TEXTS):
        return "out of memory; crop the scene, use fewer bands or a smaller batch"
    # `Path.expanduser` raises this error.
    if text.startswith("Could not determine home directory"):
        path = next((word for word in sys.argv[1:] if re.search(r"=['\"]?~[^/]", word)), "a path")
        return f"{path}: there is no such user; write ./ before a name that begins with ~"
    if text.startswith("DataLoader worker"):
        return (
            "a process that loads data was killed, maybe as memory ran out; set data.workers lower"
        )
    if "DistError" in kinds or any(part in text for part in _LOST_PROCESS_TEXTS):
        return "another process of this run is gone; give the same command again to continue"
    return None


def _explain_own(error: BaseException) -> str | None:
    """Return the text of an error that this package raises; the text is written for the user.

    A ValueError that Python or a library raises at a line of this package is a defect.
    """
    is_own = isinstance(error, ValueError | TypeError) and raised_here(error)
    return _text_of(error) if is_own else None


# The order matters, because an error of Hydra or OmegaConf may also be an OSError or a ValueError.
_EXPLANATIONS: Sequence[Callable[[BaseException], str | None]] = (
    _explain_hydra,
    _explain_omegaconf,
    _explain_yaml,
    _explain_machine,
    _explain_own,
)


def _config_name() -> str:
    """Return the name of the config that the running command begins with."""
    name = Path(sys.argv[0]).stem.removeprefix("cassi-")
    return name if name in ("calibrate", "evaluate", "train") else "reconstruct"


def _text_of(error: BaseException) -> str:
    """Return the text of an error; for an error of a library, only the first line of it."""
    # A text of this package is one line. Names of files in it may have more; they are escaped
    # later.
    return str(error) if raised_here(error) and str(error) else _first_line(error)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
