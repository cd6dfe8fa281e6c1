"""What each command is told: a frozen dataclass, which checks its own values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from cassi.apps.camera.nodes import check_described, find_target
from cassi.checks import did_you_mean, is_number, not_negative, whole_number
from cassi.config import check_node
from cassi.data.io import WRITE_SUFFIXES
from cassi.data.synthetic.twin import Twin
from cassi.plugins import is_loaded
from cassi.solvers.heldout import check_share

Node = Any
"""A dict with `_target_`, from which `cassi.config.build` makes an object; or None."""
Wavelengths = tuple[float, ...] | None


KNOWLEDGE = ("nominal", "calibrated", "told", "ideal")
"""What a row of an evaluation with a twin can know of the camera."""
UNITS = ("reflectance", "radiance")
"""In which a cube may be written."""
UNCERTAINTY = "uncertainty.tif"
"""The standard deviations of a cube, beside it."""
CLUSTERS = ("local", "slurm", "pbs", "lsf", "sge", "oar", "htcondor", "moab")
"""Kinds of clusters: of this machine, and what starts jobs on others."""
EXPORTS = ("onnx", "torch_export", "torch_operators", "aotinductor")
"""What cassi-export can write."""
_NOTHING = {"changes": "nothing"}
"""Of a field that changes no result: what was done under another value still holds."""
_FILES = {"changes": "files"}
"""Of a field that changes which files are written, and not the cube."""


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Where data sets lie."""

    data_dir: str


@dataclass(frozen=True, kw_only=True)
class Roles:
    """One value for each of the files of a snapshot."""

    measurement: str | None
    mask: str | None
    truth: str | None


LIGHTS = ("auto", "all", "lines")
"""Of a frame: of all wavelengths, or one line per band; auto: a sensor's frame is of all."""
BANDS = ("wavelengths", "dispersion")
"""Of a cube: those of the camera, or those that it was computed on."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is written beside metrics.json and convergence.csv."""

    cube: str
    bands: str
    wavelengths: Any
    pictures: bool
    report: bool
    illuminant: str | None
    points: Any
    unit: str | None
    progress: bool = field(metadata=_NOTHING)

    def __post_init__(self) -> None:
        """Check before minutes of work, not after them."""
        name = Path(self.cube)
        if name.suffix.lower() not in WRITE_SUFFIXES or name.name != self.cube:
            raise ValueError(
                "output.cube: expected a file name without a folder that ends in "
                f"{' '.join(WRITE_SUFFIXES)}, got {name}"
            )
        pairs = self.points if isinstance(self.points, list) else [self.points]
        if self.points is not None and not all(
            isinstance(pair, list) and len(pair) == 2 for pair in pairs
        ):
            raise ValueError(f"output.points: expected [[row, column], …], got {self.points!r}")
        if self.bands not in BANDS:
            near = did_you_mean(self.bands, BANDS, place="output.bands=")
            raise ValueError(
                f"output.bands: expected {' or '.join(BANDS)}, got {self.bands!r}{near}"
            )
        check_wavelengths(self.wavelengths, "output.wavelengths")
        if self.unit not in (None, *UNITS):
            near = did_you_mean(str(self.unit), UNITS, place="output.unit=")
            raise ValueError(
                f"output.unit: expected null, {' or '.join(UNITS)}, got {self.unit!r}{near}"
            )


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command has.

    Attributes:
        plugins: files and modules of the user's own, loaded before the config was composed.
        vars: names of the user's own, for `${vars.NAME}`; nobody reads them.
    """

    paths: Paths = field(metadata=_NOTHING)
    seed: int
    threads: int | None = field(metadata=_NOTHING)
    plugins: Any = field(default_factory=list, metadata=_NOTHING)  # what counts are their files
    vars: dict[str, Any] = field(default_factory=dict, metadata=_NOTHING)

    def __post_init__(self) -> None:
        check_plugins(self.plugins)
        whole_number("seed", self.seed, 0, 2**63 - 1)
        if self.threads is not None:
            whole_number("threads", self.threads, 1, 1024)
        values = vars(self)
        kept = {name: values.get(name) for name in ("solver", "prior")}
        check_nodes({name: node for name, node in kept.items() if node is not None})
        if "system" in values:
            check_described("system", values["system"])
        if values.get("noise") is not None:
            check_described("noise", values["noise"])
        mask = values.get("mask")
        files = isinstance(mask, list) and all(isinstance(file, str) for file in mask)
        if isinstance(mask, dict | list) and not files:
            check_described("mask", mask)
        model = values.get("model")
        if isinstance(model, dict) and "_target_" in model:
            raise ValueError(
                "model: expected the name of a registered network, got _target_; register yours "
                "with @cassi.register_model(NAME), and give plugins=[FILE.py] model=NAME"
            )
        if model is not None and not (isinstance(model, dict) and {"name", "path"} & model.keys()):
            raise ValueError(f"model: expected a name of its group, model=NAME, got {model!r}")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where jobs run that other machines do.

    Attributes:
        kind: "local" for one of this machine; else the system that starts jobs, "slurm", ….
        address: of the scheduler of a cluster that is there.
        workers: the most; None for as many as the machine has free processors.
        least: workers that stay where there is less to do.
        resources: of a worker that each job takes, such as `{GPU: 1}`.
        options: of the class in dask_jobqueue.
    """

    kind: str
    address: str | None
    workers: int | None
    least: int
    resources: dict[str, float]
    options: dict[str, Any]

    def __post_init__(self) -> None:
        if self.kind not in CLUSTERS:
            near = did_you_mean(self.kind, CLUSTERS) or f"; there is {', '.join(CLUSTERS)}"
            raise ValueError(f"cluster.kind: there is no {self.kind!r}{near}")
        if self.workers is not None:
            whole_number("cluster.workers", self.workers, 1, 100_000)
        whole_number("cluster.least", self.least, 0, 100_000)


