"""Registration of operators in the ``cassi`` namespace of torch; loading of the compiled kernels.

The pure-torch reference of an operator is registered as ``CompositeExplicitAutograd``. It runs on
every backend without a compiled kernel. A compiled kernel is registered under ``CPU`` or ``CUDA``,
and torch prefers these keys. Gradients are composed of operators, so they are written once for all
backends and orders.

Rules of all operators:

*autocast*
    An operator runs in the widest dtype among its tensors, as elementwise arithmetic does. So
    measurements and masks are not rounded to bfloat16 if only the cube of a network is bfloat16.
*vmap*
    The first dimension of every tensor is the batch. The dimension that vmap maps is merged with
    it, so that the kernel runs once.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from cassi.ops._recording import (
    Argument,
    Backward,
    Context,
    Dims,
    Recorder,
    Results,
    Save,
    VmapInfo,
    is_forward_mode,
    is_transformed,
)

if TYPE_CHECKING:
    from torch._ops import OpOverload

T = TypeVar("T")
Kernel = Callable[..., Results]
Mapped = tuple[Results, int | tuple[int, ...]]

NAMESPACE = "cassi"
# Names of arguments that all samples may share: their leading dimension is 1 or B.
SHAREABLE = frozenset(
    {"mask", "gram", "rho", "weight", "threshold", "taps", "starts", "rates", "basis"}
)
SCHEMAS: dict[str, str] = {}
REFERENCES: dict[str, Kernel] = {}  # the pure-torch kernel of every operator

_library = torch.library.Library(NAMESPACE, "DEF")
operators: Any = torch.ops.cassi


def define(
    schema: str,
    reference: Kernel,
    fake: Kernel,
    backward: Backward | None = None,
    save: Save | None = None,
    vmap: Callable[..., Mapped] | None = None,
) -> None:
    """Register an operator: schema, reference, fake kernel, gradient, autocast and vmap rules.

    Args:
        schema: signature of the operator. The leading dimension of every tensor is a batch.
        reference: the operator's pure-torch kernel.
        fake: returns tensors with the shapes, dtypes and strides of the results.
        backward: (ctx, *gradients) → one gradient or None per argument. None for an operator that
            is only called where no gradient is recorded.
        save: stores what `backward` needs; by default all arguments.
        vmap: replaces the rule that folds the mapped dimension into the batch.
    """
    name = schema.partition("(")[0]
    SCHEMAS[name] = schema.removeprefix(name)
    REFERENCES[name] = reference
    qualified_name = f"{NAMESPACE}::{name}"
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    op = operator(name)
    _library.impl(name, _refuse_none(op, reference), "CompositeExplicitAutograd")
    torch.library.register_fake(qualified_name, _refuse_none(op, fake), lib=_library)
    if backward is not None:
        kernel = Recorder(op, backward, save or save_inputs).run
        _library.impl(name, kernel, "Autograd", with_keyset=True)
    for device in ("CPU", "CUDA"):
        _library.impl(name, _autocast(op, device), f"Autocast{device}")
    torch.library.register_vmap(qualified_name, vmap or _fold_batch(op), lib=_library)


def differentiable(
    schema: str, reference: Kernel, fake: Kernel, **rules: Any
) -> Callable[[Backward], Backward]:
    """Return a decorator that registers an operator with the decorated function as its gradient."""

    def register(backward: Backward) -> Backward:
        define(schema, reference, fake, backward, **rules)
        return backward

    return register


def operator(name: str) -> OpOverload:
    """Return an operator of the package by its name."""
    return getattr(operators, name).default


def _refuse_none(op: OpOverload, reference: Kernel) -> Kernel:
    # torch passes None to the kernel even if the schema says Tensor. So the check is made here, and
    # names the argument.
    arguments = op._schema.arguments
    required_tensors = [(k, a.name) for k, a in enumerate(arguments) if str(a.type) == "Tensor"]

    @functools.wraps(reference)
    def run(*args: Argument) -> Results:
        for index, argument in required_tensors:
            if args[index] is None:
                raise TypeError(f"{op._opname}: expected a tensor {argument}, got None")
        return reference(*args)

    return run


def call(op: Callable[..., T], *args: Argument) -> T:
    """Call an operator; skip its autograd layer if no gradient is to be recorded."""
    # The autograd layer of an operator is Python code. On a small cube it takes as long as the
    # operator itself. Only plain tensors skip it, because tensors of `torch.func` and of subclasses
    # may need a gradient without showing it.
    if torch.compiler.is_compiling() or is_transformed() or is_forward_mode():
        return op(*args)
    for value in args:
        kind = type(value)
        if kind is not Tensor and kind is not Parameter and isinstance(value, Tensor):
            return op(*args)
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
        return op(*args)
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


def save_inputs(ctx: Context, inputs: tuple[Any, ...], output: Results) -> None:
    """Save all tensors, and the other arguments as `ctx.constants`."""
    ctx.constants = [value for value in inputs if not isinstance(value, Tensor)]
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))


def backend(device: torch.device, name: str = "forward") -> str:
    """Return which kernel an operator runs on a device: ``"compiled"`` or ``"reference"``."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device.type)
    if key == "CUDA" and torch.cuda.is_available():
        torch.cuda.init()  # `load_compiled` has registered a callback that loads the library now
    is_compiled = key is not None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f"{NAMESPACE}::{name}", key
    )
    return "compiled" if is_compiled else "reference"


