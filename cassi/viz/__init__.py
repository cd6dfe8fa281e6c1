"""Pictures of cubes: sRGB renderings, band montages, spectra and answers, written as PNG files."""

from cassi.viz.answers import save_answer
from cassi.viz.bands import save_bands, save_uncertainty
from cassi.viz.color import band_colors, exposure_of, srgb
from cassi.viz.points import choose_points
from cassi.viz.rgb import save_rgb
from cassi.viz.spectra import draw_spectra, save_spectra

__all__ = [
    "band_colors",
    "choose_points",
    "draw_spectra",
    "exposure_of",
    "save_answer",
    "save_bands",
    "save_rgb",
    "save_spectra",
    "save_uncertainty",
    "srgb",
]