@dataclass(frozen=True, kw_only=True)
class Sharing(Common):
    """What the commands share that have many jobs: who does them.

    Attributes:
        processes: of this machine; None for this one alone.
        cluster: other machines, by Dask.
        share: "3/16" for the third of sixteen commands that share the jobs.
    """

    processes: int | None = field(default=None, metadata=_NOTHING)
    cluster: Cluster | None = field(default=None, metadata=_NOTHING)
    share: str | None = field(default=None, metadata=_NOTHING)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes is not None:
            whole_number("processes", self.processes, 1, 1024)


@dataclass(frozen=True, kw_only=True)
class Snapshots(Common):
    """What the commands that read snapshots share: files, camera, frames, solver."""

    measurement: Any = field(metadata=_NOTHING)  # the files themselves are told apart, see `store`
    mask: Any
    photographed: Any = "auto"
    light: str = "auto"
    truth: str | None = field(metadata=_NOTHING)
    keys: Roles
    axes: Roles
    wavelengths: Any
    wavelengths_error: Any = None
    system: Node
    noise: Node = None
    prior: Node = None
    denoiser: Node = None
    solver: Node = None
    bits: int | None
    dark: Any
    flat: str | None
    bad_pixels: Any
    saturation: Any
    window: Any
    scale: float
    device: str = field(metadata=_NOTHING)
    camera: str | None = field(default=None, metadata=_NOTHING)  # its values stand in the others
    scene: str | None = field(default=None, metadata=_NOTHING)  # a name of an experiment's own

    def __post_init__(self) -> None:
        """Check what can be checked without a file."""
        super().__post_init__()
        check_wavelengths(self.wavelengths, "wavelengths")
        errors = self.wavelengths_error
        for each in errors if isinstance(errors, list) else [0.0 if errors is None else errors]:
            not_negative("wavelengths_error", each)
        _check_frames(self.light, self.photographed)
        bands = self.system.get("bands")
        if bands is not None:
            whole_number("system.bands", bands, 1)
        given = self.given_wavelengths
        if given is not None and bands not in (None, len(given)):
            raise ValueError(
                f"wavelengths: expected {bands} values as system.bands says, got {len(given)}"
            )

    @property
    def given_wavelengths(self) -> Wavelengths:
        """The wavelengths that the user states, nm."""
        return None if self.wavelengths is None else tuple(map(float, self.wavelengths))

    @property
    def bands(self) -> int | None:
        """The number of bands that system and wavelengths state, if any."""
        given = self.given_wavelengths
        return self.system.get("bands") if given is None else len(given)


def _check_frames(light: str, photographed: Any) -> None:
    if light not in LIGHTS:
        raise ValueError(f"light: expected {', '.join(LIGHTS)}, got {light!r}")
    if photographed not in (True, False, "auto"):
        raise ValueError(f"photographed: expected auto, true or false, got {photographed!r}")


