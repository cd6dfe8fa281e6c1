"""Denoising networks as priors."""

import copy
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.checks import check_readable, not_negative, whole_number
from cassi.precision import autocast, check_precision, warn_if_slow
from cassi.priors.subspace import decompose, from_subspace, spectral_moments, to_subspace
from cassi.priors.weights import load_weights

Network = Callable[[Tensor, Tensor], Tensor]
"""(images `(N, c, H, W)`, standard deviations `(N,)`) → images."""

PACKAGE_WEIGHTS = Path(__file__).parents[1] / "models" / "weights" / "denoiser.safetensors"
"""File of the weights in the package, for the network of `prior=drunet_small`."""

DOMAINS = ("band", "subspace", "components", "window", "cube")

# On a GPU a call of the network gets up to this many times `pixels`, because each call takes time
# to begin.
_GPU_PIXEL_FACTOR = 8


@dataclass(frozen=True, eq=False)
class Denoiser:
    """A denoiser of images, applied to a cube.

        prior(x, σ) = s·net((x − o)/s, strength·σ/s) + o

    `domain` chooses the images that the network gets:

    - `band`: each band as a grey image; one channel in and out.
    - `subspace`: the `rank` leading spectral components of each sample, each as a grey image,
      shifted by o and scaled by s to [0, 1]. The part of the cube outside this subspace is dropped.
      The images are few and less noisy: the fastest choice.
    - `components`: each band as a grey image, shifted and scaled as for `subspace`. The bands are
      components already, as for a prior inside a `Subspace`.
    - `window`: each band with its neighbours; `window` channels in and one out. At the ends the
      first and the last band are repeated.
    - `cube`: all bands at once; C channels in and out.

    `sigma_range` is the range of the network's training. Smaller σ are raised to the lower end. For
    larger σ the image is scaled down by s = strength·σ/upper end (denoiser scaling). A network that
    was trained at one level, such as DnCNN, has a range of width zero.

    Samples do not influence each other. A copy of the network runs on the device of x in evaluation
    mode, without gradients unless `learns` is true. With bf16-mixed the network convolves in
    bfloat16, whose relative error is 1/256. That is enough for networks that predict the noise, and
    takes half the time on a device that is fast in bfloat16.

    Args:
        network: `net(x, σ) -> x`: a module of `cassi.models`, any other module or function, or the
            path of a TorchScript file. A TorchScript file is a program: load only what you trust.
        weights: file for `load_weights`; "pretrained" for the weights in the package,
            `PACKAGE_WEIGHTS`; None for a network that has its weights.
        domain: `band`, `subspace`, `components`, `window` or `cube`, see above.
        rank: number of components of the subspace, >= 1; at most C are used.
        window: number of bands of a window, the band itself included; odd.
        strength: ratio of the σ that the network gets to the σ of the schedule, >= 0.
        sigma_range: least and largest standard deviation of the training, for images in [0, 1].
        pixels: at most this many pixels, and at least one image, per call of the network; fewer
            take less memory. A GPU takes eight times as many.
        precision: precision of the network, see `cassi.precision`; "auto" takes a fast one on the
            device of x.
        learns: pass gradients to cube and weights. The directions of a subspace are constants.

    Raises:
        TypeError: the network is not callable, or takes no weights.
        ValueError: a number or domain is out of range, or the weights do not fit.
        OSError: a file cannot be read.

    Source: Venkatakrishnan, Bouman, Wohlberg, "Plug-and-play priors", GlobalSIP 2013; Zheng et al.,
    "Deep plug-and-play priors for spectral snapshot compressive imaging", Photonics Research 2021
    (window); Zhuang, Bioucas-Dias, "Fast hyperspectral image denoising", JSTARS 2018 (subspace);
    Xu et al., "Boosting the performance of plug-and-play priors via denoiser scaling", 2020.
    """

    network: Network | str | os.PathLike[str]
    weights: str | os.PathLike[str] | None = None
    domain: str = "band"
    rank: int = 8
    window: int = 7
    strength: float = 1.0
    sigma_range: Sequence[float] = (0.0, 50 / 255)
    pixels: int = 1 << 19
    precision: str = "32-true"
    learns: bool = False
    memory: ClassVar[tuple[Tensor, ...]] = ()
    """Empty: a denoiser keeps nothing from call to call."""

    def __post_init__(self) -> None:
        """Check the numbers, take a copy of the network, load its weights."""
        if self.domain not in DOMAINS:
            raise ValueError(
                f"Denoiser domain: expected {_join_names(DOMAINS)}, got {self.domain!r}"
            )
        whole_number("Denoiser rank", self.rank, 1)
        whole_number("Denoiser window", self.window, 1)
        if self.window % 2 == 0:
            raise ValueError(f"Denoiser window: expected an odd number, got {self.window}")
        whole_number("Denoiser pixels", self.pixels, 1)
        not_negative("Denoiser strength", self.strength)
        check_precision(self.precision)
        low, high = _check_range(self.sigma_range)
        object.__setattr__(self, "sigma_range", (low, high))
        network = _prepare_network(self.network, self.weights)
        if self.learns and isinstance(network, nn.Module):
            network.requires_grad_(True)
        object.__setattr__(self, "network", network)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a cube `(B, C, H, W)`.

        Args:
            x: cube, any floating dtype, values about in [0, 1].
            sigma: standard deviation in the unit of the cube, >= 0: one number, or one per sample.
        """
        with torch.set_grad_enabled(self.learns and torch.is_grad_enabled()):
            return self._denoise(x, sigma)

    def _denoise(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        batch, bands, height, width = x.shape
        cube = x.float()
        # Only a number is checked: the host would wait for the value of a tensor on a device.
        if not isinstance(sigma, Tensor) and not sigma >= 0:
            raise ValueError(f"sigma: expected a number >= 0, got {sigma}")
        level = torch.as_tensor(sigma, dtype=torch.float32)
        level = self.strength * level.to(x.device)
        if level.numel() not in (1, batch):
            raise ValueError(
                f"sigma: expected one number or one per sample ({batch}), got {tuple(level.shape)}"
            )
        level = level.reshape(-1, 1).expand(batch, 1)
        if self.domain == "cube":
            u = self._apply_network(cube, level.flatten())
        elif self.domain == "band":
            u = self._apply_network(_split_bands(cube), level.expand(-1, bands).flatten())
        elif self.domain == "window":
            reach = self.window // 2
            # F.pad replicates along the last three of five dimensions: bands, rows and columns.
            padded = F.pad(cube[:, None], (0, 0, 0, 0, reach, reach), mode="replicate")[:, 0]
            windows = padded.unfold(1, self.window, 1).movedim(-1, 2).flatten(0, 1)
            u = self._apply_network(windows, level.expand(-1, bands).flatten(), outputs=1)
        elif self.domain == "components":
            u = self._denoise_components(cube, level)
        else:
            u = self._denoise_subspace(cube, level)
        return u.reshape(batch, bands, height, width).to(x.dtype)

    def _denoise_subspace(self, cube: Tensor, level: Tensor) -> Tensor:
        """Denoise the `rank` leading spectral components of each sample."""
        moments = spectral_moments(cube.detach()).cpu()
        if not moments.isfinite().all():
            return cube  # not finite, so no eigenvectors; the solver stops at such a cube
        basis = decompose(moments, cube.dtype)[1][..., : self.rank]
        # An eigenvector has an arbitrary sign. The one with a positive sum makes the image of a
        # component mostly positive, like the images that the network was trained on.
        basis = torch.where(basis.sum(1, keepdim=True) < 0, -basis, basis).to(cube.device)
        return from_subspace(self._denoise_components(to_subspace(cube, basis), level), basis)

    def _denoise_components(self, components: Tensor, level: Tensor) -> Tensor:
        """Denoise components `(B, R, H, W)`, each shifted and scaled to [0, 1]."""
        images = _split_bands(components)
        low, high = images.amin((1, 2, 3)), images.amax((1, 2, 3))
        levels = level.expand(-1, components.shape[1]).flatten()
        return self._apply_network(images, levels, offset=low, scale=high - low).view_as(components)

    def _apply_network(
        self,
        images: Tensor,  # (N, c, H, W)
        level: Tensor,  # (N,)
        *,
        offset: Tensor | None = None,  # (N,)
        scale: Tensor | None = None,  # (N,)
        outputs: int | None = None,
    ) -> Tensor:
        """Return s·net((x − o)/s, σ/s) + o; without offsets o = 0, without scales s = 1.

        A call of the network gets as many images as `pixels` allows. The network has `outputs`
        output channels; None: as many as input channels.
        """
        low, high = self.sigma_range
        scale = torch.ones_like(level) if scale is None else scale
        # If σ is above the range of the training, the image and σ are scaled down. A constant image
        # has the scale 0, and the lower bound avoids a division by 0.
        scale = torch.maximum(scale, level / high).clamp_min(torch.finfo(torch.float32).tiny)
        level = (level / scale).clamp(low, high)
        scale = scale.view(-1, 1, 1, 1)
        offset = torch.zeros_like(scale) if offset is None else offset.view(-1, 1, 1, 1)
        network = self._move_network(images.device)
        warn_if_slow(self.precision, images.device)
        pixels = self.pixels if images.device.type == "cpu" else _GPU_PIXEL_FACTOR * self.pixels
        step = max(1, pixels // (images.shape[-2] * images.shape[-1]))
        parts = []
        for first in range(0, len(images), step):
            part = slice(first, first + step)
            scaled_images = (images[part] - offset[part]) / scale[part]
            with autocast(self.precision, images.device):
                u = network(scaled_images, level[part])
            count, channels, *sides = scaled_images.shape
            expected = (count, outputs or channels, *sides)
            if not isinstance(u, Tensor) or u.shape != expected:
                shape = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
                raise ValueError(f"Denoiser network: expected it to return {expected}, got {shape}")
            parts.append(u.float() * scale[part] + offset[part])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _move_network(self, device: torch.device) -> Network:
        """Move the network to a device, and return it."""
        network = cast(Network, self.network)  # `_prepare_network` made it
        if isinstance(network, nn.Module):
            first = next(network.parameters(), next(network.buffers(), None))
            if first is not None and first.device != device:
                network.to(device)
        return network


def _split_bands(cube: Tensor) -> Tensor:
    """Return each band as an image, `(B, C, H, W)` → `(B·C, 1, H, W)`."""
    return cube.flatten(0, 1)[:, None]


def _prepare_network(
    network: Network | str | os.PathLike[str], weights: str | os.PathLike[str] | None
) -> Network:
    """Return the network that the prior calls: from its file, or a copy with weights."""
    if isinstance(network, str | os.PathLike):
        network = _read_program(Path(network).expanduser())
        if weights is not None:
            raise TypeError("Denoiser weights: expected None, a TorchScript file has its own")
        return network
    if not callable(network):
        raise TypeError(f"Denoiser network: expected a module, function or file, got {network!r}")
    if not isinstance(network, nn.Module):
        if weights is not None:
            raise TypeError(f"Denoiser weights: expected None, a {type(network).__name__} has none")
        return network
    network = copy.deepcopy(network)
    if weights is not None:
        load_weights(network, PACKAGE_WEIGHTS if weights == "pretrained" else weights)
    network.eval().requires_grad_(False).float()
    # Convolutions are fastest in this layout: half the time on a CPU.
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _read_program(file: Path) -> nn.Module:
    """Read a TorchScript file."""
    if not file.is_file():
        raise FileNotFoundError(f"Denoiser network: no file {file}")
    check_readable(file)
    try:
        with warnings.catch_warnings():
            # torch recommends torch.export instead, but its files cannot be read without
            # unpickling.
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(file, map_location="cpu").eval()
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:120]
        raise ValueError(
            f"Denoiser network: expected a TorchScript file, got {file} ({reason}); give a file of "
            "weights as weights=FILE"
        ) from None


def _check_range(value: Sequence[float]) -> tuple[float, float]:
    """Return least and largest standard deviation of a range; raise ValueError if it is none."""
    try:
        low, high = (float(end) for end in value)
    except (TypeError, ValueError):
        raise ValueError(f"Denoiser sigma_range: expected two numbers, got {value!r}") from None
    if not 0 <= low <= high or not high > 0:
        raise ValueError(
            f"Denoiser sigma_range: expected 0 <= least <= largest and largest > 0, got {low} and "
            f"{high}"
        )
    return low, high


def _join_names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
