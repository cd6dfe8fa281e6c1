"""A failure in one line: what was expected, what came, what to do."""

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from cassi.apps.arguments import (
    config_folders,
    config_groups,
    named_configs,
    paper_recipes,
)
from cassi.apps.camera.yaml_slips import find_slip
from cassi.apps.settings import MOVED_SETTINGS, unknown_key
from cassi.checks import did_you_mean, printable, raised_here, read_regular
from cassi.data.atomic import describe_oserror
from cassi.plugins import plugin_lines

AGAIN = "the same command goes on"
_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_LOST = ("Connection closed by peer", "Connection reset by peer", "NCCL communicator was aborted")


class JobError(Exception):
    """A job of a sweep failed."""


def debugging() -> bool:
    """Tell whether the user asks for tracebacks: `CASSI_DEBUG=1`."""
    return os.environ.get("CASSI_DEBUG", "0") not in ("", "0")


def is_usage_error(error: BaseException) -> bool:
    """Tell what the user can mend (files, values, options) from a defect of the program.

    A ValueError or TypeError is meant for the user where a `raise` statement of this package made
    it; one that Python or a library raised at a line of ours is a defect. Errors of files, memory
    and lost processes are the user's whoever raises them.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if isinstance(error, OSError | MemoryError | HydraException | OmegaConfBaseException):
        return True
    if isinstance(error, YAMLError) or _find_cause(error) is not None:
        return True
    if not isinstance(error, ValueError | TypeError):
        return False
    return raised_here(error) or _is_of_composing(error)


def _is_of_composing(error: BaseException) -> bool:
    """Tell whether Hydra raised this while it composed the options: it does not check all kinds."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and f"{os.sep}hydra{os.sep}_internal{os.sep}" in frames[-1].filename


def _find_cause(error: BaseException) -> str | None:
    """Tell what ended work that was no fault of the program's; torch says it in a RuntimeError."""
    if not isinstance(error, MemoryError | RuntimeError):
        return None
    said, kinds = str(error), {kind.__name__ for kind in type(error).__mro__}
    # On the CPU it is a plain RuntimeError, on a GPU a subclass.
    if kinds & {"MemoryError", "OutOfMemoryError"} or any(text in said for text in _MEMORY):
        return "out of memory; crop the scene, use fewer bands or a smaller batch"
    if said.startswith("Could not determine home directory"):
        named = next((word for word in sys.argv[1:] if re.search(r"=['\"]?~[^/]", word)), "a path")
        return f"{named}: there is no such user; write ./ before a name that begins with ~"
    if said.startswith("DataLoader worker"):
        return (
            "a process that loads data was killed, maybe for want of memory; set data.workers lower"
        )
    if "DistError" in kinds or any(text in said for text in _LOST):
        return f"another process of this run is gone; {AGAIN}"
    return None


def describe(error: BaseException) -> str:
    """Say in one line what was expected, what came and what to do."""
    said = _describe(error)
    return printable(_describe_slip(error, said) or said)


def _describe_slip(error: BaseException, said: str) -> str | None:
    """Say where a config of the user's has a tab, or no blank behind a colon, that led to this."""
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    cause = ValueError(said) if mark is None else error
    for file in named_configs(sys.argv[1:]) if mark is None else [Path(mark.name)]:
        with contextlib.suppress(OSError, ValueError):
            if (slip := find_slip(read_regular(file).decode(), cause)) is not None:
                return f"{_NOT_YAML * (mark is not None)}{file}, {slip}"
    return None