@dataclass(frozen=True, kw_only=True)
class GuidePicture:
    """A picture of the scene by an ordinary camera beside the coded one."""

    file: str | None
    response: str | None
    noise: float
    register: bool

    def __post_init__(self) -> None:
        if not 0 < self.noise <= 1:
            raise ValueError(f"guide.noise: expected a number above 0, at most 1, got {self.noise}")


@dataclass(frozen=True, kw_only=True)
class SimulatedGuide:
    """A picture of every scene by an ordinary camera, in its place, made of the true cube."""

    response: str | None
    noise: float

    def __post_init__(self) -> None:
        if self.response not in (None, "pan", "cie"):
            near = did_you_mean(str(self.response), ("pan", "cie"))
            raise ValueError(
                f"guide.response: expected pan, cie or null, got {self.response!r}{near}"
            )
        if not 0 < self.noise <= 1:
            raise ValueError(f"guide.noise: expected a number above 0, at most 1, got {self.noise}")


@dataclass(frozen=True, kw_only=True)
class Reconstruct(Snapshots, Sharing):
    """Settings of cassi-reconstruct."""

    model: Node = None
    guide: GuidePicture
    heldout: float | None = field(metadata=_FILES)
    uncertainty: bool = field(metadata=_FILES)
    output: Output = field(metadata=_FILES)
    refine: Any
    precision: str
    memory_budget: Any
    halo: int | None
    batch: Any = field(metadata=_NOTHING)
    calibrate: bool
    align: bool
    adapt: bool = False
    sequence: bool = False
    response: Any = None

    def __post_init__(self) -> None:
        """Check what can be checked without a file."""
        super().__post_init__()
        if self.sequence:
            self._check_sequence()
        if self.adapt and self.model is None:
            raise ValueError("adapt: expected false without a network; give model=pretrained")
        if self.calibrate and self.memory_budget is not None:
            raise ValueError(
                "calibrate: expected false with memory_budget; run cassi-calibrate, and "
                "give the camera that it writes: camera=DIR/camera.yaml"
            )
        if self.output.unit is not None:
            if self.response is None:
                raise ValueError(
                    f"output.unit: expected response=FILE with {self.output.unit}: what the camera "
                    "makes of white, band by band; or response={white: FILE}, a frame of a white "
                    "surface; or response={patch: [top, left, height, width]}, one in the scene"
                )
            if self.memory_budget is not None:
                raise ValueError(
                    "output.unit: expected null with memory_budget; leave one of them out"
                )
        if self.guide.file is not None:
            clash = {
                "memory_budget": self.memory_budget is not None,
                "uncertainty": self.uncertainty,
            }
            if found := [name for name, is_set in clash.items() if is_set]:
                raise ValueError(f"guide: expected null with {found[0]}; leave one of them out")
        if self.heldout is not None:
            check_share(self.heldout)
            if self.memory_budget is not None:
                raise ValueError("heldout: expected null with memory_budget; leave one of them out")
        if self.uncertainty and self.output.cube == UNCERTAINTY:
            raise ValueError(
                f"output.cube: expected another name than {UNCERTAINTY}, which uncertainty=true "
                "writes"
            )

    def _check_sequence(self) -> None:
        """Raise ValueError for what snapshots that depend on each other cannot have."""
        names = ("model", "share", "processes", "cluster", "memory_budget", "heldout")
        found = [name for name in names if getattr(self, name) is not None]
        found += ["uncertainty"] if self.uncertainty else []
        found += [] if self.batch in ("auto", 1) else ["batch"]
        if found:
            raise ValueError(
                f"sequence: expected false with {found[0]}: each snapshot starts from the cube "
                "of the one before; leave one of them out"
            )


@dataclass(frozen=True, kw_only=True)
class Export(Reconstruct):
    """Settings of cassi-export."""

    format: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format not in EXPORTS:
            near = did_you_mean(self.format, EXPORTS) or f"; there is {', '.join(EXPORTS)}"
            raise ValueError(f"format: there is no {self.format!r}{near}")


