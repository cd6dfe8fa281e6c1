"""GAP-Net and DAUHST with two stages in plain torch, as networks of this field are published.

They have the weights' names of ours. Operators are products with the shifted masks Φ, and bands are
shifted one after another. All layers are those of `torch.nn`.
"""

from collections import OrderedDict
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BANDS, STEP, STAGES, WINDOW = 28, 2, 2, 8


def shear(x: Tensor) -> Tensor:
    """Move band c by 2c columns: `(B, C, H, W)` → `(B, C, H, W')`."""
    batch, bands, height, width = x.shape
    result = torch.zeros(batch, bands, height, width + (bands - 1) * STEP)
    for c in range(bands):
        result[:, c, :, STEP * c : STEP * c + width] = x[:, c]
    return result


def roll(x: Tensor, step: int) -> Tensor:
    """Roll band c by c·step columns, in place."""
    for c in range(x.shape[1]):
        x[:, c] = torch.roll(x[:, c], shifts=step * c, dims=2)
    return x


def transpose(y: Tensor, phi: Tensor) -> Tensor:
    """Apply Aᵀ: `(B, H, W')` → `(B, C, H, W')`."""
    return y.unsqueeze(1).repeat(1, phi.shape[1], 1, 1) * phi


def take_data_step(x: Tensor, y: Tensor, phi: Tensor, divisor: Tensor) -> Tensor:
    """Return x + Aᵀ((y − Ax) / divisor)."""
    return x + transpose((y - torch.sum(x * phi, 1)) / divisor, phi)


def mirror(x: Tensor, multiple: int) -> Tensor:
    """Mirror images up to multiples of a number."""
    return F.pad(x, [0, -x.shape[3] % multiple, 0, -x.shape[2] % multiple], mode="reflect")


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    first = nn.Conv2d(inputs, outputs, 3, padding=1)
    second = nn.Conv2d(outputs, outputs, 3, padding=1)
    pair = nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))
    return nn.Sequential(OrderedDict(d_conv=pair))


def _doubling(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 2, 2), nn.ReLU(inplace=True))


class PlainUNet(nn.Module):
    """The U-Net of a stage of GAP-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.dconv_down1, self.dconv_down2 = _pair(BANDS, 32), _pair(32, 64)
        self.dconv_down3, self.maxpool = _pair(64, 128), nn.MaxPool2d(2)
        self.upsample2, self.upsample1 = _doubling(128, 64), _doubling(64, 32)
        self.dconv_up2, self.dconv_up1 = _pair(128, 64), _pair(64, 32)
        self.conv_last = nn.Conv2d(32, BANDS, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Denoise `(B, C, H, W)`."""
        height, width = x.shape[2:]
        x = mirror(x, 8)
        skip = self.dconv_down1(x)
        middle = self.dconv_down2(self.maxpool(skip))
        z = self.upsample2(self.dconv_down3(self.maxpool(middle)))
        z = self.upsample1(self.dconv_up2(torch.cat([z, middle], 1)))
        z = self.conv_last(self.dconv_up1(torch.cat([z, skip], 1)))
        return (torch.tanh(z) + x)[:, :, :height, :width]


class PlainGAPNet(nn.Module):
    """GAP-Net of nine stages."""

    def __init__(self) -> None:
        super().__init__()
        for i in range(1, 10):
            self.add_module(f"unet{i}", PlainUNet())

    def forward(self, y: Tensor, phi: Tensor, phi_s: Tensor) -> Tensor:
        """Reconstruct y `(B, H, W')`; Φ_s is the sum of Φ²."""
        x = transpose(y, phi)
        for unet in self.children():
            x = roll(unet(roll(take_data_step(x, y, phi, phi_s), -STEP)), STEP)
        return x[..., : x.shape[-1] - STEP * (BANDS - 1)]


def _windows(x: Tensor) -> Tensor:  # (B, H, W, c) → (B, windows, pixels, c)
    b, h, w, c = x.shape
    x = x.reshape(b, h // WINDOW, WINDOW, w // WINDOW, WINDOW, c).transpose(2, 3)
    return x.reshape(b, -1, WINDOW * WINDOW, c)


def _attend(qkv: list[Tensor], table: Tensor, heads: int) -> Tensor:
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(2, 3) for t in qkv)
    scores = torch.einsum("bnhid,bnhjd->bnhij", q * q.shape[-1] ** -0.5, k) + table
    result = torch.einsum("bnhij,bnhjd->bnhid", scores.softmax(-1), v)
    return result.transpose(2, 3).flatten(3)


