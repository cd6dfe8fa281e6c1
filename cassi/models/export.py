"""Export of networks to files that need no `cassi`: ONNX, torch programs, compiled libraries."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cassi.models.camera_adapters import HasShapes
from cassi.ops._library import SCHEMAS
from cassi.ops._plain import ONNX_DECOMPOSITIONS, OUR_DECOMPOSITIONS
from cassi.solvers import LinearSystem, Statistics
from cassi.solvers.base import HasRun

Method = nn.Module | HasRun | Callable[[Tensor, LinearSystem], Tensor]


class ExportableCamera(LinearSystem, HasShapes, Protocol):
    """A camera whose tensors can be listed, such as a `cassi.systems.System`."""

    def parameters(self) -> Iterator[Tensor]:
        """Return the tensors that may be learned."""

    def buffers(self) -> Iterator[Tensor]:
        """Return the other tensors."""


class MeasurementToCube(nn.Module):
    """A module that holds a method and its camera, and takes only y: y ↦ network(y, system).

    Args:
        network: one of `cassi.create_model`, any `net(y, system)`, or a `Reconstructor`.
        system: the camera.
        example: statistics of another measurement of the camera. If given, a reconstructor uses
            the noise and the stopping point of that measurement.
    """

    def __init__(
        self, network: Method, system: LinearSystem, example: Statistics | None = None
    ) -> None:
        super().__init__()
        self.network, self.system, self.example = network, system, example

    def forward(self, y: Tensor) -> Tensor:
        """Reconstruct the cube: `(B, K, H', W')` → `(B, C, H, W)`."""
        x: Tensor
        if isinstance(self.network, HasRun):
            example = self.example
            statistics = (
                None if example is None else example.for_measurement(lambda: [(y, self.system)])
            )
            x = self.network.run(y, self.system, statistics=statistics).x
        else:
            x = self.network(y, self.system)
        return x


# Functions by which some networks draw random numbers during a reconstruction.
DRAWING_FUNCTIONS = (torch.normal, torch.rand, torch.randn)
# Functions that return the values of a tensor to Python. A trace cannot contain decisions that
# depend on these values.
READING_FUNCTIONS = (
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
    Tensor.item,
    Tensor.tolist,
)


Functions = Sequence[Callable[..., object]]
Numbers = float | list["Numbers"]


class _Record(TorchFunctionMode):
    """Records the results of some functions, or replays recorded results in the same order."""

    def __init__(
        self, functions: Functions, replayed_values: Sequence[object] | None = None
    ) -> None:
        super().__init__()
        self.functions = functions
        self.recorded_values: list[object] = []
        self.replayed_values = None if replayed_values is None else iter(replayed_values)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func not in self.functions:
            return func(*args, **(kwargs or {}))
        # `tolist` of a traced tensor calls `item` for each number. The same is done for other
        # tensors, so that the recording and the tracing run make the same calls.
        if func is Tensor.tolist:
            with self:
                return _list_items(*args)
        if self.replayed_values is not None:
            return next(self.replayed_values)
        self.recorded_values.append(func(*args, **(kwargs or {})))
        return self.recorded_values[-1]


def _list_items(x: Tensor) -> Numbers:
    return [_list_items(part) for part in x] if x.ndim else x.item()


def export(
    network: Method, system: ExportableCamera, example: Tensor | None = None
) -> torch.export.ExportedProgram:
    """Return a network with its camera as a program of torch: y → x.

    Random numbers of the network become constants of the program, drawn after
    `torch.manual_seed(0)`. If there is an example, its noise and all decisions by values become
    constants too: numbers of iterations, ranks, branches. The signal level is computed for every y.

    Args:
        network: one of `cassi.create_model`, any `net(y, system)`, or a `Reconstructor`.
        system: the camera.
        example: a measurement `(1, K, H', W')`.

    Raises:
        RuntimeError: the network decides by values of y, and there is no example.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    tensor = next(iter([*system.parameters(), *system.buffers()]))
    y = torch.zeros(1, *system.measurement_shape, dtype=tensor.dtype, device=tensor.device)
    module = MeasurementToCube(network, system).eval()
    functions: Functions = DRAWING_FUNCTIONS
    with torch.no_grad():
        if example is not None:
            y, functions = example, (*DRAWING_FUNCTIONS, *READING_FUNCTIONS)
            module.example = _remember_statistics(network, system, example)
        with torch.random.fork_rng(), _Record(functions) as recorder:
            torch.manual_seed(0)
            module(y)
        try:
            with _Record(functions, recorder.recorded_values):
                return torch.export.export(module, (y,), strict=False)
        except GuardOnDataDependentSymNode as error:
            name = type(network).__name__
            raise RuntimeError(
                f"{name} decides by values of y what it computes; give a snapshot as an example"
            ) from error


