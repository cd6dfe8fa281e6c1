"""What all commands share: Hydra's start, one-line errors, exit status."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig

USAGE_ERROR = 2
INTERRUPTED = 130


class JobError(Exception):
    """A job of a sweep failed."""


def run_command(name: str, config_name: str, job: Callable[[DictConfig], Any]) -> None:
    """Compose the config, run the job, and turn a user's mistake into one line and status 2.

    Args:
        name: of the command, printed before an error.
        config_name: of the primary config in `cassi.conf`.
        job: takes the composed config.
    """
    import hydra

    # Hydra otherwise prints its own account of an error, over many lines, and exits with status 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    decorate = hydra.main(
        version_base="1.3", config_path="pkg://cassi.conf", config_name=config_name
    )
    try:
        decorate(_Job(name, job))()
    except KeyboardInterrupt:
        _fail(name, "interrupted", INTERRUPTED)
    except JobError as error:
        # Printed where the job ran, which may be another machine's log.
        _fail(name, f"a job failed: {error}", USAGE_ERROR)
    except Exception as error:
        if not is_usage_error(error):
            raise
        _fail(name, describe(error), USAGE_ERROR)


class _Job:
    """The job with its errors reported; an object, so that launchers can pickle it."""

    def __init__(self, name: str, job: Callable[[DictConfig], Any]) -> None:
        self.name, self.job = name, job
        self.__module__, self.__name__, self.__qualname__ = job.__module__, "job", "job"

    def __call__(self, config: DictConfig) -> Any:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        try:
            return self.job(config)
        except Exception as error:
            if not is_usage_error(error):
                raise
            # One failing job of a sweep must not stop the others, so there it goes to Hydra.
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                print(f"{self.name}: error: {describe(error)}", file=sys.stderr)
                raise JobError(describe(error)) from None
            _fail(self.name, describe(error), USAGE_ERROR)


def is_usage_error(error: BaseException) -> bool:
    """Tell what the user can mend (files, values, options) from a defect of the program."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if isinstance(error, RuntimeError) and _is_out_of_memory(error):
        return True
    mendable = (ValueError, TypeError, OSError, MemoryError)
    return isinstance(error, (*mendable, HydraException, OmegaConfBaseException, YAMLError))


def _is_out_of_memory(error: BaseException) -> bool:
    # torch raises a RuntimeError on the CPU, a subclass of it on a GPU.
    return "can't allocate memory" in str(error) or type(error).__name__ == "OutOfMemoryError"


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
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, YAMLError):
        return "the config file is not valid YAML: " + " ".join(str(error).split())
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return "out of memory; crop the scene or use fewer bands"
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


def _fail(name: str, message: str, status: int) -> None:
    print(f"{name}: error: {message}", file=sys.stderr)
    sys.exit(status)
