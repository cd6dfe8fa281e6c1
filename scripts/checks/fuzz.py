"""Try random calls of the operators, or damaged files: each must succeed or give one clear error.

    python -m scripts.checks.fuzz ops --count 10000
    python -m scripts.checks.fuzz readers --seed 4711 --count 1

`ops` calls all operators with arguments of any size, layout, dtype and value. It calls both the
public functions of `cassi.ops`, and `torch.ops.cassi.*`, where only the compiled kernels check the
arguments. Results of valid arguments are compared with the pure-torch reference in float64.
`readers` damages a valid file of each kind that cassi reads, and reads it.

A case depends on its seed alone; the seeds of a run are SEED, SEED + 1, and so on. A finding is a
crash, a hang, a wrong result, an undocumented error, a message of several lines, or growth of the
memory by more than 512 MiB. Each finding is printed with its seed, and its files are kept in
OUT/SEED. The exit status is then 1.
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
from cassi.ops._library import REFERENCES, SCHEMAS, operators
from cassi.priors.weights import read_file
from cassi.systems import Curve

Random = np.random.Generator
MAX_MEMORY_GROWTH = 512 << 20  # bytes, for one case
MAX_ADDRESS_SPACE = 16 << 30  # bytes, for the process
MAX_CPU_SECONDS = 5  # for one case
# A case that waits uses no CPU time. So a child without a report for so many seconds is ended.
MAX_SILENT_SECONDS = 60


class Case(NamedTuple):
    """A call or a file to try.

    Attributes:
        text: description of the case.
        run: raises AssertionError if the result is wrong.
        is_documented: tells whether `run` may raise an error.
        folder: folder of its files, removed unless there is a finding.
    """

    text: str
    run: Callable[[], object]
    is_documented: Callable[[Exception], bool]
    folder: Path | None = None


class Report(NamedTuple):
    """The outcome of a case: "accepted", "refused", or the kind of a finding."""

    seed: int
    text: str
    outcome: str
    message: str = ""


Draw = Callable[[int], Case]
GOOD_OUTCOMES = ("accepted", "refused")


def judge(case: Case) -> tuple[str, str]:
    """Run a case, and return its outcome and a message."""
    # Writing 5 resets the peak of the memory to the memory that is in use now.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome, message = "accepted", ""
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
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
    growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before)
    if growth > MAX_MEMORY_GROWTH and outcome in GOOD_OUTCOMES:
        return "memory", f"{growth >> 20} MiB; {message}"
    return outcome, message


def work(draw: Draw, seeds: range, reports: Connection) -> None:
    """Run cases in a child process: report each as a crash before it runs, and its outcome after.

    So if a child dies, its last report names the case that killed it.
    """
    # The shadow memory of the address sanitizer takes all addresses.
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    # When the CPU time is over, print the stack of a case that hangs, and then end the child.
    faulthandler.register(signal.SIGPROF, chain=True)
    for seed in seeds:
        case = draw(seed)
        reports.send(Report(seed, case.text, "crash"))
        report = Report(seed, case.text, *judge(case))
        if case.folder is not None and report.outcome in GOOD_OUTCOMES:
            shutil.rmtree(case.folder)
        reports.send(report)


def try_all(draw: Draw, seeds: range) -> Iterator[Report]:
    """Run all cases in a fork; if a case ends it, run the cases after that one in another fork.

    The parent computes nothing: its libraries would start threads, which a fork does not have.
    """
    forks = multiprocessing.get_context("fork")
    while seeds:
        receiver, sender = forks.Pipe(duplex=False)
        child = forks.Process(target=work, args=(draw, seeds, sender))
        child.start()
        sender.close()
        last: Report | None = None
        # EOFError: the child has ended.
        with suppress(EOFError):
            while receiver.poll(MAX_SILENT_SECONDS):
                last = receiver.recv()
                if last.outcome != "crash":
                    yield last
            child.kill()
        child.join()
        if last is None:
            raise RuntimeError("a child ended before its first case; its output is above")
        if last.outcome == "crash":
            outcome = "hang" if child.exitcode in (-signal.SIGPROF, -signal.SIGKILL) else "crash"
            yield last._replace(outcome=outcome, message=f"exit status {child.exitcode}")
        seeds = range(last.seed + 1, seeds.stop)


# Random calls of the operators: draw_operator makes a case of a seed.

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (0, -1, 1, 2, 3, -7, 1000, *(s * (1 << b) for b in (31, 40, 62) for s in (1, -1)))
PUBLIC = [name for name in ops.__all__ if name not in ("assert_memory_format", "backend")]
FLAGS = ("channels_last", "per_sample", "per_band", "need_mask", "need_rho", "rectify")
# Arguments by their shape. OPERATOR.ARGUMENT stands for an argument that has another shape in this
# operator than in the others.
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
    "BRHW": "components convolve3x3.residual convolve3x3_backward.grad",
    "SCR": "basis",
    "RC33": "convolve3x3.weight",
    "R": "bias",
}


@dataclass
class Call:
    """One call of an operator."""

    name: str
    public: bool  # whether to call the function of cassi.ops, or the operator of torch below it
    args: dict[str, Any]  # in the order of the parameters
    fits: bool  # whether the arguments fit each other, have bands, and hold finite numbers

    def run(self, *args: Any) -> Any:
        """Call the operator with these arguments in place of `args`."""
        if self.public:
            return getattr(ops, self.name)(**dict(zip(self.args, args, strict=True)))
        return getattr(operators, self.name)(*args)

    def is_documented(self, error: Exception) -> bool:
        """Tell whether the call may raise this error; operators of torch may also raise torch's."""
        kinds: tuple[type[Exception], ...] = (ValueError, TypeError, MemoryError)
        kinds += () if self.public else (RuntimeError, IndexError)
        return isinstance(error, kinds) or "allocate memory" in str(error)

    def __str__(self) -> str:
        """Describe the call, with dtype, shape and strides of its tensors."""
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
    """Draw a call. Half of all calls have valid arguments, the others one or two spoiled ones."""
    public = random.random() < 0.3
    name = _choose(random, PUBLIC if public else list(SCHEMAS))
    function = getattr(ops, name) if public else REFERENCES[name]
    parameters = list(inspect.signature(function).parameters)
    torch.manual_seed(int(random.integers(1 << 62)))
    args = draw_arguments(random, parameters, name, public)
    call = Call(name, public, args, args.get("bands") != 0 and len(args.get("offsets", [0])) > 0)
    for _ in range(_choose(random, (0, 0, 1, 2))):
        call.fits = False
        argument = _choose(random, parameters)
        args[argument] = spoil(random, argument, args[argument])
    return call


