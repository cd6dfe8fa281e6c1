"""Try random calls of the operators, or damaged files: a right result, or one documented error.

    python -m scripts.checks.fuzz ops --count 10000
    python -m scripts.checks.fuzz readers --seed 4711 --count 1

`ops` calls all operators, as the public functions of `cassi.ops` and as `torch.ops.cassi.*`, which
nothing checks before the compiled kernels do, with arguments of any size, layout, dtype and value.
What fits is compared with the pure-torch reference in float64. `readers` damages a valid file of
each kind that cassi reads, and reads it.

A case depends on its seed alone; those of a run are SEED, SEED + 1, and so on. A crash, a hang, a
wrong result, another error, one of several lines, or more memory than 512 MiB is a finding. Each is
printed with its seed, its files are kept in OUT/SEED, and the status is 1 where there are any.
"""

import argparse
import collections
import faulthandler
import inspect
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tifffile
import torch
from omegaconf import OmegaConf
from scipy.io import savemat
from torch import Tensor

from cassi import create_model, ops
from cassi.apps.errors import describe, is_usage_error
from cassi.apps.train.files import add_earlier_options, read_checkpoint, save_options
from cassi.config import build
from cassi.data import io
from cassi.data.manifest import read_manifest
from cassi.data.scenes import load_scene
from cassi.evaluation.records import Record, RecordFolder
from cassi.models.load import Card, load_model, save_model
from cassi.ops import _reference
from cassi.ops._library import REFERENCES, SCHEMAS, kernels
from cassi.priors.weights import read_file
from cassi.systems import Curve

Random = np.random.Generator
MEMORY = 512 << 20  # by which a case may grow, bytes
ADDRESSES = 16 << 30  # of the process, bytes
SECONDS = 5  # of processor time, of a case
SILENCE = 60  # seconds until a case is ended that takes no processor time


class Case(NamedTuple):
    """Something to try."""

    text: str
    run: Callable[[], object]  # an AssertionError says that the result is wrong
    is_documented: Callable[[Exception], bool]  # whether `run` may raise it
    folder: Path | None = None  # of its files, removed unless there is a finding


class Report(NamedTuple):
    """How a case ended: "accepted", "refused", or a finding."""

    seed: int
    text: str
    outcome: str
    message: str = ""


Draw = Callable[[int], Case]
RIGHT = ("accepted", "refused")


