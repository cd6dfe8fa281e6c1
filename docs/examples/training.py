"""Train an unrolled network in Python; cassi-train adds files, checkpoints and Lightning."""

import torch

import cassi
from cassi.data.bundled import bundled_path


def main(size: int = 64, steps: int = 60, bands: int = 8) -> tuple[float, float]:
    """Return the loss of the first and of the last ten steps."""
    torch.manual_seed(0)
    scene = cassi.read_cube(bundled_path("scene.tif"))[:, ::4][:, :bands]  # (1, C, 256, 256)
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :size, :size]
    camera = cassi.SDCassi(mask, bands=bands, step=2)
    network = cassi.create_model("gap_net", bands=bands)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        top, left = torch.randint(0, 256 - size, (2,)).tolist()
        x = scene[..., top : top + size, left : left + size]
        loss = (network(camera(x), camera) - x).abs().mean()
        optimizer.zero_grad()
        loss.backward()  # through the camera's data steps, compiled and exact
        optimizer.step()
        losses.append(loss.item())
    few = max(1, min(10, steps // 3))
    first, last = sum(losses[:few]) / few, sum(losses[-few:]) / few
    print(f"mean error {first:.4f} -> {last:.4f} after {steps} steps")
    return first, last


if __name__ == "__main__":
    main()
