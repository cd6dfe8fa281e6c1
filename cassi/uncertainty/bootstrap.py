"""What a method shows of its own errors: the scene it found, seen mirrored and lost again."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.solvers.base import Along, Reconstructor, Solution
from cassi.solvers.heldout import (
    LEAST,
    LOOKED_AT,
    SHARE,
    Lines,
    brightest_lines,
    draw_heldout,
)
from cassi.solvers.statistics import UNSEEN, Statistics, root_mean_square, unit_of
from cassi.systems import SDCassi
from cassi.systems.base import System
from cassi.systems.grid import as_wide
from cassi.uncertainty.mask_shift import MaskShift, find_mask_shift, measure_shifted

_CHANGED = 0.02  # of the measurement: less is no other code
_AROUND = 13  # pixels, the side of the square of a local mean
_MOST = 0.75  # of the pixels


@dataclass(frozen=True)
class Probe:
    """What pixels held out, and noise drawn again, say of a method.

    Attributes:
        heldout: error of pixels that the method was not given, on the brightest lines, see
            `cassi.solvers.heldout.Lines`.
        missed: |residual| over the local root mean square of A·`repeated`, at pixels of the
            mirrored scene that the method was not given: the value that three quarters of them do
            not exceed. With noise it is large.
        response: how much the cube changes with noise, for each unit of that: both as root mean
            squares. 0 where there is none.
        mask_shift: where the mask seems to lie.
    """

    heldout: float
    missed: float
    response: float = 0.0
    mask_shift: MaskShift = field(default_factory=MaskShift)


@dataclass(frozen=True)
class BootstrapResult:
    """What is known of a reconstruction without the truth.

    Attributes:
        x: cube `(1, C, H, W)`.
        repeated: what the method makes of x itself, less x, `(1, C, H, W)`: an error whose truth is
            known. The method is given x mirrored, through the same camera, so that another part of
            the mask codes every pixel, with the residual of x as noise, its signs redrawn. Where
            the mask seems to lie elsewhere, that mask codes it, and the method is not told.
        residual: y − Ax, `(1, K, H', W')`.
        probed: what the brightest lines say.
    """

    x: Tensor
    repeated: Tensor
    residual: Tensor
    probed: Probe


@dataclass(frozen=True)
class Trial:
    """A measurement, its camera, and the method whose cube of it is judged.

    Attributes:
        y: measurement `(1, K, H', W')`.
        system: the camera.
        reconstructor: the method.
        statistics: of the whole measurement, those that the cube was made with: what the method
            found out about it then is not looked for again.
        seed: of what is drawn.
        wide: light comes in all wavelengths, so that bands of an `SDCassi` are as wide as their
            distance. The mirrored scene is coded so, and the method is not told.
        along: the cube along the dispersion that x was read from: then it is mirrored instead.
    """

    y: Tensor
    system: System
    reconstructor: Reconstructor
    statistics: Statistics | None = None
    seed: int = 0
    wide: bool = False
    along: Along | None = None

    def run(self, y: Tensor, system: System) -> Solution:
        """Return what the method makes of another measurement through another camera."""
        torch.manual_seed(self.seed)
        return self.reconstructor.run(y, system, statistics=self.statistics).checked()


@torch.no_grad()
def bootstrap(trial: Trial, x: Tensor, probed: Probe | None = None) -> BootstrapResult:
    """Look at a reconstruction x: one more of the whole scene, and one or two of a third of it.

    Where y is a part of a scene, `probed` is that of the whole scene.
    """
    system, seed = trial.system, trial.seed
    y = system.without_bad_pixels(trial.y)
    # What was measured: the cube, or that along the dispersion which it was read from.
    lit, seen = (x, system)
    if trial.along is not None:
        lit, seen = trial.along.x, trial.along.grid.camera(system)
    residual = y - seen(lit)
    mask_shift = find_mask_shift(y, lit, seen) if probed is None else probed.mask_shift
    axes = mirror_axes(lit, seen)
    random = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, residual.shape, generator=random).to(residual) * 2 - 1
    plain, mirror = system.plain, lit.flip(axes)
    again = measure_shifted(mirror, seen, mask_shift) + residual.flip(axes) * signs
    if trial.wide and trial.along is None and type(plain) is SDCassi and plain.band_width == 1:
        # By how much width changes any such camera.
        narrow = plain.like(photographed=False)
        again = again + as_wide(narrow)(mirror) - narrow(mirror)
    held = draw_heldout(y.shape[1:], SHARE, seed + 1).to(y.device)
    mirrored = trial.run(again, system.weighted(bad_pixels=held))
    repeated = mirrored.x.flip(axes) - x
    if probed is None:
        axis = system.part_axis or -2
        count = y.shape[axis]
        first, stop = brightest_lines(y, system, max(LEAST, int(LOOKED_AT * count)))
        noise = float(root_mean_square(residual))
        heldout, response = _probe(trial, (first, stop), noise, mask_shift)
        left = again - mirrored.measured(system)
        missed = _missed(left, system(repeated).flip(axes), held)
        probed = Probe(heldout, missed, response, mask_shift)
    return BootstrapResult(x, repeated, residual, probed)


def _missed(residual: Tensor, error: Tensor, held: Tensor) -> float:
    """Return `missed` of `Probe`, from what is left of y, the error of y, and the pixels."""
    unit = unit_of(error)
    residual, error = residual / unit, error / unit
    usual = avg_pool2d(error.square(), _AROUND, 1, _AROUND // 2, count_include_pad=False).sqrt()
    ratio = (residual.abs() / usual)[held & (usual > 0)]
    return float(ratio.quantile(_MOST)) if len(ratio) else 1.0


def _probe(
    trial: Trial, lines: tuple[int, int], noise: float, mask_shift: MaskShift
) -> tuple[float, float]:
    """Reconstruct some lines without some pixels; where there is noise, twice.

    The noise is the root mean square of the residual of the method's cube, in the unit of y.

    Returns:
        `heldout` and `response` of `Probe`.
    """
    whole = trial.system.without_bad_pixels(trial.y)
    size = float(root_mean_square(whole))
    system, y = _cut(trial.system, lines, whole)
    held = draw_heldout(y.shape[1:], SHARE, trial.seed).to(y.device)
    camera = system.weighted(bad_pixels=held)
    found = trial.run(y, camera)
    response = 0.0
    added = max(noise, mask_shift.change if mask_shift.is_significant else 0.0)
    if added > UNSEEN * size:
        random = torch.Generator().manual_seed(trial.seed + 2)
        noisy = y + added * torch.randn(y.shape, generator=random).to(y)
        response = float(root_mean_square(trial.run(noisy, camera).x - found.x)) / added
    error = Lines(y, system, held).misses(found.measured(system))
    return float(error.square().mean().sqrt()), response


def _cut(system: System, lines: tuple[int, int], y: Tensor) -> tuple[System, Tensor]:
    """Return camera and measurement of some lines; of all where none can be cut."""
    axis = system.part_axis
    if axis is None:
        return system, y
    first, stop = lines
    return system.part(first, stop), y.narrow(axis, first, stop - first)


def mirror_axes(x: Tensor, system: System) -> tuple[int, ...]:
    """Return along which axes a scene is mirrored: across the dispersion, if the mask changes so.

    With a mask that is its own mirror image, nothing would change; then along both.
    """
    across = system.part_axis or -2
    y, mirrored = system(x), system(x.flip(across)).flip(across)
    changed = float((y - mirrored).double().norm()) > _CHANGED * float(y.double().norm())
    return (across,) if changed else (-2, -1)
