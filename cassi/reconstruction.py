"""The commands as functions of tensors: `reconstruct`, `choose_method`, `calibrate`, ….

`choose_method` is the `deadline=` of cassi-live.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeGuard, overload

import torch
from torch import Tensor, nn

from cassi.methods.automatic import auto
from cassi.methods.deadline import Choice, parse_deadline
from cassi.pipeline.find import align_snapshot, find_camera
from cassi.pipeline.fit import FixedMethod, Recipe, fit
from cassi.pipeline.snapshot import Camera, Result, Snapshot
from cassi.solvers.base import HasRun, Options, Reconstructor
from cassi.solvers.function import Function
from cassi.solvers.linear_system import check_order, zero_bad_pixels
from cassi.solvers.statistics import Statistics
from cassi.systems.arguments import as_cube, as_measurement
from cassi.systems.base import System

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from cassi.apps.camera.camera import Camera as CameraFile
    from cassi.calibration.unit import Unit
    from cassi.data.simulation import Noise
    from cassi.systems import DDCassi, SDCassi, TiltedCassi

    Array = Tensor | ArrayLike
    Picture = Array | tuple[Array, Array]
    Method = (
        str | Mapping[str, object] | Reconstructor | nn.Module | Callable[[Tensor, System], Tensor]
    )

_VIDEO_WARNING = (
    'method: used "video" in place of "auto", because each band has its own mask and no band is '
    "shifted, as for the frames of a video; for spectral bands give cassi.methods.auto()"
)


@dataclass(frozen=True)
class Reconstruction:
    """A cube and its standard deviation; see `cassi.uncertainty`.

    Attributes:
        x: cube `(B, C, H, W)`, in the unit in which A x = y.
        std: σ of every value, `(B, C, H, W)`. The truth is within ±1.645 σ for 90 % of the values.
        pattern: an example of the method's error in units of σ, `(B, C, H, W)`. Its values are
            correlated as the values of the true error are; `cassi.uncertainty.region` needs this.
        sources: for each sample, root mean squares of the parts of σ: `noise`, `model` (of the
            camera), and `unseen`, the part that the camera does not measure.
        warnings: for each sample, how it differs from the scenes and cameras with which σ was
            calibrated.
        samples: cubes `(S, C, H, W)` that are all consistent with the measurement and spread as far
            as the truth lies; None if none were asked for.
    """

    x: Tensor
    std: Tensor
    pattern: Tensor
    sources: list[dict[str, float]]
    warnings: list[tuple[str, ...]]
    samples: Tensor | None = None

    def __repr__(self) -> str:
        """Describe the result by shapes in place of values."""
        shapes = f"x={tuple(self.x.shape)}, std={tuple(self.std.shape)}"
        if self.samples is not None:
            shapes += f", samples={tuple(self.samples.shape)}"
        return f"Reconstruction({shapes}, sources={self.sources}, warnings={self.warnings})"


@overload
def reconstruct(
    y: Array,
    system: System,
    method: Method = ...,
    *,
    seed: int = ...,
    bad_pixels: Array | None = ...,
    uncertainty: Literal[False] = ...,
    align: bool = ...,
    guide: Picture | None = ...,
    unit: str | None = ...,
) -> Tensor: ...


@overload
def reconstruct(
    y: Array,
    system: System,
    method: Method = ...,
    *,
    seed: int = ...,
    bad_pixels: Array | None = ...,
    uncertainty: Literal[True],
    samples: int = ...,
    align: bool = ...,
    guide: Picture | None = ...,
    unit: str | None = ...,
) -> Reconstruction: ...


@overload
def reconstruct(
    y: Array,
    system: System,
    method: Method = ...,
    *,
    seed: int = ...,
    bad_pixels: Array | None = ...,
    uncertainty: bool = ...,
    samples: int,
    align: bool = ...,
    guide: Picture | None = ...,
    unit: str | None = ...,
) -> Reconstruction: ...


def reconstruct(
    y: Array,
    system: System,
    method: Method = "auto",
    *,
    seed: int = 0,
    bad_pixels: Array | None = None,
    uncertainty: bool = False,
    samples: int = 0,
    align: bool = True,
    guide: Picture | None = None,
    unit: str | None = None,
) -> Tensor | Reconstruction:
    """Reconstruct a cube as `cassi-reconstruct` does, with the same defaults and the same bits.

    Args:
        y: measurement `(B, K, H', W')`, `(K, H', W')` or `(H', W')`; a tensor or an array.
        system: the camera, such as `cassi.SDCassi`. Computations are in its precision.
        method: a name as in `method=`, `model=` or `reconstructors=`; a file of weights of
            cassi-train; a mapping such as `{"method": "gap_tv", "overrides": {"solver.iterations":
            20}}`; a network; a `Reconstructor` such as a `cassi.solvers.Solver`; or any function
            `(y, system) -> x`. For a camera that codes a video, "video" replaces "auto".
        seed: seed of the method's random numbers.
        bad_pixels: an array that is not zero at bad pixels, which have no influence, `(H', W')`.
        uncertainty: return a `Reconstruction`, with the σ of every value; up to three times slower.
        samples: number of samples of one cube, even; if not 0, returns a `Reconstruction`, too.
        align: move the mask to its position in the measurement, if that is certain; see
            `cassi.calibration.align`. For `SDCassi` cameras with one mask for all samples.
        guide: for "auto" and "self_supervised": a picture `(G, H, W)` of an ordinary camera, linear
            in light, and its sensitivity to the bands `(G, C)`; or a panchromatic picture `(H, W)`.
            `cassi.guide_search.place_guide` registers it, or refuses it with a warning.
        unit: unit of the cube, "reflectance" or "radiance", as `output.unit=`. The camera must be
            read by `cassi.read_camera` from a file with `response:`.

    Returns:
        Cube `(B, C, H, W)` on the device of y, in the unit in which A x = y, or in `unit`; with
        `uncertainty` a `Reconstruction` that has this cube as `x`.

    Raises:
        OSError: a file of weights is missing.
        TypeError: measurement and camera are in the wrong order, or of other types.
        ValueError: the method is unknown or does not fit, or no response gives the unit.

    >>> from cassi.systems import SDCassi
    >>> system = SDCassi(torch.rand(16, 20), bands=3, step=1)
    >>> reconstruct(system(torch.rand(1, 3, 16, 20)), system, method="gap_tv").shape
    torch.Size([1, 3, 16, 20])
    """
    y = _as_checked_measurement("reconstruct", y, system)
    if guide is None and isinstance(system, System):
        y, system, guide = system.without_guide(y)
    system = system if bad_pixels is None else system.weighted(bad_pixels=bad_pixels)
    snapshot = Snapshot(zero_bad_pixels(y, system), Camera(system, unit=_find_unit(system, unit)))
    uncertainty |= samples != 0
    with _keep_random_state(y):
        snapshot, reconstructor = _fit_method(snapshot, method, align, guide, uncertainty)
        torch.manual_seed(seed)
        if uncertainty:
            return _run_with_uncertainty(snapshot, reconstructor, seed, samples)
        return _run(snapshot, reconstructor)


def choose_method(
    y: Array, system: System, deadline: str | float, *, sequence: bool = False
) -> Choice:
    """Return the best method that reconstructs a measurement within a deadline on this machine.

    Methods that need no settings are timed on this measurement, the best one first, until one
    keeps the deadline; see `cassi.methods.choose_within`. A warning says if none does.

    Args:
        y: measurement, as for `reconstruct`; the first one of many alike.
        system: the camera. It is taken as it is; `calibrate` estimates it.
        deadline: a time such as "20ms" or "0.5s", or seconds.
        sequence: whether the measurements that follow show the same scene, in order. Then each cube
            may start from the cube before it; see `cassi.methods.Sequence`.

    Returns:
        The choice, a function: `choice(y, system)` returns a cube. `print(choice)` says the name of
        the method and its time.

    Raises:
        TypeError: measurement and camera are in the wrong order.
        ValueError: the deadline is no time, or no method fits the camera.
    """
    seconds = parse_deadline(deadline)
    y = _as_checked_measurement("choose_method", y, system)
    snapshot = find_camera(Snapshot(zero_bad_pixels(y, system), Camera(system)))
    from cassi.apps.reconstructors.deadline import choose_method as choose_on

    def run(method: Reconstructor) -> None:
        x = method.run(snapshot.y, snapshot.camera.system).checked().x
        x[0, 0, 0, 0].item()  # waits for the device

    with _keep_random_state(y):
        choice = choose_on(snapshot, seconds, run, sequence)
    if not choice.is_kept:
        warnings.warn(f"deadline: {choice}", stacklevel=2)
    return choice


def _fit_method(
    snapshot: Snapshot, method: Method, align: bool, guide: Picture | None, uncertainty: bool
) -> tuple[Snapshot, Reconstructor]:
    """Estimate the camera from the snapshot, and fit the method to it."""
    recipe, guide_step = _choose_recipe(method, snapshot.y), None
    if guide is not None:
        guide_step = partial(_add_guide, recipe=recipe, guide=guide, uncertainty=uncertainty)
    snapshot, reconstructor = fit(
        find_camera(snapshot, align_snapshot if align else None, guide_step), recipe
    )
    if any(note.startswith("method: ") for note in snapshot.notes):
        warnings.warn(_VIDEO_WARNING, stacklevel=3)
    return snapshot, reconstructor


def _is_reconstructor(method: Method) -> TypeGuard[Reconstructor]:
    return isinstance(method, HasRun)


def _choose_recipe(method: Method, y: Tensor) -> Recipe:
    """Return the recipe that makes the reconstructor of a method, whatever its type is."""
    if _is_reconstructor(method):
        return FixedMethod(method)
    # The default needs no settings, so Hydra is not imported. If the camera codes frames of a
    # video, "video" takes its place.
    if method == "auto":
        return FixedMethod(auto(), may_change=True)
    if isinstance(method, nn.Module):
        from cassi.models.inference import prepare

        return FixedMethod(prepare(method))
    if callable(method):
        return FixedMethod(Function(method))
    from cassi.apps import reconstructors

    return reconstructors.Recipe(reconstructors.settings_named(method), y.device)


def _find_unit(system: System, name: str | None) -> Unit | None:
    """Return the unit of the camera's file, with the requested name; None if the file has none."""
    if name not in (None, "reflectance", "radiance"):
        raise ValueError(f"unit: expected None, reflectance or radiance, got {name!r}")
    unit: Unit | None = system.unit if isinstance(system, System) else None
    if unit is None and name is not None:
        raise ValueError(
            f"unit: expected None, as this camera has no response, got {name!r}; set response: in "
            "the camera's file, and read the frame by cassi.read_camera(FILE).read"
        )
    return None if unit is None else replace(unit, name=name)


