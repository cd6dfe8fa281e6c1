"""From a scene of a data set to what every method is given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.data.benchmarks import Item
from cassi.data.checksums import digest_content
from cassi.data.simulation import Noise
from cassi.evaluation.mismatch import Mismatch
from cassi.systems import SDCassi, System


@dataclass(frozen=True)
class Problem:
    """What every method starts from, on its device.

    Attributes:
        name: of the scene.
        y: `(1, K, H', W')`.
        system: the camera that the methods believe in.
        truth: `(C, H, W)`, on the CPU, or None.
        wavelengths: nm, one per band, or None.
        digest: of all of these: equal problems have equal ones.
    """

    name: str
    y: Tensor
    system: System
    truth: Tensor | None
    wavelengths: tuple[float, ...] | None
    digest: str


@torch.no_grad()
def make_problem(
    item: Item,
    system: System,
    mask: Tensor,
    *,
    noise: Noise | None = None,
    mismatch: Mismatch | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Problem:
    """Measure a scene, or take the measurement that it comes with.

    The measurement is made on the CPU, so it has the same bits wherever it is reconstructed.

    Args:
        item: the scene.
        system: the camera, on the CPU.
        mask: the file's or the drawn one, for the digest.
        noise: what the sensor adds to a simulated measurement.
        mismatch: how the camera that measures differs from the one that methods are told of.
        seed: of the noise; each scene has its own, which does not depend on the others.
        device: where methods run.

    Raises:
        ValueError: mask, cube, measurement and camera do not fit; or noise or a mismatch is asked
            for where the measurement is given.
    """
    if item.measurement is not None:
        if noise is not None or (mismatch is not None and mismatch.exists):
            raise ValueError(
                f"{item.name}: expected no noise and no mismatch, the measurement is not simulated"
            )
        y = item.measurement[None]
    elif item.truth is None:
        raise ValueError(f"{item.name}: expected a truth or a measurement, got neither")
    else:
        x = item.truth[None]
        if tuple(x.shape[1:]) != system.cube_shape:
            raise ValueError(
                f"{item.name}: expected a cube (C, H, W) = {system.cube_shape} as mask and camera "
                f"say, got {tuple(x.shape[1:])}"
            )
        if mismatch is None or not mismatch.exists:
            y = system(x)
        elif isinstance(system, SDCassi):
            y = mismatch.measure(x, system)
        else:
            raise ValueError(f"mismatch: expected an SDCassi, got {type(system).__name__}")
        if noise is not None:
            y = noise(y, system.cube_shape[0], scene_generator(seed, item.name))
    if tuple(y.shape[1:]) != system.measurement_shape:
        raise ValueError(
            f"{item.name}: expected a measurement (K, H', W') = {system.measurement_shape} as mask "
            f"and camera say, got {tuple(y.shape[1:])}"
        )
    digest = _digest(str(system), item.wavelengths, y, mask, item.truth)
    return Problem(item.name, y.to(device), system.to(device), item.truth, item.wavelengths, digest)


def scene_generator(seed: int, name: str) -> torch.Generator:
    """Return the random numbers of one scene."""
    first = bytes.fromhex(digest_content([f"{seed}/{name}"])[:16])
    return torch.Generator().manual_seed(int.from_bytes(first, "little") >> 1)


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
