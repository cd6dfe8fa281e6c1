"""A summary of a snapshot and its camera: a table, warnings, and two pictures."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from cassi.calibration import check_camera
from cassi.calibration.correlation import flatten
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers import relative_noise
from cassi.systems import SDCassi, System
from cassi.systems.coded import CodedSystem

_PLAIN = 15
"""Half the side, in pixels, of the window over which the scene is taken to be uniform."""
_BETTER = 1.1
"""Factor by which the frame must agree better with another step."""
_STEPS, _FEWEST = 8, 4
"""Largest step that is tried, and smallest number of bands."""
_WHERE = {(-1, True): "right", (-1, False): "left", (-2, True): "down", (-2, False): "up"}


@dataclass(frozen=True)
class InputSummary:
    """A snapshot and its camera, for a person to check.

    Attributes:
        snapshot: of a reconstruction.
        rows: (name, value) pairs of the table.
        warnings: against the camera, a line each.
        frame: `(H', W')`, of the first shot.
        predicted: `(H', W')`, see `predict`.
        agreement: correlation of the fine structure of both frames, −1 to 1.
        mask: `(H, W)`, of the first shot; the mean of the masks where every band has its own.
        offsets: of the bands along the axis, pixels; None of a camera that has none.
        axis: of the dispersion.
    """

    snapshot: Snapshot
    rows: list[tuple[str, str]]
    warnings: list[str]
    frame: np.ndarray
    predicted: np.ndarray
    agreement: float
    mask: np.ndarray | None
    offsets: tuple[float, ...] | None
    axis: int


@torch.no_grad()
def summarize_inputs(snapshot: Snapshot) -> InputSummary:
    """Say and draw what the inputs of a reconstruction come to."""
    camera = snapshot.camera.system.plain
    y, good = snapshot.y, snapshot.good
    check = check_camera(y, snapshot.camera.system)
    predicted = predict(y, camera)
    seen = flatten(y[0, :1].float(), None if good is None else good[0, :1])
    agreement = _correlate(seen, flatten(predicted[0, :1].float()))
    # The camera check decides. It sees where light begins and ends, and not how many bands are
    # between: what it lets pass is compared with other whole steps, of the same sign.
    better = [] if check.warnings else find_better_step(y, camera, seen, agreement)
    known = camera if isinstance(camera, CodedSystem) else None
    rows = [
        *_describe(snapshot, camera),
        ("Seen in the frame", "" if better else check.note or "nothing"),
    ]
    rows += [("Files", note) for note in snapshot.notes]
    return InputSummary(
        snapshot,
        [(name, value) for name, value in rows if value],
        [f"{each.about}: {each.message}" for each in check.warnings] + better,
        y[0, 0].cpu().numpy(),
        predicted[0, 0].cpu().numpy(),
        agreement,
        None if known is None or known.mask.ndim > 4 else known.mask[0].mean(0).cpu().numpy(),
        None if known is None else tuple(known.offsets),
        -1 if known is None else known.axis,
    )


@torch.no_grad()
def predict(y: Tensor, system: System) -> Tensor:
    r"""Predict the frame of a uniform scene that is as bright as a frame y.

        (A1) · (w * y) / (w * A1)

    with a window w of 31×31 pixels. Its fine structure comes from the camera alone. The frame has
    the same fine structure where mask and dispersion are right and the scene is uniform.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera A.
    """
    white = system(y.new_ones(1, *system.cube_shape))
    light = _smooth(white)
    bright = _smooth(y) / light.clamp_min(1e-3 * light.max().clamp_min(1e-30))
    predicted: Tensor = white * bright
    return predicted


@torch.no_grad()
def find_better_step(y: Tensor, camera: System, seen: Tensor, agreement: float) -> list[str]:
    """Say which other whole step the widths allow, and the frame is much more like.

    With another step the same widths hold another number of bands, and the predicted frame has
    another fine structure. Of simulated snapshots of 8 scenes of CAVE, two
    masks, steps of 1, 2 and 4, the right step agreed best in all; those of real cameras, whose
    light fills the pixels between the bands, agree up to 2 % better with a step of 1.
    """
    if type(camera) is not SDCassi or not camera.step:
        return []
    length, detector = camera.cube_shape[camera.axis], camera.measurement_shape[camera.axis]
    extra, sign = detector - length, 1 if camera.step > 0 else -1
    if extra != abs(camera.step) * (camera.bands - 1) or camera.mask.shape[-3] > 1:
        return []
    best, likeliest = agreement, abs(camera.step)
    for step in range(1, _STEPS + 1):
        if extra % step or extra // step + 1 < _FEWEST or step == likeliest:
            continue
        other = SDCassi(camera.mask, extra // step + 1, step=sign * step, axis=camera.axis)
        shown = flatten(predict(y, other)[0, :1].float())
        best, likeliest = max((best, likeliest), (_correlate(seen, shown), step))
    if best <= _BETTER * max(agreement, 0.05):
        return []
    return [
        f"step: the frame is more like that of a step of {sign * likeliest}, "
        f"{extra // likeliest + 1} bands (agreement {best:.2f}, with {camera.step} and "
        f"{camera.bands} bands {agreement:.2f}): set the step to {sign * likeliest}"
    ]


def _smooth(image: Tensor) -> Tensor:
    wide = pad(image, (_PLAIN,) * 4, mode="replicate")
    mean: Tensor = avg_pool2d(wide, 2 * _PLAIN + 1, 1)
    return mean


def _correlate(a: Tensor, b: Tensor) -> float:
    size = (a.square().sum() * b.square().sum()).sqrt().clamp_min(1e-30)
    return float((a * b).sum() / size)


def _describe(snapshot: Snapshot, camera: System) -> list[tuple[str, str]]:
    shots, height, width = camera.measurement_shape
    bands, rows, columns = camera.cube_shape
    noise = float(relative_noise(snapshot.y, snapshot.camera.system).max())
    wavelengths, done = snapshot.camera.wavelengths, snapshot.corrections
    nm = "not known: bands have numbers, and colours are false"
    if wavelengths is not None:
        nm = f"{wavelengths[0]:g} to {wavelengths[-1]:g} nm"
    table = [
        ("Snapshot", f"{height} × {width} pixels" + (f", {shots} shots" if shots > 1 else "")),
        ("Cube", f"{bands} bands of {rows} × {columns} pixels"),
        ("Wavelengths", nm),
        ("Dispersion", _dispersion(camera)),
        ("Noise", f"{100 * noise:.2g} % of the frame's root mean square"),
    ]
    if done is None:
        return [*table, ("Frame", "simulated from the truth")]
    dark, full, out = done["dark"], done["saturation"], done["bad_pixels"]
    source = {"number": "as set", "edges": "of the edges"}.get(dark["source"], dark["source"])
    saturated = f"{full['pixels']} pixels, from {full['level']:.4g} on" if full else "none found"
    left_out = f"{out['left_out']} pixels ({100 * out['fraction']:.3g} %)" if out else "no pixel"
    return [
        *table,
        ("Dark level", f"{dark['level']:.4g}, {source}"),
        ("Saturation", saturated),
        ("Left out", left_out),
    ]


def _dispersion(camera: System) -> str:
    if not isinstance(camera, CodedSystem) or camera.bands < 2:
        return ""
    axis, offsets = camera.axis, camera.offsets
    span = offsets[-1] - offsets[0]
    step = abs(span) / (len(offsets) - 1)
    way = _WHERE[axis, span >= 0]
    unseen = " (as set: no frame shows the direction)" if camera.mask.shape[-3] == 1 else ""
    return f"{step:.4g} pixels per band, longer wavelengths further {way}{unseen}"
