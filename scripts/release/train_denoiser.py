"""Train a small grey denoiser on the bands and principal components of hyperspectral scenes.

Scenes are held out; PSNR is printed on those for each noise level. OUT/denoiser.safetensors holds
the weights, and in its metadata the class of the network, its arguments and how it was trained.
"""

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from safetensors.torch import save_file
from torch import Tensor

from cassi.models import DRUNet

ARGUMENTS = {
    "channels": 1,
    "widths": [16, 32, 64, 64],
    "blocks": 1,
    "shuffle": 2,
    "residual": True,
}
COMPONENTS = 8
LEVELS = (0.01, 0.03, 0.1, 0.2, 0.3)


def train_all(out: Path, settings: Any) -> None:
    """Train, evaluate, write."""
    files = sorted(Path(settings.data).glob("*.tif"))
    held_out = [file for file in files if file.stem in settings.hold_out]
    if len(held_out) != len(settings.hold_out) or len(files) == len(held_out):
        names = ", ".join(settings.hold_out)
        raise SystemExit(f"{settings.data}: expected TIFFs, among them {names}")
    pool = Pool([file for file in files if file not in held_out], settings.white)
    net = DRUNet(**ARGUMENTS)  # type: ignore[arg-type]
    torch.manual_seed(settings.seed)
    initialize(net)
    train(net, pool, settings)
    table = evaluate(net.eval(), held_out, settings.white)
    print(*table, sep="\n")
    write(net, out, settings, table)


class Pool:
    """Clean images of several kinds and sizes, kept as float16."""

    def __init__(self, files: list[Path], white: float) -> None:
        kinds: list[list[Tensor]] = [[], [], []]
        for file in files:
            for number, cube in enumerate(scales(read_scene(file, white))):
                kinds[number].append(cube.half())
                kinds[2].append(components(cube).half())
        # Bands at full size, at half size, principal components of both.
        self.kinds = list(zip(kinds, (0.3, 0.35, 0.35), strict=True))

    def sample(self, count: int, size: int) -> Tensor:
        """Return random patches `(count, 1, size, size)`, mirrored, turned and of random gain."""
        shares = torch.tensor([share for _, share in self.kinds])
        patches = []
        for kind in torch.multinomial(shares, count, replacement=True).tolist():
            cubes = self.kinds[kind][0]
            cube = cubes[_below(len(cubes))]
            row, column = (_below(n - size + 1) for n in cube.shape[1:])
            patch = cube[_below(len(cube)), row : row + size, column : column + size].float()
            if kind == 2:  # the sign of a component is arbitrary
                patch = 1 - patch if _below(2) else patch
            elif _below(2):  # solvers scale by the brightness of a measurement, not of a band
                peak = 0.2 + 1.3 * torch.rand(()).item()
                patch = patch * min(peak / max(patch.amax().item(), 1e-3), 8.0)
            patch = patch.rot90(_below(4))
            patches.append(patch.flip(0) if _below(2) else patch)
        return torch.stack(patches)[:, None]


def read_scene(file: Path, white: float) -> Tensor:
    """Return a cube `(C, H, W)` in [0, 1]."""
    import tifffile

    return torch.from_numpy(tifffile.imread(file).astype("float32")) / white


def scales(cube: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cube and its 2×2 means."""
    return cube, F.avg_pool2d(cube[None], 2)[0]


def components(cube: Tensor) -> Tensor:
    """Return the leading principal components `(COMPONENTS, H, W)`, each scaled to [0, 1]."""
    pixels = cube.flatten(1)
    centred = pixels - pixels.mean(1, keepdim=True)
    vectors = torch.linalg.eigh(centred @ centred.T)[1].flip(1)[:, :COMPONENTS]
    images = vectors.T @ centred
    low, high = images.amin(1, keepdim=True), images.amax(1, keepdim=True)
    return ((images - low) / (high - low)).view(-1, *cube.shape[1:])


@torch.no_grad()
def initialize(net: DRUNet) -> None:
    """Draw weights such that variances neither grow nor fade, and the first residual is small."""
    for name, parameter in net.named_parameters():
        torch.nn.init.kaiming_normal_(parameter, nonlinearity="linear")
        if ".res.2." in name or name.startswith("m_tail"):
            parameter.mul_(0.1)


def train(net: DRUNet, pool: Pool, settings: Any) -> None:
    """Minimise the squared error, weighted so that every noise level counts."""
    net.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.rate)
    warm = min(100, settings.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            (step + 1) / (warm + 1), 0.5 + 0.5 * math.cos(math.pi * step / settings.steps)
        ),
    )
    start, mean = time.perf_counter(), 0.0
    for step in range(settings.steps):
        clean = pool.sample(settings.batch, settings.patch)
        sigma = noise_levels(settings.batch, settings.sigma)
        level = sigma.view(-1, 1, 1, 1)
        noisy = clean + level * torch.randn_like(clean)
        with torch.autocast("cpu", torch.bfloat16):
            estimate = net(noisy, sigma)
        loss = ((estimate.float() - clean).square() / (level + 0.01)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        mean += (loss.item() - mean) / min(step + 1, 200)
        if (step + 1) % 200 == 0:
            print(f"{step + 1:6d} {mean:.6f} {time.perf_counter() - start:6.0f} s", flush=True)


def noise_levels(count: int, largest: float) -> Tensor:
    """Return standard deviations: half of them uniform, half with a uniform logarithm."""
    uniform = torch.rand(count) * largest
    low = 1e-3
    spread = low * (largest / low) ** torch.rand(count)
    return torch.where(torch.rand(count) < 0.5, uniform, spread)


@torch.no_grad()
def evaluate(net: DRUNet, files: list[Path], white: float) -> list[str]:
    """Return the lines of a table: PSNR on whole images, dB, without the network and with it."""
    sets: dict[str, list[Tensor]] = {"band": [], "half-size band": [], "component": []}
    for file in files:
        full, half = scales(read_scene(file, white))
        for kind, images in zip(sets, (full[3::7], half[3::7], components(half)[:4]), strict=True):
            sets[kind].append(images)
    lines = ["| images | σ | noisy | network |", "|---|---|---|---|"]
    for kind, cubes in sets.items():
        clean = torch.cat(cubes)[:, None]
        for sigma in LEVELS:
            generator = torch.Generator().manual_seed(1)
            noisy = clean + sigma * torch.randn(clean.shape, generator=generator)
            errors = ((x - clean).square().flatten(1).mean(1) for x in (noisy, net(noisy, sigma)))
            found = (float((-10 * error.log10()).mean()) for error in errors)
            lines.append(f"| {kind} | {sigma} | " + " | ".join(f"{v:.2f}" for v in found) + " |")
    return lines


def write(net: DRUNet, out: Path, settings: Any, table: list[str]) -> None:
    """Write the weights with all that is needed to build the network around them."""
    trained: Any = OmegaConf.to_container(settings)
    del trained["data"]
    metadata = {
        "network": "cassi.models.DRUNet",
        "arguments": json.dumps(ARGUMENTS),
        "sigma_range": json.dumps([0.0, settings.sigma]),
        "training": json.dumps(trained),
    }
    state = {name: value.contiguous() for name, value in net.state_dict().items()}
    save_file(state, out / "denoiser.safetensors", metadata)
    (out / "table.md").write_text("\n".join(table) + "\n")


def _below(limit: int) -> int:
    return int(torch.randint(limit, ()).item())
