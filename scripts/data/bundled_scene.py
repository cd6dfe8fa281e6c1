"""Makes the bundled scene and mask: ``python -m scripts.data.bundled_scene --out data``.

A still life of test targets in daylight. Every surface is a mixture of pigments whose measured
reflectances come with colour-science (the 24 patches of the ColorChecker, average of 30 charts),
so every spectrum is physical, and the cube is

    x(λ, pixel) = E(λ) Σ_p a_p(pixel) R_p(λ) / max

with the light E (CIE D55), the reflectance R_p of pigment p, and its share times shading a_p.
The shares are drawn at 4×4 samples a pixel and averaged: edges are anti-aliased exactly.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tifffile
from scipy.ndimage import gaussian_filter, map_coordinates

from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS as WAVELENGTHS
from cassi.viz.color import rendering_matrix

SIZE, SAMPLES, SEED = 256, 4, 20240
FULL_SCALE = 1023  # 10 bits, as the CAVE files here: finer steps cost a megabyte
HORIZON = 158.0  # row where the table meets the wall, pixels
SUN = np.array([-0.55, -0.65, 0.62]) / np.linalg.norm([-0.55, -0.65, 0.62])  # right, down, towards

Mixture = Mapping[str, "np.ndarray | float"]


def load_reflectances() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Gives reflectances (28,) in [0, 1] by patch name, and the power (28,) of D55 to 560 nm's."""
    import colour

    chart = colour.SDS_COLOURCHECKERS["BabelColor Average"]
    names = {"white 9.5 (.05 D)": "white", "black 2 (1.5 D)": "black"}
    pigments = {
        names.get(name, name.split(" (")[0]): np.interp(WAVELENGTHS, sd.wavelengths, sd.values)
        for name, sd in chart.items()
    }
    pigments["mirror"] = np.ones(len(WAVELENGTHS))  # a highlight has the colour of the light
    daylight = colour.SDS_ILLUMINANTS["D55"]
    return pigments, np.interp(WAVELENGTHS, daylight.wavelengths, daylight.values) / 100


