"""The settings of each command: a frozen dataclass that checks its own values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cassi.apps.camera.nodes import check_described, find_target
from cassi.apps.settings.parts import (
    FILES_ONLY,
    NO_INFLUENCE,
    Cluster,
    Data,
    Figure,
    GuidePicture,
    Monochromatic,
    Node,
    Output,
    Paths,
    Protocol,
    Roles,
    SimulatedGuide,
    Wavelengths,
    check_wavelengths,
    read_filters,
)
from cassi.checks import not_negative, one_of, whole_number
from cassi.config import check_node
from cassi.plugins import is_loaded

if TYPE_CHECKING:
    from cassi.data.synthetic.twin import Twin

KNOWLEDGE = ("nominal", "calibrated", "told", "ideal")
"""Cameras that a row of an evaluation with a twin can get; see docs/reference/twin-model.md."""
UNCERTAINTY = "uncertainty.tif"
"""File of the standard deviations of a cube, beside it."""
EXPORTS = ("onnx", "torch_export", "torch_operators", "aotinductor")
"""Formats that cassi-export writes."""
LIGHTS = ("auto", "all", "lines")
"""Light of a frame. "all": broadband. "lines": narrow-band, with one line per band. "auto": a raw
frame counts as broadband."""
# Settings that work only if snapshots are reconstructed independently, in any order. In a sequence
# each snapshot starts from the cube before.
_INDEPENDENT_SNAPSHOTS = (
    "model",
    "share",
    "processes",
    "cluster",
    "memory_budget",
    "heldout",
    "uncertainty",
)
# Settings of cassi-reconstruct, and the settings that cannot be used beside each of them.
_CLASHES = {
    "sequence": (*_INDEPENDENT_SNAPSHOTS, "batch"),
    "calibrate": ("memory_budget",),
    "output.unit": ("memory_budget",),
    "guide": ("memory_budget", "uncertainty", "samples", "answers"),
    "samples": ("memory_budget",),
    "answers": ("memory_budget",),
    "heldout": ("memory_budget",),
}
# Advice for two settings that exclude each other.
_CLASH_ADVICE = {
    "sequence": "each snapshot starts from the cube of the snapshot before; leave one setting out",
    "calibrate": "run cassi-calibrate, and give the camera that it writes: camera=DIR/camera.yaml",
}


@dataclass(frozen=True, kw_only=True)
class Common:
    """Settings of every command.

    Attributes:
        plugins: files and modules of the user, loaded before the config was composed. The
            fingerprint of a result has the files in place of this setting.
        vars: values of the user, for `${vars.NAME}` in a config. No code reads them.
    """

    paths: Paths = field(metadata=NO_INFLUENCE)
    seed: int
    threads: int | None = field(metadata=NO_INFLUENCE)
    plugins: Any = field(default_factory=list, metadata=NO_INFLUENCE)  # the files count
    vars: dict[str, Any] = field(default_factory=dict, metadata=NO_INFLUENCE)

    def __post_init__(self) -> None:
        check_plugins(self.plugins)
        whole_number("seed", self.seed, 0, 2**63 - 1)
        if self.threads is not None:
            whole_number("threads", self.threads, 1, 1024)
        values = vars(self)
        method_nodes = {name: values.get(name) for name in ("solver", "prior")}
        check_nodes({name: node for name, node in method_nodes.items() if node is not None})
        if "system" in values:
            check_described("system", values["system"])
        if values.get("noise") is not None:
            check_described("noise", values["noise"])
        mask = values.get("mask")
        is_file_list = isinstance(mask, list) and all(isinstance(file, str) for file in mask)
        if isinstance(mask, dict | list) and not is_file_list:
            check_described("mask", mask)
        model = values.get("model")
        # A network may only be a registered one: a node with a class could build anything.
        if isinstance(model, dict) and "_target_" in model:
            raise ValueError(
                "model: expected the name of a registered network, got _target_; register yours "
                "with @cassi.register_model(NAME), and give plugins=[FILE.py] model=NAME"
            )
        if model is not None and not (isinstance(model, dict) and {"name", "path"} & model.keys()):
            raise ValueError(f"model: expected a name of its group, model=NAME, got {model!r}")


@dataclass(frozen=True, kw_only=True)
class Sharing(Common):
    """Settings of commands that have many jobs: which processes do them.

    Attributes:
        processes: number of worker processes on this machine; None does all jobs in this one, and
            "auto" starts as many as have a free processor and memory, if that is faster.
        cluster: workers on other machines, by Dask.
        share: "3/16" for the third of sixteen commands that share the jobs.
    """

    device: str
    processes: Any = field(default=None, metadata=NO_INFLUENCE)
    cluster: Cluster | None = field(default=None, metadata=NO_INFLUENCE)
    share: str | None = field(default=None, metadata=NO_INFLUENCE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes not in (None, "auto"):
            whole_number("processes", self.processes, 1, 1024)


@dataclass(frozen=True, kw_only=True)
class Snapshots(Common):
    """Settings of commands that read snapshots: files, camera, corrections of frames, solver."""

    # The fingerprint of a result contains the file itself instead of its name; see
    # `cassi.data.store.describe_inputs`.
    measurement: Any = field(metadata=NO_INFLUENCE)
    mask: Any
    measured_mask: Any = "auto"
    light: str = "auto"
    truth: str | None = field(metadata=NO_INFLUENCE)
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
    device: str = field(metadata=NO_INFLUENCE)
    camera: str | None = field(
        default=None, metadata=NO_INFLUENCE
    )  # the other settings have its values
    scene: str | None = field(default=None, metadata=NO_INFLUENCE)  # for ${scene} in experiments

    def __post_init__(self) -> None:
        """Check what can be checked without a file."""
        super().__post_init__()
        check_wavelengths(self.wavelengths, "wavelengths")
        errors = self.wavelengths_error
        for error in errors if isinstance(errors, list) else [0.0 if errors is None else errors]:
            not_negative("wavelengths_error", error)
        _check_frames(self.light, self.measured_mask)
        bands = self.system.get("bands")
        if bands is not None:
            whole_number("system.bands", bands, 1)
        wavelengths = self.given_wavelengths
        if wavelengths is not None and bands not in (None, len(wavelengths)):
            raise ValueError(
                f"wavelengths: expected {bands} values as system.bands says, got {len(wavelengths)}"
            )

    @property
    def given_wavelengths(self) -> Wavelengths:
        """The wavelengths that the user states, nm."""
        return None if self.wavelengths is None else tuple(map(float, self.wavelengths))

    @property
    def bands(self) -> int | None:
        """The number of bands that system and wavelengths state, if any."""
        wavelengths = self.given_wavelengths
        return self.system.get("bands") if wavelengths is None else len(wavelengths)


def _check_frames(light: str, mask_setting: Any) -> None:
    one_of("light", light, LIGHTS)
    if mask_setting not in (True, False, "auto"):
        raise ValueError(f"measured_mask: expected auto, true or false, got {mask_setting!r}")


@dataclass(frozen=True, kw_only=True)
class Reconstruct(Snapshots, Sharing):
    """Settings of cassi-reconstruct."""

    model: Node = None
    guide: GuidePicture
    heldout: float | None = field(metadata=FILES_ONLY)
    uncertainty: bool = field(metadata=FILES_ONLY)
    samples: int = field(default=0, metadata=FILES_ONLY)
    answers: str | None = field(default=None, metadata=FILES_ONLY)
    output: Output = field(metadata=FILES_ONLY)
    refine: Any
    precision: str
    memory_budget: Any
    halo: int | None
    batch: Any = field(metadata=NO_INFLUENCE)
    calibrate: bool
    align: bool
    adapt: bool = False
    sequence: bool = False
    response: Any = None

    def __post_init__(self) -> None:
        """Check what can be checked without a file."""
        super().__post_init__()
        self._check_clashes()
        if self.adapt and self.model is None:
            raise ValueError("adapt: expected false without a network; give model=pretrained")
        if self.output.unit is not None and self.response is None:
            raise ValueError(
                f"output.unit: expected response=FILE with {self.output.unit}: the response of the "
                "camera to white, band by band; or response={white: FILE}, a frame of a white "
                "surface; or response={patch: [top, left, height, width]}, a white patch in the "
                "scene"
            )
        if self.heldout is not None:
            from cassi.solvers.heldout import check_share

            check_share(self.heldout)
        if self.samples != 0:
            from cassi.uncertainty.samples import check_count

            check_count(self.samples)
        # The standard deviations would replace the cube.
        if self.has_error_bars and self.output.cube == UNCERTAINTY:
            raise ValueError(
                f"output.cube: expected another name than {UNCERTAINTY}, which uncertainty=true "
                "writes"
            )

    @property
    def has_error_bars(self) -> bool:
        """Whether standard deviations are estimated; samples and answers need them."""
        return self.uncertainty or self.samples > 0 or self.answers is not None

    def _check_clashes(self) -> None:
        """Raise ValueError for two settings that exclude each other."""
        values = vars(self) | {
            "guide": self.guide.file,
            "output.unit": self.output.unit,
            "batch": None if self.batch in ("auto", 1) else self.batch,
            "processes": None if self.processes == "auto" else self.processes,
        }
        for name, excluded_names in _CLASHES.items():
            # None, false and 0 are the neutral values of all these settings.
            clashing_names = [
                setting for setting in excluded_names if values[setting] not in (None, False, 0)
            ]
            if values[name] not in (None, False, 0) and clashing_names:
                neutral = {bool: "false", int: "0"}.get(type(values[name]), "null")
                advice = _CLASH_ADVICE.get(name, "leave one setting out")
                raise ValueError(f"{name}: expected {neutral} with {clashing_names[0]}; {advice}")


@dataclass(frozen=True, kw_only=True)
class Export(Reconstruct):
    """Settings of cassi-export."""

    format: str

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("format", self.format, EXPORTS)


@dataclass(frozen=True, kw_only=True)
class Camera(Reconstruct):
    """Settings of cassi-camera."""

    rename: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        from cassi.data.io import WRITE_SUFFIXES

        if self.rename is not None and Path(self.rename).suffix.lower() not in WRITE_SUFFIXES:
            raise ValueError(
                "rename: expected the file of a cube along the dispersion, "
                f"{' '.join(WRITE_SUFFIXES)}, got {self.rename}"
            )


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
        read_filters(self.monochromatic, self.white)

    @property
    def filters(self) -> list[Monochromatic]:
        """The frames of narrow-band light, one per filter."""
        return read_filters(self.monochromatic, self.white)


@dataclass(frozen=True, kw_only=True)
class Evaluate(Sharing):
    """Settings of cassi-evaluate."""

    data: Data
    camera: str | None = field(
        default=None, metadata=NO_INFLUENCE
    )  # the other settings have its values
    system: Node
    noise: Node = None
    twin: Twin | None = None
    guide: SimulatedGuide
    benchmark: Protocol | None = None
    figure: Figure = field(metadata=NO_INFLUENCE)
    knowledge: list[str]
    reconstructors: Any
    scenes: Any
    mask: Any
    measured_mask: Any = "auto"
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
        """Check the values that decide about the rows of the tables."""
        super().__post_init__()
        _check_frames(self.light, self.measured_mask)
        whole_number("repeats", self.repeats, 1, 1000)
        if not self.knowledge or len(set(self.knowledge)) < len(self.knowledge):
            raise ValueError(f"knowledge: expected different names, got {self.knowledge!r}")
        for name in self.knowledge:
            one_of("knowledge", name, KNOWLEDGE)


@dataclass(frozen=True, kw_only=True)
class Train(Common):
    """Settings of cassi-train."""

    model: Node
    data: Data
    camera: str | None = field(
        default=None, metadata=NO_INFLUENCE
    )  # the other settings have its values
    noise: Node = None  # data.simulator refers to it
    optimizer: Node
    scheduler: Node = None
    loss: Node
    task: Node
    trainer: Node
    callbacks: dict[str, Any]
    logger: dict[str, Any]
    ckpt: str | None
    dry_run: bool = field(default=False, metadata=NO_INFLUENCE)
    channels_last: bool
    compile: bool
    half: bool
    folder: str


def check_nodes(nodes: Mapping[str, Any]) -> None:
    """Raise ValueError unless each node describes an object that may be built."""
    for name, node in nodes.items():
        find_target(node, name)
        check_node(node, name)


def check_plugins(plugins: Any) -> None:
    """Raise ValueError for a plugin that the user has not named at the start of the command."""
    # A plugin is a program. A config of somebody else, such as that of a run, must not load one.
    if plugins is None:
        return
    for name in plugins if isinstance(plugins, list) else [plugins]:
        if not is_loaded(name):
            name_text = str(name)[:200]
            raise ValueError(
                f"plugins: {name_text!r} is not loaded, because a plugin is a program; "
                "name it on the command line, plugins=[FILE.py], or in the config of --config-name"
            )
