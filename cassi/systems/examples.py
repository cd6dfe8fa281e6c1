"""Small instances of every system, at odd sizes: the list that drives the operator tests."""

from collections.abc import Callable

import torch

from cassi.systems.base import System
from cassi.systems.blurred import BlurredCassi
from cassi.systems.dd_cassi import DDCassi
from cassi.systems.guide import Guide, Guided
from cassi.systems.mask_patterns import ColourMask, Complementary, HoleMask, RandomMask
from cassi.systems.mosaic import MosaicCassi
from cassi.systems.psf import PsfCassi, TurningPsf
from cassi.systems.sd_cassi import SDCassi
from cassi.systems.stacked import Stacked
from cassi.systems.tilted import TiltedCassi
from cassi.systems.warped import WarpedCassi


def _draw_grey(*shape: int) -> torch.Tensor:  # transmissions 0 to 1
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _draw_binary(*shape: int) -> torch.Tensor:
    return (_draw_grey(*shape) > 0.5).double()


def _draw_bright(*shape: int) -> torch.Tensor:
    # No pixel is dark, so that conjugate gradients reach the tests' tolerance.
    return 0.4 + 0.6 * _draw_grey(*shape)


def _draw_kernel(*shape: int) -> torch.Tensor:
    kernel = 0.1 * _draw_grey(*shape)
    kernel[..., shape[-1] // 2] += 0.6
    return kernel


EXAMPLES: dict[str, Callable[[], System]] = {
    "sd": lambda: SDCassi(_draw_grey(7, 9), bands=5, step=2),
    "sd_negative": lambda: SDCassi(_draw_grey(5, 8), bands=4, step=-3),
    "sd_step_zero": lambda: SDCassi(_draw_grey(6, 5), bands=3, step=0),
    "sd_gaps": lambda: SDCassi(_draw_grey(4, 3), bands=3, step=5),
    "sd_one_band": lambda: SDCassi(_draw_grey(3, 4), bands=1, step=2),
    "sd_one_pixel": lambda: SDCassi(_draw_grey(1, 1), bands=4, step=1),
    "sd_rows": lambda: SDCassi(_draw_grey(7, 4), bands=3, step=-2, axis=-2),
    "sd_binary": lambda: SDCassi(_draw_binary(9, 7), bands=3, step=1),
    "sd_mask_per_band": lambda: SDCassi(_draw_grey(4, 6, 5), bands=4, step=1),
    "sd_two_shots": lambda: SDCassi(_draw_grey(2, 1, 5, 6), bands=6, step=1),
    "sd_three_shots_rows": lambda: SDCassi(_draw_grey(3, 4, 6, 5), bands=4, step=-1, axis=-2),
    "sd_equal_shots": lambda: SDCassi(
        _draw_grey(1, 1, 4, 5).expand(2, -1, -1, -1), bands=3, step=1
    ),
    "sd_offsets": lambda: SDCassi(_draw_grey(5, 7), bands=4, offsets=[0.0, 1.3, 2.9, 4.25]),
    "sd_offsets_falling": lambda: SDCassi(
        _draw_grey(4, 5, 6), bands=4, offsets=[5.5, 4.0, 1.75, 0.2]
    ),
    "sd_offsets_rows": lambda: SDCassi(_draw_grey(6, 5), bands=3, offsets=[0.5, 2.5, 4.5], axis=-2),
    "sd_offsets_whole": lambda: SDCassi(_draw_grey(2, 1, 5, 6), bands=4, offsets=[0, 1, 3, 4]),
    "sd_offsets_detector": lambda: SDCassi(
        _draw_grey(5, 7), bands=3, offsets=[-1.25, 0.5, 2.75], detector=8
    ),
    "sd_offsets_two_shots": lambda: SDCassi(
        _draw_grey(2, 1, 4, 9), bands=5, offsets=[0.0, 0.6, 1.3, 1.9, 2.4]
    ),
    "sd_offsets_three_shots_rows": lambda: SDCassi(
        _draw_grey(3, 4, 9, 5), bands=4, offsets=[1.8, 1.1, 0.7, 0.0], axis=-2
    ),
    "wide": lambda: SDCassi(_draw_bright(5, 9), bands=4, step=2, band_width=2),
    "wide_rows": lambda: SDCassi(_draw_bright(9, 5), bands=3, step=-2, axis=-2, band_width=1.6),
    "wide_offsets": lambda: SDCassi(
        _draw_bright(5, 7), bands=4, offsets=[-0.4, 1.3, 2.9, 4.25], detector=12, band_width=1.55
    ),
    "wide_two_shots": lambda: SDCassi(
        _draw_bright(2, 1, 4, 9), bands=6, offsets=[-2, -1, 0, 1, 2, 3], detector=9, band_width=2
    ),
    "measured_mask": lambda: SDCassi(
        _draw_grey(5, 7), 4, offsets=[0.0, 1.3, 2.9, 4.25], measured_mask=True
    ),
    "measured_mask_rows": lambda: SDCassi(
        _draw_grey(3, 4, 9, 5),
        4,
        axis=-2,
        offsets=[1.8, 1.1, 0.7, -0.25],
        detector=10,
        measured_mask=True,
    ),
    "dd": lambda: DDCassi(_draw_grey(5, 15), bands=5, step=2, width=7),
    "dd_repeated": lambda: DDCassi(_draw_grey(5, 7), bands=4, step=-3),
    "dd_rows_three_shots": lambda: DDCassi(
        _draw_grey(3, 1, 9, 5), bands=3, step=1, axis=-2, width=7
    ),
    "dd_mask_per_band": lambda: DDCassi(_draw_grey(2, 3, 4, 9), bands=3, step=-2, width=5),
    "dd_offsets": lambda: DDCassi(_draw_grey(4, 9), bands=3, offsets=[0.0, 1.25, 3.5], width=5),
    "blurred": lambda: BlurredCassi(
        _draw_bright(7, 9), bands=5, step=2, point_spread=0.4, line_spread=0.4
    ),
    "blurred_rows": lambda: BlurredCassi(
        _draw_bright(9, 5), bands=3, step=-2, axis=-2, line_spread=[0.3, 0.4, 0.5]
    ),
    "blurred_kernels": lambda: BlurredCassi(
        _draw_bright(4, 5, 8),
        bands=4,
        step=-1,
        point_spread=_draw_kernel(1, 5),
        line_spread=_draw_kernel(4, 3),
    ),
    "blurred_array": lambda: BlurredCassi(
        _draw_bright(6, 7),
        bands=3,
        step=1,
        point_spread=torch.eye(3).double() * 0.2 + _draw_kernel(3, 3) / 9,
    ),
    "blurred_binary": lambda: BlurredCassi(_draw_binary(7, 9), bands=4, step=1, point_spread=0.4),
    "blurred_three_shots": lambda: BlurredCassi(
        _draw_grey(3, 6, 5, 6), bands=6, step=0, point_spread=0.4, iterations=1000
    ),
    "blurred_offsets": lambda: BlurredCassi(
        _draw_bright(5, 6), bands=3, offsets=[0.0, 1.3, 2.9], line_spread=0.3
    ),
    "blurred_detector": lambda: BlurredCassi(
        _draw_grey(2, 6, 5, 6), bands=6, step=0, detector_spread=0.4, iterations=1000
    ),
    "blurred_detector_array": lambda: BlurredCassi(
        _draw_bright(7, 6),
        bands=3,
        axis=-2,
        detector_spread=torch.eye(3).double() * 0.1 + _draw_kernel(3, 3) / 9,
    ),
    "tilted": lambda: TiltedCassi(
        _draw_bright(7, 9), bands=5, step=2, across=[0, -0.1, -0.2, 0.3, 0.4]
    ),
    "tilted_rows": lambda: TiltedCassi(
        _draw_bright(9, 6), 3, axis=-2, offsets=[0.2, 1.7, 3.4], across=[0.2, 0.0, -0.3]
    ),
    "tilted_mask_per_band": lambda: TiltedCassi(
        _draw_bright(4, 6, 7), bands=4, step=-1, across=[1.1, 0.2, 0.0, -0.1]
    ),
    "tilted_two_shots": lambda: TiltedCassi(
        _draw_grey(2, 6, 6, 5),
        bands=6,
        offsets=[0, 0.3, 0.6, 1.3, 1.9, 2.2],
        across=0.2,
        iterations=1000,
    ),
    "warped": lambda: WarpedCassi(
        _draw_bright(7, 9), bands=5, step=2, rotation=1.5, smile=0.3, keystone=-0.2
    ),
    "warped_rows": lambda: WarpedCassi(
        _draw_bright(9, 6), 3, step=-1, axis=-2, smile=[0.4, 0.3, 0.2], magnification=[1.1, 1, 0.9]
    ),
    "warped_free": lambda: WarpedCassi(
        _draw_bright(4, 6, 7),
        bands=4,
        step=1,
        polynomial=0.2 * _draw_grey(4, 2, 2, 2) - 0.1,
        displacement=0.2 * _draw_grey(2, 6, 10) - 0.1,
    ),
    "warped_three_shots": lambda: WarpedCassi(
        _draw_grey(3, 6, 6, 5), bands=6, step=0, smile=0.4, iterations=1000
    ),
    "bayer": lambda: MosaicCassi(_draw_grey(7, 9), 5, step=2, pattern="RGGB"),
    "bayer_rows": lambda: MosaicCassi(_draw_grey(7, 4), 3, step=-2, axis=-2, pattern="GBRG"),
    "mosaic_4x4": lambda: MosaicCassi(_draw_grey(9, 10), 6, pattern=4),
    "mosaic_5x5": lambda: MosaicCassi(
        _draw_grey(7, 11), 7, pattern=5, response=_draw_bright(25, 7)
    ),
    "mosaic_offsets": lambda: MosaicCassi(
        _draw_grey(2, 1, 5, 6),
        4,
        offsets=[0, 2, 3, 7],
        pattern=[[0, 1]],
        response=_draw_bright(2, 4),
    ),
    "colour_aperture": lambda: SDCassi(ColourMask(seed=1).draw(6, 7, 5).double(), 5, step=1),
    "hole_grid": lambda: SDCassi(HoleMask(rows=2).draw(6, 9, 4).double(), 4, step=1),
    "complementary": lambda: SDCassi(
        Complementary(RandomMask(kind="grey")).draw(5, 6).double(), 6, step=1
    ),
    "psf": lambda: PsfCassi(_draw_bright(7, 9), 4, kernels=TurningPsf(length=2)),
    "psf_open": lambda: PsfCassi(_draw_bright(1, 6, 7).ceil(), 4, kernels=_draw_kernel(3, 5)),
    "psf_filters": lambda: PsfCassi(_draw_bright(4, 5, 6), 4, kernels=TurningPsf(length=1)),
    "psf_rows": lambda: PsfCassi(
        _draw_bright(4, 6, 5), 4, step=-1, axis=-2, kernels=_draw_kernel(4, 3, 5)
    ),
    "psf_wide": lambda: PsfCassi(
        _draw_bright(5, 6), 6, kernels=_draw_kernel(6, 11, 13), iterations=1000
    ),
    "guide": lambda: Guide(_draw_bright(2, 4), size=(5, 6)),
    "guided": lambda: Guided(
        SDCassi(_draw_grey(4, 6), 3, step=1), _draw_bright(1, 4, 6), _draw_bright(3)
    ),
    "stacked_pan": lambda: Stacked(
        [SDCassi(_draw_bright(5, 7), 6, step=1), Guide(_draw_bright(6))]
    ),
    "stacked_two": lambda: Stacked(
        [Guide(_draw_grey(2, 7)), SDCassi(_draw_bright(6, 4), 7, step=-1, axis=-2)]
    ),
    "stacked_blurred": lambda: Stacked(
        [BlurredCassi(_draw_bright(5, 6), 6, step=1, point_spread=0.4), Guide(_draw_bright(6))]
    ),
}
"""Name → maker of a float64 system on the CPU."""