class Painting:
    """Shares of the named pigments, each (1024, 1024), painted over one another."""

    def __init__(self, pigments: list[str]) -> None:
        axis = (np.arange(SIZE * SAMPLES, dtype=np.float32) + 0.5) / SAMPLES
        self.x, self.y = np.meshgrid(axis, axis)  # pixels, right and down
        self.shares = {name: np.zeros_like(self.x) for name in pigments}

    def paint(self, where: np.ndarray, mixture: Mixture, shade: np.ndarray | float = 1.0) -> None:
        """Covers the samples ``where`` is true with a mixture, brightness ``shade``."""
        for name, share in self.shares.items():
            share[where] = 0.0
            if name in mixture:
                share[where] = np.broadcast_to(mixture[name] * shade, self.x.shape)[where]

    def darken(self, shadow: np.ndarray, softness: float, strength: float) -> None:
        """Casts a soft shadow of a shape (boolean), blurred by ``softness`` pixels."""
        blurred = gaussian_filter(shadow.astype(np.float32), softness * SAMPLES, truncate=3)
        self.dim(1 - strength * blurred)

    def dim(self, light: np.ndarray) -> None:
        """Multiplies everything painted so far by an illuminance."""
        for share in self.shares.values():
            share *= light

    def card(
        self, center: tuple[float, float], size: tuple[float, float], degrees: float, tilt: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Drops the shadow of a turned card; gives its area and coordinates u, v in pixels."""
        angle = np.deg2rad(degrees)
        right, down = self.x - center[0], self.y - center[1]
        depth = 1 + tilt * right  # the perspective of a card seen from one side
        u = (right * np.cos(angle) + down * np.sin(angle)) / depth
        v = (down * np.cos(angle) - right * np.sin(angle)) / depth
        area = inside(u, v, *size)
        self.darken(np.roll(area, (5 * SAMPLES, 5 * SAMPLES), (0, 1)), 2.5, 0.6)
        return area, u, v


def noise(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Samples smooth periodic noise of mean 0, deviation about 1, feature size about 2 units."""
    table = gaussian_filter(rng.standard_normal((256, 256)), 1.0, mode="wrap")
    table = (table / table.std()).astype(np.float32)
    return map_coordinates(table, [y % 256, x % 256], order=1, mode="grid-wrap")


def mix(share: np.ndarray, first: Mixture, second: Mixture) -> dict[str, np.ndarray]:
    """Mixes two mixtures, ``share`` in [0, 1] of the first."""
    mixed = {name: share * amount for name, amount in first.items()}
    for name, amount in second.items():
        mixed[name] = mixed.get(name, np.float32(0)) + (1 - share) * amount
    return mixed


def inside(u: np.ndarray, v: np.ndarray, width: float, height: float) -> np.ndarray:
    """Tells where a board of that size, its centre at (0, 0), is."""
    return (np.abs(u) <= width / 2) & (np.abs(v) <= height / 2)


def paint_wall(art: Painting, rng: np.random.Generator) -> None:
    """A hanging cloth, woven from two yarns, in soft folds."""
    x, y = art.x, art.y + 1.2 * np.sin(art.x / 19)
    period = 5.0  # pixels from yarn to yarn
    over = (np.floor(x / period) + np.floor(y / period)) % 2 == 0
    warp = np.abs(np.sin(np.pi * x / period)) ** 0.7
    weft = np.abs(np.sin(np.pi * y / period)) ** 0.7
    yarn = 0.8 + 0.2 * np.where(over, warp, weft)
    folds = 0.80 + 0.13 * np.sin(x / 17 + 0.9 * np.sin(x / 41)) + 0.05 * noise(rng, x / 22, y / 90)
    wear = np.clip(0.5 + 0.13 * noise(rng, x / 6, y / 6), 0, 1)
    first = {"blue sky": 0.14, "bluish green": 0.05, "black": 0.55}
    second = {"neutral 5": 0.13, "cyan": 0.1, "black": 0.5}
    mixture = mix(np.where(over, 0.25 + wear, wear - 0.25).clip(0, 1), first, second)
    art.paint(np.ones_like(over), mixture, yarn * folds)


def paint_table(art: Painting, rng: np.random.Generator) -> None:
    """Wooden planks that run towards the horizon, the grain mixing two pigments."""
    below = art.y - HORIZON
    depth = 90 / (np.maximum(below, 0) + 55)
    u, z = (art.x - 118) * depth, 60 * depth
    plank = np.floor(u / 34)
    grain = noise(rng, u / 1.6 + 37 * plank, z / 16 + 11 * plank)
    rings = np.sin(0.55 * u + 2.2 * noise(rng, u / 14 + 53 * plank, z / 30) + 2 * plank)
    light = np.clip(0.55 + 0.13 * grain + 0.17 * rings + 0.1 * np.sin(5.1 * plank), 0, 1)
    pale = {"light skin": 0.1, "orange yellow": 0.14, "dark skin": 0.5}
    dark = {"dark skin": 0.5, "orange": 0.08}
    joint = np.abs(u / 34 - np.round(u / 34)) * 34 < 0.5
    shade = np.where(joint, 0.25, 0.9) * (1 - 0.5 * np.exp(-np.maximum(below, 0) / 5))
    art.paint(below > 0, mix(light, pale, dark), shade)
    art.darken((below > -3) & (below < 1), 2.5, 0.4)


def paint_chart(art: Painting) -> None:
    """The ColorChecker: 6×4 patches on black, seen a little from the left."""
    pitch, patch = 23.0, 18.6
    card, u, v = art.card((92, 77), (6 * pitch + 6, 4 * pitch + 6), -6, 0.0006)
    art.paint(card, {"black": 0.5})
    for index, name in enumerate(name for name in art.shares if name != "mirror"):
        row, column = divmod(index, 6)
        du, dv = u - (column - 2.5) * pitch, v - (row - 1.5) * pitch
        art.paint(inside(du, dv, patch, patch), {name: 1.0})


def paint_star(art: Painting) -> None:
    """A grey card with a Siemens star and bars of 12 to 4 pixels a pair."""
    card, u, v = art.card((213, 80), (70, 116), 4, 0.0)
    art.paint(card, {"neutral 6.5": 0.9})
    black = {"black": 0.9}
    radius, angle = np.hypot(u, v + 22), np.arctan2(v + 22, u)
    art.paint((radius < 30) & (np.sin(8 * angle) > 0), black)
    art.paint(np.abs(radius - 31) < 0.6, black)
    left = -30.0
    for pair in (12.0, 8.0, 5.0, 4.0):
        across, length = u - left, 1.5 * pair  # two bars and a gap
        inner = (across >= 0) & (across < length)
        art.paint(inner & (v > 15) & (v < 31) & (across % pair < pair / 2), black)
        down = v - 35
        art.paint(inner & (down >= 0) & (down < length) & (down % pair < pair / 2), black)
        left += length + 5


def paint_box(art: Painting, pigments: dict[str, np.ndarray], light: np.ndarray) -> None:
    """A grey box with a disc of the same colour to the eye, but of another spectrum."""
    eye = rendering_matrix(WAVELENGTHS) * light
    inks = ("red", "green", "cyan")  # of all such triples, the furthest from grey
    seen = eye @ np.stack([pigments[ink] for ink in inks], axis=1)
    amounts = np.linalg.solve(seen, eye @ pigments["white"])
    grey = 1 / amounts.sum()
    half = 21.0
    u, v = art.x - 222, art.y - 197
    ahead, aside = -half - v, -half - u  # above the front face, and to the left of it
    art.darken((u > 0) & (u < half + 26) & (np.abs(v - half + 7) < 7), 2.5, 0.7)
    art.darken(np.abs(v - half) + np.maximum(np.abs(u) - half, 0) < 2, 1.0, 0.6)
    art.paint((ahead >= 0) & (ahead < 9) & (np.abs(u + 0.9 * ahead) <= half), {"white": 1.5 * grey})
    side = (aside >= 0) & (aside < 8.1) & (np.abs(v + aside / 0.9) <= half)
    art.paint(side, {"white": 0.6 * grey})
    art.paint(inside(u, v, 2 * half, 2 * half), {"white": grey})
    art.paint(np.hypot(u, v) < 15, dict(zip(inks, grey * amounts, strict=True)))


def paint_ball(
    art: Painting, x: float, y: float, radius: float, colors: tuple[str, ...], gloss: float
) -> None:
    """A sphere, Lambertian with a highlight, in one colour or in slices of several."""
    right, down = (art.x - x) / radius, (art.y - y) / radius
    flat = ((right - 0.6) / 1.3) ** 2 + ((down - 0.84) / 0.36) ** 2 < 1
    art.darken(flat & (art.y > HORIZON), 0.1 * radius, 0.8)
    disc = right**2 + down**2 <= 1
    towards = np.sqrt(np.maximum(1 - right**2 - down**2, 0))
    lit = right * SUN[0] + down * SUN[1] + towards * SUN[2]
    shade = 0.13 + 0.10 * np.maximum(down, 0) + 0.85 * np.maximum(lit, 0)
    # Slices meet at a pole that looks up, to the left and at the camera.
    pole = np.array([-0.25, -0.75, 0.61])
    side = np.cross(pole, [1.0, 0.0, 0.0])
    normal = np.stack([right, down, towards], axis=-1)
    turn = np.arctan2(normal @ side, normal @ np.cross(side, pole))
    part = np.floor(turn / (2 * np.pi) * 8 + 0.3).astype(int) % len(colors)
    half = SUN + np.array([0.0, 0.0, 1.0])  # Blinn: between the light and the camera
    half /= np.linalg.norm(half)
    shine = np.maximum(right * half[0] + down * half[1] + towards * half[2], 0) ** 150
    for index, color in enumerate(colors):
        art.paint(disc & (part == index), {color: shade, "mirror": gloss * shine})


def paint_strip(art: Painting) -> None:
    """A strip on the table that goes smoothly from one pigment to another, with a scale."""
    u, v = art.x - 118, art.y - 244
    art.darken(inside(u - 2, v - 2, 204, 15), 1.0, 0.5)
    art.paint(inside(u, v, 204, 15), {"black": 0.8})
    ramp = mix(np.clip(u / 196 + 0.5, 0, 1), {"orange yellow": 1.0}, {"purplish blue": 1.0})
    art.paint(inside(u, v + 1.5, 198, 9), ramp, 0.8)
    tick = np.abs(u / 9.8 - np.round(u / 9.8)) * 9.8 < 0.6
    art.paint(tick & (v > 4) & (v < 6.5) & (np.abs(u) < 99), {"neutral 5": 1.0})


def make_scene() -> np.ndarray:
    """Paints the scene: radiance (28, 256, 256), float64 in [0, 1], maximum 1."""
    rng = np.random.default_rng(SEED)
    pigments, light = load_reflectances()
    art = Painting(list(pigments))
    paint_wall(art, rng)
    paint_table(art, rng)
    paint_chart(art)
    paint_star(art)
    paint_box(art, pigments, light)
    paint_ball(art, 52, 186, 33, ("red",), 0.45)
    paint_ball(art, 122, 191, 29, ("yellow", "blue", "white", "green"), 0.35)
    paint_ball(art, 171, 207, 18, ("magenta",), 0.5)
    paint_ball(art, 87, 216, 11, ("orange",), 0.5)
    paint_strip(art)
    art.dim(1.08 - 0.42 * np.hypot(art.x - 60, 0.8 * (art.y - 40)) / SIZE)
    shape = (SIZE, SAMPLES, SIZE, SAMPLES)
    shares = np.stack([share.reshape(shape).mean(axis=(1, 3)) for share in art.shares.values()])
    spectra = np.stack(list(pigments.values())) * light
    cube = np.einsum("pc,phw->chw", spectra, shares.astype(np.float64))
    return cube / cube.max()


def make_mask() -> np.ndarray:
    """Draws a mask as a relay lens shows it: half the pixels open, edges soft, none quite dark.

    Returns:
        Transmission (256, 256), 0.02 to 0.98.
    """
    pattern = np.random.default_rng(SEED + 1).random((SIZE, SIZE)) < 0.5
    soft = gaussian_filter(pattern.astype(np.float64), 0.45, mode="reflect")
    return 0.02 + 0.96 * soft


def write_tiff(path: Path, pages: np.ndarray, description: dict[str, object]) -> None:
    """Writes compressed pages without a date or version: the same pages give the same bytes."""
    partial = path.with_name(path.name + ".tmp")
    tifffile.imwrite(
        partial,
        pages,
        photometric="minisblack",
        rowsperstrip=pages.shape[-2],
        compression="zlib",
        compressionargs={"level": 9},
        predictor=True,
        description=json.dumps(description),
        metadata=None,
        software=False,
    )
    partial.replace(path)


def main() -> None:
    """Writes ``scene.tif`` and ``mask.tif``."""
    parser = argparse.ArgumentParser(description="Make the bundled scene and mask.")
    parser.add_argument("--out", type=Path, default=Path("data"), help="folder to write into")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    scene = np.rint(make_scene() * FULL_SCALE).astype(np.uint16)
    about: dict[str, object] = {"shape": list(scene.shape), "axes": "CYX", "scene": "still life"}
    about |= {"wavelengths_nm": list(WAVELENGTHS), "full_scale": FULL_SCALE}
    write_tiff(out / "scene.tif", scene, about)
    mask = np.rint(make_mask() * 255).astype(np.uint8)
    about = {"shape": list(mask.shape), "axes": "YX", "full_scale": 255}
    write_tiff(out / "mask.tif", mask, about)


if __name__ == "__main__":
    main()
