"""Files that are damaged, or made to harm: each is refused in one line, and nothing is run."""

import pickle
import struct
import zipfile
import zlib

import h5py
import numpy as np
import pytest
import scipy.io as scipy_io
import tifffile
import torch

from cassi.apps.errors import describe, is_usage_error
from cassi.data import io
from cassi.data.formats import arrays
from cassi.data.formats.cells import csv_text
from cassi.data.scenes import load_scene

NM = (453.5, 457.5, 462.0, 466.125, 471.5)
HUGE = 10**13  # bytes


def _npy(path):
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (10, 10, HUGE // 100)}
        np.lib.format.write_array_header_1_0(file, header)


def _npz(path):
    """Both the member and what the archive says of it claim ten terabytes."""
    _npy(path.with_suffix(".npy"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_suffix(".npy"), "cube.npy")
        info = archive.infolist()[0]
        info.file_size = info.compress_size = HUGE
        info.extra = b""


def _npz_twin(path):
    """A member without suffix hides behind one that is checked."""
    _npy(path.with_suffix(".npy"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_suffix(".npy"), "cube")
        archive.write(path.with_suffix(".npy"), "cube.npy")


def _npy_header(path):
    path.write_bytes(b"\x93NUMPY\2\0" + struct.pack("<I", 0xFFFFFFF0) + b"{" * 100)


def _mat_of(packed):
    """A file of one compressed element."""
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM"
    return lambda path: path.write_bytes(head + struct.pack("<II", 15, len(packed)) + packed)


def _mat(axes, tag, numbers, *, kind=9, name=b"cube"):
    def make(path):
        def element(kind, content):
            return struct.pack("<II", kind, len(content)) + content.ljust(-(-len(content) // 8) * 8)

        body = element(6, struct.pack("<II", 6, 0))
        body += element(5, struct.pack(f"<{len(axes)}i", *axes)) + element(1, name)
        body += struct.pack("<II", kind, numbers) + bytes(64)
        _mat_of(zlib.compress(struct.pack("<II", 14, tag or len(body)) + body))(path)

    return make


def _hdf5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("cube", (10, 10, HUGE // 100), "u1", chunks=(1, 10, 1000))


def _hdf5_chunk(path):
    """Small, but in one chunk of 4 GB."""
    with h5py.File(path, "w") as file:
        item = file.create_dataset(
            "cube", (4, 4, 4), "u1", chunks=(1023, 1024, 4096), maxshape=(None,) * 3
        )
        item.id.write_direct_chunk((0, 0, 0), b"123")


def _tiff(path):
    tifffile.imwrite(path, np.zeros((3, 4, 5), "f4"), photometric="minisblack")
    content = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tiff:
        for page in tiff.pages:
            for name in ("ImageWidth", "ImageLength"):
                tag = page.tags[name]
                content[tag.offset + 2 : tag.offset + 12] = struct.pack("<HII", 4, 1, 1 << 20)
    path.write_bytes(content)


def _envi(path):
    path.with_suffix(".img").write_bytes(bytes(60))
    path.write_text(
        "ENVI\nsamples = 1000000\nlines = 1000000\nbands = 10\nheader offset = 0\n"
        "data type = 1\ninterleave = bsq\nbyte order = 0\n"
    )


def _envi_sparse(path):
    """A raw file that is long, but takes no space."""
    _envi(path)
    try:
        with path.with_suffix(".img").open("wb") as file:
            file.truncate(HUGE)
    except OSError as error:
        pytest.skip(f"no sparse files in {path.parent}: {error}")


HOSTILE = {
    "npy": (".npy", _npy),
    "npy_header": (".npy", _npy_header),
    "npz": (".npz", _npz),
    "npz_twin": (".npz", _npz_twin),
    "mat_axes": (".mat", _mat((10**4, 10**4, 10**5), 0, 64)),
    "mat_numbers": (".mat", _mat((2, 2, 2), 0, 4 * 10**9)),
    "mat_kind": (".mat", _mat((2, 2, 2), 0, 64, kind=19)),
    "mat_kind_hidden": (".mat", _mat((2, 2, 2), 0, 64, kind=19, name=b"a" * 4032)),
    "mat_one_axis": (".mat", _mat((4,), 0, 64)),
    "mat_below_zero": (".mat", _mat((2, -2, 2), 0, 64)),
    "mat_of_more": (".mat", _mat((1, 1), 0, 64)),
    "mat_short": (".mat", _mat_of(zlib.compress(b"short"))),
    "mat_no_deflate": (".mat", _mat_of(b"no deflate")),
    "hspy": (".hspy", _hdf5),
    "hdf5": (".h5", _hdf5),
    "hdf5_chunk": (".h5", _hdf5_chunk),
    "tiff": (".tif", _tiff),
    "envi": (".hdr", _envi),
    "envi_sparse": (".hdr", _envi_sparse),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_claims_are_refused(name, tmp_path, allocations):
    """One line, no memory taken here, and the next file is read as ever."""
    suffix, make = HOSTILE[name]
    path = tmp_path / f"a{suffix}"
    make(path)

    def read():
        with pytest.raises(ValueError, match=r"a\.") as caught:
            io.read_cube(path, axes="CHW")
        assert "\n" not in str(caught.value)
        assert is_usage_error(caught.value)  # the commands end with status 2

    assert allocations(read) < 32 << 20
    io.write_cube(tmp_path / "b.tif", torch.ones(3, 4, 5))
    assert io.read_cube(tmp_path / "b.tif").shape == (1, 3, 4, 5)


@pytest.fixture
def allocations():
    """Largest memory that Python and numpy held during a call, bytes."""
    import tracemalloc

    def measure(call):
        call()  # imports
        tracemalloc.start()
        try:
            call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure


def test_more_than_the_machine_has(tmp_path, monkeypatch):
    io.write_cube(tmp_path / "a.tif", torch.ones(3, 20, 20))
    monkeypatch.setattr(arrays, "machine_memory", lambda: 9000)
    with pytest.raises(ValueError, match=r"takes 0\.0 GiB of memory, the machine has"):
        arrays.read_array(tmp_path / "a.tif", "cube")


@pytest.mark.parametrize("suffix", [".tif", ".h5"])
def test_data_that_expand_further_than_claimed(suffix, tmp_path):
    """Deflated data of 1 GB where the header promises 3·8·8 bytes."""
    path, pack = tmp_path / f"a{suffix}", zlib.compressobj(9)
    parts = [pack.compress(bytes(10 << 20)) for _ in range(100)]
    bomb = b"".join([*parts, pack.flush()])
    if suffix == ".h5":
        with h5py.File(path, "w") as file:
            item = file.create_dataset("cube", (3, 8, 8), "u1", chunks=True, compression="gzip")
            item.id.write_direct_chunk((0, 0, 0), bomb)
    else:
        tifffile.imwrite(
            path, np.zeros((3, 8, 8), "u1"), photometric="minisblack", compression="zlib"
        )
        content = bytearray(path.read_bytes())
        with tifffile.TiffFile(path) as tiff:
            for page in tiff.pages:
                tags = page.tags["StripOffsets"], page.tags["StripByteCounts"]
                for tag, value in zip(tags, (len(content), len(bomb)), strict=True):
                    content[tag.offset + 2 : tag.offset + 12] = struct.pack("<HII", 4, 1, value)
                content += bomb
        path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"reading it takes more than \d+ MB|cannot read"
    ) as caught:
        io.read_cube(path, axes="CHW")
    assert "\n" not in str(caught.value)


def test_pages_that_claim_too_much(tmp_path):
    def chunk(kind, content):
        crc = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + crc

    head = struct.pack(">IIBBBBB", 9_000, 9_000, 16, 0, 0, 0, 0)
    page = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b""))
    for number in range(1, 32):
        (tmp_path / f"a_{number:02}.png").write_bytes(page)
    with pytest.raises(ValueError, match="truncated"):
        load_scene(tmp_path, NM[:3])


def test_no_such_file(tmp_path, cube):
    io.write_cube(tmp_path / "scene01.tif", cube)
    for name in ("a.jpg", "a.bmp"):
        (tmp_path / name).write_bytes(b"x")
    for name, kind, message in (
        ("scene1.tif", FileNotFoundError, r"did you mean scene01\.tif\?"),
        ("nowhere/a.tif", FileNotFoundError, "no file"),
        ("", IsADirectoryError, "is a folder"),
        ("a.jpg", ValueError, r"JPEG changes them; save frames as \.png or \.tif"),
        ("a.bmp", ValueError, r"unknown suffix '\.bmp'; expected \.tif"),
    ):
        with pytest.raises(kind, match=message):
            io.read_cube(tmp_path / name)
    with pytest.raises(ValueError, match=r"unknown suffix '\.jpg'; use \.tif"):
        io.write_cube(tmp_path / "a.jpg", cube)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((6, 7, 3), complex), "complex numbers"),
        (np.full((6, 7, 3), "a"), "expected numbers"),
        (np.full((6, 7, 3), None), "never unpickled"),
        (np.zeros((6, 7, 3), [("a", "f4")]), "expected numbers"),
        (np.zeros((6, 0, 3)), "is empty"),
        (np.zeros((6, 7)), "a cube has 3 axes"),
        (np.zeros((2, 6, 7, 3)), "a cube has 3 axes"),
        (np.full((6, 7, 3), np.inf), "126 values that are NaN or infinite, the first at"),
        (np.full((6, 7, 3), 1e300), r"its largest value 1e\+300 is beyond float32"),
    ],
)
def test_unsuitable_arrays(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        io.read_cube(tmp_path / "a.npy")


def test_nothing_is_unpickled(tmp_path):
    marker = tmp_path / "run"

    class Bomb:
        def __reduce__(self):
            return marker.touch, ()

    np.savez(tmp_path / "a.npz", cube=np.array([Bomb()], dtype=object))
    (tmp_path / "a.npy").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="'cube' is Python objects"):
        io.read_cube(tmp_path / "a.npz", key="cube")
    with pytest.raises(ValueError, match=r"cannot read .* as \.npy"):
        io.read_cube(tmp_path / "a.npy")
    assert not marker.exists()


def test_matlab_things_that_are_not_arrays(tmp_path):
    things = {
        "c": np.array([1, "a"], object),
        "s": {"x": 1},
        "t": "text",
        "z": np.ones((6, 7)) * 1j,
    }
    scipy_io.savemat(tmp_path / "a.mat", things)
    said = {"c": "a cell array", "s": "a struct array", "t": "a char array"}
    for key, words in said.items():
        with pytest.raises(ValueError, match=f"'{key}' is {words}, not an array of numbers"):
            io.read_mask(tmp_path / "a.mat", key=key)
    with pytest.raises(ValueError, match="complex"):
        io.read_mask(tmp_path / "a.mat", key="z")


@pytest.fixture
def files(tmp_path, save_hdf5_as_matlab):
    """The same cube in every format."""
    cube = torch.rand(5, 16, 17, generator=torch.Generator().manual_seed(0))
    written = [suffix for suffix in io.WRITE_SUFFIXES if suffix != ".zarr"]
    for suffix in written:
        io.write_cube(tmp_path / f"a{suffix}", cube, None if suffix == ".npy" else NM)
    save_hdf5_as_matlab(tmp_path / "v73.mat", cube=cube.numpy().transpose(1, 2, 0))
    with tifffile.TiffWriter(tmp_path / "deflate.tif") as tiff:
        tiff.write(cube.numpy(), photometric="minisblack", compression="zlib")
    names = [f"a{s}" for s in written] + ["a.img", "v73.mat", "deflate.tif"]
    return [(tmp_path / name, cube[None]) for name in names]


def _attempt(path):
    try:
        return io.read_cube(path), ""
    except ValueError as error:
        return None, str(error)


def test_truncated_files(files, capfd):
    """Whatever is missing, the answer is one line or the whole cube, never a part of it."""
    for path, cube in files:
        whole = path.read_bytes()
        cuts = {0, 1, 7, 100, 130, 400, 600, *(len(whole) * k // 8 for k in range(1, 8))}
        for cut in sorted(c for c in {*cuts, len(whole) - 40, len(whole) - 1} if c < len(whole)):
            path.write_bytes(whole[:cut])
            read, message = _attempt(path)
            if read is None:
                assert str(path) in message, (path.name, cut)
                assert "\n" not in message, (path.name, cut)
            else:
                assert torch.equal(read, cube), (path.name, cut)
        path.write_bytes(whole)
        assert torch.equal(io.read_cube(path), cube)
    assert capfd.readouterr() == ("", "")


def test_random_bytes(files):
    generator = np.random.default_rng(0)
    for path, _ in files:
        whole = np.frombuffer(path.read_bytes(), np.uint8)
        damaged = whole.copy()
        damaged[: len(whole) // 2] = generator.integers(0, 256, len(whole) // 2, np.uint8)
        noise = generator.integers(0, 256, len(whole) + 1, np.uint8)
        for wrong in (noise, damaged):
            path.write_bytes(wrong.tobytes())
            if path.suffix == ".img" and wrong is damaged:
                continue  # a raw file has no redundancy
            refused = r"cannot read|NaN or infinite|beyond float32"
            with pytest.raises(ValueError, match=refused) as caught:
                io.read_cube(path)
            assert "\n" not in str(caught.value), path.name
        path.write_bytes(whole.tobytes())


@pytest.mark.parametrize(
    "name", ["=cmd|' !A1.npy", "+1+1.npy", "-a.npy", "@SUM(A1).npy", "\x1b[2J.npy"]
)
def test_names_of_files_are_text(name, tmp_path):
    """Neither a spreadsheet nor a terminal takes them for what they could do."""
    np.save(tmp_path / name, np.ones((3, 4, 5), "f4"))
    assert io.load_cube(tmp_path / name).note.isprintable()
    (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="cannot read") as caught:
        io.load_cube(tmp_path / name)
    assert describe(caught.value).isprintable()
    cell = csv_text([{"name": name, "psnr": -1.5}]).splitlines()[1]
    assert cell.lstrip('"').startswith(("'", r"\x1b[2J"))
    assert cell.endswith(",-1.5")
