"""Load the user's Python files (plugins), and register their losses, priors, metrics, data sets.

A plugin is a Python file, or a module, that the user names: `plugins=[mymod.py]`. It is a program,
so only the user may name one; a camera's file, weights and other inputs cannot. The losses, priors,
metrics and data sets that a plugin registers here are used by name, like the package's own.
"""

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from cassi.checks import PACKAGE, code_of, did_you_mean

Maker = TypeVar("Maker", bound=Callable[..., Any])
KINDS = ("answer", "dataset", "loss", "metric", "prior")
"""Kinds of parts that are registered here; networks are in `cassi.models.registry`."""
GROUPS = {"dataset": "data", "loss": "loss", "prior": "prior"}
"""For each kind that a config chooses by name: the group of configs."""
METRICS = ("psnr", "ssim", "sam", "rmse", "ergas")
"""Names of the package's own metrics; their functions are in `cassi.metrics.METRICS`."""
# Columns of the package's tables. A metric of the same name would replace a column.
_COLUMN_NAMES = (
    *METRICS,
    "residual",
    "std",
    "uncertainty_warnings",
    "width",
    "nll",
    "ause",
    "method",
    "scene",
    "error",
    "seconds",
    "least_seconds",
    "peak_memory_bytes",
    "parameters",
    "flops",
)


@dataclass(frozen=True)
class Part:
    """A loss, prior, metric or data set that a plugin registered.

    Attributes:
        make: a class whose objects are the part, or a function that is the part itself.
        settings: default arguments, which a user may set.
        properties: further properties, such as the unit of a metric.
    """

    make: Callable[..., Any]
    settings: Mapping[str, object]
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plugin:
    """A file or module that was loaded."""

    name: str
    """The name by which another user loads it too: a file or a dotted module."""
    module: str
    """Name of its module."""
    file: Path | None
    """None for a module that is imported by name."""


_PARTS_BY_KIND: dict[str, dict[str, Part]] = {kind: {} for kind in KINDS}
# The loaded plugins, by the names in the user's setting `plugins=`.
_PLUGINS: dict[str, Plugin] = {}
# Names of the plugins that are being loaded now. A plugin may import another one, so it is a stack.
_LOADING_STACK: list[str] = []


def register_loss(name: str, **settings: object) -> Callable[[Maker], Maker]:
    """Give a loss a name, for `loss=NAME` of cassi-train.

    Args:
        name: a Python name that no other loss has.
        settings: arguments that differ from the loss's own defaults.

    Returns:
        A decorator of a class of `torch.nn.Module`s, or of a function. The object or function is
        called with the estimate and the truth, cubes `(B, C, H, W)` in [0, 1], and returns one
        number. Further arguments with defaults are settings, `loss.ARGUMENT=VALUE`.

    Raises:
        ValueError: the name is taken, or no Python name.
    """
    return _register_part("loss", name, settings)


def register_prior(name: str, **settings: object) -> Callable[[Maker], Maker]:
    """Give a prior a name, for `prior=NAME`.

    Args:
        name: a Python name that no other prior has.
        settings: arguments that differ from the prior's own defaults.

    Returns:
        A decorator of a class, or of a function. The object or function is called with a cube
        `(B, C, H, W)` and σ, the standard deviation of its disturbance in the same unit. It returns
        the cube without the disturbance. Further arguments with defaults are settings,
        `prior.ARGUMENT=VALUE`.

    Raises:
        ValueError: the name is taken, or no Python name.
    """
    return _register_part("prior", name, settings)


