"""From config nodes to objects. Only this module and the commands know Hydra and OmegaConf."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

ALLOWED_PACKAGES = (
    *("cassi.systems", "cassi.solvers", "cassi.priors", "cassi.models"),
    *("cassi.training", "cassi.data.augment", "cassi.data.masks"),
    *("cassi.data.simulation", "cassi.data.sensor"),
    *("torch.nn", "torch.optim"),
)
ALLOWED_CLASSES = (
    "lightning.pytorch.Trainer",
    *(
        f"lightning.pytorch.callbacks.{name}"
        for name in (
            *("DeviceStatsMonitor", "EarlyStopping", "LearningRateMonitor", "ModelCheckpoint"),
            *("RichProgressBar", "ThroughputMonitor", "TQDMProgressBar"),
        )
    ),
    *(f"lightning.pytorch.loggers.{name}" for name in ("CSVLogger", "TensorBoardLogger")),
)
"""Config nodes may build objects of classes in these packages, of these classes, and no other."""


def build(node: Any, *args: Any, **kwargs: Any) -> Any:
    """Instantiate a config node with a ``_target_``, and the nodes inside it.

    Args:
        node: mapping with ``_target_`` and the arguments of the target.
        args: further positional arguments.
        kwargs: further named arguments, which win over the node's.

    Raises:
        ValueError: the node has no target or a value is missing (`???`), it names something that
            may not be built or does not exist, or the target does not take these
            arguments.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    if not isinstance(plain, dict) or "_target_" not in plain:
        raise ValueError(f"config: expected a node with _target_, got {plain!r}")
    for target in _targets(plain):
        _check_target(target)
    missing = sorted(OmegaConf.missing_keys(node)) if OmegaConf.is_config(node) else []
    missing += [path for path, value in _leaves(plain) if value == "???"]  # behind ${…}
    if missing:
        raise ValueError(f"config: {missing[0]} has no value; give it one, {missing[0]}=…")
    try:
        # As a partial, because Hydra turns a dataclass among the named arguments into a config.
        make = instantiate(plain, _partial_=True, _convert_="all")
        return make(*args, **kwargs)
    except InstantiationException as error:
        # Hydra wraps what an inner constructor raised; the user needs that, not the wrapping.
        cause = error.__cause__ or str(error).splitlines()[0]
        raise ValueError(f"config: {plain['_target_']}: {cause}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"config: {plain['_target_']}: {error}") from error


def _targets(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield node["_target_"]
        for value in node.values():
            yield from _targets(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _targets(value)


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, value in items:
        yield f"{path}{key}", value
        yield from _leaves(value, f"{path}{key}.")


def _check_target(target: Any) -> None:
    listed = target in ALLOWED_CLASSES
    if not isinstance(target, str) or not (listed or _is_inside(target)):
        raise ValueError(
            f"config: _target_ {target!r} is not allowed; targets come from "
            + ", ".join(ALLOWED_PACKAGES)
        )
    from hydra.utils import get_object

    try:
        found = get_object(target)
    except Exception as error:
        raise ValueError(f"config: _target_ {target!r} does not exist") from error
    # A dotted path can walk through an allowed module into one that it imports (`….io.os.system`).
    home = getattr(found, "__module__", None) or ""
    # A function would be called with whatever arguments the config holds: classes only.
    if not inspect.isclass(found) or not (listed or _is_inside(home)):
        raise ValueError(f"config: _target_ {target!r} is not a class of its package")


def _is_inside(name: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in ALLOWED_PACKAGES)


def plain(node: Any) -> Any:
    """Return a config node as dicts, lists and scalars, with interpolations resolved."""
    return (
        OmegaConf.to_container(node, resolve=True)
        if isinstance(node, DictConfig | ListConfig)
        else node
    )
