"""Networks as files that run without this package: ONNX, programs of torch, compiled libraries."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cassi.models.grid import Shaped
from cassi.ops._library import SCHEMAS
from cassi.ops._plain import OURS, PLAIN
from cassi.solvers import LinearSystem, Statistics
from cassi.solvers.base import Runs

Method = nn.Module | Runs | Callable[[Tensor, LinearSystem], Tensor]


class Exported(LinearSystem, Shaped, Protocol):
    """A camera with its tensors, as a `cassi.systems.System`."""

    def parameters(self) -> Iterator[Tensor]:
        """Return what may be learned."""

    def buffers(self) -> Iterator[Tensor]:
        """Return the others."""


class OfMeasurement(nn.Module):
    """y ↦ network(y, system).

    Args:
        network: one of `cassi.create_model`, any `net(y, system)`, or a `Reconstructor`.
        system: the camera.
        example: statistics of another measurement of that camera. Where they are given, the noise
            and the stopping points of a reconstructor are those of that measurement.
    """

    def __init__(
        self, network: Method, system: LinearSystem, example: Statistics | None = None
    ) -> None:
        super().__init__()
        self.network, self.system, self.example = network, system, example

    def forward(self, y: Tensor) -> Tensor:
        """Reconstruct the cube: `(B, K, H', W')` → `(B, C, H, W)`."""
        x: Tensor
        if isinstance(self.network, Runs):
            example = self.example
            known = None if example is None else example.of_another(lambda: [(y, self.system)])
            x = self.network.run(y, self.system, statistics=known).x
        else:
            x = self.network(y, self.system)
        return x


DRAWS = (torch.normal, torch.rand, torch.randn)
"""What gives random numbers in networks that draw them when they reconstruct."""
READS = (
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(Tensor.item, Tensor.tolist),
)
"""What gives a program of Python the values of a tensor."""


Functions = Sequence[Callable[..., object]]
Numbers = float | list["Numbers"]


class _Record(TorchFunctionMode):
    """Keeps what some functions return; or gives it again, in that order."""

    def __init__(self, functions: Functions, again: Sequence[object] | None = None) -> None:
        super().__init__()
        self.functions = functions
        self.kept: list[object] = []
        self.again = None if again is None else iter(again)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func not in self.functions:
            return func(*args, **(kwargs or {}))
        if func is Tensor.tolist:  # tensors that are traced make it of `item`
            with self:
                return _list_items(*args)
        if self.again is not None:
            return next(self.again)
        self.kept.append(func(*args, **(kwargs or {})))
        return self.kept[-1]


def _list_items(x: Tensor) -> Numbers:
    return [_list_items(part) for part in x] if x.ndim else x.item()


def export(
    network: Method, system: Exported, example: Tensor | None = None
) -> torch.export.ExportedProgram:
    """Return a network with its camera as a program of torch: y → x.

    Random numbers that the network draws are constants of it, those after `torch.manual_seed(0)`.
    So are the noise and everything that the network decides by values, where an example is given:
    numbers of iterations, ranks, which branch is taken. The signal level is that of every y.

    Args:
        network: one of `cassi.create_model`, any `net(y, system)`, or a `Reconstructor`.
        system: the camera.
        example: a measurement `(1, K, H', W')`.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    like = next(iter([*system.parameters(), *system.buffers()]))
    y = torch.zeros(1, *system.measurement_shape, dtype=like.dtype, device=like.device)
    module = OfMeasurement(network, system).eval()
    functions: Functions = DRAWS
    with torch.no_grad():
        if example is not None:
            y, functions = example, (*DRAWS, *READS)
            module.example = _know(network, system, example)
        with torch.random.fork_rng(), _Record(functions) as record:
            torch.manual_seed(0)
            module(y)
        try:
            with _Record(functions, record.kept):
                return torch.export.export(module, (y,), strict=False)
        except GuardOnDataDependentSymNode as error:
            name = type(network).__name__
            raise RuntimeError(
                f"{name} decides by values of y what it computes; give a snapshot as an example"
            ) from error