def _convert_unit(x: Tensor, camera: Camera) -> Tensor:
    """Convert cubes into the camera's unit, sample by sample; without a unit they do not change."""
    unit = camera.unit
    if unit is None or unit.name is None:
        return x
    unit = replace(unit, wavelengths=camera.wavelengths or unit.wavelengths)
    return torch.cat([unit.scene(sample, unit.response(sample)) for sample in x.split(1)])


def _add_guide(snapshot: Snapshot, recipe: Recipe, guide: Picture, uncertainty: bool) -> Snapshot:
    """Return the snapshot with a guide around its camera, or as it is if the guide is refused."""
    from cassi.guide_search import place_guide, takes_guide

    system = snapshot.camera.system
    if uncertainty:
        raise ValueError("uncertainty: expected False with a guide")
    if not takes_guide(recipe.make(system.cube_shape[0])[0]):
        raise ValueError('guide: expected None, this method takes none; "auto" does')
    if isinstance(guide, tuple | list) and len(guide) == 2:
        picture, response = guide
    else:
        picture, response = guide, torch.ones(1, system.cube_shape[0])
    placement = place_guide(snapshot.y, system, torch.as_tensor(picture), torch.as_tensor(response))
    if not placement.is_used:
        warnings.warn(f"guide: {placement}", stacklevel=5)
    return snapshot.with_camera(system=placement.system, guide={"taken": placement.is_used})


