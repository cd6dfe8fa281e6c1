"""Train a small single-channel denoiser on bands and principal components of spectral scenes.

Some scenes are not trained with. For each noise level, the PSNR on these scenes is printed. The
weights are written to OUT/denoiser.safetensors. Its metadata has the class of the network, its
arguments and the settings of the training.
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
COMPONENTS = 8  # principal components of each scene
NOISE_LEVELS = (0.01, 0.03, 0.1, 0.2, 0.3)  # noise levels of the evaluation


def train_all(folder: Path, settings: Any) -> None:
    """Train, evaluate, and write the weights and a table into a folder."""
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
    write(net, folder, settings, table)


class Pool:
    """Clean images of several kinds and sizes, kept as float16."""

    def __init__(self, files: list[Path], white: float) -> None:
        kinds: list[list[Tensor]] = [[], [], []]
        for file in files:
            for number, cube in enumerate(make_scales(read_scene(file, white))):
                kinds[number].append(cube.half())
                kinds[2].append(compute_components(cube).half())
        # The numbers are the fractions of the patches: 30 % are cut from bands at full size, 35 %
        # from bands at half size, and 35 % from principal components at both sizes.
        self.kinds = list(zip(kinds, (0.3, 0.35, 0.35), strict=True))

    def sample(self, count: int, size: int) -> Tensor:
        """Return random patches `(count, 1, size, size)`, flipped, rotated and of random gain."""
        fractions = torch.tensor([fraction for _, fraction in self.kinds])
        patches = []
        for kind in torch.multinomial(fractions, count, replacement=True).tolist():
            cubes = self.kinds[kind][0]
            cube = cubes[_random_integer(len(cubes))]
            row, column = (_random_integer(n - size + 1) for n in cube.shape[1:])
            image = cube[_random_integer(len(cube))]
            patch = image[row : row + size, column : column + size].float()
            # The sign of a principal component is arbitrary, so it is drawn. Solvers divide by the
            # brightness of the measurement, so a band may be darker or brighter than 1.
            if kind == 2:
                patch = 1 - patch if _random_integer(2) else patch
            elif _random_integer(2):
                peak = 0.2 + 1.3 * torch.rand(()).item()
                patch = patch * min(peak / max(patch.amax().item(), 1e-3), 8.0)
            patch = patch.rot90(_random_integer(4))
            patches.append(patch.flip(0) if _random_integer(2) else patch)
        return torch.stack(patches)[:, None]


def read_scene(file: Path, white: float) -> Tensor:
    """Return a cube `(C, H, W)` in [0, 1]."""
    import tifffile

    return torch.from_numpy(tifffile.imread(file).astype("float32")) / white


def make_scales(cube: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cube at full size, and at half size by means of 2×2 pixels."""
    return cube, F.avg_pool2d(cube[None], 2)[0]


def compute_components(cube: Tensor) -> Tensor:
    """Return the leading principal components `(COMPONENTS, H, W)`, each scaled to [0, 1]."""
    pixels = cube.flatten(1)
    centred_pixels = pixels - pixels.mean(1, keepdim=True)
    vectors = torch.linalg.eigh(centred_pixels @ centred_pixels.T)[1].flip(1)[:, :COMPONENTS]
    images = vectors.T @ centred_pixels
    low, high = images.amin(1, keepdim=True), images.amax(1, keepdim=True)
    return ((images - low) / (high - low)).view(-1, *cube.shape[1:])


@torch.no_grad()
def initialize(net: DRUNet) -> None:
    """Draw weights that keep the variance from layer to layer, with small first residuals."""
    for name, parameter in net.named_parameters():
        torch.nn.init.kaiming_normal_(parameter, nonlinearity="linear")
        if ".res.2." in name or name.startswith("m_tail"):
            parameter.mul_(0.1)


def train(net: DRUNet, pool: Pool, settings: Any) -> None:
    """Minimise the squared error over noise level + 0.01, so that weak noise counts as well."""
    net.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.rate)
    # The rate rises linearly in the first steps, and then follows a cosine down to 0.
    warmup = min(100, settings.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            (step + 1) / (warmup + 1), 0.5 + 0.5 * math.cos(math.pi * step / settings.steps)
        ),
    )
    start, mean = time.perf_counter(), 0.0
    for step in range(settings.steps):
        clean_patches = pool.sample(settings.batch, settings.patch)
        sigma = draw_noise_levels(settings.batch, settings.sigma)
        level = sigma.view(-1, 1, 1, 1)
        noisy_patches = clean_patches + level * torch.randn_like(clean_patches)
        with torch.autocast("cpu", torch.bfloat16):
            estimate = net(noisy_patches, sigma)
        loss = ((estimate.float() - clean_patches).square() / (level + 0.01)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        mean += (loss.item() - mean) / min(step + 1, 200)
        if (step + 1) % 200 == 0:
            print(f"{step + 1:6d} {mean:.6f} {time.perf_counter() - start:6.0f} s", flush=True)


def draw_noise_levels(count: int, largest: float) -> Tensor:
    """Return standard deviations: half of them uniform, half with a uniform logarithm."""
    uniform = torch.rand(count) * largest
    smallest = 1e-3
    log_uniform = smallest * (largest / smallest) ** torch.rand(count)
    return torch.where(torch.rand(count) < 0.5, uniform, log_uniform)


@torch.no_grad()
def evaluate(net: DRUNet, files: list[Path], white: float) -> list[str]:
    """Return the lines of a table: PSNR on whole images, dB, without the network and with it."""
    sets: dict[str, list[Tensor]] = {"band": [], "half-size band": [], "component": []}
    for file in files:
        full_size, half_size = make_scales(read_scene(file, white))
        for kind, images in zip(
            sets, (full_size[3::7], half_size[3::7], compute_components(half_size)[:4]), strict=True
        ):
            sets[kind].append(images)
    lines = ["| images | σ | noisy | network |", "|---|---|---|---|"]
    for kind, cubes in sets.items():
        clean_images = torch.cat(cubes)[:, None]
        for sigma in NOISE_LEVELS:
            generator = torch.Generator().manual_seed(1)
            noisy_images = clean_images + sigma * torch.randn(
                clean_images.shape, generator=generator
            )
            errors = (
                (x - clean_images).square().flatten(1).mean(1)
                for x in (noisy_images, net(noisy_images, sigma))
            )
            noisy_psnr, psnr = (float((-10 * error.log10()).mean()) for error in errors)
            lines.append(f"| {kind} | {sigma} | {noisy_psnr:.2f} | {psnr:.2f} |")
    return lines


def write(net: DRUNet, folder: Path, settings: Any, table: list[str]) -> None:
    """Write the weights, with the class and arguments of the network, and the table."""
    training: Any = OmegaConf.to_container(settings)
    del training["data"]  # a path of this machine
    metadata = {
        "network": "cassi.models.DRUNet",
        "arguments": json.dumps(ARGUMENTS),
        "sigma_range": json.dumps([0.0, settings.sigma]),
        "training": json.dumps(training),
    }
    state = {name: value.contiguous() for name, value in net.state_dict().items()}
    save_file(state, folder / "denoiser.safetensors", metadata)
    (folder / "table.md").write_text("\n".join(table) + "\n")


def _random_integer(limit: int) -> int:
    return int(torch.randint(limit, ()).item())