def _choose(random: Random, values: Any) -> Any:
    return values[int(random.integers(len(values)))]


def _draw_size(random: Random, largest: int) -> int:
    """Draw a size: often 1, often near the length of a vector register, sometimes 0."""
    vector_length = _choose(random, (4, 8, 16, 32, 64)) + int(random.integers(-1, 2))
    sizes = (0, 1, min(vector_length, largest), int(random.integers(1, largest + 1)))
    return sizes[int(random.choice(4, p=(0.02, 0.18, 0.2, 0.6)))]


def draw_arguments(
    random: Random, parameters: list[str], name: str, public: bool
) -> dict[str, Any]:
    """Draw arguments that fit each other."""
    batch, bands, height, width = (_draw_size(random, largest) for largest in (3, 9, 12, 70))
    shots = 1 if name == "ratio_inverse" else _choose(random, (1, 1, 2, 3, 5))
    samples, mask_bands = _choose(random, (batch, 1)), _choose(random, (bands, 1))
    step, couplings = int(random.integers(-5, 6)), int(random.integers(1, 4))
    taps = _choose(random, (1, 2, 2, 3, 7))
    may_extend = "after" in parameters or "codes_spread" in parameters
    extends_mask = may_extend and width > 0 and random.random() < 0.5
    detector = _reference.detector_width(width, bands, step) if bands and width else 1
    if "taps" in parameters or name == "band_solve":
        detector = max(1, detector + int(random.integers(-3, 4)))
    kernel_length, signal_length = sorted((_draw_size(random, 40), _draw_size(random, 60)))
    rank, columns = kernel_length + 1, width + extends_mask * (taps - 1)
    sizes = {"B": batch, "C": bands, "H": height, "W": width, "K": shots, "D": detector}
    sizes |= {
        "S": samples,
        "T": taps,
        "N": kernel_length,
        "L": signal_length,
        "R": rank,
        "P": 7 * batch,
    }
    sizes |= {"M": mask_bands, "X": columns} | {str(size): size for size in range(10)}
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
        """Draw one value for each sample, or for each detector pixel; a tenth are infinite."""
        shapes = ("S111", "1KHD", "S1HD", "SK1D", "SKH1", "SKHD")  # any dimension may be shared
        shape = _choose(random, ("S", "SKHD") if public else shapes)
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
    args |= {"mask": mask, "step": step, "after": extends_mask, "codes_spread": extends_mask}
    for argument in parameters:
        if argument in values:
            args[argument] = values[argument]()
        elif argument in ("dual", "residual") and random.random() < 0.3:
            args[argument] = None
        elif argument not in args:
            args[argument] = rand(shapes.get(f"{name}.{argument}") or shapes[argument])
    return {argument: args[argument] for argument in parameters}