def _run(snapshot: Snapshot, reconstructor: Reconstructor) -> Tensor:
    """Reconstruct cubes, and convert them into the requested unit."""
    camera = snapshot.camera
    return _convert_unit(reconstructor.run(snapshot.y, camera.system).checked().x, camera)


def _run_with_uncertainty(
    snapshot: Snapshot, method: Reconstructor, seed: int, n_cubes: int
) -> Reconstruction:
    """Reconstruct cubes, and estimate the standard deviations of each sample by itself."""
    from cassi.pipeline.judge import assess
    from cassi.pipeline.reconstruct import add_response, in_unit
    from cassi.uncertainty.samples import check_count

    y, system = snapshot.y, snapshot.camera.system
    if n_cubes != 0:
        check_count(n_cubes)
    if n_cubes != 0 and len(y) > 1:
        raise ValueError(f"samples: expected one measurement, got {len(y)}; give them one by one")
    good_pixels = system.good_pixels
    if getattr(system, "mask", y).ndim > 4 or (good_pixels is not None and len(good_pixels) > 1):
        raise ValueError(
            "uncertainty: expected one camera for all samples, got a mask or bad pixels for each; "
            "reconstruct them one by one"
        )
    samples = [replace(snapshot, y=y_sample) for y_sample in y.split(1)]
    # The default argument keeps the sample of each lambda. Without it, all would use the last one.
    statistics = [
        Statistics(lambda sample=sample: [(sample.y, system)])  # type: ignore[misc]
        for sample in samples
    ]
    # If there is one sample, its run and its error bars share their statistics, which are then
    # computed once.
    options: Options = {"statistics": statistics[0]} if len(samples) == 1 else {}
    solution = method.run(y, system, **options).checked()
    results = []
    for index, sample in enumerate(samples):
        part = slice(index, index + 1)
        grid_cube = solution.along
        if grid_cube is not None:
            grid_cube = grid_cube._replace(x=grid_cube.x[part])
        sample_solution = replace(solution, x=solution.x[part], along=grid_cube)
        result = add_response(Result(sample, method, sample_solution, statistics[index]))
        results.append(in_unit(assess(result, seed, n_cubes)))
    errors = [result.errors for result in results if result.errors is not None]
    return Reconstruction(
        torch.cat([result.cube for result in results]),
        torch.cat([error.std for error in errors]),
        torch.cat([error.pattern for error in errors]),
        [error.sources for error in errors],
        [error.warnings for error in errors],
        errors[0].samples.stack() if errors[0].samples is not None else None,
    )