def judge(case: Case) -> tuple[str, str]:
    """Run a case, and return its outcome and a message."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is what is used now
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome, message = "accepted", ""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        case.run()
    except AssertionError as error:
        outcome, message = "wrong result", str(error)
    except Exception as error:
        outcome, message = "refused", f"{type(error).__name__}: {error}"
        if not case.is_documented(error):
            outcome = "wrong error"
            traceback.print_exc()
    signal.setitimer(signal.ITIMER_PROF, 0)
    growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if growth > MEMORY and outcome in RIGHT:
        return "memory", f"{growth >> 20} MiB; {message}"
    return outcome, message


def work(draw: Draw, seeds: range, reports: Connection) -> None:
    """Be a child: report each case as a crash before it runs, and how it ended behind it."""
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # whose shadow memory is all addresses
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    faulthandler.register(signal.SIGPROF, chain=True)  # prints where it hangs, then ends the child
    for seed in seeds:
        case = draw(seed)
        reports.send(Report(seed, case.text, "crash"))
        report = Report(seed, case.text, *judge(case))
        if case.folder is not None and report.outcome in RIGHT:
            shutil.rmtree(case.folder)
        reports.send(report)


def try_all(draw: Draw, seeds: range) -> Iterator[Report]:
    """Run all cases in a fork, and those behind a case that ends it in another.

    The parent computes nothing: threads of its libraries would not be there in a fork.
    """
    forks = multiprocessing.get_context("fork")
    while seeds:
        receiver, sender = forks.Pipe(duplex=False)
        child = forks.Process(target=work, args=(draw, seeds, sender))
        child.start()
        sender.close()
        last: Report | None = None
        with suppress(EOFError):  # the child has ended
            while receiver.poll(SILENCE):
                last = receiver.recv()
                if last.outcome != "crash":
                    yield last
            child.kill()
        child.join()
        if last is None:
            raise RuntimeError("a child ended before a case; what it said stands above")
        if last.outcome == "crash":
            outcome = "hang" if child.exitcode in (-signal.SIGPROF, -signal.SIGKILL) else "crash"
            yield last._replace(outcome=outcome, message=f"exit status {child.exitcode}")
        seeds = range(last.seed + 1, seeds.stop)


# Random calls of the operators.

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (0, -1, 1, 2, 3, -7, 1000, *(s * (1 << b) for b in (31, 40, 62) for s in (1, -1)))
PUBLIC = [name for name in ops.__all__ if name not in ("assert_memory_format", "backend")]
FLAGS = ("channels_last", "per_sample", "per_band", "need_mask", "need_rho", "rectify")
SHAPES = {
    "BCHW": "x v grad image",
    "BKHD": "y r",
    "BL": "a g",
    "BN": "convolve1d.v correlate1d.v",
    "BHC": "u delta selective_scan_backward.grad",
    "BHR": "b c",
    "B2CHW": "dual",
    "S": "weight threshold",
    "SCT": "taps",
    "P8C": "features",
    "PC": "trilinear_backward.grad",
    "BC3HW": "volume",
    "BRHW": "components convolve3x3.residual",
    "SCR": "basis",
    "RC33": "convolve3x3.weight",
    "R": "bias",
}
"""Arguments by their shape: OPERATOR.ARGUMENT where a name means something else for one of them."""


@dataclass
class Call:
    """One call of an operator."""

    name: str
    public: bool  # a function of cassi.ops, not an operator below them
    args: dict[str, Any]  # in order
    fits: bool  # they fit each other, have bands, and hold finite numbers

    def run(self, *args: Any) -> Any:
        """Call the operator with these arguments in place of its own."""
        if self.public:
            return getattr(ops, self.name)(**dict(zip(self.args, args, strict=True)))
        return getattr(kernels, self.name)(*args)

    def is_documented(self, error: Exception) -> bool:
        """Whether it may raise this; the layers below the public functions have torch's errors."""
        kinds: tuple[type[Exception], ...] = (ValueError, TypeError, MemoryError)
        kinds += () if self.public else (RuntimeError, IndexError)
        return isinstance(error, kinds) or "allocate memory" in str(error)

    def __str__(self) -> str:
        """The call, tensors by shape, strides and dtype."""
        arguments = ", ".join(
            f"{k}={v.dtype}{tuple(v.shape)}/{v.stride()}" if _is_strided(v) else f"{k}={v!r}"
            for k, v in self.args.items()
        )
        return f"{'cassi.ops.' if self.public else ''}{self.name}({arguments})"


def draw_operator(seed: int) -> Case:
    """Return a case that calls an operator."""
    call = draw_call(np.random.default_rng(seed))
    return Case(str(call), partial(check_call, call), call.is_documented)


def draw_call(random: Random) -> Call:
    """Draw a call: half of them fit, the others have been spoiled in one or two ways."""
    public = random.random() < 0.3
    name = _choose(random, PUBLIC if public else list(SCHEMAS))
    function = getattr(ops, name) if public else REFERENCES[name]
    wanted = list(inspect.signature(function).parameters)
    torch.manual_seed(int(random.integers(1 << 62)))
    args = draw_arguments(random, wanted, name, public)
    call = Call(name, public, args, args.get("bands") != 0 and len(args.get("offsets", [0])) > 0)
    for _ in range(_choose(random, (0, 0, 1, 2))):
        call.fits = False
        argument = _choose(random, wanted)
        args[argument] = spoil(random, argument, args[argument])
    return call


def _choose(random: Random, values: Any) -> Any:
    return values[int(random.integers(len(values)))]