def _change_layout(random: Random, value: Tensor) -> Tensor:
    """Change the strides of a tensor in half of all cases: permuted, with gaps, or expanded."""
    layout = int(random.integers(6))
    if layout == 0:
        order = random.permutation(value.ndim)
        return value.permute(*order).contiguous().permute(*np.argsort(order))
    if layout == 1:
        return torch.stack((value, value + 1), -1)[..., 0]
    if layout == 2 and len(value):
        return value[:1].expand_as(value)
    return value


def spoil(random: Random, name: str, value: Any) -> Any:
    """Change an argument so that it is invalid, or an edge case that is still valid."""
    if isinstance(value, bool):
        return not value
    # A million iterations are valid, but slow.
    if isinstance(value, int):
        return min(_choose(random, INTEGERS), 40 if name == "iterations" else 1 << 62)
    if not isinstance(value, Tensor):
        return _choose(random, (None, -1, "x", torch.ones(2)))
    enormous = max(value.numel(), *value.shape, 0, 0) > 1 << 24
    if enormous or not _is_strided(value) or not value.ndim:
        return value  # it is spoiled already, and the changes below need its elements
    dim, dtype = int(random.integers(value.ndim)), value.dtype
    size = value.shape[dim]
    first = value.narrow(dim, 0, min(1, size))
    # A shape with so many elements that 32-bit indices overflow. An expanded tensor of this shape
    # needs no memory.
    huge_shape = list(value.shape)
    huge_shape[dim] = 1 << _choose(random, (31, 33, 40, 50))
    countable = size > 0 and first.numel() * huge_shape[dim] < 1 << 62
    numbers: tuple[float, ...] = (float("nan"), float("inf"), 1e300, -1e38, 1e-40, -0.0)
    if not dtype.is_floating_point:
        numbers = (-(1 << 63), (1 << 63) - 1, 1 << 31, -1)
    extreme = torch.tensor(_choose(random, numbers)).to(dtype)  # infinite beyond the dtype
    kinds = (torch.int32, torch.bool, torch.complex64, torch.int64, torch.uint8, *FLOATS)
    kind, strides = _choose(random, kinds), [int(random.integers(2)) for _ in value.shape]
    changes: tuple[Callable[[], Any], ...] = (
        lambda: value[None],
        lambda: value.narrow(dim, 0, 0),
        lambda: value.narrow(dim, 0, max(0, size - 1)),
        lambda: torch.cat([value, first], dim),
        lambda: value.transpose(0, dim),
        lambda: first.expand(huge_shape) if countable else first,
        *[lambda: torch.where(torch.rand(value.shape) < 0.2, extreme, value)] * 5,
        *[lambda: value.to(kind)] * 3,
        lambda: torch.rand(sum(value.shape) + 1).to(dtype).as_strided(value.shape, strides),
        # Not aligned in memory.
        lambda: torch.nn.functional.pad(value.flatten(), (1, 0))[1:].view(value.shape),
        lambda: _choose(random, (None, 1.5, torch.ones(()))),
        lambda: value.to("meta"),
        lambda: value.to_sparse(),
        lambda: value.detach().clone().float().requires_grad_(),
    )
    return _choose(random, changes)()


