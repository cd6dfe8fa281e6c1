"""Scenes in every layout that data sets ship, and what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from shared import uniform

import cassi
from cassi.data.scenes import Scene, find_scenes, load_scene
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS, resample

BANDS = (450.0, 555.0, 700.0)
CAVE = [400.0 + 10 * band for band in range(31)]


def _pages(folder, levels, channels=0):
    """Write pages as CAVE names them; `channels` equal ones, the fourth opaque."""
    folder.mkdir(parents=True)
    for number, page in enumerate(levels, start=1):
        if channels:
            page = np.stack([page] * channels, -1)
            page[..., 3:] = 255
        Image.fromarray(page).save(folder / f"{folder.name}_{number:02d}.png")
    Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(folder / "preview_RGB.bmp")
    (folder / "readme.txt").write_text("31 bands")
    return folder


@pytest.fixture
def levels():
    return np.random.default_rng(0).integers(100, 40000, (31, 6, 5)).astype(np.uint16)


def test_folder_of_16_bit_pages(tmp_path, levels):
    folder = _pages(tmp_path / "flowers_ms" / "flowers_ms", levels)
    assert find_scenes(tmp_path) == [folder]
    assert find_scenes(folder) == [folder]
    scene = load_scene(folder, BANDS)
    expected = resample(torch.from_numpy(levels.astype(np.float64)), CAVE, BANDS)
    torch.testing.assert_close(scene.cube.double(), expected / expected.max(), rtol=0, atol=1e-6)
    assert scene.cube.dtype == torch.float32
    assert scene.cube.max() == 1
    assert (scene.name, scene.wavelengths) == ("flowers", BANDS)
    assert "31 bands interpolated to 3, divided by its maximum" in scene.note


@pytest.mark.parametrize("channels", [0, 2, 3, 4])
def test_folder_of_8_bit_pages_with_equal_channels(tmp_path, channels):
    levels = np.random.default_rng(0).integers(0, 200, (31, 6, 5)).astype(np.uint8)
    scene = load_scene(_pages(tmp_path / "watercolors_ms", levels, channels), CAVE)
    expected = torch.from_numpy(levels) / float(levels.max())
    torch.testing.assert_close(scene.cube, expected, rtol=0, atol=1e-6)


def test_damaged_folders(tmp_path, levels):
    folder = _pages(tmp_path / "a_ms", levels)
    page = folder / "a_ms_07.png"
    content = page.read_bytes()
    page.write_bytes(content[:60])
    with pytest.raises(ValueError, match=r"cannot read .*a_ms as images: a_ms_07\.png: "):
        load_scene(folder, BANDS)
    page.unlink()
    with pytest.raises(ValueError, match=r"31 pages .* 400 nm to 700 nm, got 30; missing 7"):
        load_scene(folder, BANDS)
    Image.fromarray(levels[0, :4]).save(page)
    with pytest.raises(ValueError, match=r"alike, got \(6, 5\) in a_ms_01\.png and \(4, 5\)"):
        load_scene(folder, BANDS)
    colours = np.zeros((6, 5, 3), np.uint8)
    colours[0, 0, 1] = 1
    Image.fromarray(colours).save(page)
    with pytest.raises(ValueError, match="expected a grey image or equal colour channels"):
        load_scene(folder, BANDS)
    page.write_bytes(content)
    (folder / "a_ms_32.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"got 32; not expected a_ms_32\.png"):
        load_scene(folder, BANDS)
    with pytest.raises(ValueError, match="such as NAME_01"):
        load_scene(tmp_path, BANDS)


@pytest.mark.parametrize("key", ["img", "img_expand", "HSI"])
def test_matlab_counts_and_fractions(tmp_path, key):
    cube = uniform(3, 6, 5) * 0.8
    counts = (cube * 65536).round()
    savemat(tmp_path / "scene1.mat", {key: counts.permute(1, 2, 0).numpy()})
    torch.testing.assert_close(
        load_scene(tmp_path / "scene1.mat", BANDS).cube, counts / counts.max(), rtol=0, atol=1e-6
    )
    scene = load_scene(tmp_path / "scene1.mat", BANDS, scale=65536)
    torch.testing.assert_close(scene.cube, counts / 65536, rtol=0, atol=1e-6)
    savemat(tmp_path / "scene01.mat", {key: cube.permute(1, 2, 0).numpy()})
    fractions = load_scene(tmp_path / "scene01.mat", BANDS)
    assert torch.equal(fractions.cube, cube)
    assert "no wavelengths stated" in fractions.note
    brightest = load_scene(tmp_path / "scene01.mat", BANDS, scale="maximum")
    assert brightest.cube.max() == 1
    assert [path.name for path in find_scenes(tmp_path)] == ["scene01.mat", "scene1.mat"]


def test_tiff_states_its_wavelengths(tmp_path):
    cube = uniform(5, 6, 4)
    cassi.write_cube(tmp_path / "a.tif", cube, [440, 500, 560, 620, 700])
    resampled_cube = load_scene(tmp_path / "a.tif", BANDS).cube
    torch.testing.assert_close(resampled_cube, resample(cube, [440, 500, 560, 620, 700], BANDS))
    with pytest.raises(ValueError, match=r"a\.tif: .* 430 nm would be extrapolated"):
        load_scene(tmp_path / "a.tif", [430, 500])


@pytest.mark.parametrize(("share", "scale"), [(0.005, 3.5), (0.4, 1), (0.0, 1)])
def test_highlights_beyond_white(tmp_path, share, scale):
    """Where few values exceed 1, 1 is white; counts say nothing of it."""
    cube = uniform(3, 20, 20)
    cube.view(-1)[: round(share * cube.numel())] = 3.5
    np.save(tmp_path / "a.npy", cube.numpy())
    scene = load_scene(tmp_path / "a.npy", BANDS)
    assert (scene.scale, scene.compact().scale) == (scale, scale)
    torch.testing.assert_close(scene.cube * max(scale, cube.max().item()), cube.clamp(max=3.5))
    np.save(tmp_path / "b.npy", (1000 * cube).round().short().numpy())
    assert load_scene(tmp_path / "b.npy", BANDS).scale == 1


def test_refused_files(tmp_path):
    one_nan = np.where(np.arange(90).reshape(3, 6, 5) == 43, np.nan, 1)
    for array, message in (
        (np.ones((2, 6, 5)), "too few bands: expected 3, .* got 2 without wavelengths"),
        (np.ones((4, 6, 5)), "unknown bands: expected 3"),
        (one_nan, "NaN"),
        (np.zeros((3, 6, 5)), "with light in it"),
    ):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(ValueError, match=message):
            load_scene(tmp_path / "a.npy", BANDS)
    np.save(tmp_path / "few.npy", np.ones((2, 6, 5), np.float32))
    with pytest.raises(ValueError, match="scale: expected"):
        load_scene(tmp_path / "few.npy", BANDS[:2], scale=-1)
    with pytest.raises(FileNotFoundError):
        load_scene(tmp_path / "none.npy", BANDS)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        find_scenes(tmp_path / "none")


def test_hidden_files_are_passed_over(tmp_path):
    for name in (".a.npy", "a.npy", ".hidden/b.npy", "c/d.npy", "mask.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"skipped 1 .*: mask\.txt \(unknown suffix '\.txt'\)"):
        assert find_scenes(tmp_path) == [tmp_path / "a.npy", tmp_path / "c" / "d.npy"]


def test_links_are_followed_within_the_folder(tmp_path):
    root = tmp_path / "root"
    for name in ("root/.store/a.npy", "root/b.npy", "root/in/c.npy", "other/d.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(b"x")
    targets = {"a": root / ".store/a.npy", "b2": root / "b.npy", "d": tmp_path / "other/d.npy"}
    for name, target in (*targets.items(), ("none", root / "none")):
        (root / f"{name}.npy").symlink_to(target)
    (root / "again").symlink_to(".")
    (root / "0in").symlink_to("in")
    with pytest.warns(UserWarning, match="skipped") as warnings_info:
        scenes = find_scenes(root)
    assert scenes == [root / "a.npy", root / "b.npy", root / "in/c.npy"]
    text = str(warnings_info[0].message)
    assert text.startswith(f"{root}: skipped 4 ")
    for part in (
        "b2.npy (a link to b.npy)",
        f"d.npy (its link leads out of {root})",
        "none.npy (its link leads nowhere)",
    ):
        assert part in text
    assert find_scenes(tmp_path / "other", tree=tmp_path) == [tmp_path / "other/d.npy"]


@pytest.mark.parametrize("name", ["a_{nm}nm.png", "{nm}.png"])
def test_pages_of_any_number_are_a_scene(tmp_path, levels, name):
    (tmp_path / "a").mkdir()
    for band, nm in enumerate(BANDS):
        Image.fromarray(levels[band]).save(tmp_path / "a" / name.format(nm=int(nm)))
    assert find_scenes(tmp_path) == [tmp_path / "a"]
    scene = load_scene(tmp_path / "a", BANDS)
    expected = torch.from_numpy(levels[: len(BANDS)].astype(np.float32))
    torch.testing.assert_close(scene.cube, expected / expected.max())
    assert scene.wavelengths == BANDS


def test_compact_keeps_half_a_step():
    scene = Scene("a", uniform(3, 6, 5), BANDS)
    scene.cube[0, 0, :2] = torch.tensor([0.0, 1.0])
    compact_scene = scene.compact()
    assert compact_scene.cube.dtype == torch.uint16
    assert compact_scene.compact() is compact_scene
    torch.testing.assert_close(compact_scene.values(), scene.cube, rtol=0, atol=0.5 / 65535 + 1e-7)
    assert compact_scene.values()[0, 0, :2].tolist() == [0, 1]
    for each_scene in (scene, compact_scene):
        part = each_scene.values(1, 2, 3, 2)
        assert torch.equal(part, each_scene.values()[:, 1:4, 2:4])
        assert part.is_contiguous()
        part.zero_()
        assert each_scene.values(1, 2, 3, 2).max() > 0
    for window in ((0, 0, 7, 5), (-1, 0, 2, 2), (5, 0, 2, 2), (0, 0, 0, 1)):
        with pytest.raises(ValueError, match="a: expected a window inside 6 x 5"):
            scene.values(*window)


@pytest.mark.parametrize("folder", ["cave_raw", "cave_test", "cave_train"])
def test_real_scenes(data_dir, folder):
    paths = find_scenes(data_dir / folder)
    assert len(paths) == {"cave_raw": 3, "cave_test": 5, "cave_train": 20}[folder]
    scene = load_scene(paths[0], BENCHMARK_WAVELENGTHS)
    side = 256 if folder == "cave_test" else 512
    assert scene.shape == (28, side, side)
    assert scene.cube.min() >= 0
    assert 0.95 < scene.cube.max() <= 1