def _draw_size(random: Random, largest: int) -> int:
    """Often 1, often near the length of a vector, sometimes nothing."""
    near = _choose(random, (4, 8, 16, 32, 64)) + int(random.integers(-1, 2))
    sizes = (0, 1, min(near, largest), int(random.integers(1, largest + 1)))
    return sizes[int(random.choice(4, p=(0.02, 0.18, 0.2, 0.6)))]


def draw_arguments(random: Random, wanted: list[str], name: str, public: bool) -> dict[str, Any]:
    """Draw arguments that fit each other."""
    batch, bands, height, width = (_draw_size(random, largest) for largest in (3, 9, 12, 70))
    shots = 1 if name == "ratio_inverse" else _choose(random, (1, 1, 2, 3, 5))
    samples, coded = _choose(random, (batch, 1)), _choose(random, (bands, 1))
    step, couplings = int(random.integers(-5, 6)), int(random.integers(1, 4))
    taps = _choose(random, (1, 2, 2, 3, 7))
    after = "after" in wanted and width > 0 and random.random() < 0.5
    detector = _reference.detector_width(width, bands, step) if bands and width else 1
    if "taps" in wanted or name == "band_solve":
        detector = max(1, detector + int(random.integers(-3, 4)))
    short, long = sorted((_draw_size(random, 40), _draw_size(random, 60)))
    rank, columns = short + 1, width + after * (taps - 1)
    sizes = {"B": batch, "C": bands, "H": height, "W": width, "K": shots, "D": detector}
    sizes |= {"S": samples, "T": taps, "N": short, "L": long, "R": rank, "P": 7 * batch}
    sizes |= {"M": coded, "X": columns} | {str(size): size for size in range(10)}
    dtype = _choose(random, (torch.float32, torch.float32, *FLOATS))

    def rand(shape: str, of: torch.dtype = dtype) -> Tensor:
        values = torch.rand([sizes[letter] for letter in shape])
        return _change_layout(random, values.to(of))

    mask = rand("SKMHX", of=_choose(random, (dtype, *FLOATS)))

    def draw_gram() -> Tensor:
        if name == "band_solve":
            gram = torch.rand(samples, couplings, shots, shots, height, detector).double()
            gram /= 10 * couplings * shots
            gram[:, 0] += gram[:, 0].transpose(1, 2) + torch.eye(shots)[..., None, None]
            return gram.flatten(1, 2)
        if min(*mask.shape, bands) == 0:
            return rand("SKKHD")
        return _change_layout(random, _reference.gram(mask, bands, step))

    def draw_damping() -> Tensor:
        """One value for each sample, or for each detector pixel, a tenth of them infinite."""
        below = ("S111", "1KHD", "S1HD", "SK1D", "SKH1", "SKHD")  # any dimension may be shared
        shape = _choose(random, ("S", "SKHD") if public else below)
        rho = rand(shape, of=torch.float32) + 0.1
        return _change_layout(random, torch.where(rand(shape) < 0.1, torch.inf, rho))

    norm, offsets = int(random.integers(3)), rand("C", of=torch.float32) * 9
    pixels = height * width
    values: dict[str, Callable[[], Any]] = {
        **dict.fromkeys((*FLAGS, "return_dual"), lambda: bool(random.integers(2))),
        "gram": draw_gram,
        "rho": draw_damping,
        "grad_dual": lambda: rand("B2CHW", of=torch.float32),
        "starts": lambda: torch.randint(-4, detector + 4, (samples, bands)),
        "iterations": lambda: int(random.integers(0, 20)),
        "norm": lambda: ops.NORMS[norm] if public else norm,
        "points": lambda: rand("B73" if name == "sample_volume" else "P3") * 2 - 1,
        "offsets": lambda: offsets.tolist() if name == "detector_columns" else offsets,
        "rates": lambda: -rand("CR" if public else "SCR"),
        "groups": lambda: torch.randint(-9, pixels + 9, (batch, min(5, pixels), rank)),
        "patch": lambda: max(1, min(height, width, taps)),
        "moments": lambda: (lambda vectors: vectors @ vectors.mT)(rand("BCC")),
        "frame": lambda: torch.linalg.qr(rand("BCR").double()[..., :bands])[0].to(dtype),
        "steps": lambda: int(random.integers(1, 4)),
    }
    shapes = {argument: shape for shape, names in SHAPES.items() for argument in names.split()}
    args: dict[str, Any] = {"bands": bands, "width": width, "detector": detector}
    args |= {"mask": mask, "step": step, "after": after}
    for argument in wanted:
        if argument in values:
            args[argument] = values[argument]()
        elif argument in ("dual", "residual") and random.random() < 0.3:
            args[argument] = None
        elif argument not in args:
            args[argument] = rand(shapes.get(f"{name}.{argument}") or shapes[argument])
    return {argument: args[argument] for argument in wanted}