class PlainAttention(nn.Module):
    """Half-shuffle attention of `(B, H, W, c)`."""

    def __init__(self, dim: int, heads: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.heads, pixels = heads, WINDOW * WINDOW
        if heads == 1:
            self.pos_emb = nn.Parameter(torch.zeros(1, heads, pixels, pixels))
        else:
            n = size[0] * size[1] // pixels
            self.pos_emb1 = nn.Parameter(torch.zeros(1, 1, heads // 2, pixels, pixels))
            self.pos_emb2 = nn.Parameter(torch.zeros(1, 1, heads // 2, n, n))
        self.to_q, self.to_out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        b, h, w, c = x.shape
        parts = [_windows(t) for t in (self.to_q(x), *self.to_kv(x).chunk(2, -1))]
        if self.heads == 1:
            result = _attend(parts, self.pos_emb, 1)
        else:
            pixels = [t[..., : c // 2] for t in parts]
            windows = [t[..., c // 2 :].transpose(1, 2) for t in parts]
            half = self.heads // 2
            pixel_result = _attend(pixels, self.pos_emb1, half)
            window_result = _attend(windows, self.pos_emb2, half).transpose(1, 2)
            result = torch.cat([pixel_result, window_result], -1)
        rows = self.to_out(result).reshape(b, h // WINDOW, w // WINDOW, WINDOW, WINDOW, c)
        return rows.transpose(2, 3).reshape(b, h, w, c)


class PlainFeedForward(nn.Module):
    """Convolutions of `(B, H, W, c)` with GELU between them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        depthwise = nn.Conv2d(4 * dim, 4 * dim, 3, 1, 1, bias=False, groups=4 * dim)
        first, last = (
            nn.Conv2d(*sizes, 1, bias=False) for sizes in ((dim, 4 * dim), (4 * dim, dim))
        )
        self.net = nn.Sequential(first, nn.GELU(), depthwise, nn.GELU(), last)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        return self.net(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class PlainBlock(nn.Module):
    """Attention and feed-forward, each added to its input, of `(B, c, H, W)`."""

    def __init__(self, scale: int, size: tuple[int, int]) -> None:
        super().__init__()
        dim, block_size = BANDS * scale, (size[0] // scale, size[1] // scale)
        parts = PlainAttention(dim, scale, block_size), PlainFeedForward(dim)
        layers = [nn.ModuleDict({"norm": nn.LayerNorm(dim), "fn": part}) for part in parts]
        self.blocks = nn.ModuleList([nn.ModuleList(layers)])

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        x = x.permute(0, 2, 3, 1)
        for layer in cast(Any, self.blocks[0]):
            x = layer["fn"](layer["norm"](x)) + x
        return x.permute(0, 3, 1, 2)


class PlainTransformer(nn.Module):
    """The denoiser of a stage of DAUHST."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(BANDS + 1, BANDS, 3, 1, 1, bias=False)
        self.encoder_layers, self.decoder_layers = nn.ModuleList(), nn.ModuleList()
        for scale in (1, 2):
            c = BANDS * scale
            halving = nn.Conv2d(c, 2 * c, 4, 2, 1, bias=False)
            self.encoder_layers.append(nn.ModuleList([PlainBlock(scale, size), halving]))
            doubling = nn.ConvTranspose2d(2 * c, c, 2, 2), nn.Conv2d(2 * c, c, 1, bias=False)
            self.decoder_layers.insert(0, nn.ModuleList([*doubling, PlainBlock(scale, size)]))
        self.bottleneck = PlainBlock(4, size)
        self.mapping = nn.Conv2d(BANDS, BANDS, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Denoise `(B, C + 1, H, W)`."""
        height, width = x.shape[2:]
        x = mirror(x, 16)
        z, skips = self.embedding(x), []
        for block, halve in cast(Any, self.encoder_layers):
            skips.append(block(z))
            z = halve(skips[-1])
        z = self.bottleneck(z)
        for double, fuse, block in cast(Any, self.decoder_layers):
            z = block(fuse(torch.cat([double(z), skips.pop()], 1)))
        return (self.mapping(z) + x[:, :BANDS])[:, :, :height, :width]


class PlainParameterNet(nn.Module):
    """Estimates α and β of every stage."""

    def __init__(self) -> None:
        super().__init__()
        self.fution = nn.Conv2d(BANDS, 64, 1)
        self.down_sample = nn.Conv2d(64, 64, 3, 2, 1)
        layers = [nn.Conv2d(64, n, 1) for n in (64, 64, 2 * STAGES)]
        first, second, last = layers
        self.mlp = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last, nn.Softplus())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return both."""
        x = self.down_sample(torch.relu(self.fution(x)))
        return (self.mlp(F.adaptive_avg_pool2d(x, 1)) + 1e-6).chunk(2, 1)


class PlainDAUHST(nn.Module):
    """DAUHST of two stages for a detector of this size."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.para_estimator, self.fution = PlainParameterNet(), nn.Conv2d(2 * BANDS, BANDS, 1)
        table = size[0], size[1] + -size[1] % 32
        self.denoisers = nn.ModuleList(PlainTransformer(table) for _ in range(STAGES))

    def forward(self, y: Tensor, phi: Tensor, phi_s: Tensor) -> Tensor:
        """Reconstruct y `(B, H, W')`; Φ_s is the sum of Φ²."""
        width = y.shape[-1] - STEP * (BANDS - 1)
        windows = torch.zeros_like(phi)
        for c in range(BANDS):
            columns = slice(STEP * c, STEP * c + width)
            windows[:, c, :, columns] = y[:, :, columns] / BANDS * 2
        z = self.fution(torch.cat([windows, phi], 1))
        alphas, betas = self.para_estimator(z)
        for i, denoiser in enumerate(self.denoisers):
            x = roll(take_data_step(z, y, phi, alphas[:, i] + phi_s), -STEP)
            z = denoiser(torch.cat([x, betas[:, i : i + 1].expand(-1, -1, *x.shape[2:])], 1))
            z = roll(z, STEP) if i < STAGES - 1 else z
        return z[..., :width]
