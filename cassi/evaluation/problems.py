"""From a scene of a data set to the input of every method."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.data.atomic import digest_content
from cassi.data.benchmarks import Item
from cassi.data.simulation import Noise, scene_generator
from cassi.data.synthetic.twin import TrueCamera, Twin
from cassi.pipeline.snapshot import Camera, Snapshot
from cassi.systems import Guide, SDCassi, System


@dataclass(frozen=True)
class Problem:
    """The input of every method, on its device.

    Attributes:
        name: of the scene.
        snapshot: the measurement, and the camera that the methods get.
        digest: of all of these: equal problems have equal ones.
        true: the camera that took y, if that is a twin.
        guide: picture `(1, G, H, W)`, response `(G, C)` and noise of a guide camera, if there is
            one; see `cassi.systems.Guided`.
    """

    name: str
    snapshot: Snapshot
    digest: str
    true: TrueCamera | None = None
    guide: tuple[Tensor, Tensor, float] | None = None

    @property
    def y(self) -> Tensor:
        """The measurement `(1, K, H', W')`."""
        return self.snapshot.y

    @property
    def system(self) -> System:
        """The optics of the camera."""
        return self.snapshot.camera.system

    @property
    def truth(self) -> Tensor | None:
        """The truth `(C, H, W)`, on the CPU, or None."""
        return None if self.snapshot.truth is None else self.snapshot.truth[0]


@torch.no_grad()
def make_problem(
    item: Item,
    system: System,
    mask: Tensor,
    *,
    noise: Noise | None = None,
    twin: Twin | None = None,
    guide: tuple[Tensor, float] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Problem:
    """Measure a scene, or take its own measurement.

    The measurement is made on the CPU, so it has the same bits wherever it is reconstructed.

    Args:
        item: the scene.
        system: the camera, on the CPU.
        mask: the file's or the drawn one, for the digest.
        noise: what the sensor adds to a simulated measurement.
        twin: takes the measurement in place of the camera.
        guide: response `(G, C)` of a guide camera, and the noise of its picture relative to the
            root mean square.
        seed: of the noise; each scene has its own, which does not depend on the others.
        device: where methods run.

    Raises:
        ValueError: mask, cube, measurement and camera do not fit; or noise or a twin is asked for
            where the measurement is given, or noise beside a twin that has its own.
    """
    y, true = _measure(item, system, noise, twin, seed)
    if tuple(y.shape[1:]) != system.measurement_shape:
        raise ValueError(
            f"{item.name}: expected a measurement (K, H', W') = {system.measurement_shape} as mask "
            f"and camera say, got {tuple(y.shape[1:])}"
        )
    # What is told of a twin, or left out, may change where the frame does not.
    known: tuple[object, ...] = () if twin is None else (twin,)
    known = (*known, "light of all wavelengths") if system.all_light else known
    if item.bad is not None:
        system = system.weighted(bad_pixels=item.bad)
        y, known = system.without_bad_pixels(y), (*known, item.bad)
    shown = None
    if guide is not None:
        shown = (_take_picture(item, *guide, scene_generator(seed, item.name)), *guide)
        known = (*known, *shown)
    digest = _digest(str(system), item.wavelengths, y, mask, item.truth, *known)
    truth = None if item.truth is None else item.truth[None]
    camera = Camera(system.to(device), item.wavelengths)
    snapshot = Snapshot(y.to(device), camera, truth, corrections=item.preprocessing)
    return Problem(item.name, snapshot, digest, true, shown)


def _measure(
    item: Item, system: System, noise: Noise | None, twin: Twin | None, seed: int
) -> tuple[Tensor, TrueCamera | None]:
    """Return the measurement of a scene, and the camera that took it if that is a twin."""
    if noise is not None and twin is not None and twin.is_noisy:
        raise ValueError("noise: expected none beside a twin with noise of its own")
    if item.measurement is not None:
        if noise is not None or twin is not None:
            raise ValueError(
                f"{item.name}: expected no noise or twin, the measurement is not simulated"
            )
        return item.measurement[None], None
    if item.truth is None:
        raise ValueError(f"{item.name}: expected a truth or a measurement, got neither")
    x, true = item.truth[None], None
    if tuple(x.shape[1:]) != system.cube_shape:
        raise ValueError(
            f"{item.name}: expected a cube (C, H, W) = {system.cube_shape} as mask and camera "
            f"say, got {tuple(x.shape[1:])}"
        )
    if twin is not None:
        if type(system) is not SDCassi:
            raise ValueError(f"twin: expected an SDCassi, got {type(system).__name__}")
        y = twin.measure(x, system, scene_generator(seed, item.name))
        true = twin.true_camera(system)
    else:
        y = system(x)
    if noise is not None:
        y = noise(y, system.cube_shape[0], scene_generator(seed, item.name))
    return y, true


def _take_picture(item: Item, response: Tensor, noise: float, random: torch.Generator) -> Tensor:
    if item.truth is None:
        raise ValueError(f"{item.name}: expected a truth to take a guide's picture of, got none")
    _, height, width = item.truth.shape
    picture = Guide(response, (height, width))(item.truth[None])
    size = picture.square().mean((2, 3), keepdim=True).sqrt()
    return picture + noise * size * torch.randn(picture.shape, generator=random)


def _digest(*parts: object) -> str:
    content: list[bytes | str] = []
    for part in parts:
        if isinstance(part, Tensor):
            values = part.detach().cpu().contiguous()
            content.append(f"{values.dtype}{tuple(values.shape)}")
            content.append(values.numpy().tobytes())
        else:
            content.append(repr(part))
    return digest_content(content)