def load_compiled(folders: Iterable[str]) -> None:
    """Load the compiled kernels in a package's folders, unless ``CASSI_COMPILED=0``.

    ``CASSI_LIBRARY_DIR`` names another folder to load them from. The CUDA library is loaded when
    torch starts CUDA, and only if it can run on every device. If a library does not load or cannot
    run, a warning says so, and the operators run on the reference.
    """
    if os.environ.get("CASSI_COMPILED", "1") == "0":
        return
    if folder_setting := os.environ.get("CASSI_LIBRARY_DIR"):
        folders = [folder_setting]
    for folder in map(Path, folders):
        if (folder / "_cpu.so").is_file():
            _load(folder / "_cpu.so")
        if torch.version.cuda and (folder / "_cuda.so").is_file():
            torch.cuda._lazy_call(functools.partial(_load_cuda, folder / "_cuda.so"))


def _load(path: Path) -> None:
    try:
        torch.ops.load_library(path)
    except OSError as error:
        _warn(f"{path} does not load ({error})")


def _load_cuda(path: Path) -> None:
    build = re.search(rb"cassi-cuda-build:([^;]*);", path.read_bytes())
    try:
        reason = explain_unusable(build[1].decode()) if build else None
    except Exception as error:  # torch is starting CUDA here and must not fail
        reason = f"the driver could not be asked what it can run: {error!r}"
    if reason:
        _warn(f"{path} cannot run here ({reason})")
    else:
        _load(path)


def explain_unusable(build: str) -> str | None:
    """Return why a CUDA library cannot run on the devices of this machine; None if it can.

    Args:
        build: CUDA's version, and the architectures as CMake names them, such as "13.0 80-real
            90-virtual".
    """
    version, *architectures = build.split()
    built_with, driver = tuple(map(int, version.split(".")[:2])), driver_version()
    # A driver runs code of any minor version of its major version.
    if driver[0] < built_with[0]:
        return f"it was built with CUDA {version}, the driver is made for CUDA {driver[0]}"
    for device in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(device)
        for architecture in architectures:
            number, _, kind = architecture.partition("-")
            if not number.isdigit():
                # "90a" is code for exactly one architecture.
                can_run = number[:-1] == f"{major}{minor}"
            elif kind == "virtual":
                # The driver compiles virtual code for later architectures, if the driver is not
                # older than the toolkit that made the code.
                can_run = int(number) <= 10 * major + minor and driver >= built_with
            else:
                can_run = int(number) // 10 == major and int(number) % 10 <= minor
            if can_run:
                break
        else:
            return (
                f"it has code for {', '.join(architectures)}, and device {device} is of compute "
                f"capability {major}.{minor}: build it with TORCH_CUDA_ARCH_LIST={major}.{minor}"
            )
    return None


def driver_version() -> tuple[int, int]:
    """Return the latest CUDA version that the driver supports: (major, minor)."""
    version = ctypes.c_int()
    status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    if status != 0:
        raise OSError(f"cuDriverGetVersion: error {status}")
    return version.value // 1000, version.value % 1000 // 10


def _warn(problem: str) -> None:
    warnings.warn(
        f"{problem}; the operators run on their pure-torch reference", RuntimeWarning, stacklevel=3
    )


def _autocast(op: OpOverload, device: str) -> Kernel:
    keys = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(f"Autocast{device}"))

    def run(first: Tensor, *rest: Argument, **named: Argument) -> Results:
        widest = first.dtype
        for value in rest:
            if isinstance(value, Tensor):
                widest = torch.promote_types(widest, value.dtype)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(first.to(widest), *rest, **named)

    return run


def _fold_batch(op: OpOverload) -> Callable[..., Mapped]:
    names = [argument.name for argument in op._schema.arguments]

    def run(info: VmapInfo, in_dims: Dims, *args: Argument) -> Mapped:
        size = info.batch_size
        moved_args = [
            value.movedim(dim, 0) if isinstance(value, Tensor) and dim is not None else value
            for value, dim in zip(args, in_dims, strict=True)
        ]
        batch_sizes = [
            value.shape[0 if dim is None else 1]
            for value, dim in zip(moved_args, in_dims, strict=True)
            if isinstance(value, Tensor)
        ]
        batch = max(batch_sizes)
        folded_args: list[Argument] = []
        # The schema also names arguments with defaults, which may not have been passed.
        for name, value, dim in zip(names, moved_args, in_dims, strict=False):
            if not isinstance(value, Tensor):
                folded_args.append(value)
                continue
            if dim is None:
                # The kernels share such a tensor among all samples, so also among mapped ones.
                if name in SHAREABLE and value.shape[0] == 1:
                    folded_args.append(value)
                    continue
                value = value.expand(size, *value.shape)
            if value.shape[1] != batch:
                value = value.expand(size, batch, *value.shape[2:])
            folded_args.append(value.reshape(size * batch, *value.shape[2:]))
        result = op(*folded_args)
        if isinstance(result, Tensor):
            return result.unflatten(0, (size, -1)), 0
        return tuple(r.unflatten(0, (size, -1)) for r in result), (0,) * len(result)

    return run
