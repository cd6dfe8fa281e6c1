"""Draw the pictures of docs/gallery.

Those of the bundled scene need nothing. Those of KAIST snapshots and of captures by two real
cameras are drawn where $CASSI_DATA has the data, else left as they are. Prints each picture and
its size. On two cores the bundled ones take a minute, all of them a quarter of an hour.

    python -m scripts.docs.gallery                  # all that can be drawn
    python -m scripts.docs.gallery methods bands    # some
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import cassi
from cassi.apps.evaluate.problems import find_cases, load_benchmark, preparation
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Evaluate
from cassi.data.bundled import bundled_path
from cassi.data.io import load_cube
from cassi.systems.masks import move_mask
from cassi.uncertainty.error_model import NORMAL
from cassi.viz import choose_points, exposure_of, save_bands, srgb
from cassi.viz.color import cie_response
from scripts.benchmarks.lab import SUBPIXELS, Lab
from scripts.benchmarks.spectral_video import WAVELENGTHS, first_sequence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "gallery"
Panel = tuple[str, np.ndarray]  # title, picture


def picture_row(panels: Sequence[Panel], columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """Lay out pictures side by side, each as wide as it is."""
    rows = -(-len(panels) // columns)
    shape = panels[0][1].shape
    size = (columns * height * shape[1] / shape[0], rows * (height + 0.25))
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    axes: list[Axes] = list(grid.flat)
    for place, (title, picture) in zip(axes, panels, strict=False):
        place.imshow(picture, cmap="gray", interpolation="nearest")
        place.set_title(title, fontsize=9)
    for place in axes:
        place.axis("off")
    return figure, axes


def save(figure: Figure, name: str) -> None:
    """Write a figure as a JPEG of docs/gallery."""
    figure.savefig(FOLDER / name, dpi=110, pil_kwargs={"quality": 85})
    plt.close(figure)


@cache
def bundled() -> tuple[torch.Tensor, torch.Tensor, list[float]]:
    """Return the bundled scene `(1, C, H, W)`, its mask and its wavelengths in nm."""
    scene = load_cube(bundled_path("scene.tif"))
    assert scene.wavelengths is not None
    return scene.data, cassi.read_mask(bundled_path("mask.tif")), list(scene.wavelengths)


@cache
def camera() -> cassi.SDCassi:
    """Return the camera of the benchmarks, with the bundled mask."""
    return cassi.SDCassi(bundled()[1], bands=28, step=2)


def in_colour(cube: torch.Tensor) -> np.ndarray:
    """Render a cube of the bundled scene with the exposure of the truth."""
    truth, _, wavelengths = bundled()
    exposure = exposure_of(truth[0], wavelengths, illuminant=None)
    return srgb(cube[0], wavelengths, illuminant=None, exposure=exposure)


def draw_formation() -> None:
    """Scene, mask, one coded band, snapshot."""
    truth, mask, wavelengths = bundled()
    y = camera()(truth)[0, 0].numpy()
    wide = np.zeros_like(y)
    wide[:, 28:284] = (mask[0, 0] * truth[0, 14]).numpy()
    padded = np.full((*y.shape, 3), 255, np.uint8)
    padded[:, :256] = in_colour(truth)
    shown = np.ones_like(y)
    shown[:, :256] = mask[0, 0]
    panels = [
        ("scene", padded),
        ("mask", shown),
        (f"{wavelengths[14]:.0f} nm, coded and moved", wide ** (1 / 2.2)),
        ("sum of 28 bands: the snapshot", (y / y.max()) ** (1 / 2.2)),
    ]
    save(picture_row(panels, 4, 2.2)[0], "formation.jpg")


def draw_inverses() -> None:
    """What the two inverses in closed form make of a snapshot, and what a prior adds."""
    truth, mask, _ = bundled()
    y = camera()(truth)
    cubes = {
        "truth": truth,
        "ratio_inverse": cassi.ops.ratio_inverse(y, mask, 28, 2),
        "pinv": camera().pinv(y),
        "auto": cassi.reconstruct(y, camera()),
    }
    panels = [(_scored(name, cube), in_colour(cube)) for name, cube in cubes.items()]
    save(picture_row(panels, 4, 2.4)[0], "inverses.jpg")


def draw_methods() -> None:
    """Methods without training: colours, and spectra at two points."""
    truth, _, wavelengths = bundled()
    y = camera()(truth)
    gap_tv = cassi.solve(
        y, camera(), algorithm=cassi.GAP(), prior=cassi.TV(iterations=8), iterations=100
    )
    cubes = {"truth": truth, "GAP-TV": gap_tv, "auto": cassi.reconstruct(y, camera())}
    panels = [(_scored(name, cube), in_colour(cube)) for name, cube in cubes.items()]
    blank = np.full((256, 256, 3), 255, np.uint8)
    figure, axes = picture_row([*panels, ("", blank), ("", blank)], 5, 2.2)
    for number, (axis, (row, column)) in enumerate(
        zip(axes[3:5], choose_points(truth[0], 2), strict=True), start=1
    ):
        axis.clear()
        axis.set(aspect="auto", box_aspect=0.8)
        axis.set_axis_on()
        for name, cube in cubes.items():
            line = "k--" if name == "truth" else "-"
            axis.plot(wavelengths, cube[0, :, row, column], line, label=name)
        axis.set_title(f"spectrum at {number}", fontsize=9)
        axis.tick_params(labelsize=7)
        axes[0].plot(column, row, "wo", mfc="none")
        axes[0].annotate(f" {number}", (column, row), color="white")
    axes[3].legend(fontsize=7)
    save(figure, "methods.jpg")


def draw_noise() -> None:
    """The default under white noise."""
    truth = bundled()[0]
    y = camera()(truth)
    draws = torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    panels = []
    for decibels in (None, 30, 20):
        level = 0.0 if decibels is None else 10 ** (-decibels / 20)
        cube = cassi.reconstruct(y + level * y.square().mean().sqrt() * draws, camera())
        name = "no noise" if decibels is None else f"{decibels} dB"
        panels.append((_scored(name, cube), in_colour(cube)))
    save(picture_row(panels, 3, 2.8)[0], "noise.jpg")


def draw_mistakes() -> None:
    """What a camera that is wrong in one way makes of a snapshot with shot noise."""
    truth, mask, _ = bundled()
    y = cassi.simulate(truth, camera(), noise="shot")
    dead = torch.rand(y.shape[1:], generator=torch.Generator().manual_seed(0)) < 0.005
    moved = move_mask(mask, (0.4, -0.3), 0.0)
    cases = {
        "right": (y, camera()),
        "wrong direction": (y, cassi.SDCassi(mask, bands=28, step=-2)),
        "mask upside down": (y, cassi.SDCassi(mask.flip(-2), bands=28, step=2)),
        "mask off (0.4, −0.3) px": (y, cassi.SDCassi(moved, bands=28, step=2)),
        "dark level left in": (y + 0.1 * y.amax(), camera()),
        "dead pixels as light": (torch.where(dead, 0, y), camera()),
        "bad_pixels=FILE": (y, camera().weighted(bad_pixels=dead)),
    }
    panels = [("truth", in_colour(truth))]
    for name, (frame, system) in cases.items():
        cube = cassi.reconstruct(frame, system, align=False)
        panels.append((_scored(name, cube), in_colour(cube)))
    save(picture_row(panels, 4, 2.6)[0], "mistakes.jpg")


def draw_guide() -> None:
    """A part of the scene, without a guide and with two."""
    truth, _, wavelengths = bundled()
    y, curves = camera()(truth), torch.from_numpy(cie_response(np.asarray(wavelengths)))
    cubes = {"truth": truth, "no guide": cassi.reconstruct(y, camera())}
    random = torch.Generator().manual_seed(0)
    for name, response in (("panchromatic", torch.ones(1, 28) / 28), ("RGB", curves)):
        picture = cassi.Guide(response, (256, 256))(truth)
        size = picture.square().mean((2, 3), keepdim=True).sqrt()
        picture = picture + 0.01 * size * torch.randn(picture.shape, generator=random)
        cubes[f"{name} guide"] = cassi.reconstruct(y, camera(), guide=(picture, response))
    part = slice(72, 184)
    panels = [(_scored(name, cube), in_colour(cube)[part, part]) for name, cube in cubes.items()]
    save(picture_row(panels, 4, 2.6)[0], "guide.jpg")


def draw_bench() -> None:
    """The bench of its guide: frames, reflectances, and spectra with error bars."""
    lab = Lab.draw(2)
    with tempfile.TemporaryDirectory() as bench:
        filters = lab.filter_options(Path(bench))
        for words in (
            ("scripts.benchmarks.lab", bench),
            (
                *("cassi", "calibrate", *filters, f"white={bench}/white.png"),
                f"hydra.run.dir={bench}/camera",
            ),
            (
                *("cassi", "reconstruct", f"camera={bench}/camera/camera.yaml"),
                *(f"measurement={bench}/frame.png", "output.unit=reflectance"),
                *("uncertainty=true", f"hydra.run.dir={bench}/result"),
            ),
        ):
            command = [sys.executable, "-m", *words]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        names = {"a snapshot": "frame", "white, 550 nm": "filter_550", "white": "white"}
        panels: list[Panel] = []
        for title, name in names.items():
            with Image.open(Path(bench, f"{name}.png")) as picture:
                frame = np.asarray(picture).astype(float)
            panels.append((title, np.minimum(frame / np.quantile(frame, 0.999), 1)))
        cube, bars = (load_cube(Path(bench, "result", f"{n}.tif")) for n in ("cube", "uncertainty"))
    assert cube.wavelengths is not None
    panels += [("reflectance", srgb(cube.data[0], cube.wavelengths)), ("", panels[0][1])]
    figure, axes = picture_row(panels, 5, 2.6)
    axes[4].clear()
    axes[4].set(title="reflectance, 90 %", box_aspect=1, aspect="auto")
    axes[4].set_axis_on()
    truth, _, known = bundled()
    fine = SUBPIXELS / max(
        SUBPIXELS * a / b for a, b in zip(lab.shape, truth.shape[-2:], strict=True)
    )
    for number, (row, column) in enumerate(choose_points(cube.data[0], 2)):
        x, error = (each.data[0, :, row, column].numpy() for each in (cube, bars))
        there = truth[0, :, int((column + 0.5) * fine), int((row + 0.5) * fine)].numpy()
        there = np.interp(cube.wavelengths, known, there)
        axes[4].plot(cube.wavelengths, there * (there @ x) / (there @ there), f"C{number}--")
        axes[4].fill_between(
            cube.wavelengths, x - NORMAL * error, x + NORMAL * error, color=f"C{number}", alpha=0.4
        )
        axes[3].plot(column, row, f"C{number}o", mfc="none")
    axes[4].tick_params(labelsize=7)
    save(figure, "bench.jpg")


def draw_bands() -> None:
    """All bands of a reconstruction."""
    truth, _, wavelengths = bundled()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bands.png")
        save_bands(path, cassi.reconstruct(camera()(truth), camera())[0], wavelengths)
        with Image.open(path) as picture:
            small = picture.convert("RGB").resize((picture.width * 2 // 3, picture.height * 2 // 3))
    small.save(FOLDER / "bands.jpg", quality=82)


def draw_presets() -> None:
    """The instruments of `benchmark=instruments`: the measurement above, its cube below."""
    settings = compose_settings(["benchmark=instruments"], kind=Evaluate)
    points, benchmark = find_cases(settings), load_benchmark(settings)
    prepare = preparation(points, benchmark, torch.device("cpu"))
    problems = [prepare(point, benchmark.scenes[0]) for point in points]
    frames = [problem.y[0].mean(0).numpy() for problem in problems]
    panels = [(name, (y / y.max()) ** (1 / 2.2)) for name, y in zip(points, frames, strict=True)]
    panels += [("", in_colour(cassi.reconstruct(p.y, p.system))) for p in problems]
    save(picture_row(panels, len(points), 1.6)[0], "presets.jpg")


def draw_snapshots(name: str) -> None:
    """Real snapshots, by one method or several, one below the other."""
    _, experiment, scenes, height, methods = SNAPSHOTS[name]
    real = name in ("tsa", "smem")
    shown = slice(None, None, 2 if real else 1)
    panels = [
        (f"{scene}{title}", _command(experiment, scene, *options)[shown, shown])
        for title, options in methods.items()
        for scene in scenes
    ]
    columns = len(scenes) if real else min(5, len(panels))
    save(picture_row(panels, columns, height)[0], f"{name}.jpg")


def draw_video() -> None:
    """A sequence of spectral video: truth, frame by frame, as a sequence.

    Below is eight times the error of the cube, as the root mean square over bands.
    """
    truth, system = first_sequence()
    method = cassi.methods.auto()
    following = cassi.methods.Sequence(method).begin()
    exposure = exposure_of(truth[0].numpy(), WAVELENGTHS)
    pages = []
    for x in truth:
        y = system(x[None])
        cubes = [x, method.run(y, system).x[0], following.run(y, system).x[0]]
        pictures = [srgb(cube.numpy(), WAVELENGTHS, exposure=exposure) for cube in cubes]
        errors = [(cube - x).square().mean(0).sqrt().numpy() for cube in cubes]
        shown = [(2040 * error).clip(0, 255).astype(np.uint8) for error in errors]
        grey = [np.repeat(each[..., None], 3, 2) for each in shown]
        page = np.concatenate([np.concatenate(pictures, 1), np.concatenate(grey, 1)])
        pages.append(Image.fromarray(page).resize((576, 384), Image.Resampling.LANCZOS))
    several = Image.fromarray(np.concatenate([np.asarray(page) for page in pages[::5]]))
    palette = several.quantize(64, kmeans=2)  # one for all pages, so that nothing flickers
    first, *others = (page.quantize(palette=palette, dither=Image.Dither.NONE) for page in pages)
    file = FOLDER / "spectral_video.gif"
    first.save(file, save_all=True, append_images=others, duration=250, loop=0)


def _scored(name: str, cube: torch.Tensor) -> str:
    if name == "truth":
        return name
    return f"{name}, {cassi.metrics.psnr(cube[0], bundled()[0][0]).item():.2f} dB"


def _command(experiment: str, scene: str, *further: str) -> np.ndarray:
    # The command knows where the data lie and what the frames need.
    with tempfile.TemporaryDirectory() as folder:
        options = (f"experiment={experiment}", f"scene={scene}", f"hydra.run.dir={folder}")
        quiet = ("output.pictures=false", "output.report=false", "output.progress=false")
        program = (sys.executable, "-m", "cassi", "reconstruct")
        subprocess.run(
            [*program, *options, *quiet, *further], check=True, stdout=subprocess.DEVNULL
        )
        cube = load_cube(Path(folder, "cube.tif"))
    return srgb(cube.data[0], cube.wavelengths, illuminant=None)


KAIST = ("kaist_meas", "kaist_snapshot", [f"scene{number:02}" for number in range(1, 11)], 1.9)
TSA = ("tsa_real", "tsa_real", [f"scene{number}" for number in range(1, 6)], 2.6)
SMEM = ("smem", "smem", ["resolution_target", "fern_root", "blood_sample1"], 2.6)
WEIGHTS = ("model=pretrained",)
MOVED = {", mask as given": ("align=false",), ", default": (), ", pretrained": WEIGHTS}
MINUTES = {", auto": (), ", self_supervised": ("solver=self_supervised",)}
REAL = {
    ", as if without noise": ("solver.noise=0", "solver.balance=0"),
    ", default": (),
    ", pretrained": WEIGHTS,
}
Snapshots = tuple[str, str, list[str], float, dict[str, tuple[str, ...]]]
SNAPSHOTS: dict[str, Snapshots] = {
    # name of the picture: folder of $CASSI_DATA, experiment, scenes, height, and options by what
    # is added to the title
    "kaist": (*KAIST, {"": ()}),
    "pretrained_kaist": (*KAIST, {"": WEIGHTS}),
    "tsa": (*TSA, MOVED),
    "smem": (*SMEM, REAL),
    "tsa_minutes": ("tsa_real", "tsa_real", ["scene3"], 4.5, MINUTES),
}
DRAWN: dict[str, Callable[[], None]] = {
    "formation": draw_formation,
    "inverses": draw_inverses,
    "methods": draw_methods,
    "noise": draw_noise,
    "mistakes": draw_mistakes,
    "guide": draw_guide,
    "bench": draw_bench,
    "bands": draw_bands,
    "presets": draw_presets,
    "spectral_video": draw_video,
    **{name: partial(draw_snapshots, name) for name in SNAPSHOTS},
}
NEEDED = {"spectral_video": "cave_test", **{name: each[0] for name, each in SNAPSHOTS.items()}}
"""Picture → folder of $CASSI_DATA that it is drawn of."""


def main() -> None:
    """Draw the pictures that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*DRAWN, []], help="pictures; default: all")
    data = Path(os.environ.get("CASSI_DATA", "datasets"))
    for name in parser.parse_args().names or DRAWN:
        if name in NEEDED and not (data / NEEDED[name]).is_dir():
            print(f"{name}: left as it is, {data / NEEDED[name]} is not there")
            continue
        DRAWN[name]()
        print(f"{name}: {next(FOLDER.glob(f'{name}.*')).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