@dataclass(frozen=True, kw_only=True)
class Camera(Reconstruct):
    """Settings of cassi-camera."""

    rename: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        name = "" if self.rename is None else Path(self.rename).suffix.lower()
        if self.rename is not None and name not in WRITE_SUFFIXES:
            raise ValueError(
                "rename: expected the file of a cube along the dispersion, "
                f"{' '.join(WRITE_SUFFIXES)}, got {self.rename}"
            )


@dataclass(frozen=True, kw_only=True)
class Monochromatic:
    """A frame of light of one wavelength, nm, through a filter of a width at half its maximum."""

    file: str
    wavelength: Any
    fwhm: float | None = None


@dataclass(frozen=True, kw_only=True)
class Calibrate(Snapshots):
    """Settings of cassi-calibrate."""

    white: str | None
    monochromatic: Any
    twin: Twin | None = None
    radius: int

    def __post_init__(self) -> None:
        """Check what can be checked without a file."""
        super().__post_init__()
        whole_number("radius", self.radius, 0, 20)
        _ = self.filters

    @property
    def filters(self) -> list[Monochromatic]:
        """The frames of light of one wavelength, checked."""
        given = self.monochromatic
        several = given if isinstance(given, list) else [] if given is None else [given]
        made = [_one_wavelength(each) for each in several]
        known = all(each is not None and is_number(each.wavelength) for each in made)
        if isinstance(given, list) and not (made and known):
            raise ValueError(
                "monochromatic: expected {file: FILE, wavelength: NM} of each filter, got "
                f"{given}"
            )
        found = [each for each in made if each is not None]
        widths = [each.fwhm for each in found if each.fwhm is not None]
        if widths and (self.white is None or not isinstance(given, list)):
            raise ValueError(
                "monochromatic.fwhm: expected white=FILE and a list of filters with it: the light "
                "of the lamp within a filter is that of the white frame"
            )
        if any(not is_number(width) or width <= 0 for width in widths):
            raise ValueError(f"monochromatic.fwhm: expected a width in nm > 0, got {widths}")
        return found


def _one_wavelength(values: Any) -> Monochromatic | None:
    """Return a frame that settings name; None where they name none."""
    names = [entry.name for entry in fields(Monochromatic)]
    if not isinstance(values, dict):
        raise ValueError(
            f"monochromatic: expected {{file: FILE, wavelength: NM}}, or a list, got {values!r}"
        )
    for key in values:
        if key not in names:
            near = did_you_mean(str(key), names, cutoff=0.6, place="monochromatic.")
            raise ValueError(
                f"no config value 'monochromatic.{key}'{near or f'; there is {names}'}"
            )
    if values.get("file") is None:
        return None
    return Monochromatic(
        file=str(values["file"]), wavelength=values.get("wavelength"), fwhm=values.get("fwhm")
    )


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How the validation scenes are measured."""

    simulator: Node = None
    crop: Any = None
    downsample: int = 1
    scale: Any = None


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set: its scenes, how a training cuts them, how an evaluation reads them."""

    name: str | None = None
    wavelengths: Any = None
    root: Any = None
    source: Node = None
    manifest: str | None = None
    measurements: Any = None
    evaluation: dict[str, Any] | None = None
    overrides: Any = None
    crop: Any = None
    batch_size: int | None = None
    steps_per_epoch: int | None = None
    pool: int | None = None
    reuse: int | None = None
    cache: str | None = None
    scale: Any = "auto"
    key: str | None = None
    axes: str | None = None
    workers: int | None = None
    samples: Node = None
    augment: Node = None
    simulator: Node = None
    validation: Validation | None = None

    def __post_init__(self) -> None:
        """Check the wavelengths, and the noise of what is simulated."""
        check_wavelengths(self.wavelengths, "data.wavelengths")
        judged = None if self.validation is None else self.validation.simulator
        places = {"data.simulator": self.simulator, "data.validation.simulator": judged}
        for place, simulator in places.items():
            noise = simulator.get("noise") if isinstance(simulator, dict) else None
            if noise is not None:
                check_described("noise", noise, f"{place}.noise")

    @property
    def given_wavelengths(self) -> Wavelengths:
        """The bands that cubes are brought to, nm; None for those of the files."""
        return None if self.wavelengths is None else tuple(map(float, self.wavelengths))


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Measurements to compare methods on: what each case changes of the settings.

    Attributes:
        name: of the benchmark.
        source: where the published figures come from, and what of.
        cases: parts of the settings, such as `{noise: …, twin: {shift: [0, 1]}}`, by name.
        published: rows that others report of a twin: `case`, `method`, and columns in dB.
    """

    name: str
    source: str = ""
    cases: dict[str, Any]
    published: list[Any] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What `figures/SCENE.pdf` shows; see `cassi.viz.figures.Layout`."""

    bands: list[float] | None = None
    zoom: Any = None
    regions: list[Any] | None = None

    def __post_init__(self) -> None:
        """Check what needs no scene."""
        if self.zoom is not None and self.zoom != "auto" and not _counts(self.zoom, 3):
            raise ValueError(
                f"figure.zoom: expected null, auto or [row, column, side], got {self.zoom!r}"
            )
        if not all(_counts(region, 2) for region in self.regions or ()):
            raise ValueError(
                f"figure.regions: expected null or [[row, column], …], got {self.regions!r}"
            )


