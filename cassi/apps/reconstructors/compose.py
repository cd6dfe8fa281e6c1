"""Compose settings by Hydra, and set its search path."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra

from cassi.apps.arguments import spell
from cassi.apps.errors import config_errors
from cassi.apps.reconstructors.parts import offer_parts
from cassi.apps.settings import Reconstruct, read_settings

# Hydra has one search path for the whole process, so one thread at a time may set it.
_SEARCH_LOCK = threading.RLock()
# Folders of the user's configs, in a worker process; see `add_search_folders`.
_EXTRA_FOLDERS: list[str] = []


def compose_settings(
    options: Iterable[str] = (), data_dir: str | None = None, kind: type = Reconstruct
) -> Any:
    """Return the settings of a command with these options.

    Args:
        options: options, written as on the command line.
        data_dir: folder in place of `paths.data_dir`; None keeps it.
        kind: class of the settings.

    Raises:
        ValueError: the options do not fit the config.
    """
    with config_errors(), config_search():
        name, options = kind.__name__.lower(), spell(options)
        config = compose(name, overrides=options)
        if data_dir is not None:
            config.paths.data_dir = data_dir
        return read_settings(config, kind, options)


def settings_of_file(path: Path) -> Reconstruct:
    """Return the settings of cassi-reconstruct from a config file of the user.

    Raises:
        ValueError: the config cannot be composed.
    """
    offer_parts()
    with config_errors(), _search_own_configs(GlobalHydra.instance(), path.parent):
        config = compose(path.stem, ["hydra.searchpath=[pkg://cassi.conf]"])
        settings: Reconstruct = read_settings(config, Reconstruct)
        return settings


def config_search() -> Any:
    """Return a context in which Hydra finds the configs of this package."""
    offer_parts()
    # Inside a command, Hydra is already set up with the config folders of the user. Elsewhere,
    # Hydra is not set up, or set up for another program.
    hydra = GlobalHydra.instance()
    if hydra.is_initialized() and any(
        source.path == "cassi.conf" for source in hydra.config_loader().get_sources()
    ):
        return nullcontext()
    return _search_own_configs(hydra)


@contextmanager
def _search_own_configs(hydra: GlobalHydra, folder: Path | None = None) -> Iterator[None]:
    """Search in the configs of this package, or in a folder alone; restore Hydra at the end."""
    with _SEARCH_LOCK:
        other_hydra, hydra.hydra = hydra.hydra, None
        try:
            hydra_context: Any
            if folder is None:
                hydra_context = initialize_config_module("cassi.conf", version_base="1.3")
            else:
                hydra_context = initialize_config_dir(str(folder.resolve()), version_base="1.3")
            with hydra_context:
                loader: Any = GlobalHydra.instance().config_loader()
                for extra_folder in _EXTRA_FOLDERS if folder is None else ():
                    loader.get_search_path().append("command", f"file://{extra_folder}")
                loader.repository.initialize_sources(loader.get_search_path())
                yield
        finally:
            # Hydra has made a new instance in the meantime.
            GlobalHydra.instance().hydra = other_hydra


def list_search_folders() -> tuple[str, ...]:
    """Return the folders in which the running command finds configs of the user."""
    hydra = GlobalHydra.instance()
    if not hydra.is_initialized():
        return ()
    return tuple(
        str(Path(source.path).resolve())
        for source in hydra.config_loader().get_sources()
        if source.scheme() == "file"
    )


def add_search_folders(folders: Iterable[str]) -> None:
    """Search in these folders too. A worker gets the folders of its command in this way."""
    _EXTRA_FOLDERS[:] = folders


def list_methods() -> list[str]:
    """Return the options of the group `method`."""
    with config_search():
        loader = GlobalHydra.instance().config_loader()
        return [name for name in loader.get_group_options("method") if not name.startswith("_")]