def check_call(call: Call) -> None:
    """Make a call.

    Raises:
        AssertionError: the arguments are valid and the call is refused, or its result is wrong.
    """
    tensors = [value for value in call.args.values() if isinstance(value, Tensor)]
    fits = call.fits and all(value.numel() for value in tensors) and call.args.get("width", 1) > 0
    try:
        result = call.run(*call.args.values())
    except Exception as error:
        if fits:
            raise AssertionError(f"a valid call is refused: {error}") from error
        raise
    if fits and not call.public and call.name != "tv_prox_backward":
        compare(call, _tuple(result))


def compare(call: Call, results: tuple[Tensor, ...]) -> None:
    """Raise AssertionError unless the results are those of the reference.

    The tests of each operator have a bound for its own rounding error. Here one bound holds for all
    operators. It is well below the difference that a wrong element makes.
    """
    # A gram keeps its dtype, because that decides which eigenvalues count as rounding errors.
    floats = {k: v for k, v in call.args.items() if isinstance(v, Tensor) and v.is_floating_point()}
    exact = call.args | {k: v.double() for k, v in floats.items() if k != "gram"}
    expected = _tuple(REFERENCES[call.name](*exact.values()))
    dtypes = (torch.float32, *(value.dtype for value in floats.values()))
    rounding = max(torch.finfo(dtype).eps for dtype in dtypes)
    largest = max(v[v.isfinite()].abs().max().item() for v in floats.values() if v.isfinite().any())
    for result, expected_result in zip(results, expected, strict=True):
        assert result.shape == expected_result.shape, (
            f"shape {result.shape}, expected {expected_result.shape}"
        )
        if not result.numel():
            continue
        peak = expected_result.abs().max().item()
        limit = 64 * rounding * _bound_condition(call) * max(largest, peak) + 1e-30
        if limit + peak > torch.finfo(result.dtype).max:
            continue  # may overflow
        error = (result.double() - expected_result.double()).abs().max().item()
        assert error <= limit, f"differs by {error:.3g}, allowed {limit:.3g}"


def _bound_condition(call: Call) -> float:
    """Bound the factor by which an operator multiplies rounding errors."""
    # At a pixel, so many patches may be added.
    if "groups" in call.args:
        return float(call.args["groups"][0].numel())
    # The sums of a convolution are computed by transforms that enlarge errors.
    if call.name == "convolve3x3":
        return 9.0 * max(1, call.args["weight"].shape[1])
    if call.name == "convolve3x3_backward":
        return float(max(1, call.args["image"][0, 0].numel()))
    if "gram" not in call.args:
        return 1.0
    # Solving multiplies rounding errors by the condition number of gram + rho.
    gram, rho = call.args["gram"], call.args["rho"].min().item()
    return float((1 + gram.shape[2] * gram.abs().max().item() / rho) ** 2)


def _is_strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


# Damaged files. xarray and Pillow are imported late, because the machine of gpu.sh has neither.

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
    return [(record, records.read_cube(record.job)) for record in records.read_all()]


def _read_config(path: Path) -> object:
    config = OmegaConf.create(path.read_text(encoding="utf-8", errors="replace"))
    return build(OmegaConf.select(config, "node"))


