"""Parts of the settings of commands, such as `output`, `cluster` and `data`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from cassi.apps.camera.nodes import check_described
from cassi.checks import did_you_mean, is_list, is_number, one_of, whole_number

Node = Any
"""A dict with `_target_`, from which `cassi.config.build` makes an object; or None."""
Wavelengths = tuple[float, ...] | None
CLUSTERS = ("local", "slurm", "pbs", "lsf", "sge", "oar", "htcondor", "moab")
"""Kinds of clusters: workers of this machine, or a system that starts jobs on other machines."""
UNITS = ("reflectance", "radiance")
"""Units in which a cube may be written."""
BANDS = ("wavelengths", "dispersion")
"""Bands of a cube. "wavelengths": the bands of the camera. "dispersion": the spectral grid on which
the cube was computed."""
NO_INFLUENCE = {"changes": "nothing"}
"""Metadata of a field that changes no result. If only its value differs, a result is not computed
again."""
FILES_ONLY = {"changes": "files"}
"""Metadata of a field that changes which files are written, but not the cube."""


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Folders of the machine; `data_dir` contains all data sets."""

    data_dir: str


@dataclass(frozen=True, kw_only=True)
class Roles:
    """One value for each of the files of a snapshot."""

    measurement: str | None
    mask: str | None
    truth: str | None


