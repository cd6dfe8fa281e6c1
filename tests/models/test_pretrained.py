"""The weights in the package: what they fit, what they reach, and how they are asked for."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

import cassi
from cassi.data.bundled import bundled_path
from cassi.metrics import psnr
from cassi.models.inference import Inference, prepare
from cassi.solvers import Statistics


@pytest.fixture(scope="module")
def bundled():
    """A part of the demonstration scene, a camera and its measurement."""
    truth = cassi.read_cube(bundled_path("scene.tif"))[..., 64:192, 64:192]
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :128, :128]
    system = cassi.SDCassi(mask, truth.shape[1], step=2)
    return truth, system, system(truth)


def test_beats_total_variation_with_a_mask_never_seen(bundled):
    truth, system, y = bundled
    solved = cassi.solve(y, system, prior=cassi.TV())
    x = cassi.create_model("pretrained", system)(y, system)
    assert psnr(x, truth).mean() > psnr(solved, truth).mean() + 1


def test_a_page_of_text_under_coloured_lights_is_no_worse_than_by_auto():
    page = Image.new("L", (128, 128), 255)
    lines = "\n".join(["sphinx of black quartz, judge my vow", "PACK MY BOX WITH FIVE JUGS"] * 6)
    ImageDraw.Draw(page).text((2, 2), lines, font=ImageFont.load_default(9), fill=20)
    nm = torch.linspace(450, 650, 28)[:, None, None]
    across = torch.sigmoid((torch.arange(128) - 60) / 8)
    lights = torch.sigmoid((nm - 540) / 15), torch.sigmoid((530 - nm) / 15)
    light = lights[0] * across + lights[1] * (1 - across)
    truth = (torch.from_numpy(np.array(page)) / 255 * light)[None]
    system = cassi.SDCassi(cassi.read_mask(bundled_path("mask.tif"))[..., :128, :128], 28, step=2)
    y = system(truth)
    x, plain = (cassi.reconstruct(y, system, method) for method in ("pretrained", "auto"))
    assert psnr(x, truth).mean() > psnr(plain, truth).mean() - 0.1


def test_is_consistent_with_the_measurement(bundled):
    _, system, y = bundled
    for noise, most in ((0.0, 1e-3), (0.01, 1.01e-2)):
        net = cassi.create_model("pretrained", system, size="small", noise=noise)
        assert (y - system(net(y, system))).norm() <= most * y.norm()
    raw = cassi.create_model("pretrained", system, size="small", noise=0.0, refined=False)
    assert 1e-3 * y.norm() < (y - system(raw(y, system))).norm() <= 3e-2 * y.norm()


def look(net, y, system, noise=None):
    """Return what noise windows show, what was chosen by pixels held out, and the start then."""
    whole = Statistics(lambda: [(y, system)])
    found = net.start.run(y, system, statistics=whole)
    choice = found.stopped
    if noise is not None:
        choice = replace(choice, factor=noise)
    return float(whole.noise), choice, net._limit_noise(whole, net.start, choice)


def test_texture_that_passes_for_noise_is_found_out(bundled):
    _, system, y = bundled
    net = cassi.create_model("pretrained", system)
    shown, choice, told = look(net, y, system, noise=1.0)
    assert 0 < told.noise < shown
    assert told.heldout == 0
    assert choice.lines.error(choice.x) < shown
    small = cassi.create_model("pretrained", system, size="small")
    assert look(small, y, system)[1:] == (None, small.start)


def test_the_large_one_goes_on_with_a_denoiser(bundled):
    truth, system, y = bundled
    random = torch.Generator().manual_seed(0)
    y = y + 0.02 * y.square().mean().sqrt() * torch.randn(y.shape, generator=random)
    raw = cassi.create_model("pretrained", system, refined=False)(y, system)
    refined = cassi.create_model("pretrained", system)(y, system)
    assert psnr(refined, truth).mean() > psnr(raw, truth).mean() + 0.3


def test_takes_other_bands_steps_and_axes():
    net = cassi.create_model("pretrained", size="small")
    for bands, step, axis in ((6, 1, -1), (12, -3, -1), (9, 2, -2)):
        mask = (torch.rand(48, 64, generator=torch.Generator().manual_seed(0)) < 0.5).float()
        system = cassi.SDCassi(mask, bands, step, axis)
        truth = torch.linspace(0.2, 1, bands).view(1, -1, 1, 1).expand(2, -1, 48, 64)
        x = net(system(truth), system)
        assert x.shape == truth.shape
        assert (x - truth).abs().mean() < 0.1


@pytest.mark.parametrize(
    ("system", "reason"),
    [
        (cassi.SDCassi(torch.ones(64, 64), 2), "2 bands"),
        (cassi.SDCassi(torch.ones(64, 64), 200, step=1), "200 bands"),
        (cassi.SDCassi(torch.ones(16, 64), 28), "an image of 16 x 64"),
        (cassi.SDCassi(torch.ones(2, 1, 64, 64), 28), "2 shots"),
        (cassi.DDCassi(torch.ones(64, 64), 28), "two dispersers"),
    ],
)
def test_says_which_solver_to_take_where_no_weights_fit(system, reason):
    with pytest.raises(ValueError, match=f"no shipped weights fit .*{reason}.* solver=auto"):
        cassi.create_model("pretrained", system)
    y = torch.ones(1, *system.measurement_shape)
    with pytest.raises(ValueError, match="no shipped weights fit"):
        cassi.create_model("pretrained")(y, system)


def test_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="large or small"):
        cassi.create_model("pretrained", size="huge")
    with pytest.raises(ValueError, match="has its own"):
        cassi.create_model("pretrained", weights="other.safetensors")
    with pytest.raises(ValueError, match="stages"):
        cassi.create_model("pretrained", stages=3)
    with pytest.raises(ValueError, match="bands: the camera has 28"):
        cassi.create_model("pretrained", cassi.SDCassi(torch.ones(64, 64), 28), bands=5)
    with pytest.raises(ValueError, match="precision"):
        Inference(torch.nn.Identity(), precision="8-bit")


def test_a_network_is_a_reconstructor():
    system = cassi.SDCassi(torch.ones(32, 32), 4)
    y, seen = torch.rand(1, *system.measurement_shape), []
    ready = prepare(cassi.create_model("gap_net", system, stages=1))
    solution = ready.run(y, system, callback=lambda step, x: seen.append((step, x)))
    assert torch.equal(solution.x, ready(y, system))
    assert (ready.iterations, ready.halo, ready.shares_batch) == (1, 96, True)
    assert not ready.refines
    assert seen == [(solution.history[0], solution.x)]
    assert (seen[0][0].index, seen[0][0].change, solution.reason) == (1, 1.0, "iterations")
    with pytest.raises(ValueError, match="takes no first cube"):
        ready.run(y, system, x0=solution.x)
    with pytest.raises(ValueError, match="refine: expected true, false or auto, got 'no'"):
        prepare(torch.nn.Identity(), "no")
    with torch.no_grad():
        next(ready.network.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="cube is not finite"):
        ready.run(y, system)