def _describe(error: BaseException) -> str:
    from hydra import errors
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
    from yaml import YAMLError

    if isinstance(error, errors.MissingConfigException):
        name, options = str(error.missing_cfg_file), error.options
        return _describe_missing(name) if options is None else _describe_choice(name, options)
    cause = error.__cause__
    if isinstance(error, errors.ConfigCompositionException) and isinstance(
        cause, ConfigAttributeError | ConfigKeyError
    ):
        if (unchosen := _unchosen(error)) is not None:
            return unchosen
        if "." not in str(cause.full_key) and "seed" not in (cause.parent_node or ()):
            hint = f"a config of your own begins with defaults: [{_command()}, _self_]"
            return f"no config value {str(cause.full_key)!r}; {hint}"
        return unknown_key(cause)
    if isinstance(error, errors.ConfigCompositionException) and str(error).startswith(_MERGING):
        option = str(error).removeprefix(_MERGING).splitlines()[0].strip()
        key = option.partition("=")[0].lstrip("+")
        return (
            f"{option}: there are values by name at {key}, and this is another kind of value; set "
            f"it in one place alone, or give both ~{key} and '+{option.lstrip('+')}'"
        )
    if isinstance(error, ValueError | TypeError) and _is_of_composing(error):
        return f"the options do not fit the config: {_first_line(error)}"
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return f"config value {error.full_key}: {_first_line(error)}"
    if isinstance(error, OSError) and error.strerror:
        # Hydra makes the folder of a run before the job begins.
        frames = traceback.extract_tb(error.__traceback__)
        made = any(frame.name == "run_job" and "hydra" in frame.filename for frame in frames[-4:])
        return f"{'hydra.run.dir: cannot make ' * made}{describe_oserror(error)}"
    if isinstance(error, YAMLError):
        return _NOT_YAML + " ".join(str(error).split())
    if isinstance(error, errors.HydraException) and str(error).startswith(_AMBIGUOUS):
        option = str(error).splitlines()[0].removeprefix(_AMBIGUOUS).strip(" '")
        key, _, value = option.partition("=")
        return f"{option}: a comma lists values; {_QUOTES}, '{key}=\"{value}\"'"
    if isinstance(error, errors.OverrideParseException):
        option = " ".join(error.override.split())
        if "=" not in option:
            return f"expected key=value, got {option}; a file is measurement=FILE"
        opened = any(option.count(a) != option.count(b) for a, b in ("[]", "{}", "()"))
        signs = f"{_QUOTES}, 'KEY=\"VALUE\"'"
        return f"expected key=value, got {option}; {'close the bracket' if opened else signs}"
    if (found := _find_cause(error)) is not None:
        return found
    # A text of this package is one line, but for the names of files in it.
    return str(error) if raised_here(error) and str(error) else _first_line(error)


_REGISTERED = ("model", "loss", "prior", "data")
_NOT_YAML = "the config file is not valid YAML: "
_MERGING = "Error merging override "
_AMBIGUOUS = "Ambiguous value for argument "
_QUOTES = "a value with such signs needs quotes of its own"


def _unchosen(error: BaseException) -> str | None:
    """Say which group has no choice yet that a value could be set in."""
    found = re.match(r"Could not override '([^.']+)\.([^']+)'", str(error))
    if found is None or found[1] not in config_groups():
        return None
    cause = error.__cause__
    if not isinstance(cause, OmegaConfBaseException) or str(cause.full_key) != found[1]:
        return None
    return f"{found[1]}.{found[2]}: nothing is chosen there; give {found[1]}=NAME with it"


def _describe_missing(name: str) -> str:
    if (moved := MOVED_SETTINGS.get(name.replace("/", "=", 1))) is not None:  # one of a list
        return f"no config {name!r}: {moved}"
    folders = config_folders(sys.argv[1:])
    if not folders:
        return f"no config {name!r}; name the folder of yours with --config-dir DIR"
    there = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})
    near = did_you_mean(name, there) or f"; there is {', '.join(there) or 'none'}"
    return f"no config {name!r} in {', '.join(map(str, folders))}{near}"


def _describe_choice(name: str, options: Sequence[str]) -> str:
    """Say that a group has no option of this name, and which it has."""
    group, _, wanted = name.rpartition("/")
    if group.endswith("/paper"):
        group, wanted = group.removesuffix("/paper"), f"paper/{wanted}"
    if (moved := MOVED_SETTINGS.get(f"{group}={wanted}")) is not None:
        return f"no {group} named {wanted!r}: {moved}"
    # Files whose names begin with an underscore are parts of others.
    options = [option for option in options if not option.startswith("_")]
    if group == "recipe":
        options += paper_recipes()
    own = "; one of your own needs plugins=FILE.py" if group in _REGISTERED else ""
    listed = f"; available: {', '.join(options)}{own}"
    return f"no {group} named {wanted!r}{did_you_mean(wanted, options) or listed}"


def describe_failure(error: BaseException) -> str:
    """Say in one line why one of many results is not there; of a defect also where it is."""
    if is_usage_error(error):
        return describe(error)
    message = " ".join(str(error).split())
    place = (plugin_lines(error) or traceback.extract_tb(error.__traceback__))[-1]
    return f"{type(error).__name__}: {message} ({place.filename}:{place.lineno})"


def _command() -> str:
    """Return the name of the config that the running command begins with."""
    name = Path(sys.argv[0]).stem.removeprefix("cassi-")
    return name if name in ("calibrate", "evaluate", "train") else "reconstruct"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
