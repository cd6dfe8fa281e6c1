"""A failure in one line: what was expected, what came, what to do."""

from __future__ import annotations

import errno
import opcode
import os
import traceback
from pathlib import Path
from types import TracebackType

from cassi.apps.settings import unknown_key
from cassi.checks import did_you_mean

AGAIN = "the same command goes on"
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
UNWRITABLE = NO_ROOM | {errno.EROFS}
"""Where the next result could not be written either."""
_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_LOST = ("Connection closed by peer", "Connection reset by peer", "NCCL communicator was aborted")
_PACKAGE = str(Path(__file__).parents[1])
_RAISE = opcode.opmap["RAISE_VARARGS"]


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
    return isinstance(error, ValueError | TypeError) and _was_raised_here(error.__traceback__)


def _was_raised_here(place: TracebackType | None) -> bool:
    """Tell whether the innermost frame of a traceback is at a `raise` of this package."""
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:  # made, and never raised
        return True
    code = place.tb_frame.f_code
    return code.co_filename.startswith(_PACKAGE) and code.co_code[place.tb_lasti] == _RAISE


def _find_cause(error: BaseException) -> str | None:
    """Tell what ended work that was no fault of the program's; torch says it in a RuntimeError."""
    if not isinstance(error, MemoryError | RuntimeError):
        return None
    said, kinds = str(error), {kind.__name__ for kind in type(error).__mro__}
    # On the CPU it is a plain RuntimeError, on a GPU a subclass.
    if kinds & {"MemoryError", "OutOfMemoryError"} or any(text in said for text in _MEMORY):
        return "out of memory; crop the scene, use fewer bands or a smaller batch"
    if said.startswith("DataLoader worker"):
        return (
            "a process that loads data was killed, maybe for want of memory; set data.workers lower"
        )
    if "DistError" in kinds or any(text in said for text in _LOST):
        return f"another process of this run is gone; {AGAIN}"
    return None


def describe(error: BaseException) -> str:
    """Say in one line what was expected, what came and what to do."""
    from hydra.errors import (
        ConfigCompositionException,
        MissingConfigException,
        OverrideParseException,
    )
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
    from yaml import YAMLError

    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, wanted = str(error.missing_cfg_file).rpartition("/")
        # Files whose names begin with an underscore are parts of others.
        options = [option for option in error.options if not option.startswith("_")]
        near = did_you_mean(wanted, options)
        return f"no {group} named {wanted!r}{near}; available: {', '.join(options)}"
    cause = error.__cause__
    if isinstance(error, ConfigCompositionException) and isinstance(
        cause, ConfigAttributeError | ConfigKeyError
    ):
        if "." not in str(cause.full_key) and "seed" not in (cause.parent_node or ()):
            hint = "a config of your own begins with defaults: [reconstruct, _self_]"
            return f"no config value {str(cause.full_key)!r}; {hint}"
        return unknown_key(cause)
    if isinstance(error, OmegaConfBaseException) and getattr(error, "full_key", None):
        return f"config value {error.full_key}: {_first_line(error)}"
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        room = f"; make room, then {AGAIN}" if error.errno in NO_ROOM else ""
        return f"{place}{error.strerror}{room}"
    if isinstance(error, YAMLError):
        return "the config file is not valid YAML: " + " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        return f"{_first_line(error)}; write key=value, in quotes if there are spaces in it"
    return _find_cause(error) or _first_line(error)


def describe_failure(error: BaseException) -> str:
    """Say in one line why one of many results is not there; of a defect also where it is."""
    if is_usage_error(error):
        return describe(error)
    message = " ".join(str(error).split())
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {message} ({place.filename}:{place.lineno})"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
