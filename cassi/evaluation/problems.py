"""The input of all methods of an evaluation: the measurement of one scene, and the camera."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.data.atomic import digest_content
from cassi.data.benchmarks import BenchmarkScene
from cassi.data.simulation import Noise, scene_generator
from cassi.data.synthetic.twin import TrueCamera, Twin
from cassi.pipeline.snapshot import Camera, Snapshot
from cassi.systems import Guide, SDCassi, System


@dataclass(frozen=True)
class Problem:
    """The input of every method, on its device.

    Attributes:
        name: name of the scene.
        snapshot: the measurement, and the camera that the methods get.
        digest: hash of the contents; equal problems have equal digests.
        true: the camera that took y, if this was a twin; None: the camera of the snapshot took y.
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
        """The operator A of the camera that the methods get."""
        return self.snapshot.camera.system

    @property
    def truth(self) -> Tensor | None:
        """The truth `(C, H, W)`, on the CPU, or None."""
        return None if self.snapshot.truth is None else self.snapshot.truth[0]


@torch.no_grad()
def make_problem(
    item: BenchmarkScene,
    system: System,
    mask: Tensor,
    *,
    noise: Noise | None = None,
    twin: Twin | None = None,
    guide: tuple[Tensor, float] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Problem:
    """Make the problem of a scene: take its measurement, or simulate one if it has none.

    The measurement is simulated on the CPU, so it is equal to the last bit for every `device`.

    Args:
        item: the scene.
        system: the camera, on the CPU.
        mask: the mask, which is part of the digest.
        noise: noise that the sensor adds to a simulated measurement.
        twin: camera that takes the measurement in place of `system`.
        guide: response `(G, C)` of a guide camera, and the noise of its picture relative to the
            root mean square.
        seed: seed of the noise. The noise of a scene does not depend on the other scenes.
        device: the device of the problem, on which methods run.

    Raises:
        ValueError: if mask, cube, measurement and camera do not fit; if the scene has a measurement
            and noise or a twin is given; or if noise is given beside a twin with noise.
    """
    y, true_camera = _measure(item, system, noise, twin, seed)
    if tuple(y.shape[1:]) != system.measurement_shape:
        raise ValueError(
            f"{item.name}: expected a measurement (K, H', W') = {system.measurement_shape} as mask "
            f"and camera give, got {tuple(y.shape[1:])}"
        )
    # Problems with equal frames can differ in what methods use beside the frame: the true camera of
    # a twin, the kind of light, bad pixels and the guide. So these are parts of the digest. If a
    # problem does not have a part, nothing is added, so that earlier records stay valid.
    digest_parts: list[object] = [] if twin is None else [twin]
    if system.is_broadband:
        digest_parts.append("light of all wavelengths")
    if item.bad_pixels is not None:
        system = system.weighted(bad_pixels=item.bad_pixels)
        y = system.without_bad_pixels(y)
        digest_parts.append(item.bad_pixels)
    guide_view = None
    if guide is not None:
        guide_view = (_take_picture(item, *guide, scene_generator(seed, item.name)), *guide)
        digest_parts += guide_view
    digest = _compute_digest(str(system), item.wavelengths, y, mask, item.truth, *digest_parts)
    truth = None if item.truth is None else item.truth[None]
    camera = Camera(system.to(device), item.wavelengths)
    snapshot = Snapshot(y.to(device), camera, truth, corrections=item.preprocessing)
    return Problem(item.name, snapshot, digest, true_camera, guide_view)


def _measure(
    item: BenchmarkScene, system: System, noise: Noise | None, twin: Twin | None, seed: int
) -> tuple[Tensor, TrueCamera | None]:
    """Return the measurement of a scene, and the true camera if a twin took it."""
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
    x, true_camera = item.truth[None], None
    if tuple(x.shape[1:]) != system.cube_shape:
        raise ValueError(
            f"{item.name}: expected a cube (C, H, W) = {system.cube_shape} as mask and camera "
            f"give, got {tuple(x.shape[1:])}"
        )
    # A twin simulates a camera with one disperser; a subclass could have other optics.
    if twin is not None:
        if type(system) is not SDCassi:
            raise ValueError(f"twin: expected an SDCassi, got {type(system).__name__}")
        y = twin.measure(x, system, scene_generator(seed, item.name))
        true_camera = twin.true_camera(system)
    else:
        y = system(x)
    if noise is not None:
        y = noise(y, system.cube_shape[0], scene_generator(seed, item.name))
    return y, true_camera


def _take_picture(
    item: BenchmarkScene, response: Tensor, noise: float, random: torch.Generator
) -> Tensor:
    """Return the picture `(1, G, H, W)` that a guide camera takes of a scene, with its noise."""
    if item.truth is None:
        raise ValueError(f"{item.name}: expected a truth to take a guide's picture of, got none")
    _, height, width = item.truth.shape
    picture = Guide(response, (height, width))(item.truth[None])
    rms = picture.square().mean((2, 3), keepdim=True).sqrt()
    return picture + noise * rms * torch.randn(picture.shape, generator=random)


def _compute_digest(*parts: object) -> str:
    """Return the hash of some objects, by the bytes of tensors and the text of others."""
    content: list[bytes | str] = []
    for part in parts:
        if isinstance(part, Tensor):
            values = part.detach().cpu().contiguous()
            content.append(f"{values.dtype}{tuple(values.shape)}")
            content.append(values.numpy().tobytes())
        else:
            content.append(repr(part))
    return digest_content(content)