def _know(network: Method, system: LinearSystem, y: Tensor) -> Statistics:
    """Return the statistics of a measurement, with what a reconstructor remembers of it."""
    found = Statistics(lambda: [(y, system)])
    if isinstance(network, Runs):
        network.run(y, system, statistics=found)
    return found


def export_plain(
    network: Method, system: Exported, example: Tensor | None = None
) -> torch.export.ExportedProgram:
    """Return the program of `export` with our operators written as those of torch."""
    program = export(network, system, example)
    with torch.no_grad():
        plain = program.run_decompositions(torch.export.default_decompositions() | OURS)
    _check_plain(plain)
    return plain


def _check_plain(program: torch.export.ExportedProgram) -> None:
    for node in program.graph.nodes:
        if getattr(node.target, "namespace", "") == "cassi":
            name = str(node.target).split(".")[1]
            raise RuntimeError(
                f"expected one shot and bands on whole pixels, as torch has no {name}; "
                "format=torch_operators keeps our operators and takes this camera"
            )


def export_torch(
    program: torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a program of `export_plain` as a file that `torch.export.load` reads.

    Args:
        program: y → x.
        path: of the file, `.pt2`.
        about: is written as `about.json` into the file.
    """
    torch.export.save(program, path, extra_files={"about.json": json.dumps(dict(about or {}))})


def export_operators(
    program: torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a program of `export`, and beside it our compiled operators and their schemas.

    These are `operators.so`, which needs nothing but torch, for the platform that it was built for,
    and `operators.txt`.

    Args:
        program: y → x.
        path: of the file, `.pt2`.
        about: is written as `about.json` into the file.
    """
    found = [file for file in torch.ops.loaded_libraries if Path(file).name == "_cpu.so"]
    if not found:
        raise RuntimeError("this installation has no compiled operators")
    export_torch(program, path, about)
    shutil.copyfile(found[0], Path(path).with_name("operators.so"))
    lines = [name + rest for name, rest in SCHEMAS.items()]
    Path(path).with_name("operators.txt").write_text("\n".join(lines))


def export_compiled(
    program: torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    about: Mapping[str, str] | None = None,
) -> None:
    """Compile a program of `export_plain` to a library, by AOTInductor.

    C++ reads the file with `torch::inductor::AOTIModelPackageLoader`, Python with
    `torch._inductor.aoti_load_package`. It runs on the kind of processor that compiled it.

    Args:
        program: y → x.
        path: of the file, `.pt2`.
        about: is written as metadata into the file.
    """
    # Frozen: weights are constants, which convolutions take in the order that they like best.
    settings = {"freezing": True, "aot_inductor.metadata": dict(about or {})}
    torch._inductor.aoti_compile_and_package(
        program, package_path=os.fspath(path), inductor_configs=settings
    )


def export_onnx(
    network: Method,
    system: Exported,
    path: str | os.PathLike[str],
    example: Tensor | None = None,
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a network with its camera as an ONNX file: input `y`, output `x`.

    The file holds one camera, one measurement `(1, K, H', W')` and float32. The operators of the
    camera are written as the sums and products that they stand for. Random numbers that a network
    draws are those after `torch.manual_seed(0)`.

    Args:
        network: one of `cassi.create_model`, any `net(y, system)`, or a `Reconstructor`.
        system: a camera of one shot whose bands move by whole pixels.
        path: of the file.
        example: see `export`.
        about: is written as metadata into the file.
    """
    program = export(network, system, example)
    if any(node.target is torch.ops.aten.linalg_eigh.default for node in program.graph.nodes):
        raise RuntimeError(
            f"{type(network).__name__} finds eigenvectors, which ONNX cannot; write a program of "
            "torch or a compiled library"
        )
    with torch.no_grad():
        program = program.run_decompositions(torch.export.default_decompositions() | PLAIN)
        _check_plain(program)
        # Not optimized: constants folded here change PADUT by 0.07. Those who read it optimize it.
        written = torch.onnx.export(
            *(program, (), None),
            dynamo=True,
            verbose=False,
            optimize=False,
            input_names=["y"],
            output_names=["x"],
        )
    assert written is not None
    written.model.metadata_props.update(about or {})
    written.save(os.fspath(path))