def _change_layout(random: Random, value: Tensor) -> Tensor:
    """Lay the numbers out in another way, or share those of the first sample."""
    how = int(random.integers(6))
    if how == 0:
        order = random.permutation(value.ndim)
        return value.permute(*order).contiguous().permute(*np.argsort(order))
    if how == 1:
        return torch.stack((value, value + 1), -1)[..., 0]
    if how == 2 and len(value):
        return value[:1].expand_as(value)
    return value


def spoil(random: Random, name: str, value: Any) -> Any:
    """Change an argument so that it does not fit, or hardly."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):  # a million iterations are not wrong, but slow
        return min(_choose(random, INTEGERS), 40 if name == "iterations" else 1 << 62)
    if not isinstance(value, Tensor):
        return _choose(random, (None, -1, "x", torch.ones(2)))
    enormous = max(value.numel(), *value.shape, 0, 0) > 1 << 24
    if enormous or not _is_strided(value) or not value.ndim:
        return value  # spoiled already; what follows needs the elements
    dim, dtype = int(random.integers(value.ndim)), value.dtype
    size = value.shape[dim]
    first = value.narrow(dim, 0, min(1, size))
    further = list(value.shape)
    further[dim] = 1 << _choose(random, (31, 33, 40, 50))
    countable = size > 0 and first.numel() * further[dim] < 1 << 62
    numbers: tuple[float, ...] = (float("nan"), float("inf"), 1e300, -1e38, 1e-40, -0.0)
    if not dtype.is_floating_point:
        numbers = (-(1 << 63), (1 << 63) - 1, 1 << 31, -1)
    other = torch.tensor(_choose(random, numbers)).to(dtype)  # infinite beyond the dtype
    kinds = (torch.int32, torch.bool, torch.complex64, torch.int64, torch.uint8, *FLOATS)
    kind, strides = _choose(random, kinds), [int(random.integers(2)) for _ in value.shape]
    changes: tuple[Callable[[], Any], ...] = (
        lambda: value[None],
        lambda: value.narrow(dim, 0, 0),
        lambda: value.narrow(dim, 0, max(0, size - 1)),
        lambda: torch.cat([value, first], dim),
        lambda: value.transpose(0, dim),
        lambda: first.expand(further) if countable else first,  # elements that need no memory
        *[lambda: torch.where(torch.rand(value.shape) < 0.2, other, value)] * 5,
        *[lambda: value.to(kind)] * 3,
        lambda: torch.rand(sum(value.shape) + 1).to(dtype).as_strided(value.shape, strides),
        lambda: torch.nn.functional.pad(value.flatten(), (1, 0))[1:].view(value.shape),  # shifted
        lambda: _choose(random, (None, 1.5, torch.ones(()))),
        lambda: value.to("meta"),
        lambda: value.to_sparse(),
        lambda: value.detach().clone().float().requires_grad_(),
    )
    return _choose(random, changes)()


def check_call(call: Call) -> None:
    """Make a call.

    Raises:
        AssertionError: its arguments fit, and it is refused or its result is wrong.
    """
    tensors = [value for value in call.args.values() if isinstance(value, Tensor)]
    fits = call.fits and all(value.numel() for value in tensors) and call.args.get("width", 1) > 0
    try:
        result = call.run(*call.args.values())
    except Exception as error:
        if fits:
            raise AssertionError(f"it fits and is refused: {error}") from error
        raise
    if fits and not call.public and call.name != "tv_prox_backward":
        compare(call, _tuple(result))


def compare(call: Call, results: tuple[Tensor, ...]) -> None:
    """Raise AssertionError unless the results are those of the reference.

    The parity tests know the rounding error of each operator; here it is bounded for all alike,
    well below what a wrong element differs by.
    """
    # The dtype of a gram says which of its eigenvalues are rounding errors.
    floats = {k: v for k, v in call.args.items() if isinstance(v, Tensor) and v.is_floating_point()}
    exact = call.args | {k: v.double() for k, v in floats.items() if k != "gram"}
    expected = _tuple(REFERENCES[call.name](*exact.values()))
    dtypes = (torch.float32, *(value.dtype for value in floats.values()))
    rounding = max(torch.finfo(dtype).eps for dtype in dtypes)
    largest = max(v[v.isfinite()].abs().max().item() for v in floats.values() if v.isfinite().any())
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape, f"shape {result.shape}, expected {wanted.shape}"
        if not result.numel():
            continue
        peak = wanted.abs().max().item()
        allowed = 64 * rounding * _bound_condition(call) * max(largest, peak) + 1e-30
        if allowed + peak > torch.finfo(result.dtype).max:
            continue  # may overflow
        worst = (result.double() - wanted.double()).abs().max().item()
        assert worst <= allowed, f"differs by {worst:.3g}, allowed {allowed:.3g}"


def _bound_condition(call: Call) -> float:
    """Bound how much solving, a sum over patches or a convolution multiplies rounding errors."""
    if "groups" in call.args:
        return float(call.args["groups"][0].numel())
    if call.name == "convolve3x3":  # sums, by transforms that enlarge errors
        return 9.0 * max(1, call.args["weight"].shape[1])
    if "gram" not in call.args:
        return 1.0
    gram, rho = call.args["gram"], call.args["rho"].min().item()
    return float((1 + gram.shape[2] * gram.abs().max().item() / rho) ** 2)


def _is_strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


# Damaged files. The machine of gpu.sh, which calls the operators, has neither xarray nor Pillow.

NM = (453.5, 457.5, 462.0, 466.125, 471.5)
CUBE = np.random.default_rng(0).random((5, 16, 17), np.float32)
COUNTS = (CUBE * 65535).astype(np.uint16)
MANIFEST = {
    "wavelengths": NM,
    "train": {f"train/scene{number:02}.mat": f"{number:064x}" for number in range(4)},
    "test": {"test/a.mat": "0" * 64},
    "aliases": {"test/a.mat": "b"},
}
CURVE = "\n".join(["wavelength,pixel", *(f"{nm},{2.5 * band}" for band, nm in enumerate(NM))])
CONFIG = "last: 0.01\nnode:\n  _target_: cassi.solvers.Geometric\n  start: 1.0\n  end: ${last}\n"
Use = Callable[[Path], object]


def _write_pages(folder: Path, write: Use) -> None:
    folder.mkdir()
    for page in range(31):
        write(folder / f"scene_{page + 1:02}.png")


def _write_model(path: Path) -> None:
    network = create_model("gap_net", bands=2, stages=1)
    save_model(path, network.state_dict(), Card("gap_net", 2, {"stages": 1}, NM[:2], {"epochs": 3}))


def _write_checkpoint(path: Path, **options: Any) -> None:
    state = {f"net.{name}": torch.rand(4, 3) for name in "abc"}
    torch.save({"state_dict": state, "global_step": 7, "epoch": 1}, path, **options)


def _write_options(folder: Path) -> None:
    folder.mkdir()
    save_options(folder, ["model=gap_net", "trainer.max_steps=300", "data.root=/data/cave"])


def _read_options(folder: Path) -> object:
    return add_earlier_options([f"hydra.run.dir={folder}", "ckpt=last"])


def _write_records(folder: Path) -> None:
    folder.mkdir()
    record = Record("", "scene", "gap", "key", {"psnr": 30.5}, {"seconds": 1.0}, curve=[(0.1, 20)])
    RecordFolder(folder).write(record, torch.from_numpy(CUBE))


def _read_records(folder: Path) -> object:
    records = RecordFolder(folder)
    return [(record, records.read_cube(record.job)) for record in records.all()]


def _read_config(path: Path) -> object:
    config = OmegaConf.create(path.read_text(encoding="utf-8", errors="replace"))
    return build(OmegaConf.select(config, "node"))


@cache
def files() -> dict[str, tuple[Use, Use]]:
    """Everything that cassi reads: how it is written and read, by the name of a file or folder."""
    import xarray
    from PIL import Image

    labelled = xarray.DataArray(CUBE, dims=("wavelength", "y", "x"), name="cube")
    save_image = Image.fromarray(COUNTS[0]).save
    tiff = partial(tifffile.imwrite, data=COUNTS, photometric="minisblack")
    legacy = partial(_write_checkpoint, _use_new_zipfile_serialization=False)
    cubes: dict[str, Use] = {
        f"a{suffix}": partial(io.write_cube, cube=CUBE, wavelengths=NM)
        for suffix in io.WRITE_SUFFIXES
    }
    cubes |= {
        "a.npy": partial(np.save, arr=CUBE),
        "classic.nc": partial(labelled.to_netcdf, engine="scipy"),
        "deflate.tif": partial(tiff, compression="zlib", predictor=True, rowsperstrip=4),
        "tiles.tif": partial(tiff, tile=(16, 16), bigtiff=True, byteorder=">"),
        "plain.mat": partial(savemat, mdict={"cube": CUBE, "axes": "CHW", "s": {"x": NM}}),
    }
    return {
        **{name: (make, io.load_cube) for name, make in cubes.items()},
        "mask.png": (save_image, io.load_mask),
        "pages": (partial(_write_pages, write=save_image), lambda folder: load_scene(folder, NM)),
        "manifest.json": (partial(Path.write_text, data=json.dumps(MANIFEST)), read_manifest),
        "model.safetensors": (_write_model, load_model),
        "last.ckpt": (_write_checkpoint, read_checkpoint),
        "weights.pth": (_write_checkpoint, read_file),
        "legacy.pth": (legacy, read_file),
        "options": (_write_options, _read_options),
        "records": (_write_records, _read_records),
        "curve.csv": (
            partial(Path.write_text, data=CURVE),
            lambda path: Curve(file=str(path)).positions(NM),
        ),
        "node.yaml": (partial(Path.write_text, data=CONFIG), _read_config),
    }


def draw_file(valid: Path, out: Path, seed: int) -> Case:
    """Return a case that reads a damaged file: a copy, in `out`, of one that is made in `valid`."""
    random = np.random.default_rng(seed)
    name = list(files())[seed % len(files())]
    make, read = files()[name]
    whole, damaged = valid / f"{os.getpid()}" / name, out.resolve() / f"{seed}"
    if not whole.exists():
        whole.mkdir(parents=True)
        make(whole / name)
        read(whole / name)  # imports what it needs, and must succeed
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(whole, damaged)
    file = _choose(random, sorted(path for path in damaged.rglob("*") if path.is_file()))
    content = file.read_bytes()
    change = damage
    if random.random() < 0.4:  # damage what a check sum protects
        change = {b"PK": _damage_zip, b"\x89P": _damage_png}.get(content[:2], damage)
    file.write_bytes(change(random, content))
    return Case(name, lambda: read(damaged / name), _is_one_line, damaged)


def _is_one_line(error: Exception) -> bool:
    """Whether a command would end in one line, not with a traceback, nor for lack of memory."""
    known = is_usage_error(error) and not isinstance(error, MemoryError)
    return known and "\n" not in describe(error)


NUMBERS: tuple[int, ...] = (0, 1, 2, 255, 256, 65535, 1 << 20, 1 << 24, 1 << 30, 1 << 40, 1 << 62)
NUMBERS += ((1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1, -1, -2, -(1 << 31), -(1 << 63))
TEXTS = (*(str(n).encode() for n in NUMBERS), b"9" * 400, b"1e400", b"nan", b"", b"[[", b"{")
DIGITS = re.compile(rb"[0-9.]+")


def _draw_place(random: Random, size: int) -> int:
    """Somewhere in a file, mostly near its beginning or its end, where headers lie."""
    near = int(random.integers(min(size, 2048)))
    return _choose(random, (near, near, size - 1 - near, int(random.integers(size))))


def damage(random: Random, content: bytes) -> bytes:
    """Replace one to four stretches of a file by others."""
    for _ in range(_choose(random, (1, 1, 2, 3, 4))):
        if not content:
            break
        at, start = _draw_place(random, len(content)), _draw_place(random, len(content))
        size, width = int(random.integers(1, 200)), _choose(random, (1, 2, 4, 4, 8))
        stretch, flipped = content[start : start + size], content[at] ^ 1 << random.integers(8)
        aligned = at - (at % width if random.random() < 0.7 else 0)
        order = _choose(random, ("little", "little", "big"))
        number = (_choose(random, NUMBERS) % (1 << 8 * width)).to_bytes(width, order)
        own = content[aligned : aligned + width]
        digits = DIGITS.search(content, at)
        changes = (
            (at, at + 1, bytes([flipped])),
            (at, len(content), b""),
            (at, at + size, b""),
            (at, at + len(stretch), stretch),
            (at, at, stretch * int(random.integers(1, 20))),
            (at, at + size, _choose(random, (b"\0", b"\xff", b" ")) * size),
            (aligned, aligned + width, number),
            (aligned, aligned + width * size, own * size),  # a table of equal offsets
            (*(digits.span() if digits else (at, at)), _choose(random, TEXTS)),
        )
        first, last, new = _choose(random, changes)
        content = content[:first] + new + content[last:]
    return content


def _damage_zip(random: Random, content: bytes) -> bytes:
    """Damage a member of an archive, and make its check sum right again."""
    result = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        chosen = _choose(random, old.infolist())
        for info in old.infolist():
            member = old.read(info)
            new.writestr(info, damage(random, member) if info is chosen else member)
    return result.getvalue()


def _damage_png(random: Random, content: bytes) -> bytes:
    """Damage half of the chunks, and make their check sums right again."""
    parts, at = [content[:8]], 8
    while at < len(content):
        size = struct.unpack(">I", content[at : at + 4])[0]
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        data = damage(random, data) if random.random() < 0.5 else data
        check_sum = zlib.crc32(kind + data)
        parts += [struct.pack(">I", len(data)), kind, data, struct.pack(">I", check_sum)]
        at += size + 12
    return b"".join(parts)


def main() -> int:
    """Try all cases, and return the exit status: 1 where there are findings."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("what", choices=("ops", "readers"))
    options.add_argument("--count", type=int, default=10_000, help="number of cases")
    options.add_argument("--seed", type=int, default=0, help="of the first case")
    options.add_argument("--out", type=Path, default=Path("outputs/fuzz"), help="for findings")
    given = options.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="cassi-fuzz-") as valid:
        draw = draw_operator if given.what == "ops" else partial(draw_file, Path(valid), given.out)
        for report in try_all(draw, range(given.seed, given.seed + given.count)):
            counts[report.outcome] += 1
            if report.outcome not in RIGHT:
                print(f"--seed {report.seed} --count 1: {report.outcome}: {report.message[:500]}")
                print(f"    {report.text}", flush=True)
    findings = counts.total() - counts["accepted"] - counts["refused"]
    print(f"{counts['accepted']} accepted, {counts['refused']} refused, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
