"""What `cassi.check_camera` says of wrong cameras, and of the right ones.

    python -m scripts.benchmarks.camera_check  # five scenes with noise, eight captures
    python -m scripts.benchmarks.camera_check --kaist  # and ten KAIST snapshots
    python -m scripts.benchmarks.camera_check --spectra  # and the sign of the step
    python -m scripts.benchmarks.camera_check --light 200  # right cameras in odd light
    python -m scripts.benchmarks.camera_check --lamp 6  # the sign of the step, under lamps
    python -m scripts.benchmarks.camera_check --drawn 90 --seed 400  # cameras of lab.py

Printed is for each mistake how many frames are warned of it, by what they are warned, and the
time. Three scenes are CAVE's validation scenes, two of its training scenes; the captures
are those of `experiment=smem` and `experiment=tsa_real`. Steps are wrong from the first band on, or
about the middle one. `direction` is a warning of a cube whose bands are in reverse: the frame is
the same, see `cassi.check_camera`. With --light masks, bands, steps and noise are drawn; of five
cameras one each is in the light of an LED, of a line on a faint ground, behind a filter that cuts,
in that of a red lamp, and in even light. With --lamp each of CAVE's training scenes is judged by
the statistics of the others: in even light, and in that of so many lamps of 2400 to 6500 K as
sensors of drawn response see it, parts of 160×176 pixels. With --drawn raw frames of cameras by
`lab.py` are reconstructed with the true offsets, without and with a white frame, and judged as the
command does: so, with the bands in reverse, with the mask mirrored, and with all distances of the
offsets 10 % longer or shorter, from the first band on.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

import cassi
from cassi.apps import snapshot as way
from cassi.apps.evaluate.problems import load_benchmark
from cassi.apps.reconstructors import Recipe, compose_settings
from cassi.apps.settings import Evaluate
from cassi.calibration import Response
from cassi.calibration.findings import CameraCheck
from cassi.calibration.mask_check import POSES
from cassi.calibration.spectra_check import REVERSED, check_spectra, prefer
from cassi.data.bundled import bundled_path
from cassi.data.manifest import read_manifest
from cassi.pipeline.judge import check_snapshot
from cassi.pipeline.snapshot import Snapshot
from cassi.systems import SDCassi, Weighted
from scripts.benchmarks.captures import CAPTURES, load_capture
from scripts.benchmarks.lab import Lab, read_scene
from scripts.benchmarks.tables import Parser, Table, data_folder
from scripts.data.spectra import summarize

TRAINING = ("face", "beads")
STEPS = (1.5, 1.8, 1.9, 2.1, 2.2, 2.5)
SHIFTS = ((1, 0), (3, 0), (0, 3), (0, -2), (5, -4), (-12, 8))
LIGHTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "LED": lambda at, a, b: torch.exp(-((at - a) / (0.04 + 0.12 * b)).square() / 2),
    "line": lambda at, a, b: 0.1 + 0.3 * at + (1 + 3 * b) * ((at - a).abs() < 0.6 / len(at)),
    "filter": lambda at, a, b: (at > 0.1 + 0.4 * a if b < 0.5 else at < 0.9 - 0.4 * a).float(),
    "lamp": lambda at, a, b: torch.exp(3 * (at - 1)),
    "even": lambda at, a, b: torch.ones_like(at),
}
"""Light at wavelengths from 0 to 1, of two numbers that are drawn."""
ABOUT_THE_CAMERA = {"mask", "step", "shift", "direction", "detector"}
WRONG_STEPS = (0.9, 1.1)
CPU = torch.device("cpu")

Frame = tuple[str, Tensor, SDCassi, tuple[float, ...] | None]


def frames(kaist: bool) -> Iterator[Frame]:
    """Yield name, measurement, the right camera and wavelengths of every frame."""
    benchmark = load_benchmark(compose_settings(["data=cave"], kind=Evaluate))
    mask, known = None, benchmark.wavelengths
    for scene in benchmark.scenes:
        item = benchmark.load(scene)
        mask = item.mask
        assert item.truth is not None
        yield _simulated(scene, item.truth[None], mask, known)
    assert mask is not None
    for scene in TRAINING:
        cube = cassi.read_cube(data_folder("cave_train") / f"{scene}.tif")
        yield _simulated(scene, avg_pool2d(cube, 2), mask, known)
    for camera, scenes in CAPTURES.items():
        for scene in scenes:
            y, system, wavelengths = load_capture(camera, scene)
            system = system.system if isinstance(system, Weighted) else system
            assert isinstance(system, SDCassi)
            yield f"{camera} {scene}", y, system, wavelengths
    if kaist:
        benchmark = load_benchmark(compose_settings(["data=kaist_snapshot"], kind=Evaluate))
        for scene in benchmark.scenes:
            item = benchmark.load(scene)
            assert item.measurement is not None
            system = SDCassi(item.mask, 28, step=2)
            yield f"kaist {scene}", item.measurement[None], system, benchmark.wavelengths


def _simulated(
    name: str, truth: Tensor, mask: Tensor, wavelengths: tuple[float, ...] | None
) -> Frame:
    camera = SDCassi(mask, truth.shape[1], step=2)
    return name, cassi.simulate(truth, camera, noise="shot", scene=name), camera, wavelengths


def mistakes(right: SDCassi) -> Iterator[tuple[str, SDCassi]]:
    """Yield cameras that are wrong in one way each."""
    mask, bands, detector = right.mask, right.bands, right.measurement_shape[-1]
    for name, (_, image) in POSES.items():
        moved = image(mask).contiguous()
        if moved.shape == mask.shape:
            yield f"mask {name}", SDCassi(moved, bands, step=2)
    for step in STEPS:
        for name, start in (("", 0.0), (", middle right", (2 - step) * (bands - 1) / 2)):
            offsets = [start + step * band for band in range(bands)]
            camera = SDCassi(mask, bands, offsets=offsets, detector=detector)
            yield f"step {step}{name}", camera
    for shift in SHIFTS:
        yield f"shift {shift}", SDCassi(mask.roll(shift, (-2, -1)), bands, step=2)


def look_in_odd_light(count: int) -> None:
    """Print how many of so many right cameras are warned of, by their light."""
    scenes = sorted(data_folder("cave_train").glob("*.tif"))
    warned = dict.fromkeys(LIGHTS, 0)
    for seed in range(count):
        random = torch.Generator().manual_seed(seed)

        def drawn(values: Sequence[Any], random: torch.Generator = random) -> Any:
            return values[int(torch.randint(len(values), (), generator=random))]

        bands, side = drawn((8, 12, 16, 20, 28)), drawn((128, 192, 256))
        step, photons = drawn((1, 1.5, 2, 2.5, 3, -2, -1.5)), drawn((2e3, 1e4, 1e5))
        cube = avg_pool2d(cassi.read_cube(scenes[seed % len(scenes)]), 2)[..., :side, :side]
        spectra = cube.flatten(2).mT
        spectra = interpolate(spectra, size=bands, mode="linear", align_corners=True)
        light = list(LIGHTS)[seed % len(LIGHTS)]
        shape = LIGHTS[light](
            torch.linspace(0, 1, bands), *torch.rand(2, generator=random).tolist()
        )
        x = (spectra * shape).mT.unflatten(2, (side, side))
        mask = (torch.rand(1, 1, side + 1, side + 1, generator=random) < 0.5).float()
        mask = avg_pool2d(mask, 2, 1) if drawn((True, False)) else mask[..., 1:, 1:]
        camera = SDCassi(mask, bands, step=step)
        y = camera(x)
        y = torch.poisson(y * (photons / y.max()), generator=random) / photons
        found = cassi.check_camera(y, camera)
        if {each.about for each in found.warnings} & ABOUT_THE_CAMERA:
            warned[light] += 1
            print(f"{seed}, {light}, {bands} bands, step {step}: {found.lines()}", flush=True)
    each = -(-count // len(LIGHTS))
    print("\n".join(f"{light}: {number} of {each} warned" for light, number in warned.items()))


def look_under_lamps(count: int) -> None:
    """Print how many cubes are warned of as reversed that are not, and that are."""
    manifest = read_manifest(bundled_path("manifests/cave.json"))
    given = torch.tensor(manifest.wavelengths, dtype=torch.float64)
    folder = data_folder()
    names = sorted(manifest.files("train"))
    cubes = [avg_pool2d(cassi.read_cube(folder / name), 2)[0] for name in names]
    random = torch.Generator().manual_seed(0)

    def between(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=random))

    table = Table("light", "cubes", "right, warned of", "reversed, warned of")
    for light, many in (("even", 1), ("lamps", count)):
        right, wrong, total = 0, 0, 0
        for skipped, cube in enumerate(cubes):
            known = summarize([each for k, each in enumerate(cubes) if k != skipped], given)
            for _ in range(many):
                shape = torch.ones_like(given)
                if light == "lamps":
                    kelvin, best, width = between(2400, 6500), between(550, 700), between(120, 300)
                    shape = given**-4 / ((1.4388e7 / (given * kelvin)).exp() - 1)
                    shape *= (-((given - best) / width).square()).exp()
                top, left = int(between(0, 96)), int(between(0, 80))
                part = cube[:, top : top + 160, left : left + 176]
                x = part * (shape / shape.max()).float().view(-1, 1, 1)
                score, total = prefer(x, given.tolist(), known=known) or 0.0, total + 1
                right += score < REVERSED
                wrong += -score < REVERSED
        table.print(light, total, right, wrong)


def verdicts(snapshot: Snapshot, x: Tensor, method: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield what is wrong with a drawn camera, `right` for nothing, and what is warned of."""
    y, system = snapshot.y, snapshot.camera.system
    right = system.plain
    assert isinstance(right, SDCassi)
    offsets, response = list(right.offsets), snapshot.camera.unit and snapshot.camera.unit.source

    def like(offsets: Sequence[float], mask: Tensor = right.mask) -> Any:
        where: dict[str, Any] = {"axis": right.axis, "detector": right.detector}
        return system.around(SDCassi(mask, right.bands, offsets=offsets, **where))

    for name, camera in (("right", like(offsets)), ("reversed", like(offsets[::-1]))):
        assert response is None or isinstance(response, Response)
        seen = response
        if name == "reversed":
            x = x.flip(1)
            seen = response and Response(response.values.flip(0), response.errors.flip(0))
        found = check_snapshot(snapshot.by(system=camera), x, method, seen)
        yield name, {each.about for each in found.warnings}
    wrong = {"mirrored": like(offsets, right.mask.flip(right.axis))}
    for share in WRONG_STEPS:
        wrong[f"step × {share}"] = like([offsets[0] + share * (o - offsets[0]) for o in offsets])
    for name, camera in wrong.items():
        yield name, {each.about for each in cassi.check_camera(y, camera).warnings}


