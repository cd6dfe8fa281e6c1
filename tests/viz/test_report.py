import base64
import json
import re
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from cassi.viz.report import encode_scene, make_report

HOSTILE = '</script><img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def scene():
    """A scene (28, 256, 256) with texture, edges, smooth spectra and sensor noise."""
    generator = np.random.default_rng(0)
    axis = np.linspace(0, 1, 256)
    y, x = np.meshgrid(axis, axis, indexing="ij")
    bands = np.arange(28)[:, None, None] / 27
    truth = np.zeros((28, 256, 256))
    for _ in range(24):
        cy, cx, radius, hue, broad = generator.random(5)
        disc = (y - cy) ** 2 + (x - cx) ** 2 < (0.03 + 0.15 * radius) ** 2
        texture = 0.6 + 0.4 * np.sin(60 * (cx * x + cy * y)) ** 2
        spectrum = np.exp(-(((bands - hue) / (0.1 + 0.4 * broad)) ** 2))
        truth = np.where(disc, spectrum * texture, truth)
    truth += 0.004 * generator.standard_normal(truth.shape)
    return (truth / truth.max()).astype(np.float32)


def _unpacked(page, key):
    """Unpacks a cube (C, H, W) as the page does."""
    _, height, width = page["shape"]
    packed = page["truth"] if key is None else dict(page["methods"])[key]
    cube = np.repeat(np.asarray(packed["mean"], np.float32)[:, None], height * width, axis=1)
    parts = (packed[name] for name in ("basis", "low", "step", "planes"))
    for vector, low, step, data in zip(*parts, strict=True):
        plane = np.asarray(Image.open(BytesIO(base64.b64decode(data))), np.float32)
        cube += np.asarray(vector, np.float32)[:, None] * (low + step * plane.reshape(1, -1))
    return cube.reshape(-1, height, width)


def test_a_packed_scene_comes_back_within_the_stated_error(scene):
    page = json.loads(encode_scene("a", {"x": 0.8 * scene}, scene, {}))
    for key, cube in ((None, scene), ("x", 0.8 * scene)):
        error = np.abs(_unpacked(page, key) - cube) / scene.max()
        assert np.sqrt((error**2).mean()) < 0.005
        assert np.quantile(error, 0.99) < 0.015


def test_ten_scenes_with_four_methods_stay_below_fifteen_megabytes(scene):
    generator = np.random.default_rng(1)
    cubes = {"a": 0.9 * scene, "b": scene[::-1].copy()}
    for method, sigma in (("c", 0.05), ("d", 0.2)):  # noise is what compresses worst
        noise = sigma * generator.standard_normal(scene.shape).astype(np.float32)
        cubes[method] = scene + noise
    packed = encode_scene("a", cubes, scene, {})
    page = len(make_report([packed], None, title="a"))
    assert page + 9 * len(packed) < 15e6
    assert page - len(packed) < 2.5e6


@pytest.mark.parametrize("scale", [1e-6, 1.0, 4e4])
@pytest.mark.parametrize("kind", ["small", "large", "fine"])
def test_the_error_is_relative_to_the_scene(scale, kind, scene):
    """Large scenes are averaged; a fine page keeps pixels and noise."""
    cube = (
        scale
        * {
            "small": scene[:5, :64, :48],
            "large": np.tile(scene[:4], (1, 3, 3))[:, :660, :661],
            "fine": np.random.default_rng(0).random((8, 401, 402), np.float32),
        }[kind]
    )
    page = json.loads(encode_scene("a", {"x": cube}, None, {}, is_local=kind == "fine"))
    assert page["truth"] is None
    assert (page["block"], page["full"]) == (1 + (kind == "large"), list(cube.shape[1:]))
    if kind == "large":
        cube = cube[:, :, :660].reshape(4, 330, 2, 330, 2).mean(axis=(2, 4))
    error = _unpacked(page, "x") - cube
    assert np.sqrt((error**2).mean()) < (0.01 if kind == "fine" else 0.005) * scale


def test_a_few_wild_values_do_not_spoil_the_rest(scene):
    wild = scene.copy()
    wild[3, 10, 10] = 1e6
    page = json.loads(encode_scene("a", {"x": wild}, scene, {}))
    error = np.abs(_unpacked(page, "x") - scene)
    assert np.median(error) < 0.01


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 9, 7), (40, 3, 90), (2, 1, 300)])
@pytest.mark.parametrize("value", [0.0, 0.7])
def test_extreme_shapes_and_flat_cubes(shape, value):
    cube = torch.full(shape, value)
    packed = encode_scene("a", {"x": cube, "y": cube}, cube, {"x": {"psnr": float("inf")}})
    page = json.loads(packed)
    assert dict(dict(page["metrics"])["x"]) == {"psnr": None}
    np.testing.assert_allclose(_unpacked(page, "x"), cube.numpy(), atol=1e-5)
    make_report([packed], None, title="a")


def test_methods_keep_their_order_even_if_called_by_numbers():
    cube = np.zeros((2, 4, 4))
    page = json.loads(encode_scene("a", {"9": cube, "b": cube, "1": cube}, None, {}))
    assert [method for method, _ in page["methods"]] == ["9", "b", "1"]


def test_no_name_becomes_markup():
    cube = np.zeros((2, 4, 4))
    packed = encode_scene(HOSTILE, {HOSTILE: cube}, None, {HOSTILE: {HOSTILE: 1.0}})
    page = make_report([packed], None, title=HOSTILE, preset=HOSTILE).decode()
    assert "<img" not in page
    inside = re.search(r'class="scene">(.*?)</script>', page, re.DOTALL)
    assert json.loads(inside[1])["name"] == HOSTILE


def test_the_page_asks_for_nothing_from_a_network():
    packed = encode_scene("a", {"x": np.zeros((2, 4, 4))}, None, {})
    page = make_report([packed], [500.0, 600.0], title="a").decode()
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)
    assert not re.search(r"<!--\w+-->", page)


def test_what_does_not_fit_is_said():
    cube = np.zeros((2, 4, 4))
    for cubes, truth, message in (
        ({"x": cube}, np.zeros((2, 4, 5)), "cube of x of the scene's shape"),
        ({}, None, "a cube or a truth of scene a"),
        ({"x": cube * np.nan}, None, "cube of x"),
        ({"": cube}, None, "name"),
    ):
        with pytest.raises(ValueError, match=message):
            encode_scene("a", cubes, truth, {})
    packed = encode_scene("a", {"x": cube}, None, {})
    for scenes, message in (([], "at least one scene"), ([packed], "2 wavelengths")):
        with pytest.raises(ValueError, match=message):
            make_report(scenes, [500.0], title="a")