def calibrate(
    y: Array,
    system: System,
    *,
    white: Tensor | None = None,
    radius: int = 2,
    seed: int = 0,
    bad_pixels: Array | None = None,
) -> SDCassi | TiltedCassi | DDCassi:
    """Estimate the camera that took some snapshots, as `cassi-calibrate` does.

    Args:
        y: snapshots `(B, 1, H', W')` of any scenes, by one camera.
        system: the nominal camera, a `cassi.SDCassi` or a `cassi.DDCassi`. For a `DDCassi` only the
            shift and rotation of the mask, and the step across the mask, are estimated.
        white: frame `(1, 1, H', W')` of a white, evenly lit scene; gives the mask pixel by pixel.
        radius: search range of the mask's shift, whole pixels, 0 to 20.
        seed: seed of the solver's random numbers and of the held-out pixels.
        bad_pixels: an array that is not zero at bad pixels of the snapshots, as for `reconstruct`.
            Bad pixels of a `cassi.systems.Weighted` camera have no influence either.

    Returns:
        The calibrated camera. It has the class of the nominal one, or is a
        `cassi.systems.TiltedCassi` if the axis of dispersion is tilted.

    Raises:
        TypeError: measurement and camera are in the wrong order.
        ValueError: the camera has another class, the frames do not fit it or are too dark or small,
            or a number is out of range.
    """
    y = _as_checked_measurement("calibrate", y, system)
    if bad_pixels is not None:
        system = system.weighted(bad_pixels=bad_pixels)
    from cassi.calibration.frame import Frame
    from cassi.pipeline.calibrate import calibrate_on

    light_frames = [] if white is None else [Frame.snapshot(white, system.cube_shape[0])]
    with _keep_random_state(y):
        return calibrate_on(y, system, light_frames=light_frames, radius=radius, seed=seed).system