def look_at_drawn(count: int, seed: int) -> None:
    """Print how many drawn cameras are warned of, right and wrong ones."""
    scenes = sorted(data_folder("cave_train").glob("*.tif"))
    counts: dict[tuple[str, str], list[set[str]]] = {}
    for number in range(seed, seed + count):
        lab = Lab.drawn(number)
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            lab.files(Path(folder), lab.scene(*read_scene(scenes[number % len(scenes)])))
            options = [f"camera={folder}/true.yaml", f"measurement={folder}/frame.png"]
            white = [f"response={{white: {folder}/white.png}}", "output.unit=reflectance"]
            for frame, more in (("none", []), ("white frame", white)):
                settings = compose_settings([*options, *more])
                try:
                    snapshot, method = way.prepare(settings, Recipe(settings, CPU))
                except ValueError:  # a band is dark in the white frame
                    continue
                torch.manual_seed(0)
                x = method.run(snapshot.y, snapshot.camera.system).checked().x
                for about, said in verdicts(snapshot, x, method):
                    counts.setdefault((about, frame), []).append(said & ABOUT_THE_CAMERA)
    table = Table("camera", "response", "warned", "by")
    for kind_and_frame, found in counts.items():
        kinds = sorted(set().union(*found))
        by = ", ".join(f"{kind} {sum(kind in each for each in found)}" for kind in kinds)
        table.print(*kind_and_frame, f"{sum(map(bool, found))} of {len(found)}", by)


