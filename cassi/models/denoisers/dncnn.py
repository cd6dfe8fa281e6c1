"""DnCNN: a denoiser that predicts the noise, without an input for the noise level."""

from torch import Tensor, nn

from cassi.models.layers import check_counts, check_images


def conv_stack(
    inputs: int, outputs: int, width: int, depth: int, batch_norm: bool = False
) -> nn.Sequential:
    """Return 3×3 convolutions with ReLU between them, the inner ones with batch normalization."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
    for _ in range(depth - 2):
        layers.append(nn.Conv2d(width, width, 3, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(width, momentum=0.9, eps=1e-4))
        layers.append(nn.ReLU(inplace=True))
    layers.append(nn.Conv2d(width, outputs, 3, padding=1))
    return nn.Sequential(*layers)


class DnCNN(nn.Module):
    """A plain stack of convolutions that predicts the noise.

        net(x) = x − R(x)

    It has no input for σ. A set of weights is for one noise level, or for all of them ("blind").

    Args:
        channels: channels of an image; 1 or 3 in the published weights.
        width: channels between the convolutions.
        depth: number of convolutions; 17 in `dncnn_15/25/50`, 20 in the blind ones.
        batch_norm: normalize after each inner convolution, as in the paper. In the published files
            the normalization is merged into the convolutions, so they need False.

    Raises:
        ValueError: a count below 1, or a depth below 2.

    Source: Zhang et al., "Beyond a Gaussian denoiser: residual learning of deep CNN for image
    denoising", TIP 2017, section III; names of the weights as in KAIR's `dncnn_*.pth`.
    """

    def __init__(
        self, channels: int = 1, width: int = 64, depth: int = 17, batch_norm: bool = False
    ) -> None:
        super().__init__()
        check_counts("DnCNN", channels=channels, width=width, depth=depth)
        if depth < 2:
            raise ValueError(f"DnCNN depth: expected at least 2, got {depth}")
        self.channels = channels
        self.model = conv_stack(channels, channels, width, depth, batch_norm)

    def forward(self, x: Tensor, sigma: float | Tensor | None = None) -> Tensor:
        """Denoise images `(N, channels, H, W)` in [0, 1]; σ is not used.

        Raises:
            ValueError: x has another shape.
        """
        check_images("DnCNN", x, self.channels)
        noise: Tensor = self.model(x)
        return x - noise
