"""The unit of a cube: radiance or reflectance, by the response of the camera."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cassi.apps.inputs import file_path, read_frame
from cassi.apps.settings import Reconstruct
from cassi.calibration import Patch, Response
from cassi.calibration.response import Source, Unit, WhiteFrame
from cassi.checks import did_you_mean, is_number
from cassi.data.formats.curves import read_curve
from cassi.pipeline.snapshot import Snapshot

CURVES = (".csv", ".txt", ".npy")
_KEYS = ("white", "patch", "reflectance")


def read_unit(snapshot: Snapshot, settings: Reconstruct) -> Unit:
    """Return the unit of a cube, before its white frame is fitted."""
    source, note = read_response(settings.response, snapshot, settings)
    return Unit(settings.output.unit, source, snapshot.camera.wavelengths, note=note)


def read_response(
    given: Any, snapshot: Snapshot, settings: Reconstruct
) -> tuple[Source | WhiteFrame, str]:
    """Return a response as settings give it, and how it was understood.

    Args:
        given: a file of numbers; a list of numbers; `{white: FILE, reflectance: …}`, a frame of a
            white surface, or a list of them, one per shot; or
            `{patch: [top, left, height, width], reflectance: …}`, one in the scene.
        snapshot: with the camera that is used.
        settings: of the command, for what raw frames go through.
    """
    bands = snapshot.camera.system.cube_shape[0]
    if not isinstance(given, Mapping):
        return _numbers(given, bands, snapshot.camera.wavelengths), _say(given)
    check_response(given)
    reflectance: Any = given.get("reflectance", 1.0)
    if not is_number(reflectance):
        reflectance = _numbers(reflectance, bands, snapshot.camera.wavelengths).values
    if given.get("patch") is not None:
        place = tuple(given["patch"])
        patch = Patch(place, reflectance)
        patch.check(
            *snapshot.camera.system.cube_shape[1:]
        )  # before minutes of work, not after them
        return patch, f"of a patch in the scene, {list(place)}"
    y, good, note = read_frame(settings, given["white"])
    shots = snapshot.camera.system.measurement_shape[0]
    if y.shape[1] != shots:
        names = ", ".join(f"FILE{shot + 1}" for shot in range(shots))
        files = f"white: [{names}]" if shots > 1 else "white: FILE"
        raise ValueError(
            f"response: expected {shots} white frames, one per shot, got {y.shape[1]}; set "
            f"response={{{files}}}"
        )
    return WhiteFrame(y, good, reflectance), f"of {note}"


def check_response(given: Any) -> None:
    """Raise ValueError unless it names a white frame or a patch."""
    for key in given:
        if key not in _KEYS:
            near = did_you_mean(str(key), _KEYS, place="response.") or f"; there is {_KEYS}"
            raise ValueError(f"response: no value {str(key)!r}{near}")
    patch, white = given.get("patch"), given.get("white")
    if (patch is None) == (white is None):
        raise ValueError("response: expected white: FILE or patch: [top, left, height, width]")
    whole = isinstance(patch, list) and len(patch) == 4 and all(type(v) is int for v in patch)
    if patch is not None and not (whole and min(patch) >= 0 and min(patch[2:]) >= 1):
        raise ValueError(
            f"response: expected patch: [top, left, height, width] in pixels, got {patch!r}"
        )


def _numbers(given: Any, bands: int, wavelengths: Sequence[float] | None) -> Response:
    if isinstance(given, list):
        if len(given) != bands or not all(is_number(value) for value in given):
            raise ValueError(f"response: expected {bands} numbers, one per band, got {given!r}")
        values = torch.tensor(given, dtype=torch.float32)
        return Response(values, torch.zeros(bands))
    path = file_path(given)
    if path.suffix.lower() not in CURVES:
        raise ValueError(
            f"response: expected a file of numbers, {' '.join(CURVES)}, got {path}; a frame of a "
            "white surface is response={white: FILE}"
        )
    values, errors = map(torch.from_numpy, read_curve(path, bands, wavelengths, "response"))
    return Response(values.float(), errors.float())


def _say(given: Any) -> str:
    return "as given" if isinstance(given, list) else str(given)