def main() -> None:
    """Print the tables."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--kaist", action="store_true", help="ten snapshots more")
    parser.add_argument("--spectra", action="store_true", help="reconstruct, and reverse the cubes")
    parser.add_argument("--light", type=int, metavar="CAMERAS", help="right cameras in odd light")
    parser.add_argument("--lamp", type=int, metavar="LAMPS", help="spectra under lamps")
    parser.add_argument("--drawn", type=int, metavar="CAMERAS", help="cameras of lab.py")
    parser.add_argument("--seed", type=int, default=400, help="of the first")
    arguments = parser.parse_args()
    if arguments.drawn is not None:
        look_at_drawn(arguments.drawn, arguments.seed)
        return
    if arguments.lamp is not None:
        look_under_lamps(arguments.lamp)
        return
    if arguments.light is not None:
        look_in_odd_light(arguments.light)
        return
    found: dict[str, list[set[str]]] = {}
    times: dict[int, list[float]] = {}

    def judge(name: str, about: str, function: Callable[[], CameraCheck]) -> None:
        verdict = function()
        said = {each.about for each in verdict.warnings} & ABOUT_THE_CAMERA
        found.setdefault(about, []).append(said)
        if bool(said) == about.startswith("right"):
            print(f"{name}, {about}: {verdict.lines()}", flush=True)

    for name, y, right, wavelengths in frames(arguments.kaist):
        for about, camera in (("right", right), *mistakes(right)):
            start = time.process_time()
            judge(name, about, lambda camera=camera, y=y: cassi.check_camera(y, camera))  # type: ignore[misc]
            times.setdefault(y.shape[-2], []).append(time.process_time() - start)
        if arguments.spectra:
            x = cassi.reconstruct(y, right)
            for about, cube in (("right, its cube", x), ("direction", x.flip(1))):
                judge(
                    name,
                    about,
                    lambda cube=cube, right=right, wavelengths=wavelengths: check_spectra(  # type: ignore[misc]
                        cube, right, wavelengths
                    ),
                )
    table = Table("mistake", "warned", "by")
    for about, said in found.items():
        kinds = sorted(set().union(*said))
        counts = ", ".join(f"{kind} {sum(kind in each for each in said)}" for kind in kinds)
        table.print(about, f"{sum(map(bool, said))} of {len(said)}", counts)
    for height, seconds in sorted(times.items()):
        print(f"frames of {height} lines: {median(seconds):.2f} CPU s, at most {max(seconds):.2f}")


if __name__ == "__main__":
    main()