@cache
def list_files() -> dict[str, tuple[Use, Use]]:
    """Return two functions, to write and to read, for each kind of file or folder, by name."""
    import xarray
    from PIL import Image

    data_array = xarray.DataArray(CUBE, dims=("wavelength", "y", "x"), name="cube")
    save_image = Image.fromarray(COUNTS[0]).save
    tiff = partial(tifffile.imwrite, data=COUNTS, photometric="minisblack")
    legacy = partial(_write_checkpoint, _use_new_zipfile_serialization=False)
    cubes: dict[str, Use] = {
        f"a{suffix}": partial(io.write_cube, cube=CUBE, wavelengths=NM)
        for suffix in io.WRITE_SUFFIXES
    }
    cubes |= {
        "a.npy": partial(np.save, arr=CUBE),
        "classic.nc": partial(data_array.to_netcdf, engine="scipy"),
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


def draw_file(valid: Path, folder: Path, seed: int) -> Case:
    """Write a file into `valid`, damage its copy in `folder`, and return a case that reads it."""
    random = np.random.default_rng(seed)
    name = list(list_files())[seed % len(list_files())]
    make, read = list_files()[name]
    original, copy = valid / f"{os.getpid()}" / name, folder.resolve() / f"{seed}"
    if not original.exists():
        original.mkdir(parents=True)
        make(original / name)
        read(original / name)  # this must succeed, and imports what the reader needs
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    file = _choose(random, sorted(path for path in copy.rglob("*") if path.is_file()))
    content = file.read_bytes()
    change = damage
    # Checksums would hide damage inside of an archive or a PNG from the code behind them.
    if random.random() < 0.4:
        change = {b"PK": _damage_zip, b"\x89P": _damage_png}.get(content[:2], damage)
    file.write_bytes(change(random, content))
    return Case(name, lambda: read(copy / name), _is_one_line, copy)


def _is_one_line(error: Exception) -> bool:
    """Tell whether a command would end with one line: no traceback, and no lack of memory."""
    is_expected = is_usage_error(error) and not isinstance(error, MemoryError)
    return is_expected and "\n" not in describe(error)


NUMBERS: tuple[int, ...] = (0, 1, 2, 255, 256, 65535, 1 << 20, 1 << 24, 1 << 30, 1 << 40, 1 << 62)
NUMBERS += ((1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1, -1, -2, -(1 << 31), -(1 << 63))
TEXTS = (*(str(n).encode() for n in NUMBERS), b"9" * 400, b"1e400", b"nan", b"", b"[[", b"{")
DIGITS = re.compile(rb"[0-9.]+")


def _draw_position(random: Random, size: int) -> int:
    """Draw a position in a file, mostly near its beginning or its end, where headers are."""
    distance = int(random.integers(min(size, 2048)))
    return _choose(random, (distance, distance, size - 1 - distance, int(random.integers(size))))


def damage(random: Random, content: bytes) -> bytes:
    """Damage a file in one to four places."""
    for _ in range(_choose(random, (1, 1, 2, 3, 4))):
        if not content:
            break
        at, start = _draw_position(random, len(content)), _draw_position(random, len(content))
        size, width = int(random.integers(1, 200)), _choose(random, (1, 2, 4, 4, 8))
        stretch, byte = content[start : start + size], content[at] ^ 1 << random.integers(8)
        field = at - (at % width if random.random() < 0.7 else 0)  # mostly aligned to its width
        order = _choose(random, ("little", "little", "big"))
        number = (_choose(random, NUMBERS) % (1 << 8 * width)).to_bytes(width, order)
        value = content[field : field + width]
        digits = DIGITS.search(content, at)
        # Each change replaces the bytes from a position to another by new ones.
        changes = (
            (at, at + 1, bytes([byte])),  # a flipped bit
            (at, len(content), b""),  # a cut file
            (at, at + size, b""),
            (at, at + len(stretch), stretch),
            (at, at, stretch * int(random.integers(1, 20))),
            (at, at + size, _choose(random, (b"\0", b"\xff", b" ")) * size),
            (field, field + width, number),
            (field, field + width * size, value * size),  # a table of equal offsets
            (*(digits.span() if digits else (at, at)), _choose(random, TEXTS)),
        )
        first, last, replacement = _choose(random, changes)
        content = content[:first] + replacement + content[last:]
    return content


def _damage_zip(random: Random, content: bytes) -> bytes:
    """Damage a member of an archive, and compute its checksum anew."""
    result = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as source, zipfile.ZipFile(result, "w") as target:
        victim = _choose(random, source.infolist())
        for info in source.infolist():
            member = source.read(info)
            target.writestr(info, damage(random, member) if info is victim else member)
    return result.getvalue()


def _damage_png(random: Random, content: bytes) -> bytes:
    """Damage half of the chunks of a PNG, and compute their checksums anew."""
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
    """Try all cases; return the exit status, 1 if there are findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("ops", "readers"))
    parser.add_argument("--count", type=int, default=10_000, help="number of cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case")
    parser.add_argument("--out", type=Path, default=Path("outputs/fuzz"), help="for findings")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="cassi-fuzz-") as valid:
        draw: Draw = draw_operator
        if options.what == "readers":
            draw = partial(draw_file, Path(valid), options.out)
        for report in try_all(draw, range(options.seed, options.seed + options.count)):
            counts[report.outcome] += 1
            if report.outcome not in GOOD_OUTCOMES:
                print(f"--seed {report.seed} --count 1: {report.outcome}: {report.message[:500]}")
                print(f"    {report.text}", flush=True)
    findings = counts.total() - counts["accepted"] - counts["refused"]
    print(f"{counts['accepted']} accepted, {counts['refused']} refused, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
