"""A failure in one line: what was expected, what came, what to do."""

from __future__ import annotations

import difflib
import errno

from omegaconf import DictConfig

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_LOST = ("Connection closed by peer", "Connection reset by peer", "NCCL communicator was aborted")


def is_usage_error(error: BaseException) -> bool:
    """Tell what the user can mend (files, values, options) from a defect of the program."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if isinstance(error, RuntimeError) and _find_cause(error) is not None:
        return True
    mendable = (ValueError, TypeError, OSError, MemoryError)
    return isinstance(error, (*mendable, HydraException, OmegaConfBaseException, YAMLError))


def _find_cause(error: BaseException) -> str | None:
    """Tell what ended work that was no fault of the program's; torch says it in a RuntimeError."""
    said, kinds = str(error), {kind.__name__ for kind in type(error).__mro__}
    # On the CPU it is a plain RuntimeError, on a GPU a subclass.
    if kinds & {"MemoryError", "OutOfMemoryError"} or any(text in said for text in _MEMORY):
        return "out of memory; crop the scene, use fewer bands or a smaller batch"
    if said.startswith("DataLoader worker"):
        return (
            "a process that loads data was killed, maybe for want of memory; set data.workers lower"
        )
    if "DistError" in kinds or any(text in said for text in _LOST):
        return "another process of this run is gone; the same command goes on"
    return None


def describe(error: BaseException) -> str:
    """Say in one line what was expected, what came and what to do."""
    from hydra.errors import MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, wanted = str(error.missing_cfg_file).rpartition("/")
        # Files whose names begin with an underscore are parts of others.
        options = [option for option in error.options if not option.startswith("_")]
        near = difflib.get_close_matches(wanted, options, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        return f"no {group} named {wanted!r}; {hint}available: {', '.join(options)}"
    unknown = _unknown_key(error)
    if unknown is not None:
        return unknown
    if isinstance(error, OmegaConfBaseException) and getattr(error, "full_key", None):
        return f"config value {error.full_key}: {_first_line(error)}"
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        room = "; make room, then the same command goes on" if error.errno in _FULL else ""
        return f"{place}{error.strerror}{room}"
    if isinstance(error, YAMLError):
        return "the config file is not valid YAML: " + " ".join(str(error).split())
    cause = _find_cause(error) if isinstance(error, MemoryError | RuntimeError) else None
    if cause is not None:
        return cause
    if isinstance(error, OverrideParseException):
        return f"{_first_line(error)}; write key=value, in quotes if there are spaces in it"
    return _first_line(error)


def _unknown_key(error: BaseException) -> str | None:
    """Describe an override of a value that the config does not have, or return None."""
    from hydra.errors import ConfigCompositionException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    cause = error.__cause__
    if not isinstance(error, ConfigCompositionException):
        return None
    if not isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return None
    full = str(cause.full_key or cause.key)
    known = (
        [str(key) for key in cause.parent_node]
        if isinstance(cause.parent_node, dict | DictConfig)
        else []
    )
    prefix = full.rpartition(".")[0]
    names = [f"{prefix}.{key}" if prefix else key for key in known]
    near = difflib.get_close_matches(full, names, n=3, cutoff=0.6) or names
    hint = f"there is {', '.join(near)}" if near else "see --help"
    if "measurement" not in known and not prefix:
        hint = "a config of your own begins with defaults: [reconstruct, _self_]"
    return f"no config value {full!r}; {hint}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