def register_metric(
    name: str, unit: str = "", digits: int = 4, better: str | None = None
) -> Callable[[Maker], Maker]:
    """Give a metric a name, the heading of its column in tables.

    Args:
        name: a Python name that no other metric has.
        unit: unit for tables, "" for none.
        digits: number of decimals in tables.
        better: "higher" or "lower": which values are better; tables mark the best. None marks none.

    Returns:
        A decorator of a function. The function is called with the estimate and the truth, cubes
        `(C, H, W)`, and returns one number.

    Raises:
        ValueError: the name is taken, or no Python name; or `better` is something else.
    """
    if name in _COLUMN_NAMES:
        raise ValueError(f"register_metric: the name {name!r} is taken by a column of cassi's own")
    if better not in ("higher", "lower", None):
        raise ValueError(f"register_metric: better: expected higher or lower, got {better!r}")
    properties = {"unit": str(unit), "digits": int(digits), "better": better}
    return _register_part("metric", name, {}, properties)


def register_answer(
    name: str, unit: str = "", labels: Iterable[str] = ()
) -> Callable[[Maker], Maker]:
    """Give a question a name, for `{kind: function, name: NAME}` in the file of `answers=`.

    Args:
        name: a Python name that no other question has.
        unit: unit of the result, "" for none.
        labels: names of the parts of the result, if it has several.

    Returns:
        A decorator of a function. It is called with a cube `(C, H, W)`, and returns a map `(H, W)`,
        several maps `(N, H, W)`, N numbers or one number.

    Raises:
        ValueError: the name is taken, or no Python name.
    """
    return _register_part("answer", name, {}, {"unit": str(unit), "labels": tuple(labels)})


def register_dataset(
    name: str, wavelengths: Iterable[float] | None = None, **settings: object
) -> Callable[[Maker], Maker]:
    """Give a data set a name, for `data=NAME` of cassi-train and cassi-evaluate.

    Args:
        name: a Python name that no other data set has.
        wavelengths: wavelengths of the bands, nm, increasing; None: the 28 of the published tables.
        settings: arguments that differ from the function's own defaults.

    Returns:
        A decorator of a function or a class. It is called with "train", "validation" or "test", and
        returns the cubes of that split, by name or by number (a list, a
        `torch.utils.data.Dataset`): arrays or tensors `(C, H, W)` in [0, 1]. Further arguments with
        defaults are settings, `data.source.ARGUMENT=VALUE`. If a class has `__call__`, an object of
        it is called instead of the class.

    Raises:
        ValueError: the name is taken, or no Python name.
    """
    nm = None if wavelengths is None else tuple(map(float, wavelengths))
    return _register_part("dataset", name, settings, {"wavelengths": nm})


def _register_part(
    kind: str,
    name: str,
    settings: Mapping[str, object],
    properties: Mapping[str, object] | None = None,
) -> Callable[[Maker], Maker]:
    """Return a decorator that registers what it decorates."""
    check_name(f"register_{kind}", name)
    group = GROUPS.get(kind, kind)
    if resources.files("cassi.conf").joinpath(group, f"{name}.yaml").is_file():
        raise ValueError(f"register_{kind}: the name {name!r} is taken by {group}={name}")

    def register(make: Maker) -> Maker:
        old_part = _PARTS_BY_KIND[kind].get(name)
        if old_part is not None and not same_thing(old_part.make, make):
            raise ValueError(f"register_{kind}: the name {name!r} is taken by {old_part.make}")
        _PARTS_BY_KIND[kind][name] = Part(make, dict(settings), properties or {})
        return make

    return register


