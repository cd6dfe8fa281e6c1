"""Palettes of colour scales, interpolated between a few of their colours."""

from functools import cache

import numpy as np

# The first two are by Smith and van der Walt (CC0). The last, of ColorBrewer, is white in the
# middle: Brewer, Harrower and the Pennsylvania State University, Apache License 2.0.
_ANCHORS = {
    "viridis": "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c 1f9f88 27ad81 3dbc74"
    " 5cc863 81d34d aadc32 d5e21a fde725",
    "inferno": "000004 0b0724 210c4a 3d0965 57106e 71196e 8a226a a32c61 bc3754 d04545 e35933 f1711f"
    " f98c0a fcaa0f f9c932 f2e865 fcffa4",
    "blue_red": "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f",
}


@cache
def make_palette(name: str) -> np.ndarray:
    """Return the 256 colours of a palette, uint8 (256, 3), from its lowest to its highest end."""
    anchors = np.array([list(bytes.fromhex(color)) for color in _ANCHORS[name].split()])
    places = np.linspace(0, len(anchors) - 1, 256)
    channels = [np.interp(places, np.arange(len(anchors)), channel) for channel in anchors.T]
    return np.rint(np.stack(channels, axis=1)).astype(np.uint8)
