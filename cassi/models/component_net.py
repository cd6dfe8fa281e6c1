"""The network of one stage of `CassiNet`: images of spectral components in, a correction out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """x + conv(relu(conv(x))), both 3×3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        with torch.no_grad():
            self.second.weight.mul_(0.2)  # deep stacks start near the identity

    def forward(self, x: Tensor) -> Tensor:
        """Return images shaped like x."""
        result: Tensor = x + self.second(F.relu(self.first(x)))
        return result


class ComponentNet(nn.Module):
    """A U-Net of plain convolutions at a half, a quarter and an eighth of the resolution.

    Args:
        inputs: planes that come in, of which the first `outputs + 1` count from the beginning; the
            weights of the others start at zero.
        outputs: planes of the correction.
        widths: channels at the three resolutions.
        blocks: residual blocks at each of them.
        carries: take the features of an earlier stage.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        widths: Sequence[int],
        blocks: Sequence[int],
        carries: bool,
    ) -> None:
        super().__init__()
        fine, middle, coarse = widths

        def stack(width: int, count: int) -> nn.Sequential:
            return nn.Sequential(*(Residual(width) for _ in range(count)))

        self.enter = nn.Conv2d(inputs, fine, 4, stride=2, padding=1)
        self.carry = nn.Conv2d(fine, fine, 3, padding=1, bias=False) if carries else None
        self.down = nn.ModuleList([nn.Conv2d(fine, middle, 2, 2), nn.Conv2d(middle, coarse, 2, 2)])
        self.encoder = nn.ModuleList([stack(fine, blocks[0]), stack(middle, blocks[1])])
        self.bottom = stack(coarse, blocks[2])
        up = [nn.ConvTranspose2d(middle, fine, 2, 2), nn.ConvTranspose2d(coarse, middle, 2, 2)]
        self.up = nn.ModuleList(up)
        decoder = [stack(w, max(1, n - 1)) for w, n in zip(widths[:2], blocks[:2], strict=True)]
        self.decoder = nn.ModuleList(decoder)
        self.leave = nn.ConvTranspose2d(fine, outputs, 4, stride=2, padding=1)
        with torch.no_grad():
            self.enter.weight[:, outputs + 1 :] = 0
            if self.carry is not None:
                self.carry.weight.zero_()
            self.leave.weight.mul_(0.1)

    def forward(self, planes: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return a correction and the features that the next stage takes.

        Args:
            planes: `(B, inputs, H, W)`, H and W multiples of 8.
            features: `(B, widths[0], H/2, W/2)` of the stage before.
        """
        x = self.enter(planes)
        if self.carry is not None and features is not None:
            x = x + self.carry(features)
        fine = self.encoder[0](F.relu(x))
        middle = self.encoder[1](self.down[0](fine))
        x = self.bottom(self.down[1](middle))
        x = self.decoder[1](middle + self.up[1](x))
        features = self.decoder[0](fine + self.up[0](x))
        return self.leave(features), features