def check_name(prefix: str, name: object) -> None:
    """Raise ValueError unless this is a Python name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise ValueError(f"{prefix}: expected a name of letters, digits and _, got {name!r}")


def same_thing(a: object, b: object) -> bool:
    """Tell whether two objects are the same class or function, perhaps defined again.

    A notebook's cell that runs twice defines its classes and functions again.
    """
    qualified_names = [
        tuple(getattr(x, key, None) for key in ("__module__", "__qualname__")) for x in (a, b)
    ]
    first, second = qualified_names
    return a is b or (None not in first and first == second)


def parts(kind: str) -> Mapping[str, Part]:
    """Return the registered parts of a kind, by name."""
    return _PARTS_BY_KIND[kind]


def node_of(kind: str, name: str) -> dict[str, object]:
    """Return the config node from which `make` makes a part, with all its settings."""
    part = _PARTS_BY_KIND[kind][name]
    # The first arguments of a function are no settings: it is called with cubes, σ or a split.
    n_call_arguments = {"loss": 2, "prior": 2, "dataset": 1}[kind]
    if _is_factory(kind, part.make):
        n_call_arguments = 0
    defaults: dict[str, object] = {}
    for parameter in list(inspect.signature(part.make).parameters.values())[n_call_arguments:]:
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            # OmegaConf's mark of a value that the user has to give.
            has_default = parameter.default is not parameter.empty
            defaults[parameter.name] = parameter.default if has_default else "???"
    # `kind` and `name` are arguments of `make` itself.
    if reserved_names := {"kind", "name"} & defaults.keys():
        raise ValueError(f"{kind} {name}: expected no argument called {min(reserved_names)}")
    defaults = {
        key: _as_config_value(value) for key, value in (defaults | dict(part.settings)).items()
    }
    return {"_target_": "cassi.plugins.make", "kind": kind, "name": name, **defaults}


def _as_config_value(value: object) -> object:
    """Return a default in a form that a config can hold.

    An object that a config cannot hold becomes None. The user's function or class then gets None,
    and has to make its own default.
    """
    if isinstance(value, list | tuple):
        return [_as_config_value(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else None


def make(kind: str, name: str, **settings: object) -> Any:
    """Make a registered part: an object of its class, or its function with these settings.

    Raises:
        ValueError: no part of this kind has the name, or it does not take the settings.
    """
    registered_parts = _PARTS_BY_KIND.get(kind, {})
    if name not in registered_parts:
        hint = did_you_mean(name, registered_parts)
        hint = hint or "; name the file that registers it, plugins=[FILE.py]"
        raise ValueError(f"no {kind} named {name!r}{hint}")
    part = registered_parts[name]
    if not _is_factory(kind, part.make):
        return functools.partial(part.make, **settings) if settings else part.make
    try:
        inspect.signature(part.make).bind(**settings)
    except TypeError as error:
        raise ValueError(f"{kind} {name}: {error}") from None
    return part.make(**settings)


def _is_factory(kind: str, maker: object) -> bool:
    """Tell whether a part is a class that is instantiated once, and whose object is then called.

    A data set's class without `__call__` is no factory. It is called with the name of a split, and
    its object is that split.
    """
    if not inspect.isclass(maker) or kind != "dataset":
        return inspect.isclass(maker)
    return any("__call__" in vars(base) for base in inspect.getmro(maker))


def load_plugins(names: Iterable[str]) -> None:
    """Load files and modules that the user named. A plugin that is loaded is not loaded again.

    A plugin is a program. So names must come from the command line, or from a config that the
    command line names. They are paths of files that end in `.py`, or dotted names of modules.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: a name is neither, another module has it, or the plugin raises an error.
    """
    for name in names:
        if name not in _PLUGINS:
            _PLUGINS[name] = _load_plugin(name)


def _load_plugin(name: str) -> Plugin:
    if not name.endswith(".py") and "/" not in name:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"plugins: expected FILE.py or the name of a module, got {name!r}")
        _run_loading(name, name, None, lambda: importlib.import_module(name))
        return Plugin(name, name, None)
    file = Path(name).expanduser().resolve()
    if not file.is_file():
        neighbours = [entry.name for entry in file.parent.glob("*.py")]
        raise FileNotFoundError(f"plugins: no file {file}{did_you_mean(file.name, neighbours)}")
    module = file.stem
    if file.suffix != ".py" or not module.isidentifier():
        raise ValueError(f"plugins: expected a file called NAME.py, a Python name, got {file.name}")
    _check_free(module, file)
    _run_loading(file.name, module, file, lambda: _execute_file(module, file))
    return Plugin(file.name, module, file)


def _check_free(module: str, file: Path) -> None:
    """Refuse a file whose module would replace another one of the same name."""
    other_file: str | None = None
    if module in sys.modules:
        other_file = _file_of(sys.modules[module]) or "Python"
    elif (spec := importlib.util.find_spec(module)) is not None:
        other_file = spec.origin or "a folder"
    if other_file is not None and Path(other_file).resolve() != file:
        raise ValueError(
            f"plugins: the name of {file.name} is that of another module, {other_file}; "
            "rename the file"
        )


def _file_of(module: ModuleType | None) -> str | None:
    return None if module is None else vars(module).get("__file__")  # a built-in one has none


def _execute_file(module: str, file: Path) -> ModuleType:
    # As in Python's own import, the module is registered before it runs, because pickled objects
    # and circular imports look for it there. If it fails, it is removed again.
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    loaded_module = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded_module
    try:
        spec.loader.exec_module(loaded_module)
    except BaseException:
        del sys.modules[module]
        raise
    return loaded_module


def _run_loading(name: str, module: str, file: Path | None, load: Callable[[], object]) -> None:
    """Load a plugin; raise its errors as a ValueError with the plugin's last line."""
    _LOADING_STACK.append(name)
    try:
        load()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if file is not None and f.filename == str(file)]
        location = f" (line {lines[-1]})" if lines else ""
        message = " ".join(str(error).split())
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; is its folder in PYTHONPATH?"
        raise ValueError(
            f"plugins: {name}{location}: {type(error).__name__}: {message}{hint}"
        ) from error
    finally:
        _LOADING_STACK.pop()


