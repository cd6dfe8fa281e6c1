"""What all commands share: Hydra's start, one-line errors, exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig

from cassi.apps.errors import describe, is_usage_error
from cassi.apps.signals import Terminated, raise_terminated

USAGE_ERROR = 2
INTERRUPTED = 130
TERMINATED = 143
"""Of a shell: 128 and the number of the signal."""
AGAIN = "give the same command again"


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
        with raise_terminated():
            decorate(_Job(name, job))()
    except KeyboardInterrupt as stop:
        _fail(name, f"interrupted; {stop or AGAIN}", INTERRUPTED)
    except Terminated as stop:
        _fail(name, f"terminated; {stop or AGAIN}", TERMINATED)
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
        except (KeyboardInterrupt, Terminated) as stop:
            raise type(stop)(str(stop) or _go_on(HydraConfig.get())) from None
        except Exception as error:
            if not is_usage_error(error):
                raise
            # One failing job of a sweep must not stop the others, so there it goes to Hydra.
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                print(f"{self.name}: error: {describe(error)}", file=sys.stderr)
                raise JobError(describe(error)) from None
            _fail(self.name, describe(error), USAGE_ERROR)


def _go_on(hydra: Any) -> str:
    from hydra.types import RunMode

    many = hydra.mode == RunMode.MULTIRUN
    folder = f"sweep.dir={hydra.sweep.dir}" if many else f"run.dir={hydra.runtime.output_dir}"
    return f"go on with the same command and hydra.{folder}"


def _fail(name: str, message: str, status: int) -> None:
    print(f"{name}: error: {message}", file=sys.stderr)
    sys.exit(status)