def _remember_statistics(network: Method, system: LinearSystem, y: Tensor) -> Statistics:
    """Return the statistics of y, including the results that a reconstructor caches in them."""
    statistics = Statistics(lambda: [(y, system)])
    if isinstance(network, HasRun):
        network.run(y, system, statistics=statistics)
    return statistics


def export_plain(
    network: Method, system: ExportableCamera, example: Tensor | None = None
) -> torch.export.ExportedProgram:
    """Return the program of `export`, with the operators of cassi replaced by those of torch.

    Raises:
        RuntimeError: see `export`; or torch has no operators for this camera.
    """
    program = export(network, system, example)
    with torch.no_grad():
        table = torch.export.default_decompositions() | OUR_DECOMPOSITIONS
        plain_program = program.run_decompositions(table)
    _check_plain(plain_program)
    return plain_program


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
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a program of `export_plain` as a file that `torch.export.load` reads.

    Args:
        program: y → x.
        path: path of the `.pt2` file.
        metadata: content of `about.json` in the file.
    """
    torch.export.save(program, path, extra_files={"about.json": json.dumps(dict(metadata or {}))})


def export_operators(
    program: torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a program of `export`, and beside it the compiled operators of cassi and their schemas.

    `operators.so` holds the operators. It needs only torch, and runs on the platform that it was
    built for. `operators.txt` holds the schemas.

    Args:
        program: y → x.
        path: path of the `.pt2` file.
        metadata: content of `about.json` in the file.

    Raises:
        RuntimeError: this installation has no compiled operators.
    """
    libraries = [file for file in torch.ops.loaded_libraries if Path(file).name == "_cpu.so"]
    if not libraries:
        raise RuntimeError("this installation has no compiled operators")
    export_torch(program, path, metadata)
    shutil.copyfile(libraries[0], Path(path).with_name("operators.so"))
    lines = [name + signature for name, signature in SCHEMAS.items()]
    Path(path).with_name("operators.txt").write_text("\n".join(lines))


def export_compiled(
    program: torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Compile a program of `export_plain` to a library with AOTInductor.

    C++ reads the file with `torch::inductor::AOTIModelPackageLoader`, Python with
    `torch._inductor.aoti_load_package`. The library runs only on processors of the kind that
    compiled it.

    Args:
        program: y → x.
        path: path of the `.pt2` file.
        metadata: metadata of the file.
    """
    # "freezing" makes the weights constants, so the compiler can reorder them for convolutions.
    settings = {"freezing": True, "aot_inductor.metadata": dict(metadata or {})}
    torch._inductor.aoti_compile_and_package(
        program, package_path=os.fspath(path), inductor_configs=settings
    )


def export_onnx(
    network: Method,
    system: ExportableCamera,
    path: str | os.PathLike[str],
    example: Tensor | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a network with its camera as an ONNX file: input `y`, output `x`.

    The file is for one camera and float32, and takes one measurement `(1, K, H', W')` at a time.
    The operators of the camera are written as sums and products. The random numbers of a network
    become constants, as in `export`.

    Args:
        network: one of `cassi.create_model`, any `net(y, system)`, or a `Reconstructor`.
        system: a camera of one shot whose bands move by whole pixels.
        path: path of the file.
        example: see `export`.
        metadata: metadata of the file.

    Raises:
        RuntimeError: see `export_plain`; or the network computes eigenvectors.
    """
    program = export(network, system, example)
    if any(node.target is torch.ops.aten.linalg_eigh.default for node in program.graph.nodes):
        raise RuntimeError(
            f"{type(network).__name__} finds eigenvectors, which ONNX cannot; write a program of "
            "torch or a compiled library"
        )
    with torch.no_grad():
        table = torch.export.default_decompositions() | ONNX_DECOMPOSITIONS
        program = program.run_decompositions(table)
        _check_plain(program)
        # optimize=False, because folding constants here changes the result of PADUT by 0.07.
        # Runtimes optimize the file when they load it.
        onnx_program = torch.onnx.export(
            program,
            (),
            None,
            dynamo=True,
            verbose=False,
            optimize=False,
            input_names=["y"],
            output_names=["x"],
        )
    assert onnx_program is not None
    onnx_program.model.metadata_props.update(metadata or {})
    onnx_program.save(os.fspath(path))