def owner(maker: object) -> str | None:
    """Return the plugin, a file or a module, that others must name to get this part.

    The result is None for a part of the package itself, and for a part of a script.
    """
    if _LOADING_STACK:
        return _LOADING_STACK[-1]
    module = str(getattr(maker, "__module__", None) or "__main__")
    return None if module == "__main__" or module.partition(".")[0] == "cassi" else module


def is_loaded(name: object) -> bool:
    """Tell whether the user named this plugin at the start of this process."""
    return isinstance(name, str) and name in _PLUGINS


def loaded_names() -> list[str]:
    """Return the names of all plugins, as another user must give them."""
    return [plugin.name for plugin in _PLUGINS.values()]


def plugin_modules() -> set[str]:
    """Return the names of the modules that the user named."""
    return {plugin.module for plugin in _PLUGINS.values()}


def plugin_files() -> list[str]:
    """Return the files of all plugins. A change in one may change every result."""
    modules = (sys.modules.get(plugin.module) for plugin in _PLUGINS.values())
    return sorted(str(file) for m in modules if (file := _file_of(m)))


def missing_plugins(names: Iterable[object]) -> str | None:
    """Return the setting that loads needed plugins, `plugins=[a.py,b]`; None if none is missing."""
    # Names may come from a file of weights, so only harmless characters get into the message.
    safe_names = [n for n in names if isinstance(n, str) and re.fullmatch(r"[\w.-]{1,100}", n)]
    present = {plugin.name for plugin in _PLUGINS.values()}
    return f"plugins=[{','.join(safe_names)}]" if set(safe_names) - present else None


def place_of(make: Callable[..., object], error: BaseException | None = None) -> str:
    """Return " (FILE, line N)": the line that defines a part, or its last line in a traceback.

    The result is "" for a part without a file.
    """
    code = code_of(make) or code_of(type(inspect.unwrap(make)).__call__)
    if code is None:
        return ""
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == code.co_filename]
    return f" ({code.co_filename}, line {lines[-1] if lines else code.co_firstlineno})"


def plugin_lines(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the lines of an error's traceback that are in plugins, or in files beside them."""
    files = plugin_files()
    folders = {Path(file).parent for file in files}
    return [
        line
        for line in traceback.extract_tb(error.__traceback__)
        if line.filename in files
        or (
            not folders.isdisjoint(Path(line.filename).parents)
            and not line.filename.startswith((PACKAGE, sys.prefix, sys.base_prefix))
        )
    ]
