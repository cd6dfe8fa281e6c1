"""Draw the pictures of docs/gallery.

Pictures of the bundled scene need no data. Pictures of KAIST snapshots, of captures by two real
cameras, and of the spectral video need $CASSI_DATA; without it they stay as they are. The name and
size of each picture are printed. On two cores the pictures of the bundled scene take a minute, and
all pictures a quarter of an hour.

    python -m scripts.docs.gallery                  # all that can be drawn
    python -m scripts.docs.gallery methods bands    # some
"""

import argparse
import math
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
from cassi.uncertainty import Index, answer, estimate
from cassi.uncertainty.error_model import NORMAL
from cassi.viz import choose_points, exposure_of, save_answer, save_bands, srgb
from cassi.viz.color import cie_response
from scripts.benchmarks.lab import SUBPIXELS, Lab
from scripts.benchmarks.spectral_video import WAVELENGTHS, first_sequence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "gallery"
Panel = tuple[str, np.ndarray]  # title, picture


def lay_out(panels: Sequence[Panel], columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """Lay out pictures in so many columns; each row is `height` inches high."""
    rows = math.ceil(len(panels) / columns)
    shape = panels[0][1].shape
    size = (columns * height * shape[1] / shape[0], rows * (height + 0.25))
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    axes: list[Axes] = list(grid.flat)
    for panel_axes, (title, picture) in zip(axes, panels, strict=False):
        panel_axes.imshow(picture, cmap="gray", interpolation="nearest")
        panel_axes.set_title(title, fontsize=9)
    for panel_axes in axes:
        panel_axes.axis("off")
    return figure, axes


def save(figure: Figure, name: str) -> None:
    """Write a figure as a JPEG of docs/gallery."""
    figure.savefig(FOLDER / name, dpi=110, pil_kwargs={"quality": 85})
    plt.close(figure)  # pyplot would keep it


@cache
def load_bundled() -> tuple[torch.Tensor, torch.Tensor, list[float]]:
    """Return the bundled scene `(1, C, H, W)`, its mask and its wavelengths in nm."""
    scene = load_cube(bundled_path("scene.tif"))
    assert scene.wavelengths is not None
    return scene.data, cassi.read_mask(bundled_path("mask.tif")), list(scene.wavelengths)


@cache
def make_camera() -> cassi.SDCassi:
    """Return the camera of the benchmarks, with the bundled mask."""
    return cassi.SDCassi(load_bundled()[1], bands=28, step=2)


def render(cube: torch.Tensor) -> np.ndarray:
    """Render a cube of the bundled scene with the exposure of the truth."""
    truth, _, wavelengths = load_bundled()
    exposure = exposure_of(truth[0], wavelengths, illuminant=None)
    return srgb(cube[0], wavelengths, illuminant=None, exposure=exposure)


def draw_formation() -> None:
    """Draw the scene, the mask, one coded band and the snapshot."""
    truth, mask, wavelengths = load_bundled()
    y = make_camera()(truth)[0, 0].numpy()
    # All panels have the width of the detector, so that one pixel has the same size in all.
    coded_band = np.zeros_like(y)
    coded_band[:, 28:284] = (mask[0, 0] * truth[0, 14]).numpy()
    scene_panel = np.full((*y.shape, 3), 255, np.uint8)
    scene_panel[:, :256] = render(truth)
    mask_panel = np.ones_like(y)
    mask_panel[:, :256] = mask[0, 0]
    panels = [
        ("scene", scene_panel),
        ("mask", mask_panel),
        (f"{wavelengths[14]:.0f} nm, coded and moved", coded_band ** (1 / 2.2)),
        ("sum of 28 bands: the snapshot", (y / y.max()) ** (1 / 2.2)),
    ]
    save(lay_out(panels, 4, 2.2)[0], "formation.jpg")


def draw_inverses() -> None:
    """Draw the results of both closed-form inverses, and of `auto`, which has a prior."""
    truth, mask, _ = load_bundled()
    y = make_camera()(truth)
    cubes = {
        "truth": truth,
        "ratio_inverse": cassi.ops.ratio_inverse(y, mask, 28, 2),
        "pinv": make_camera().pinv(y),
        "auto": cassi.reconstruct(y, make_camera()),
    }
    panels = [(_title(name, cube), render(cube)) for name, cube in cubes.items()]
    save(lay_out(panels, 4, 2.4)[0], "inverses.jpg")


def draw_methods() -> None:
    """Draw the cubes of methods without training, and their spectra at two points."""
    truth, _, wavelengths = load_bundled()
    y = make_camera()(truth)
    gap_tv = cassi.solve(
        y, make_camera(), algorithm=cassi.GAP(), prior=cassi.TV(iterations=8), iterations=100
    )
    cubes = {"truth": truth, "GAP-TV": gap_tv, "auto": cassi.reconstruct(y, make_camera())}
    panels = [(_title(name, cube), render(cube)) for name, cube in cubes.items()]
    blank = np.full((256, 256, 3), 255, np.uint8)
    figure, axes = lay_out([*panels, ("", blank), ("", blank)], 5, 2.2)
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
    """Draw the results of `auto` under white noise."""
    truth = load_bundled()[0]
    y = make_camera()(truth)
    draws = torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    panels = []
    for decibels in (None, 30, 20):
        level = 0.0 if decibels is None else 10 ** (-decibels / 20)
        cube = cassi.reconstruct(y + level * y.square().mean().sqrt() * draws, make_camera())
        name = "no noise" if decibels is None else f"{decibels} dB"
        panels.append((_title(name, cube), render(cube)))
    save(lay_out(panels, 3, 2.8)[0], "noise.jpg")


def draw_mistakes() -> None:
    """Draw reconstructions of a snapshot with shot noise by cameras with one mistake each."""
    truth, mask, _ = load_bundled()
    y = cassi.simulate(truth, make_camera(), noise="shot")
    dead_pixels = torch.rand(y.shape[1:], generator=torch.Generator().manual_seed(0)) < 0.005
    shifted_mask = move_mask(mask, (0.4, -0.3), 0.0)
    cases = {
        "right": (y, make_camera()),
        "wrong direction": (y, cassi.SDCassi(mask, bands=28, step=-2)),
        "mask upside down": (y, cassi.SDCassi(mask.flip(-2), bands=28, step=2)),
        "mask off (0.4, −0.3) px": (y, cassi.SDCassi(shifted_mask, bands=28, step=2)),
        "dark level left in": (y + 0.1 * y.amax(), make_camera()),
        "dead pixels as light": (torch.where(dead_pixels, 0, y), make_camera()),
        "bad_pixels=FILE": (y, make_camera().weighted(bad_pixels=dead_pixels)),
    }
    panels = [("truth", render(truth))]
    for name, (frame, system) in cases.items():
        cube = cassi.reconstruct(frame, system, align=False)
        panels.append((_title(name, cube), render(cube)))
    save(lay_out(panels, 4, 2.6)[0], "mistakes.jpg")


def draw_guide() -> None:
    """Draw a part of the scene, reconstructed without a guide and with two kinds of guides."""
    truth, _, wavelengths = load_bundled()
    y, curves = make_camera()(truth), torch.from_numpy(cie_response(np.asarray(wavelengths)))
    cubes = {"truth": truth, "no guide": cassi.reconstruct(y, make_camera())}
    random = torch.Generator().manual_seed(0)
    for name, response in (("panchromatic", torch.ones(1, 28) / 28), ("RGB", curves)):
        picture = cassi.Guide(response, (256, 256))(truth)
        rms = picture.square().mean((2, 3), keepdim=True).sqrt()
        picture = picture + 0.01 * rms * torch.randn(picture.shape, generator=random)
        cubes[f"{name} guide"] = cassi.reconstruct(y, make_camera(), guide=(picture, response))
    part = slice(72, 184)
    panels = [(_title(name, cube), render(cube)[part, part]) for name, cube in cubes.items()]
    save(lay_out(panels, 4, 2.6)[0], "guide.jpg")


def draw_bench() -> None:
    """Draw the camera of docs/guides/bench.md: frames, reflectances, spectra with error bars."""
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
    figure, axes = lay_out(panels, 5, 2.6)
    axes[4].clear()
    axes[4].set(title="reflectance, 90 %", box_aspect=1, aspect="auto")
    axes[4].set_axis_on()
    truth, _, wavelengths = load_bundled()
    # Pixels of the bundled scene per pixel of the camera, as `Lab.scene` scales it.
    ratio = SUBPIXELS / max(
        SUBPIXELS * a / b for a, b in zip(lab.shape, truth.shape[-2:], strict=True)
    )
    for number, (row, column) in enumerate(choose_points(cube.data[0], 2)):
        x, error = (file.data[0, :, row, column].numpy() for file in (cube, bars))
        # The dispersion of this camera is along the rows. So its cube is transposed relative to the
        # bundled scene.
        spectrum = truth[0, :, int((column + 0.5) * ratio), int((row + 0.5) * ratio)].numpy()
        spectrum = np.interp(cube.wavelengths, wavelengths, spectrum)
        level = (spectrum @ x) / (spectrum @ spectrum)
        axes[4].plot(cube.wavelengths, spectrum * level, f"C{number}--")
        axes[4].fill_between(
            cube.wavelengths, x - NORMAL * error, x + NORMAL * error, color=f"C{number}", alpha=0.4
        )
        axes[3].plot(column, row, f"C{number}o", mfc="none")
    axes[4].tick_params(labelsize=7)
    save(figure, "bench.jpg")


def draw_bands() -> None:
    """Draw all bands of a reconstruction."""
    truth, _, wavelengths = load_bundled()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bands.png")
        save_bands(path, cassi.reconstruct(make_camera()(truth), make_camera())[0], wavelengths)
        with Image.open(path) as picture:
            size = picture.width * 2 // 3, picture.height * 2 // 3
            reduced_picture = picture.convert("RGB").resize(size)
    reduced_picture.save(FOLDER / "bands.jpg", quality=82)


def draw_answers() -> None:
    """Draw an index of the bundled scene, and its intervals."""
    truth, _, wavelengths = load_bundled()
    camera, method = make_camera(), cassi.methods.auto()
    y = camera(truth)
    samples = estimate(y, camera, method, method.run(y, camera).x, samples=16).samples
    assert samples is not None
    index = Index("(w640 - w550) / (w640 + w550)", wavelengths)
    result = answer(samples, {"index": index})["index"]
    half_width = (result.high[-1] - result.low[-1]) / 2
    with tempfile.TemporaryDirectory() as folder:
        path, title = Path(folder, "answers.png"), "(w640 − w550) / (w640 + w550)"
        save_answer(path, title, result.value, half_width, result.abstained, truth=index(truth[0]))
        with Image.open(path) as picture:
            picture.convert("RGB").save(FOLDER / "answers.jpg", quality=85)


def draw_presets() -> None:
    """Draw the instruments of `benchmark=instruments`: measurements above, their cubes below."""
    settings = compose_settings(["benchmark=instruments"], kind=Evaluate)
    points, benchmark = find_cases(settings), load_benchmark(settings)
    prepare = preparation(points, benchmark, torch.device("cpu"))
    problems = [prepare(point, benchmark.scenes[0]) for point in points]
    frames = [problem.y[0].mean(0).numpy() for problem in problems]
    panels = [(name, (y / y.max()) ** (1 / 2.2)) for name, y in zip(points, frames, strict=True)]
    panels += [("", render(cassi.reconstruct(p.y, p.system))) for p in problems]
    save(lay_out(panels, len(points), 1.6)[0], "presets.jpg")


def draw_snapshots(name: str) -> None:
    """Draw reconstructions of real snapshots; several methods have one row each."""
    _, experiment, scenes, height, methods = SNAPSHOTS[name]
    # The frames of these cameras are large. So every second pixel is drawn, and all scenes are in
    # one row.
    is_large = name in ("tsa", "smem")
    pixels = slice(None, None, 2 if is_large else 1)
    panels = [
        (f"{scene}{title}", _reconstruct(experiment, scene, *options)[pixels, pixels])
        for title, options in methods.items()
        for scene in scenes
    ]
    columns = len(scenes) if is_large else min(5, len(panels))
    save(lay_out(panels, columns, height)[0], f"{name}.jpg")


def draw_video() -> None:
    """Draw a spectral video: the truth, reconstructed frame by frame, and as a sequence.

    The second row has eight times the root mean square error over bands.
    """
    truth, system = first_sequence()
    method = cassi.methods.auto()
    sequence = cassi.methods.Sequence(method).begin()
    exposure = exposure_of(truth[0].numpy(), WAVELENGTHS)
    pages = []
    for x in truth:
        y = system(x[None])
        cubes = [x, method.run(y, system).x[0], sequence.run(y, system).x[0]]
        pictures = [srgb(cube.numpy(), WAVELENGTHS, exposure=exposure) for cube in cubes]
        errors = [(cube - x).square().mean(0).sqrt().numpy() for cube in cubes]
        levels = [(2040 * error).clip(0, 255).astype(np.uint8) for error in errors]
        error_pictures = [np.repeat(level[..., None], 3, 2) for level in levels]
        page = np.concatenate([np.concatenate(pictures, 1), np.concatenate(error_pictures, 1)])
        pages.append(Image.fromarray(page).resize((576, 384), Image.Resampling.LANCZOS))
    # All pages share a palette, computed from every fifth page. If each had its own, the colours
    # would flicker.
    palette_source = Image.fromarray(np.concatenate([np.asarray(page) for page in pages[::5]]))
    palette = palette_source.quantize(64, kmeans=2)
    images = [page.quantize(palette=palette, dither=Image.Dither.NONE) for page in pages]
    file = FOLDER / "spectral_video.gif"
    images[0].save(file, save_all=True, append_images=images[1:], duration=250, loop=0)


def _title(name: str, cube: torch.Tensor) -> str:
    """Return the title of a cube of the bundled scene: its name and its PSNR."""
    if name == "truth":
        return name
    return f"{name}, {cassi.metrics.psnr(cube[0], load_bundled()[0][0]).item():.2f} dB"


def _reconstruct(experiment: str, scene: str, *options: str) -> np.ndarray:
    """Reconstruct a scene of an experiment, and return the picture of the cube."""
    # The command is used, because its settings say where the data are and how frames are corrected.
    with tempfile.TemporaryDirectory() as folder:
        inputs = (f"experiment={experiment}", f"scene={scene}", f"hydra.run.dir={folder}")
        outputs = ("output.pictures=false", "output.report=false", "output.progress=false")
        program = (sys.executable, "-m", "cassi", "reconstruct")
        subprocess.run(
            [*program, *inputs, *outputs, *options], check=True, stdout=subprocess.DEVNULL
        )
        cube = load_cube(Path(folder, "cube.tif"))
    return srgb(cube.data[0], cube.wavelengths, illuminant=None)


KAIST = ("kaist_meas", "kaist_snapshot", [f"scene{number:02}" for number in range(1, 11)], 1.9)
TSA = ("tsa_real", "tsa_real", [f"scene{number}" for number in range(1, 6)], 2.6)
SMEM = ("smem", "smem", ["resolution_target", "fern_root", "blood_sample1"], 2.6)
# Options of the command, by the text that is added to the title.
WEIGHTS = ("model=pretrained",)
TSA_METHODS = {", mask as given": ("align=false",), ", default": (), ", pretrained": WEIGHTS}
SLOW_METHODS = {", auto": (), ", self_supervised": ("solver=self_supervised",)}
SMEM_METHODS = {
    ", as if without noise": ("solver.noise=0", "solver.balance=0"),
    ", default": (),
    ", pretrained": WEIGHTS,
}
Snapshots = tuple[str, str, list[str], float, dict[str, tuple[str, ...]]]
SNAPSHOTS: dict[str, Snapshots] = {
    # Name of the picture: folder of $CASSI_DATA, experiment, scenes, height in inches, methods.
    "kaist": (*KAIST, {"": ()}),
    "pretrained_kaist": (*KAIST, {"": WEIGHTS}),
    "tsa": (*TSA, TSA_METHODS),
    "smem": (*SMEM, SMEM_METHODS),
    "tsa_minutes": ("tsa_real", "tsa_real", ["scene3"], 4.5, SLOW_METHODS),
}
DRAW: dict[str, Callable[[], None]] = {
    "formation": draw_formation,
    "inverses": draw_inverses,
    "methods": draw_methods,
    "noise": draw_noise,
    "mistakes": draw_mistakes,
    "guide": draw_guide,
    "bench": draw_bench,
    "bands": draw_bands,
    "answers": draw_answers,
    "presets": draw_presets,
    "spectral_video": draw_video,
    **{name: partial(draw_snapshots, name) for name in SNAPSHOTS},
}
# Picture → folder of $CASSI_DATA with its data.
DATA_FOLDERS = {"spectral_video": "cave_test", **{name: row[0] for name, row in SNAPSHOTS.items()}}


def main() -> None:
    """Draw all pictures, or those of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*DRAW, []], help="pictures; default: all")
    data = Path(os.environ.get("CASSI_DATA", "datasets"))
    for name in parser.parse_args().names or DRAW:
        folder = data / DATA_FOLDERS.get(name, "")
        if name in DATA_FOLDERS and not folder.is_dir():
            print(f"{name}: left as it is, {folder} is not there")
            continue
        DRAW[name]()
        print(f"{name}: {next(FOLDER.glob(f'{name}.*')).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