def read_camera(path: str | os.PathLike[str]) -> CameraFile:
    """Read a camera's file, as `camera=FILE` does in all commands.

    `camera.system` is the camera A, and `camera.wavelengths` are those of its bands, nm.
    `y, system = camera.read("frame.tif")` converts a raw frame into a measurement. Then
    `cassi.reconstruct(y, system)` computes what `cassi-reconstruct camera=FILE` does, and
    `cassi.reconstruct(y, system, unit="reflectance")` what `output.unit=reflectance` does.

    Args:
        path: a YAML file, as cassi-calibrate writes one: `mask`, `system`, `wavelengths`, the
            corrections of raw frames (`dark`, `flat`, `saturation`, `bad_pixels`, `window`,
            `scale`), the sensor's `noise`, the `response`, and `keys` and `axes` of mask and
            measurement. A path in the file is looked for beside the file, and then in the current
            folder.

    Returns:
        A `cassi.apps.camera.camera.Camera` with `system`, `wavelengths`, `preprocessing`, `noise`.

    Raises:
        OSError: a file is missing.
        ValueError: the file describes no camera, its values do not fit each other, or the number
            of bands is missing.
    """
    from cassi.apps.camera.camera import open_camera

    return open_camera(path)


@torch.no_grad()
def simulate(
    x: Array,
    system: System,
    *,
    noise: str | Mapping[str, object] | Noise | None = None,
    seed: int = 0,
    scene: str = "scene",
) -> Tensor:
    """Simulate the measurement of a cube, as the commands do for `truth=` without `measurement=`.

    Args:
        x: cube `(B, C, H, W)` or `(C, H, W)` in [0, 1]; a tensor or an array.
        system: the camera.
        noise: None for y = A x; "sensor", "shot" or "white", with the defaults of `noise=`; a
            mapping with other settings, `{"name": "white", "snr_db": 20}`; or a function
            `(y, bands, generator) -> y`, such as `cassi.data.sensor.Sensor(…)`.
        seed: seed of the noise.
        scene: name of the scene: each name has its own noise. The commands take the name of the
            truth's file.

    Returns:
        Measurement `(B, K, H', W')`, in the unit of y = A x.

    Raises:
        TypeError: cube and camera are in the wrong order.
        ValueError: the cube does not fit the camera, or the noise is unknown.
    """
    _check_order("simulate", x, system, "x")
    x = as_cube(x, system)
    if tuple(x.shape[1:]) != tuple(system.cube_shape):
        raise ValueError(
            f"simulate: expected a cube (B, C, H, W) with (C, H, W) = {tuple(system.cube_shape)}, "
            f"got {tuple(x.shape)}"
        )
    y: Tensor = system(x)
    if noise is None:
        return y
    from cassi.evaluation import scene_generator

    if isinstance(noise, str | Mapping):
        from cassi.apps.reconstructors import compose_settings
        from cassi.config import build

        noise_settings = {"name": noise} if isinstance(noise, str) else dict(noise)
        options = [f"noise={noise_settings.pop('name', None)}"]
        options += [f"noise.{key}={value}" for key, value in noise_settings.items()]
        noise_model: Noise = build(compose_settings(options).noise)
    else:
        noise_model = noise
    return noise_model(y.cpu(), x.shape[1], scene_generator(seed, scene)).to(y)


def _as_checked_measurement(function: str, y: Array, system: System) -> Tensor:
    _check_order(function, y, system)
    return as_measurement(y, system)


def _check_order(function: str, value: object, system: object, role: str = "y") -> None:
    check_order(function, value, system)
    if not hasattr(system, "adjoint") or not isinstance(value, Sized) or isinstance(value, str):
        types = f"({type(value).__name__}, {type(system).__name__})"
        hint = ""
        if isinstance(value, str | os.PathLike):
            hint = "; read a file with cassi.read_measurement"
        raise TypeError(
            f"{function}: expected ({role}, system), a tensor and a camera, got {types}{hint}"
        )


def _keep_random_state(y: Tensor) -> AbstractContextManager[None]:
    """Return a context in which drawing does not change the caller's random numbers."""
    return torch.random.fork_rng(devices=[y.device] if y.is_cuda else [])