@dataclass(frozen=True, kw_only=True)
class Output:
    """The files that are written beside metrics.json and convergence.csv."""

    cube: str
    bands: str
    wavelengths: Any
    pictures: bool
    report: bool
    illuminant: str | None
    points: Any
    unit: str | None
    progress: bool = field(metadata=NO_INFLUENCE)

    def __post_init__(self) -> None:
        """Check the values here, so that an error does not come after minutes of work."""
        from cassi.data.io import WRITE_SUFFIXES

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
        one_of("output.bands", self.bands, BANDS)
        check_wavelengths(self.wavelengths, "output.wavelengths")
        one_of("output.unit", self.unit, UNITS, null=True)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The workers of a Dask cluster.

    Attributes:
        kind: "local" for workers of this machine, or the system that starts jobs, such as "slurm".
        address: address of the scheduler of a running cluster; None starts a cluster.
        workers: largest number of workers; None takes the number of free processors.
        least: number of workers that stay when there is little to do.
        resources: resources of a worker that each job takes, such as `{GPU: 1}`.
        options: arguments of the class in dask_jobqueue.
    """

    kind: str
    address: str | None
    workers: int | None
    least: int  # name: a setting
    resources: dict[str, float]
    options: dict[str, Any]

    def __post_init__(self) -> None:
        one_of("cluster.kind", self.kind, CLUSTERS)
        if self.workers is not None:
            whole_number("cluster.workers", self.workers, 1, 100_000)
        whole_number("cluster.least", self.least, 0, 100_000)


@dataclass(frozen=True, kw_only=True)
class SimulatedGuide:
    """A guide that is simulated from the true cube of each scene, without any shift."""

    response: str | None
    noise: float

    def __post_init__(self) -> None:
        self.check_response()
        if not 0 < self.noise <= 1:
            raise ValueError(f"guide.noise: expected a number above 0, at most 1, got {self.noise}")

    def check_response(self) -> None:
        """Raise ValueError for a response that is not simulated."""
        one_of("guide.response", self.response, ("pan", "cie"), null=True)


@dataclass(frozen=True, kw_only=True)
class GuidePicture(SimulatedGuide):
    """A guide in a file: a picture of the scene by an uncoded camera."""

    file: str | None
    register: bool

    def check_response(self) -> None:
        """Accept any response, because it may be a file. The file is checked when it is read."""


@dataclass(frozen=True, kw_only=True)
class Monochromatic:
    """A frame through a narrow filter: its wavelength and full width at half maximum, nm."""

    file: str
    wavelength: Any
    fwhm: float | None = None


def read_filters(node: Any, white: str | None) -> list[Monochromatic]:
    """Return the frames through filters that the setting `monochromatic` names.

    Raises:
        ValueError: a filter lacks its file or wavelength, or has a width without a white frame.
    """
    items = node if isinstance(node, list) else [node]
    if node is None:
        items = []
    filters = [_read_filter(frame) for frame in items]
    have_wavelengths = all(frame is not None and is_number(frame.wavelength) for frame in filters)
    if isinstance(node, list) and not (filters and have_wavelengths):
        raise ValueError(
            f"monochromatic: expected {{file: FILE, wavelength: NM}} of each filter, got {node}"
        )
    frames = [frame for frame in filters if frame is not None]
    widths = [frame.fwhm for frame in frames if frame.fwhm is not None]
    # With a width, the spectrum of the lamp within the filter matters. The white frame shows it.
    if widths and (white is None or not isinstance(node, list)):
        raise ValueError(
            "monochromatic.fwhm: expected white=FILE and a list of filters with it, because the "
            "spectrum of the lamp within a filter is estimated from the white frame"
        )
    if any(not is_number(width) or width <= 0 for width in widths):
        raise ValueError(f"monochromatic.fwhm: expected a width in nm > 0, got {widths}")
    return frames


def _read_filter(values: Any) -> Monochromatic | None:
    """Check and return the frame through one filter; None if its file is null."""
    names = [entry.name for entry in fields(Monochromatic)]
    if not isinstance(values, dict):
        raise ValueError(
            f"monochromatic: expected {{file: FILE, wavelength: NM}}, or a list, got {values!r}"
        )
    if unknown := [str(key) for key in values if key not in names]:
        suggestion = did_you_mean(unknown[0], names, cutoff=0.6, place="monochromatic.")
        hint = suggestion or f"; there is {names}"
        raise ValueError(f"no config value 'monochromatic.{unknown[0]}'{hint}")
    if values.get("file") is None:
        return None
    return Monochromatic(
        file=str(values["file"]), wavelength=values.get("wavelength"), fwhm=values.get("fwhm")
    )


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The validation of a training: how its scenes are cut and measured."""

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
        """Check the wavelengths, and the noise of simulated measurements."""
        check_wavelengths(self.wavelengths, "data.wavelengths")
        validation_simulator = None if self.validation is None else self.validation.simulator
        simulators = {
            "data.simulator": self.simulator,
            "data.validation.simulator": validation_simulator,
        }
        for place, simulator in simulators.items():
            noise = simulator.get("noise") if isinstance(simulator, dict) else None
            if noise is not None:
                check_described("noise", noise, f"{place}.noise")

    @property
    def given_wavelengths(self) -> Wavelengths:
        """Wavelengths to which cubes are interpolated, nm. None keeps the files' own."""
        return None if self.wavelengths is None else tuple(map(float, self.wavelengths))


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A benchmark: cases on which methods are compared, each with other settings.

    Attributes:
        name: name of the benchmark.
        source: publication of the values in `published`.
        cases: the settings that each case changes, by the name of the case, such as
            `{noise: …, twin: {shift: [0, 1]}}`.
        published: rows that other authors have published: `case`, `method`, and columns in dB.
    """

    name: str
    source: str = ""
    cases: dict[str, Any]
    published: list[Any] = field(default_factory=list)  # name: a setting


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The content of `figures/SCENE.pdf`; see `cassi.viz.figures.Layout`."""

    bands: list[float] | None = None
    zoom: Any = None
    regions: list[Any] | None = None

    def __post_init__(self) -> None:
        """Check the form of the values. Whether they fit a scene is checked when it is drawn."""
        if self.zoom not in (None, "auto") and not is_list(self.zoom, 3):
            raise ValueError(
                f"figure.zoom: expected null, auto or [row, column, side], got {self.zoom!r}"
            )
        if not all(is_list(region, 2) for region in self.regions or ()):
            raise ValueError(
                f"figure.regions: expected null or [[row, column], …], got {self.regions!r}"
            )


def check_wavelengths(values: Any, name: str) -> None:
    """Raise ValueError unless `values` is None or a list of increasing wavelengths in nm."""
    if values is None:
        return
    if not isinstance(values, Sequence) or not all(isinstance(v, int | float) for v in values):
        raise ValueError(f"{name}: expected a list of numbers in nm, got {values!r}")
    if not values or any(not b > a for a, b in pairwise(values)):
        raise ValueError(f"{name}: expected increasing values in nm, one per band, got {values}")
    # Optical wavelengths are hundreds of nm. Values below 10 are in another unit, or they are
    # numbers of bands.
    if not values[0] >= 10:
        raise ValueError(
            f"{name}: expected nm, got {values[0]} to {values[-1]}; are these micrometres?"
        )
