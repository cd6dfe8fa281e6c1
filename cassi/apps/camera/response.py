"""Read the response of a camera, by which a cube gets a unit: radiance or reflectance."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cassi.apps.inputs import file_path, read_frame
from cassi.apps.settings import Reconstruct
from cassi.calibration import Patch, Response
from cassi.calibration.response import WhiteFrame
from cassi.calibration.unit import Source, Unit
from cassi.checks import did_you_mean, is_number
from cassi.data.formats.curves import read_curve
from cassi.pipeline.snapshot import Snapshot

CURVE_SUFFIXES = (".csv", ".txt", ".npy")
_KEYS = ("white", "patch", "reflectance")


def read_unit(snapshot: Snapshot, settings: Reconstruct) -> Unit:
    """Return the unit of a cube. A white frame is read here; it is fitted to a response later."""
    source, note = read_response(settings.response, snapshot, settings)
    return Unit(settings.output.unit, source, snapshot.camera.wavelengths, note=note)


def read_response(
    node: Any, snapshot: Snapshot, settings: Reconstruct
) -> tuple[Source | WhiteFrame, str]:
    """Return a response as settings describe it, and a note on where it is from.

    Args:
        node: a file of numbers; a list of numbers; `{white: FILE, reflectance: …}` for a frame of a
            white surface, or a list of frames, one per shot; or
            `{patch: [top, left, height, width], reflectance: …}` for a white patch in the scene.
        snapshot: the snapshot, whose camera gives bands and size.
        settings: settings of the command, with the corrections of raw frames.

    Raises:
        ValueError: the node has none of these forms, or does not fit the camera.
    """
    bands = snapshot.camera.system.cube_shape[0]
    if not isinstance(node, Mapping):
        return _read_numbers(node, bands, snapshot.camera.wavelengths), _describe_source(node)
    check_response(node)
    reflectance: Any = node.get("reflectance", 1.0)
    if not is_number(reflectance):
        reflectance = _read_numbers(reflectance, bands, snapshot.camera.wavelengths).values
    if node.get("patch") is not None:
        rectangle = tuple(node["patch"])
        patch = Patch(rectangle, reflectance)
        # Checked here, because the patch is used only after minutes of reconstruction.
        patch.check(*snapshot.camera.system.cube_shape[1:])
        return patch, f"of a patch in the scene, {list(rectangle)}"
    y, good_pixels, note = read_frame(settings, node["white"])
    shots = snapshot.camera.system.measurement_shape[0]
    if y.shape[1] != shots:
        names = ", ".join(f"FILE{shot + 1}" for shot in range(shots))
        files = f"white: [{names}]" if shots > 1 else "white: FILE"
        raise ValueError(
            f"response: expected {shots} white frames, one per shot, got {y.shape[1]}; set "
            f"response={{{files}}}"
        )
    return WhiteFrame(y, good_pixels, reflectance), f"of {note}"


def check_response(node: Any) -> None:
    """Raise ValueError unless a node names either a white frame or a patch."""
    for key in node:
        if key not in _KEYS:
            hint = did_you_mean(str(key), _KEYS, place="response.") or f"; there is {_KEYS}"
            raise ValueError(f"response: no value {str(key)!r}{hint}")
    patch, white = node.get("patch"), node.get("white")
    # A white frame and a patch would give two responses, so there must be exactly one of them.
    if (patch is None) == (white is None):
        raise ValueError("response: expected white: FILE or patch: [top, left, height, width]")
    is_rectangle = (
        isinstance(patch, list) and len(patch) == 4 and all(type(value) is int for value in patch)
    )
    if patch is not None and not (is_rectangle and min(patch) >= 0 and min(patch[2:]) >= 1):
        raise ValueError(
            f"response: expected patch: [top, left, height, width] in pixels, got {patch!r}"
        )


def _read_numbers(source: Any, bands: int, wavelengths: Sequence[float] | None) -> Response:
    if isinstance(source, list):
        if len(source) != bands or not all(is_number(value) for value in source):
            raise ValueError(f"response: expected {bands} numbers, one per band, got {source!r}")
        values = torch.tensor(source, dtype=torch.float32)
        return Response(values, torch.zeros(bands))
    path = file_path(source)
    if path.suffix.lower() not in CURVE_SUFFIXES:
        raise ValueError(
            f"response: expected a file of numbers, {' '.join(CURVE_SUFFIXES)}, got {path}; a "
            "frame of a white surface is response={white: FILE}"
        )
    values, errors = map(torch.from_numpy, read_curve(path, bands, wavelengths, "response"))
    return Response(values.float(), errors.float())


def _describe_source(source: Any) -> str:
    return "as given" if isinstance(source, list) else str(source)
