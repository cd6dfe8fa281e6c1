"""Build objects from config nodes, of classes in allowed packages only."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from cassi.checks import did_you_mean
from cassi.plugins import plugin_modules

Node = dict[str, Any]
"""A node of a config: values by name."""
ALLOWED_PACKAGES = (
    "cassi.systems",
    "cassi.solvers",
    "cassi.priors",
    "cassi.models",
    "cassi.training",
    "cassi.data.augment",
    "cassi.data.mst",
    "cassi.data.simulation",
    "cassi.data.sensor",
    "cassi.data.synthetic",
    "torch.nn",
    "torch.optim",
)
"""Packages and modules whose classes a config node may name."""
ALLOWED_CLASSES = (
    "lightning.pytorch.Trainer",
    "lightning.pytorch.callbacks.DeviceStatsMonitor",
    "lightning.pytorch.callbacks.EarlyStopping",
    "lightning.pytorch.callbacks.LearningRateMonitor",
    "lightning.pytorch.callbacks.ModelCheckpoint",
    "lightning.pytorch.callbacks.RichProgressBar",
    "lightning.pytorch.callbacks.ThroughputMonitor",
    "lightning.pytorch.callbacks.TQDMProgressBar",
    "lightning.pytorch.loggers.CSVLogger",
    "lightning.pytorch.loggers.MLFlowLogger",
    "lightning.pytorch.loggers.TensorBoardLogger",
    "lightning.pytorch.loggers.WandbLogger",
)
"""Single classes that a config node may name."""
METHODS = (
    "cassi.methods.auto",
    "cassi.methods.self_supervised",
    "cassi.methods.untrained",
    "cassi.methods.video",
    "cassi.plugins.make",  # makes what a plugin has registered, by its name
)
"""Functions that a config node may name. The only other names that a node may have are classes of
the user's own plugins."""
_HYDRA_KEYS = {"_target_", "_partial_", "_args_", "_convert_", "_recursive_"}


def build(node: Any, *args: Any, **kwargs: Any) -> Any:
    """Instantiate a config node with a ``_target_``, and the nodes inside it.

    Args:
        node: dict with ``_target_`` and the arguments of the target.
        args: further positional arguments.
        kwargs: further named arguments; they replace those of the node.

    Returns:
        The object.

    Raises:
        ValueError: the node has no target, the target is not allowed, or it refuses the arguments.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    node = to_containers(node)
    if not isinstance(node, dict) or "_target_" not in node:
        raise ValueError(f"config: expected a node with _target_, got {node!r}")
    check_node(node, complete=True)
    try:
        # The named arguments go to a partial, because Hydra would turn a dataclass among them into
        # a config.
        make = instantiate(node, _partial_=True, _convert_="all")
        return make(*args, **kwargs)
    except InstantiationException as error:
        # Hydra wraps what an inner constructor raised; the user needs that, not the wrapping.
        cause = error.__cause__ or str(error).splitlines()[0]
        hint = _describe_texts(node, cause)
        raise ValueError(f"config: {node['_target_']}: {cause}{hint}") from error
    except (ValueError, TypeError) as error:
        hint = _describe_texts(node, error)
        raise ValueError(f"config: {node['_target_']}: {error}{hint}") from error


def _describe_texts(node: Node, error: Any) -> str:
    """List the texts in a node, one of which may have caused a library's TypeError: `lr=fast`."""
    texts = [f"{k}={v}" for k, v in node.items() if isinstance(v, str) and k not in _HYDRA_KEYS]
    return f"; got {', '.join(texts)}" if texts and isinstance(error, TypeError) else ""


def check_node(node: Any, name: str = "", *, complete: bool = False) -> None:
    """Check the targets of a node and of the nodes inside it, and the names of their arguments.

    If `complete`, a missing value (`???`) is refused too.

    Raises:
        ValueError: a target is not allowed or does not exist, it has no such argument, or a value
            is missing.
    """
    for path, inner_node in _nodes(to_containers(node), name):
        target = _find_class(inner_node["_target_"])
        parameters = inspect.signature(target).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            continue
        for key in map(str, inner_node):
            if key not in parameters and key not in _HYDRA_KEYS:
                full_key = f"{path}.{key}" if path else key
                hint = did_you_mean(key, parameters)
                hint = hint or f"; there is {', '.join(parameters)}; leave it out, '~{full_key}'"
                raise ValueError(f"no config value {full_key!r} of {inner_node['_target_']}{hint}")
    leaves = _leaves(to_containers(node), f"{name}." if name else "") if complete else ()
    if missing := [path for path, value in leaves if value == "???"]:
        raise ValueError(f"config: {missing[0]} has no value; give it one, {missing[0]}=…")


def find_modules(node: Any) -> Iterator[str]:
    """Yield the module of every class that a node, or a node inside it, names."""
    for _, inner_node in _nodes(to_containers(node), ""):
        yield _find_class(inner_node["_target_"]).__module__


def _nodes(node: Any, path: str) -> Iterator[tuple[str, Node]]:
    """Yield path and content of a node with a target, and of all such nodes inside it."""
    if isinstance(node, dict) and "_target_" in node:
        yield path, node
    for key, value in _items(node):
        yield from _nodes(value, f"{path}.{key}" if path else str(key))


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of everything inside a node."""
    for key, value in _items(node):
        yield f"{path}{key}", value
        yield from _leaves(value, f"{path}{key}.")


def _items(node: Any) -> Any:
    if isinstance(node, dict):
        return node.items()
    return enumerate(node) if isinstance(node, list | tuple) else ()


def _find_class(target: Any) -> Any:
    is_listed = target in ALLOWED_CLASSES or target in METHODS
    plugin_module = target.rpartition(".")[0] if isinstance(target, str) else ""
    plugin_module = plugin_module if plugin_module in plugin_modules() else ""
    if not isinstance(target, str) or not (is_listed or plugin_module or _is_inside(target)):
        raise ValueError(
            f"config: _target_ {target!r} is not allowed; targets come from "
            + ", ".join(ALLOWED_PACKAGES)
            + "; your own classes from a file that you name, plugins=[FILE.py]"
        )
    from hydra.utils import get_object

    try:
        target_class = get_object(target)
    except Exception as error:
        raise ValueError(f"config: _target_ {target!r} does not exist") from error
    # A dotted path can lead through an allowed module into one that it imports, as in
    # `….io.os.system`. So the module that defines the class is checked, not the path.
    defining_module = getattr(target_class, "__module__", None) or ""
    # A function would be called with any arguments of the config. So only classes are allowed, and
    # the functions in METHODS.
    if plugin_module:
        is_allowed = defining_module == plugin_module
    else:
        is_allowed = is_listed or _is_inside(defining_module)
    if not (inspect.isclass(target_class) or target in METHODS) or not is_allowed:
        raise ValueError(f"config: _target_ {target!r} is not a class of its package")
    return target_class


def _is_inside(name: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in ALLOWED_PACKAGES)


def to_containers(node: Any) -> Any:
    """Return a config node as dicts, lists and scalars, with references resolved."""
    from omegaconf import OmegaConf

    if not OmegaConf.is_config(node):
        return node
    return OmegaConf.to_container(node, resolve=True)


def verbatim(value: Any) -> Any:
    """Escape the texts in a value so that OmegaConf keeps them: names of files may hold `${`."""
    if isinstance(value, dict):
        return {key: verbatim(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [verbatim(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value
