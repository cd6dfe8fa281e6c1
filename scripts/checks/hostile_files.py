"""Read files that are made to do harm, and print the outcome and the time of each.

    python -m scripts.checks.hostile_files

Each file must be refused with one line, within 20 s and with less than 1 GB of memory. No byte of a
file outside of its folder may be read. The exit status is 1 if a file breaks one of these rules.
The docstring of a function says which file it makes.
"""

import json
import os
import resource
import struct
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile

from cassi.apps.camera.file import load_camera
from cassi.apps.errors import describe, is_usage_error
from cassi.apps.inputs import file_path
from cassi.data import io, sandboxed_reader
from cassi.priors.weights import read_file
from cassi.systems import Curve

MAX_SECONDS, MAX_MEGABYTES = 20, 1000
# Value in all files outside of the folder; it must never be read.
SECRET = 123.5


def _secret(folder: Path, name: str) -> Path:
    """Return the path of a file outside of the folder that is read."""
    path = folder.parent / f"elsewhere_{folder.name}" / name
    path.parent.mkdir(exist_ok=True)
    return path


def netcdf_variables(folder: Path) -> Path:
    """Classic netCDF, 2 MB: 1,500 variables over the same bytes."""
    size = 2_000_000

    def text(value: bytes) -> bytes:
        return struct.pack(">i", len(value)) + value.ljust(-(-len(value) // 4) * 4, b"\0")

    sides = (2, 1000, 1000)
    head = b"CDF\1" + struct.pack(">i", 0) + struct.pack(">2i", 10, len(sides))
    head += b"".join(text(b"zyx"[i : i + 1]) + struct.pack(">i", n) for i, n in enumerate(sides))
    head += struct.pack(">2i", 0, 0) + struct.pack(">2i", 11, 1500)
    names = [text(f"a{number:04}".encode()) for number in range(1500)]
    layout = struct.pack(">4i", 3, 0, 1, 2) + struct.pack(">2i", 0, 0) + struct.pack(">2i", 1, size)
    start = len(head) + sum(len(name) + len(layout) + 4 for name in names)
    variables = b"".join(name + layout + struct.pack(">i", start) for name in names)
    path = folder / "a.nc"
    path.write_bytes(head + variables + bytes(size))
    return path


def npz_axes(folder: Path) -> Path:
    """An archive of 3.3 MB whose `axes` are a text of 1.6 GB."""
    header = {"descr": "<U400000000", "fortran_order": False, "shape": ()}
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("cube.npy", "w") as member:
            np.save(member, np.ones((3, 4, 5), "f4"))
        with archive.open("axes.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_2_0(member, header)
            for _ in range(64):
                member.write(bytes(25_000_000))
    return folder / "a.npz"


def _element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content.ljust(-(-len(content) // 8) * 8, b"\0")


def mat_text(folder: Path) -> Path:
    """MATLAB 5: `axes`, a char array of 40 million letters."""

    def matrix(name: bytes, kind: int, shape: tuple[int, ...], data_type: int, size: int) -> bytes:
        body = _element(6, struct.pack("<II", kind, 0))
        body += _element(5, struct.pack(f"<{len(shape)}i", *shape)) + _element(1, name)
        body += struct.pack("<II", data_type, size) + bytes(-(-size // 8) * 8)
        stream = zlib.compress(struct.pack("<II", 14, len(body)) + body, 1)
        return struct.pack("<II", 15, len(stream)) + stream

    letters = 40_000_000
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM"
    content = matrix(b"cube", 6, (40, 50, 3), 9, 8 * 6000)
    content += matrix(b"axes", 4, (1, letters), 16, letters)
    (folder / "a.mat").write_bytes(head + content)
    return folder / "a.mat"


def _zarr(folder: Path, codec: str, chunk: bytes) -> Path:
    store = folder / "a.zarr"
    (store / "cube" / "c" / "0" / "0").mkdir(parents=True)
    grid = {"name": "regular", "configuration": {"chunk_shape": [3, 4, 5]}}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    options = {"zstd": {"level": 1, "checksum": False}, "gzip": {"level": 1}}
    if codec:
        codecs += [{"name": codec, "configuration": options[codec]}]
    keys = {"name": "default", "configuration": {"separator": "/"}}
    metadata = {"zarr_format": 3, "node_type": "array", "shape": [3, 4, 5], "data_type": "float32"}
    metadata |= {
        "chunk_grid": grid,
        "chunk_key_encoding": keys,
        "fill_value": 0.0,
        "codecs": codecs,
    }
    metadata |= {"attributes": {}, "dimension_names": ["wavelength", "y", "x"]}
    (store / "cube" / "zarr.json").write_text(json.dumps(metadata), encoding="utf-8")
    (store / "cube" / "c" / "0" / "0" / "0").write_bytes(chunk)
    return store


def zarr_zstd(folder: Path) -> Path:
    """A chunk of zstd that does not say how long its content is: 4 GB."""
    # A block that repeats one byte 131,072 times.
    block = struct.pack("<I", (1 << 17) << 3 | 1 << 1)[:3] + b"\0"
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, 7 << 3]) + block * 32_000
    return _zarr(folder, "zstd", frame + b"\1\0\0")


def _gzip(content: bytes) -> bytes:
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    return pack.compress(content) + pack.flush()


def zarr_gzip(folder: Path) -> Path:
    """A chunk of gzip that is followed by further members: 1.2 GB."""
    return _zarr(folder, "gzip", _gzip(bytes(240)) + _gzip(bytes(100_000_000)) * 12)


def zarr_zlib(folder: Path) -> Path:
    """Zarr 2: a chunk of zlib, 1.2 GB."""
    store = folder / "a.zarr"
    (store / "cube").mkdir(parents=True)
    metadata = {"zarr_format": 2, "shape": [3, 4, 5], "chunks": [3, 4, 5], "dtype": "<f4"}
    metadata |= {"compressor": {"id": "zlib", "level": 1}, "fill_value": 0, "order": "C"}
    metadata |= {"filters": None}
    (store / "cube" / ".zarray").write_text(json.dumps(metadata), encoding="utf-8")
    pack, part = zlib.compressobj(9), bytes(50_000_000)
    # After a full flush, the same bytes are compressed to the same code again.
    first, next_one = (pack.compress(part) + pack.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    checksum = struct.pack(">HH", 24 * len(part) % 65521, 1)  # Adler-32 of zeros
    content = first + next_one * 23 + pack.flush()[:-4] + checksum
    (store / "cube" / "0.0.0").write_bytes(content)
    return store


def _replace_chunk(store: Path, put: Callable[[Path], object]) -> Path:
    chunk = store / "cube" / "c" / "0" / "0" / "0"
    chunk.unlink()
    put(chunk)
    return store


def zarr_zero(folder: Path) -> Path:
    """A chunk that is a link to /dev/zero."""
    return _replace_chunk(_zarr(folder, "", b""), lambda chunk: chunk.symlink_to("/dev/zero"))


def zarr_pipe(folder: Path) -> Path:
    """A chunk that is a pipe, which nobody writes to."""
    return _replace_chunk(_zarr(folder, "", b""), os.mkfifo)


def zarr_pipe_link(folder: Path) -> Path:
    """A chunk that is a link to a pipe."""
    pipe = _secret(folder, "pipe")
    os.mkfifo(pipe)
    return _replace_chunk(_zarr(folder, "gzip", b""), lambda chunk: chunk.symlink_to(pipe))


def zarr_link(folder: Path) -> Path:
    """A chunk that is a link to a file elsewhere."""
    secret = _secret(folder, "chunk")
    secret.write_bytes(np.full(60, SECRET, "<f4").tobytes())
    return _replace_chunk(_zarr(folder, "", b""), lambda chunk: chunk.symlink_to(secret))


def zarr_link_of_folder(folder: Path) -> Path:
    """The folder of the chunks is a link."""
    _zarr(folder, "", np.full(60, SECRET, "<f4").tobytes())
    store, secret = folder / "a.zarr", _secret(folder, "c")
    (store / "cube" / "c").rename(secret)
    (store / "cube" / "c").symlink_to(secret)
    return store


def _tiff(tags: list[tuple[int, int, int, int]], behind: bytes, front: bytes = b"") -> bytes:
    """Return a TIFF of one page, with the bytes `behind` after its tags.

    A tag is number, type, count and value. The value of a tag of several numbers, and of the
    strips, is an offset into `behind`.
    """
    start = 8 + len(front)
    end = start + 2 + 12 * len(tags) + 4
    content = b"II*\0" + struct.pack("<I", start) + front + struct.pack("<H", len(tags))
    for tag, kind, count, value in tags:
        if count > 1 or tag == _STRIPS:
            value += end
        content += struct.pack("<HHII", tag, kind, count, value)
    return content + bytes(4) + behind


_STRIPS = 273


def tiff_strips(folder: Path) -> Path:
    """TIFF of 0.9 MB: 64 deflated strips over the same bytes, 32 MB each."""
    rows, width = 1000, 32_000
    noise = np.random.default_rng(0).integers(0, 256, 870_000, np.uint8).tobytes()
    blob = zlib.compress(noise.ljust(rows * width, b"\0"), 1)
    tags = [
        *((256, 4, 1, width), (257, 4, 1, 64 * rows), (258, 3, 1, 8), (259, 3, 1, 8)),
        *((262, 3, 1, 1), (_STRIPS, 4, 64, 0), (277, 3, 1, 1), (278, 4, 1, rows)),
        (279, 4, 64, 256),
    ]
    # The positions of the strips are in front of the data. So the file's length without data is
    # needed first.
    without_data = _tiff(tags, b"")
    strips = struct.pack("<64I", *[len(without_data) + 512] * 64)
    (folder / "a.tif").write_bytes(
        _tiff(tags, strips + struct.pack("<64I", *[len(blob)] * 64) + blob)
    )
    return folder / "a.tif"


def tiff_ndtiff(folder: Path) -> Path:
    """A TIFF with an index of NDTiff beside it. The index names a file elsewhere."""
    tags = [
        *((256, 4, 1, 9), (257, 4, 1, 8), (258, 3, 1, 32), (259, 3, 1, 1), (262, 3, 1, 1)),
        *((_STRIPS, 4, 1, 0), (277, 3, 1, 1), (278, 4, 1, 8), (279, 4, 1, 4 * 72), (339, 3, 1, 3)),
        (51123, 2, 1, ord("0")),
    ]
    summary = b"{}"
    front = struct.pack("<5I", 483729, 3, 0, 2355492, len(summary)) + summary
    secret = _secret(folder, "other.tif")
    secret.write_bytes(_tiff(tags, np.full((8, 9), SECRET, "<f4").tobytes()))
    path = folder / "a_NDTiffStack.tif"
    path.write_bytes(_tiff(tags, np.zeros((8, 9), "<f4").tobytes(), front))
    axes, name = b'{"z": 0}', f"../{secret.parent.name}/other.tif".encode()
    entry = struct.pack("<I", len(axes)) + axes + struct.pack("<I", len(name)) + name
    entry += struct.pack("<IiiiiIii", 8, 9, 8, 1, 0, 0, 0, 0)
    (folder / "NDTiff.index").write_bytes(entry)
    return path


def hdf5_filter(folder: Path) -> Path:
    """HDF5's scale-offset filter, which reads behind what is stored."""
    with h5py.File(folder / "a.h5", "w") as file:
        item = file.create_dataset("cube", (3, 40, 50), "i4", chunks=(3, 40, 50), scaleoffset=4)
        item.id.write_direct_chunk((0, 0, 0), b"\x20\0\0\0\x08" + bytes(30))
    return folder / "a.h5"


def _hspy(folder: Path, put: Callable[[h5py.File, Path], object]) -> Path:
    secret = _secret(folder, "other.h5")
    with h5py.File(secret, "w") as file:
        file["data"] = np.full((4, 5, 3), SECRET, "f4")
    with h5py.File(folder / "a.hspy", "w") as file:
        put(file, secret)
    return folder / "a.hspy"


def hspy_external(folder: Path) -> Path:
    """A signal that is an external link to a file elsewhere."""

    def put(file: h5py.File, secret: Path) -> None:
        file.create_group("Experiments/cube")["data"] = h5py.ExternalLink(str(secret), "/data")

    return _hspy(folder, put)


def hspy_soft(folder: Path) -> Path:
    """A signal that is a soft link through an external one."""

    def put(file: h5py.File, secret: Path) -> None:
        file["outside"] = h5py.ExternalLink(str(secret), "/")
        file.create_group("Experiments/cube")["data"] = h5py.SoftLink("/outside/data")

    return _hspy(folder, put)


def hdf5_storage(folder: Path) -> Path:
    """A data set whose bytes lie in a file elsewhere."""
    secret = _secret(folder, "raw")
    secret.write_bytes(np.full(60, SECRET, "<f4").tobytes())
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("cube", (3, 4, 5), "<f4", external=[(str(secret), 0, 240)])
    return folder / "a.h5"


def envi_link(folder: Path) -> Path:
    """The raw file of an ENVI image is a link."""
    io.write_cube(folder / "a.hdr", np.full((3, 4, 5), SECRET, "f4"))
    secret = _secret(folder, "raw")
    (folder / "a.img").rename(secret)
    (folder / "a.img").symlink_to(secret)
    return folder / "a.hdr"


def pages_link(folder: Path) -> Path:
    """One of the images of a folder is a link."""
    for number in range(3):
        tifffile.imwrite(folder / f"a_{number}.tif", np.zeros((4, 5), "f4"))
    secret = _secret(folder, "page.tif")
    tifffile.imwrite(secret, np.full((4, 5), SECRET, "f4"))
    (folder / "a_1.tif").unlink()
    (folder / "a_1.tif").symlink_to(secret)
    return folder


def bundled_path(folder: Path) -> str:
    """The prefix of the package's bundled files, with the path of a file elsewhere."""
    secret = _secret(folder, "mask.npy")
    np.save(secret, np.full((4, 5), SECRET, "f4"))
    return f"bundled:{secret}"


def tiff_circle(folder: Path) -> Path:
    """TIFF whose last page is followed by its first."""
    tags = [(256, 4, 1, 5), (257, 4, 1, 4), (258, 3, 1, 32), (_STRIPS, 4, 1, 0), (279, 4, 1, 80)]
    content = _tiff(tags, bytes(80))
    place = 8 + 2 + 12 * len(tags)
    (folder / "a.tif").write_bytes(content[:place] + struct.pack("<I", 8) + content[place + 4 :])
    return folder / "a.tif"


def tiff_big_circle(folder: Path) -> Path:
    """BigTIFF whose pages lead to each other. The second page claims 2^60 tags."""
    first = struct.pack("<Q", 1) + struct.pack("<HHQQ", 256, 16, 1, 5) + struct.pack("<Q", 52)
    second = struct.pack("<Q", 1 << 60) + struct.pack("<HHQQ", 257, 16, 1, 4)
    head = b"II" + struct.pack("<HHHQ", 43, 8, 0, 16)
    (folder / "a.tif").write_bytes(head + first + second + struct.pack("<Q", 16))
    return folder / "a.tif"


def tiff_jpeg2000(folder: Path) -> Path:
    """TIFF of 8 × 9 numbers that claim to be JPEG 2000."""
    tags = [
        *((256, 4, 1, 9), (257, 4, 1, 8), (258, 3, 1, 16), (259, 3, 1, 34712), (262, 3, 1, 1)),
        *((_STRIPS, 4, 1, 0), (277, 3, 1, 1), (278, 4, 1, 8), (279, 4, 1, 99)),
    ]
    head = b"\xff\x4f\xff\x51" + struct.pack(">HH8I", 47, 0, *[1 << 31, 1 << 31, 0, 0] * 2)
    (folder / "a.tif").write_bytes(_tiff(tags, head.ljust(99, b"\xff")))
    return folder / "a.tif"


def npz_twice(folder: Path) -> Path:
    """An archive with one name twice: the second array claims 8 TB."""
    with zipfile.ZipFile(folder / "a.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shape in ((3, 4, 5), (10**4, 10**4, 2 * 10**4)):
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            with archive.open("cube.npy", "w") as member:
                np.lib.format.write_array_header_1_0(member, header)
                member.write(bytes(240))
    return folder / "a.npz"


def npy_objects(folder: Path) -> Path:
    """A .npy that claims 10^18 Python objects, and contains a pickle."""
    header = {"descr": "|O", "fortran_order": False, "shape": (10**6,) * 3}
    with (folder / "a.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(b"cos\nsystem\n(S'true'\ntR.")
    return folder / "a.npy"


def npy_brackets(folder: Path) -> Path:
    """A .npy whose header is 4 MB of brackets, which Python parses."""
    text = b"(" * 4_000_000
    content = b"\x93NUMPY\2\0" + struct.pack("<I", len(text)) + text
    (folder / "a.npy").write_bytes(content)
    return folder / "a.npy"


def hdf5_circle(folder: Path) -> Path:
    """Soft links that lead to each other, and a group that holds itself."""
    with h5py.File(folder / "a.h5", "w") as file:
        file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")
        group = file.create_group("c")
        group["c"] = group
    return folder / "a.h5"


def hdf5_deep(folder: Path) -> Path:
    """10,000 groups, each inside the one before. The sum of their paths' lengths is 10^8."""
    with h5py.File(folder / "a.h5", "w", libver="latest") as file:
        group = file
        for _ in range(10_000):
            group = group.create_group("a")
        group["cube"] = np.ones((3, 4, 5))
    return folder / "a.h5"


def hdf5_virtual(folder: Path) -> Path:
    """A virtual data set of a file elsewhere."""
    secret = _secret(folder, "other.h5")
    with h5py.File(secret, "w") as file:
        file["data"] = np.full((3, 4, 5), SECRET, "f4")
    layout = h5py.VirtualLayout((3, 4, 5), "f4")
    layout[:] = h5py.VirtualSource(str(secret), "data", (3, 4, 5))
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_virtual_dataset("cube", layout)
    return folder / "a.h5"


def hdf5_regions(folder: Path) -> Path:
    """References to regions in the place of numbers."""
    with h5py.File(folder / "a.h5", "w") as file:
        kind = h5py.special_dtype(ref=h5py.RegionReference)
        item = file.create_dataset("cube", (3, 4, 5), kind)
        item[0, 0, 0] = item.regionref[0:2, 0:2, 0:2]
    return folder / "a.h5"


def mat_huge(folder: Path) -> Path:
    """MATLAB 7.3: 10^18 numbers of which none is stored."""
    with h5py.File(folder / "a.mat", "w", userblock_size=512) as file:
        item = file.create_dataset("cube", (10**6,) * 3, "f4", chunks=(1, 10, 1000))
        item.attrs["MATLAB_class"] = np.bytes_("single")
    with (folder / "a.mat").open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM")
    return folder / "a.mat"


def zarr_shards(folder: Path) -> Path:
    """Shards that claim terabytes of chunks, with an index of as many."""
    store = _zarr(folder, "", bytes(64))
    metadata = json.loads((store / "cube" / "zarr.json").read_text())
    sharding = {"chunk_shape": [1, 1, 1], "codecs": [{"name": "bytes"}], "index_location": "end"}
    sharding["index_codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    metadata["codecs"] = [{"name": "sharding_indexed", "configuration": sharding}]
    metadata["shape"] = metadata["chunk_grid"]["configuration"]["chunk_shape"] = [
        1 << 20,
        1 << 12,
        1024,
    ]
    (store / "cube" / "zarr.json").write_text(json.dumps(metadata), encoding="utf-8")
    return store


def envi_sizes(folder: Path) -> Path:
    """An ENVI header with negative sizes, and others beyond 64 bits."""
    text = "ENVI\nsamples = -5\nlines = 1000000000000000000000\nbands = -3\ndata type = 4\n"
    (folder / "a.hdr").write_text(f"{text}interleave = bsq\nheader offset = -100\nbyte order = 0\n")
    (folder / "a.img").write_bytes(bytes(240))
    return folder / "a.hdr"


def envi_lines(folder: Path) -> Path:
    """An ENVI header of 900,000 empty lines. The time of a slow reader grows as their square."""
    envi_sizes(folder)
    with (folder / "a.hdr").open("a") as file:
        file.write("\n" * 900_000)
    return folder / "a.hdr"


def png_giant(folder: Path) -> Path:
    """A PNG of (2^31 - 1)² pixels."""
    content = b"\x89PNG\r\n\x1a\n"
    head = struct.pack(">IIBBBBB", (1 << 31) - 1, (1 << 31) - 1, 16, 0, 0, 0, 0)
    for kind, body in ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(999))), (b"IEND", b"")):
        content += struct.pack(">I", len(body)) + kind + body
        content += struct.pack(">I", zlib.crc32(kind + body))
    for number in range(3):
        (folder / f"a_{number}.png").write_bytes(content)
    return folder


def netcdf_negative(folder: Path) -> Path:
    """Classic netCDF with negative sides and a negative number of variables."""
    head = b"CDF\1" + struct.pack(">i", 0) + struct.pack(">2i", 10, 3)
    for name in (b"z", b"y", b"x"):
        head += struct.pack(">i", 1) + name.ljust(4, b"\0") + struct.pack(">i", -7)
    (folder / "a.nc").write_bytes(head + struct.pack(">4i", 0, 0, 11, -1) + bytes(400))
    return folder / "a.nc"


def mat_nested(folder: Path) -> Path:
    """MATLAB 5: 2,000 cells, each in another."""
    cell = b""
    for _ in range(2_000):
        body = _element(6, struct.pack("<II", 1, 0)) + _element(5, struct.pack("<2i", 1, 1))
        cell = _element(14, body + _element(1, b"cube") + cell)
    (folder / "a.mat").write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + cell)
    return folder / "a.mat"


def name_of_escapes(folder: Path) -> Path:
    """A damaged file whose name has line breaks, and codes that control a terminal."""
    path = folder / "a\nerror: none\x1b[2J\r\u202e.npy"
    path.write_bytes(b"\x93NUMPY")
    return path


def name_too_long(folder: Path) -> Path:
    """A name that no file can have."""
    return folder / f"{'a' * 5000}.npy"


def link_to_itself(folder: Path) -> Path:
    """A link that leads to itself."""
    (folder / "a.npy").symlink_to("a.npy")
    return folder / "a.npy"


def own_memory(_: Path) -> Path:
    """This process's memory."""
    return Path("/proc/self/mem")


def standard_input(folder: Path) -> Path:
    """A link to the command's standard input, with the name of a file that could be read."""
    (folder / "a.npy").symlink_to("/dev/stdin")
    return folder / "a.npy"


def folder_as_file(folder: Path) -> Path:
    """A folder whose name ends like that of a file."""
    (folder / "a.tif").mkdir()
    return folder / "a.tif"


def curve_of_one_line(folder: Path) -> Path:
    """A dispersion curve of one line of 1 GB, in a sparse file."""
    (folder / "a.csv").touch()
    os.truncate(folder / "a.csv", 10**9)
    return folder / "a.csv"


def camera_of_laughs(folder: Path) -> Path:
    """A camera's file whose aliases expand to 10^9 texts."""
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (folder / "a.yaml").write_text("\n".join(["a0: &a0 [lol]", *lines, "mask: *a9"]))
    return folder / "a.yaml"


def weights_of_header(folder: Path) -> Path:
    """A safetensors file whose header is 2^40 bytes long, in a sparse file."""
    (folder / "a.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    os.truncate(folder / "a.safetensors", (1 << 40) + 100)
    return folder / "a.safetensors"


def weights_of_header_text(folder: Path) -> Path:
    """A safetensors file whose header is 15 MB of brackets."""
    text = b'{"a":' + b"[" * 15_000_000
    (folder / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return folder / "a.safetensors"


# Readers of files that hold no array, by suffix.
LOADERS: dict[str, Callable[[Path], object]] = {
    ".csv": lambda path: Curve(file=str(path)),
    ".yaml": load_camera,
    ".safetensors": read_file,
}
MAKERS: tuple[Callable[[Path], Path | str], ...] = (
    *(netcdf_variables, npz_axes, mat_text, zarr_zstd, zarr_gzip, zarr_zlib, zarr_zero, zarr_pipe),
    *(zarr_pipe_link, zarr_link, zarr_link_of_folder, tiff_strips, tiff_ndtiff, hdf5_filter),
    *(hspy_external, hspy_soft, hdf5_storage, envi_link, pages_link, bundled_path),
    *(tiff_circle, tiff_big_circle, tiff_jpeg2000, npz_twice, npy_objects, npy_brackets),
    *(hdf5_circle, hdf5_deep, hdf5_virtual, hdf5_regions, mat_huge, mat_nested, zarr_shards),
    *(envi_sizes, envi_lines, png_giant, netcdf_negative, name_of_escapes, name_too_long),
    *(link_to_itself, own_memory, standard_input, folder_as_file, curve_of_one_line),
    *(camera_of_laughs, weights_of_header, weights_of_header_text),
)
# Functions whose files have two axes, and are read as masks.
MASKS = (bundled_path, tiff_ndtiff, tiff_strips, tiff_jpeg2000)
# Functions whose files may be accepted, because the harmful part is not read.
HARMLESS = ("mat_text", "tiff_ndtiff")


def find_fault(make: Callable[[Path], Path | str], root: Path) -> tuple[str, float, str]:
    """Make a file and read it.

    Returns:
        The fault of the outcome ("" if there is none), the seconds, and the message.
    """
    folder = root / make.__name__
    folder.mkdir()
    path = make(folder)
    start, fault, message = time.monotonic(), "", "read"
    try:
        load = io.load_mask if make in MASKS else partial(io.load_cube, axes="CHW")
        source = file_path(path) if isinstance(path, str) else path
        content: Any = LOADERS.get(Path(source).suffix, load)(source)
    except Exception as error:
        message = describe(error)
        if not is_usage_error(error):
            fault = f"not an error for the user: {type(error).__name__}"
        elif len(message.splitlines()) != 1 or not message.isprintable():
            fault = "its message is not one line"
    else:
        if isinstance(content, io.LoadedArray) and (content.data == SECRET).any():
            fault = "a file outside of its folder was read"
        elif make.__name__ not in HARMLESS:
            fault = "it is accepted"
    seconds = time.monotonic() - start
    return fault or ("it takes too long" if seconds > MAX_SECONDS else ""), seconds, message


def main() -> int:
    """Read all files; return 1 if there was a fault."""
    has_fault = False
    with tempfile.TemporaryDirectory(prefix="cassi-hostile-") as root:
        for make in MAKERS:
            fault, seconds, message = find_fault(make, Path(root))
            has_fault |= bool(fault)
            print(f"{make.__name__:20} {seconds:5.1f} s  {fault or 'right'}: {message}", flush=True)
    # getrusage would also count the memory of the process that started this one.
    status = Path("/proc/self/status").read_text()
    own_peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    # The system counts a child only after its end.
    sandboxed_reader.stop()
    reader_peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    print(
        f"largest resident memory of the process that reads: {reader_peak:.0f} MB; "
        f"this one: {own_peak:.0f}"
    )
    return int(has_fault or max(reader_peak, own_peak) > MAX_MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