def _counts(value: Any, length: int) -> bool:
    listed = isinstance(value, list | tuple) and len(value) == length
    return listed and all(isinstance(item, int) and not isinstance(item, bool) for item in value)


@dataclass(frozen=True, kw_only=True)
class Evaluate(Sharing):
    """Settings of cassi-evaluate."""

    data: Data
    camera: str | None = field(default=None, metadata=_NOTHING)  # its values stand in the others
    system: Node
    noise: Node = None
    twin: Twin | None = None
    guide: SimulatedGuide
    benchmark: Protocol | None = None
    figure: Figure = field(metadata=_NOTHING)
    knowledge: list[str]
    reconstructors: Any
    scenes: Any
    mask: Any
    photographed: Any = "auto"
    light: str = "auto"
    preset: str
    align: bool
    uncertainty: bool
    device: str
    repeats: int
    cubes: bool
    report: bool
    figures: bool
    progress: bool

    def __post_init__(self) -> None:
        """Check which rows there are to be."""
        super().__post_init__()
        _check_frames(self.light, self.photographed)
        whole_number("repeats", self.repeats, 1, 1000)
        if not self.knowledge or len(set(self.knowledge)) < len(self.knowledge):
            raise ValueError(f"knowledge: expected different names, got {self.knowledge!r}")
        for name in self.knowledge:
            if name not in KNOWLEDGE:
                near = did_you_mean(name, KNOWLEDGE) or f"; there is {', '.join(KNOWLEDGE)}"
                raise ValueError(f"knowledge: there is no {name!r}{near}")


@dataclass(frozen=True, kw_only=True)
class Train(Common):
    """Settings of cassi-train."""

    model: Node
    data: Data
    camera: str | None = field(default=None, metadata=_NOTHING)  # its values stand in the others
    noise: Node = None  # stands in data.simulator
    optimizer: Node
    scheduler: Node = None
    loss: Node
    task: Node
    trainer: Node
    callbacks: dict[str, Any]
    logger: dict[str, Any]
    ckpt: str | None
    dry_run: bool = field(default=False, metadata=_NOTHING)
    channels_last: bool
    compile: bool
    half: bool
    folder: str


def check_nodes(nodes: Mapping[str, Any]) -> None:
    """Raise ValueError unless each describes an object that may be built, with its arguments."""
    for name, node in nodes.items():
        find_target(node, name)
        check_node(node, name)


def check_plugins(named: Any) -> None:
    """Raise ValueError unless the user has named each plugin of a config at the start.

    A plugin is a program: a config that came from elsewhere cannot bring one.
    """
    for name in named if isinstance(named, list) else [] if named is None else [named]:
        if not is_loaded(name):
            given = str(name)[:200]
            raise ValueError(
                f"plugins: {given!r} is not loaded, because a plugin is a program; "
                "name it on the command line, plugins=[FILE.py], or in the config of --config-name"
            )


def check_wavelengths(values: Any, name: str) -> None:
    """Raise ValueError unless it is None or a list of increasing wavelengths in nm."""
    if values is None:
        return
    if not isinstance(values, Sequence) or not all(isinstance(v, int | float) for v in values):
        raise ValueError(f"{name}: expected a list of numbers in nm, got {values!r}")
    if not values or any(not b > a for a, b in pairwise(values)):
        raise ValueError(f"{name}: expected increasing values in nm, one per band, got {values}")
    if not values[0] >= 10:
        raise ValueError(
            f"{name}: expected nm, got {values[0]} to {values[-1]}; are these micrometres?"
        )
