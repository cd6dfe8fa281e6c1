"""Networks, losses, priors, metrics and data sets of a user, from the user's own Python files.

A plugin is a Python file, or a module, that its user names: `plugins=[mymod.py]`. It is a program,
so nothing else may name one. What it registers here is known by name like the package's own.
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
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from cassi.checks import PACKAGE, code_of, did_you_mean

Made = TypeVar("Made", bound=Callable[..., Any])
KINDS = ("dataset", "loss", "metric", "prior")
"""What is registered here; networks are in `cassi.models.registry`."""
METRICS = ("psnr", "ssim", "sam", "rmse", "ergas")
"""Of the package; `cassi.metrics.METRICS`."""
_TAKEN = (
    *(*METRICS, "residual", "std", "uncertainty_warnings", "width", "nll", "ause", "method"),
    *("scene", "error", "seconds", "least_seconds", "peak_memory_bytes", "parameters", "flops"),
)
"""Names of other columns."""


@dataclass(frozen=True)
class Part:
    """Something that a plugin registered.

    Attributes:
        make: a class of parts, or what is the part itself.
        settings: arguments by default, which a user may set.
        about: what else is known of it.
    """

    make: Callable[..., Any]
    settings: Mapping[str, object]
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plugin:
    """A file or module that was loaded: what others must name, its module, its file."""

    name: str
    module: str
    file: Path | None


_PARTS: dict[str, dict[str, Part]] = {kind: {} for kind in KINDS}
_LOADED: dict[str, Plugin] = {}
"""By what the user called them."""
_LOADING: list[str] = []


def register_loss(name: str, **settings: object) -> Callable[[Made], Made]:
    """Give a loss a name, for `loss=NAME` of cassi-train.

    Args:
        name: a Python name that no other loss has.
        settings: arguments that differ from the loss's own defaults.

    Returns:
        A decorator of a class of `torch.nn.Module`s, or of a function; called with the estimate and
        the truth, cubes `(B, C, H, W)` in [0, 1], either gives one number. Further arguments with
        defaults are settings, `loss.ARGUMENT=VALUE`.

    Raises:
        ValueError: the name is taken, or none of Python.
    """
    return _enter("loss", name, settings)


def register_prior(name: str, **settings: object) -> Callable[[Made], Made]:
    """Give a prior a name, for `prior=NAME`.

    Args:
        name: a Python name that no other prior has.
        settings: arguments that differ from the prior's own defaults.

    Returns:
        A decorator of a class, or of a function; called with a cube `(B, C, H, W)` and σ, the
        standard deviation of its disturbance in the same unit, either gives the cube without it.
        Further arguments with defaults are settings, `prior.ARGUMENT=VALUE`.

    Raises:
        ValueError: the name is taken, or none of Python.
    """
    return _enter("prior", name, settings)


def register_metric(
    name: str, unit: str = "", digits: int = 4, better: str | None = None
) -> Callable[[Made], Made]:
    """Give a metric a name, the heading of its column in tables.

    Args:
        name: a Python name that no other metric has.
        unit: for tables, "" for none.
        digits: behind the point in tables.
        better: "higher" or "lower": which values are better; tables mark the best. None marks none.

    Returns:
        A decorator of a function; called with the estimate and the truth, cubes `(C, H, W)`, it
        gives one number.

    Raises:
        ValueError: the name is taken, or none of Python; or `better` is something else.
    """
    if name in _TAKEN:
        raise ValueError(f"register_metric: the name {name!r} is taken by a column of cassi's own")
    if better not in ("higher", "lower", None):
        raise ValueError(f"register_metric: better: expected higher or lower, got {better!r}")
    about = {"unit": str(unit), "digits": int(digits), "better": better}
    return _enter("metric", name, {}, about)


def register_dataset(
    name: str, wavelengths: Iterable[float] | None = None, **settings: object
) -> Callable[[Made], Made]:
    """Give a data set a name, for `data=NAME` of cassi-train and cassi-evaluate.

    Args:
        name: a Python name that no other data set has.
        wavelengths: of the cubes' bands, nm, increasing; None: the 28 of the published tables.
        settings: arguments that differ from the function's own defaults.

    Returns:
        A decorator of a function or a class; called with "train", "validation" or "test", it gives
        the cubes of that split, by name or by number (a list, a `torch.utils.data.Dataset`): arrays
        or tensors `(C, H, W)` in [0, 1]. Further arguments with defaults are settings,
        `data.source.ARGUMENT=VALUE`. Of a class with `__call__` an object is what is called.

    Raises:
        ValueError: the name is taken, or none of Python.
    """
    nm = None if wavelengths is None else tuple(map(float, wavelengths))
    return _enter("dataset", name, settings, {"wavelengths": nm})


def _enter(
    kind: str, name: str, settings: Mapping[str, object], about: Mapping[str, object] | None = None
) -> Callable[[Made], Made]:
    check_name(f"register_{kind}", name)

    def enter(make: Made) -> Made:
        known = _PARTS[kind].get(name)
        if known is not None and not same_thing(known.make, make):
            raise ValueError(f"register_{kind}: the name {name!r} is taken by {known.make}")
        _PARTS[kind][name] = Part(make, dict(settings), about or {})
        return make

    return enter


def check_name(place: str, name: object) -> None:
    """Raise ValueError unless this is a Python name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise ValueError(f"{place}: expected a name of letters, digits and _, got {name!r}")


