"""PNG files: grey levels of 1, 8 and 16 bits, and what is refused."""

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from cassi.data import io
from cassi.data.scenes import find_scenes

LEVELS = np.random.default_rng(0).integers(0, 256, (7, 9))


def _save(path, values, dtype):
    Image.fromarray(values.astype(dtype)).save(path)
    return path


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_grey_levels(tmp_path, dtype):
    top = np.iinfo(dtype).max
    values = LEVELS * (top // 255)
    path = _save(tmp_path / "a.png", values, dtype)
    loaded_frame = io.load_measurement(path)
    torch.testing.assert_close(loaded_frame.data[0, 0], torch.from_numpy(values / top).float())
    assert loaded_frame.full_scale == 1
    assert f"uint{np.dtype(dtype).itemsize * 8} divided by {top}" in loaded_frame.note
    counts = io.load_measurement(path, counts=True)
    assert torch.equal(counts.data[0, 0], torch.from_numpy(values).float())
    assert counts.full_scale == top
    assert torch.equal(io.read_mask(path), loaded_frame.data)
    with pytest.raises(ValueError, match="a cube has 3 axes"):
        io.read_cube(path)


def test_masks_of_zeros_and_ones(tmp_path):
    binary = LEVELS > 128
    Image.fromarray(binary).save(tmp_path / "a.png")
    _save(tmp_path / "b.png", binary, np.uint8)
    for name in ("a.png", "b.png"):
        assert torch.equal(io.read_mask(tmp_path / name)[0, 0], torch.from_numpy(binary).float())


def test_equal_colours_are_grey(tmp_path):
    grey_levels = LEVELS.astype(np.uint8)
    opaque = np.full_like(grey_levels, 255)
    for count, channels in (
        (2, [grey_levels, opaque]),
        (3, [grey_levels] * 3),
        (4, [grey_levels] * 3 + [opaque]),
    ):
        path = tmp_path / f"{count}.png"
        Image.fromarray(np.stack(channels, 2)).save(path)
        counts = io.load_measurement(path, counts=True).data[0, 0]
        assert torch.equal(counts, torch.from_numpy(grey_levels).float())


def test_a_few_bits_in_sixteen_are_said(tmp_path):
    for largest, bits in ((1000, 10), (4000, 12), (16000, 14)):
        values = np.full((7, 9), 5)
        values[2, 3] = largest
        note = io.load_measurement(_save(tmp_path / "a.png", values, np.uint16)).note
        assert f"none above {largest}: of a camera of {bits} bits? then set bits={bits}" in note
    values[2, 3] = 40000
    assert "set bits" not in io.load_measurement(_save(tmp_path / "a.png", values, np.uint16)).note
    assert "set bits" not in io.load_mask(_save(tmp_path / "a.png", LEVELS, np.uint16)).note


def test_refused(tmp_path):
    grey_levels = Image.fromarray(LEVELS.astype(np.uint8))
    colours = np.stack([LEVELS, LEVELS, 255 - LEVELS], 2).astype(np.uint8)
    Image.fromarray(colours).save(tmp_path / "rgb.png")
    grey_levels.convert("P").save(tmp_path / "palette.png")
    grey_levels.save(tmp_path / "many.png", save_all=True, append_images=[grey_levels.rotate(90)])
    (tmp_path / "text.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0")
    for name, message in (
        ("rgb.png", "expected a grey image or equal colour channels, got colours; save it in grey"),
        ("palette.png", "expected one image of grey levels, got colours of a palette"),
        ("many.png", "expected one image of grey levels, got 2 images"),
        ("text.png", "as .png: cannot identify image file"),
    ):
        with pytest.raises(ValueError, match=message) as error_info:
            io.read_measurement(tmp_path / name)
        assert "\n" not in str(error_info.value)
        assert str(tmp_path / name) in str(error_info.value)


@pytest.mark.parametrize("name", ["a.png", "colours.png", "a.tif"])
def test_opacity_is_no_pattern(tmp_path, name):
    levels = np.arange(48, dtype=np.uint8).reshape(6, 8)
    opaque = np.full_like(levels, 255)

    def save(level, opacity):
        values = np.dstack([level] * (3 if name == "colours.png" else 1) + [opacity])
        if name == "a.tif":
            tiff_options = {"photometric": "minisblack", "planarconfig": "contig"}
            tifffile.imwrite(tmp_path / name, values, extrasamples=["unassalpha"], **tiff_options)
        else:
            Image.fromarray(values).save(tmp_path / name)

    save(levels, opaque)
    grey_levels = torch.from_numpy(levels)[None, None] / 255
    torch.testing.assert_close(io.read_mask(tmp_path / name), grey_levels)
    save(opaque, levels)
    with pytest.raises(ValueError, match="its pattern is in the opacity"):
        io.read_mask(tmp_path / name)


def test_frames_in_a_folder_are_one_each(tmp_path):
    for number in (1, 2):
        _save(tmp_path / f"frame_{number}.png", LEVELS, np.uint8)
    assert find_scenes(tmp_path) == [tmp_path]
    paths = find_scenes(tmp_path, frames=True)
    assert [path.name for path in paths] == ["frame_1.png", "frame_2.png"]