def same_thing(a: object, b: object) -> bool:
    """Tell whether one is the other defined anew, as a cell of a notebook does."""
    places = [
        tuple(getattr(x, key, None) for key in ("__module__", "__qualname__")) for x in (a, b)
    ]
    return a is b or (None not in places[0] and places[0] == places[1])


def parts(kind: str) -> Mapping[str, Part]:
    """Return what is registered of a kind, by name."""
    return _PARTS[kind]


def node_of(kind: str, name: str) -> dict[str, object]:
    """Return the config node from which `make` makes a part, with all its settings."""
    part = _PARTS[kind][name]
    # The first arguments are what it is called with.
    called = {"loss": 2, "prior": 2, "dataset": 1}[kind] * (not _makes_parts(kind, part.make))
    listed = list(inspect.signature(part.make).parameters.values())[called:]
    known = {p.name: p.default for p in listed if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    missing = inspect.Parameter.empty
    defaults = {key: "???" if value is missing else value for key, value in known.items()}
    if taken := {"kind", "name"} & defaults.keys():
        raise ValueError(f"{kind} {name}: expected no argument called {min(taken)}")
    defaults = {key: _plain(value) for key, value in (defaults | dict(part.settings)).items()}
    return {"_target_": "cassi.plugins.make", "kind": kind, "name": name, **defaults}


def _plain(value: object) -> object:
    """Return a default as a config has it; an object is made by its owner, whom null asks to."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else None


def make(kind: str, name: str, **settings: object) -> Any:
    """Make a registered part: an object of its class, or its function with these settings."""
    known = _PARTS.get(kind, {})
    if name not in known:
        near = did_you_mean(name, known) or "; name the file that registers it, plugins=[FILE.py]"
        raise ValueError(f"no {kind} named {name!r}{near}")
    part = known[name]
    if not _makes_parts(kind, part.make):
        return functools.partial(part.make, **settings) if settings else part.make
    try:
        inspect.signature(part.make).bind(**settings)
    except TypeError as error:
        raise ValueError(f"{kind} {name}: {error}") from None
    return part.make(**settings)


def _makes_parts(kind: str, made: object) -> bool:
    """Tell a class whose objects are called from what is itself called.

    Of a data set's class an object may be a split: making it is the call.
    """
    if not inspect.isclass(made) or kind != "dataset":
        return inspect.isclass(made)
    return any("__call__" in vars(base) for base in inspect.getmro(made))


def load_plugins(names: Iterable[str]) -> None:
    """Load files and modules that the user named; what is loaded stays as it is.

    To be called with names from the command line alone, or from the config that it names: a plugin
    is a program.
    Names are paths of files that end in `.py`, or dotted names of modules.
    """
    for name in names:
        if name not in _LOADED:
            _LOADED[name] = _load(name)


def _load(name: str) -> Plugin:
    if not name.endswith(".py") and "/" not in name:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"plugins: expected FILE.py or the name of a module, got {name!r}")
        _run(name, name, None, lambda: importlib.import_module(name))
        return Plugin(name, name, None)
    file = Path(name).expanduser().resolve()
    if not file.is_file():
        there = [entry.name for entry in file.parent.glob("*.py")]
        raise FileNotFoundError(f"plugins: no file {file}{did_you_mean(file.name, there)}")
    module = file.stem
    if file.suffix != ".py" or not module.isidentifier():
        raise ValueError(f"plugins: expected a file called NAME.py, a Python name, got {file.name}")
    _check_free(module, file)
    _run(file.name, module, file, lambda: _execute(module, file))
    return Plugin(file.name, module, file)


def _check_free(module: str, file: Path) -> None:
    """Refuse a file whose module would stand in the place of another."""
    place: str | None = None
    if module in sys.modules:
        place = _file_of(sys.modules[module]) or "Python"
    elif (spec := importlib.util.find_spec(module)) is not None:
        place = spec.origin or "a folder"
    if place is not None and Path(place).resolve() != file:
        raise ValueError(
            f"plugins: the name of {file.name} is that of another module, {place}; rename the file"
        )


def _file_of(module: ModuleType | None) -> str | None:
    return None if module is None else vars(module).get("__file__")  # a built-in one has none


def _execute(module: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[module]
        raise
    return made


def _run(name: str, module: str, file: Path | None, load: Callable[[], object]) -> None:
    _LOADING.append(name)
    try:
        load()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if file is not None and f.filename == str(file)]
        place = f" (line {lines[-1]})" if lines else ""
        said = " ".join(str(error).split())
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; is its folder in PYTHONPATH?"
        raise ValueError(f"plugins: {name}{place}: {type(error).__name__}: {said}{hint}") from error
    finally:
        _LOADING.pop()


def owner(made: object) -> str | None:
    """Return what others must name to have this part, a file or a module; None for ours."""
    if _LOADING:
        return _LOADING[-1]
    module = str(getattr(made, "__module__", None) or "__main__")
    return None if module == "__main__" or module.partition(".")[0] == "cassi" else module


def is_loaded(name: object) -> bool:
    """Tell whether the user named this plugin at the start of this process."""
    return isinstance(name, str) and name in _LOADED


def loaded_names() -> list[str]:
    """Return what others must name to have all that is loaded here."""
    return [plugin.name for plugin in _LOADED.values()]


def plugin_modules() -> set[str]:
    """Return the names of the modules that the user named."""
    return {plugin.module for plugin in _LOADED.values()}


def plugin_files() -> list[str]:
    """Return the files of all plugins; where these change, so may every result."""
    modules = (sys.modules.get(plugin.module) for plugin in _LOADED.values())
    return sorted(str(file) for m in modules if (file := _file_of(m)))


def needed(names: Iterable[object]) -> str | None:
    """Say which plugins are needed and missing, `plugins=[a.py,b]`; None where none is."""
    safe = [n for n in names if isinstance(n, str) and re.fullmatch(r"[\w.-]{1,100}", n)]
    loaded = {plugin.name for plugin in _LOADED.values()}
    return f"plugins=[{','.join(safe)}]" if set(safe) - loaded else None


def place_of(make: Callable[..., object], error: BaseException | None = None) -> str:
    """Return " (FILE, line N)" of a part: where it is defined, or where in its file an error arose.

    It is "" for what has no file.
    """
    code = code_of(make) or code_of(type(inspect.unwrap(make)).__call__)
    if code is None:
        return ""
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == code.co_filename]
    return f" ({code.co_filename}, line {lines[-1] if lines else code.co_firstlineno})"


def plugin_lines(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the lines of plugins, and of files beside them, that an error came through."""
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
