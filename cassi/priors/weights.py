"""Weights of networks, from files that can hold nothing but tensors."""

import argparse
import hashlib
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor, nn

from cassi.checks import check_fetched, check_readable, read_regular

_PLAIN = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "params",
    "weights",
    "module",
)
"""Keys of the plain weights in a checkpoint, those of the optimizer."""
_AVERAGED = ("ema", "params_ema", "ema_state_dict", "state_dict_ema", "model_ema", "ema_model")
"""Keys of their moving average."""
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
"""What parallel training, `torch.compile` and training modules put before every name."""
_COUNTERS = ("n_averaged", "total_ops", "total_params")
"""Entries that averages and profilers leave among the weights."""
_DISPENSABLE = "num_batches_tracked"
"""Written since torch 0.4.1; nothing is computed from it."""
_LARGEST_HEADER, _LARGEST_OLD = 1 << 24, 1 << 29
"""Bytes: of the header of a safetensors file; of a file of torch before 1.6, read as a whole."""
CHECKSUM = "sha256"
"""Key, in the metadata of a safetensors file, of the checksum of its tensors."""
SHOWN = 4
"""Names that a message gives of each kind."""


Average = Mapping[str, Tensor] | Sequence[Tensor]
"""A moving average, by name or in the order of the parameters."""


class MisfitError(ValueError):
    """Weights of another network."""

    def __init__(self, message: str, shapes: Mapping[str, torch.Size]) -> None:
        super().__init__(message)
        self.shapes = dict(shapes)


@runtime_checkable
class _Partial(Protocol):
    """A network that needs only some of what its files hold."""

    unneeded: Sequence[str]


@runtime_checkable
class _Stateful(Protocol):
    """A network, or torch_ema's average."""

    def state_dict(self) -> object: ...


def load_weights(
    network: nn.Module, path: str | os.PathLike[str], *, ema: bool | None = None
) -> None:
    """Load the weights of a file into a network. Every name and shape must agree.

    The file is `.safetensors`, or what `torch.save` wrote of one of these:

    - a `state_dict`;
    - a checkpoint that holds one under `state_dict`, `model_state_dict`, `model`, `net`, `network`,
      `params`, `weights` or `module`, the first of these that is there, and perhaps its moving
      average under `ema`, `params_ema`, `ema_state_dict`, `state_dict_ema`, `model_ema` or
      `ema_model`;
    - a moving average alone. By name, or as a list in the order of `network.parameters()`, as
      `torch_ema` writes it (`shadow_params`). Of buffers there is no average: they come from the
      weights beside it;
    - a checkpoint of cassi-train, `.ckpt`.

    All names may begin with `module.`, `_orig_mod.`, `model.`, `net.` or `network.`. Nothing in a
    file is executed, and nothing is loaded unless everything fits.

    Args:
        network: changed in place. If it has an attribute `unneeded`, names that begin with one of
            its entries belong to the training only and are left out.
        path: the file.
        ema: None takes the moving average where the file holds one: published figures are those of
            the average. True requires it. False takes the plain weights, those of the optimizer.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not of these kinds, has no weights of the kind `ema` requires, or
            holds NaN.
        MisfitError: a `ValueError`: names or shapes do not fit.
    """
    file = Path(path).expanduser()
    content = read_file(file)
    plain, average = _find(content)
    if plain is None and average is None:
        raise ValueError(_say_none(file, content))
    if ema and average is None:
        raise ValueError(f"weights {file}: it holds no moving average; leave out ema=True")
    if plain is None and ema is False:
        raise ValueError(f"weights {file}: it holds a moving average only; leave out ema=False")
    expected = network.state_dict()
    state = {} if plain is None else _unwrap(plain, expected)
    if average is not None and ema is not False:
        state |= _average(network, average, expected, file)
    unneeded = tuple(network.unneeded) if isinstance(network, _Partial) else ()
    state = {k: v for k, v in state.items() if k in expected or not k.startswith(unneeded)}
    for key, value in expected.items():
        if key.endswith(_DISPENSABLE):
            state.setdefault(key, value)
    check_fit(state, network, f"weights {file}: not those of")
    _check_finite(state, expected, file)
    network.load_state_dict(state)


def _say_none(file: Path, content: object) -> str:
    """Say that a file has no weights, and under which keys there are some."""
    parts = content.items() if isinstance(content, Mapping) else ()
    named = [key for key, part in parts if _find(part) != (None, None)]
    there = f"got them under {', '.join(map(repr, named[:SHOWN]))}" if named else "got none"
    chosen = f"torch.load({str(file)!r})[{named[0]!r}]" if named else "network.state_dict()"
    return (
        f"weights {file}: expected names and tensors, {there}; write the file by "
        f"torch.save({chosen}, FILE)"
    )


def read_file(file: Path) -> Any:
    """Read a file of tensors without executing anything."""
    if not file.is_file():
        raise FileNotFoundError(f"weights: no file {file}")
    _check_fetched(file)
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        read_metadata(file)
        return load_file(file)
    try:
        # What torch wrote before 1.6 claims lengths that only a file in memory does not believe.
        source = file if _is_archive(file) else BytesIO(read_regular(file, _LARGEST_OLD))
        with torch.serialization.safe_globals(_harmless()):
            return torch.load(source, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch.load fails in many ways on what is no checkpoint
        text = str(error)
        if needs := re.search(r"GLOBAL (\S+)", text):
            raise ValueError(
                f"weights {file}: holds a Python object ({needs[1]}), and to make one may run any "
                "code; if you trust the file, where its code is at hand, run "
                "from cassi.priors.weights import find_weights; torch.save(find_weights(torch.load("
                f"{str(file)!r}, weights_only=False)), {f'{file.stem}_weights.pth'!r})"
            ) from None
        reason = text.splitlines()[0] if text else type(error).__name__
        raise ValueError(
            f"weights {file}: expected a file of tensors written by torch.save ({reason[:120]})"
        ) from None


def find_weights(content: object) -> dict[str, Average]:
    """Return the weights in what `torch.load` makes of a file, for a file of them alone.

    Args:
        content: a network, or a checkpoint as in `load_weights` that may hold networks and any
            other objects.

    Returns:
        The weights as `state_dict`, their moving average as `ema`, as far as there are such.
    """
    plain, average = _find(content)
    if plain is None and average is None:
        names = list(content) if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(f"expected a network or its weights, got {names}; give the one of them")
    found = {"state_dict": plain, "ema": average}
    return {key: value for key, value in found.items() if value is not None}


def _check_fetched(file: Path) -> None:
    check_readable(file)
    with file.open("rb") as stream:
        check_fetched(file, stream.read(64))


def check_header(file: Path) -> None:
    """Refuse a safetensors file whose header is too long to be one of weights."""
    _check_fetched(file)
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if length > min(_LARGEST_HEADER, file.stat().st_size):
        raise ValueError(
            f"weights {file}: not a safetensors file (its header claims {length} bytes)"
        )


def read_metadata(file: Path) -> dict[str, str]:
    """Read the texts beside the tensors of a safetensors file; its checksum, if any, must fit."""
    from safetensors import SafetensorError, safe_open

    check_header(file)
    try:
        with safe_open(file, framework="pt") as content:
            metadata: dict[str, str] = content.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"weights {file}: not a safetensors file ({error})") from None
    with file.open("rb") as stream:
        if metadata.get(CHECKSUM) not in (None, digest_tensors(stream)):
            raise ValueError(f"weights {file}: it is damaged, its checksum does not fit")
    return metadata


def digest_tensors(stream: BinaryIO) -> str:
    """Return the checksum of what follows the header of a safetensors file."""
    # The format: the header's length in 8 bytes, the header, all tensors.
    stream.seek(int.from_bytes(stream.read(8), "little"), os.SEEK_CUR)
    digest = hashlib.sha256()
    while block := stream.read(2**20):
        digest.update(block)
    return digest.hexdigest()


def _is_archive(file: Path) -> bool:
    """Refuse an archive that claims more than the file holds, or whose sums do not fit.

    torch compresses nothing, and does not look at the sums.
    """
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        claimed = sum(member.file_size for member in members)
        if claimed > file.stat().st_size or any(member.compress_type for member in members):
            raise ValueError(f"it claims {claimed} bytes of data or is compressed")
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"it is damaged at {damaged}")
    return True


def _harmless() -> list[Any]:
    # Scores and options lie beside the weights in many checkpoints: numbers of NumPy, in whose
    # releases the module that makes them had two names, and Namespaces, which only hold values.
    import numpy as np

    make = np.float64(0).__reduce__()[0]
    kinds = {type(np.dtype(kind)) for kind in "?bhilqBHILQefd"}
    names = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
    return [*((make, name) for name in names), np.dtype, *kinds, argparse.Namespace]


def _find(content: object) -> tuple[Mapping[str, Tensor] | None, Average | None]:
    """Return the weights of a file and their moving average, each None where it has none."""
    if isinstance(content, _Stateful) and callable(content.state_dict):
        return _find(content.state_dict())
    if _is_list(content):
        return None, content
    if not isinstance(content, Mapping):
        return None, None
    if _is_state(content):
        return content, None
    for key in ("shadow_params", "shadow"):
        if _is_list(content.get(key)) or _is_state(content.get(key)):
            return None, content[key]
    if "averaging_state" in content and "current_model_state" in content:  # Lightning's
        return content["current_model_state"], content.get("state_dict")
    plain = average = None
    for key in _AVERAGED:
        own, averaged = _find(content.get(key))
        average = average if average is not None else averaged if averaged is not None else own
    for key in _PLAIN:
        own, averaged = _find(content.get(key))
        plain = plain if plain is not None else own
        average = average if average is not None else averaged
    return plain, average


def _is_state(content: object) -> TypeGuard[Mapping[str, Tensor]]:
    return (
        isinstance(content, Mapping)
        and len(content) > 0
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())
    )


def _is_list(content: object) -> TypeGuard[Sequence[Tensor]]:
    return (
        isinstance(content, list | tuple)
        and len(content) > 0
        and all(isinstance(value, Tensor) for value in content)
    )


def _unwrap(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the names that they had before anything was wrapped around them."""
    result = {
        key: value
        for key, value in state.items()
        if key in expected or key.rpartition(".")[2] not in _COUNTERS
    }
    while result and (prefix := _common_prefix(result)) and _common_prefix(expected) != prefix:
        result = {key.removeprefix(prefix): value for key, value in result.items()}
    for key in [key for key in result if key not in expected]:
        # A part of the network may have been wrapped, not all of it.
        inner = key.replace("_orig_mod.", "")
        # There are networks with a part that is named so, hence not always.
        for name in (inner, inner.replace("module.", "")):
            if name in expected and name not in result:
                result[name] = result.pop(key)
                break
    return result


def _common_prefix(names: Mapping[str, Tensor]) -> str | None:
    return next((p for p in _PREFIXES if all(name.startswith(p) for name in names)), None)


def _average(
    network: nn.Module, average: Average, expected: Mapping[str, Tensor], file: Path
) -> dict[str, Tensor]:
    parameters = dict(network.named_parameters())
    trained = [key for key, value in parameters.items() if value.requires_grad]
    if isinstance(average, Mapping):
        result = _unwrap(average, expected)
        # Weights beside it could stand in, and nobody would see that two networks were mixed.
        if missing := [key for key in trained if key not in result]:
            raise ValueError(
                f"weights {file}: the moving average lacks {_list_names(missing, expected)}; "
                "take the other weights with ema=False"
            )
        return result
    for names in (list(parameters), trained):
        if len(names) == len(average):
            values = {parameters[key]: value for key, value in zip(names, average, strict=True)}
            # A tensor under two names is in the list once.
            everywhere = network.named_parameters(remove_duplicate=False)
            return {key: values[p] for key, p in everywhere if p in values}
    raise ValueError(
        f"weights {file}: expected a moving average of {len(parameters)} tensors, the parameters "
        f"of this {type(network).__name__}, got {len(average)}"
    )


def check_fit(state: Mapping[str, Tensor], network: nn.Module, what: str) -> None:
    """Raise `MisfitError`, beginning with `what`, unless names and shapes are a network's."""
    expected = network.state_dict()
    missing = [key for key in expected if key not in state]
    unknown = [key for key in state if key not in expected]
    other = [k for k in expected if k in state and state[k].shape != expected[k].shape]
    parts = [f"{_list_names(missing, expected)} missing"] if missing else []
    parts += [f"{_list_names(unknown, state)} unknown"] if unknown else []
    parts += [f"{_list_names(other, state, expected)} of another shape"] if other else []
    if parts:
        raise MisfitError(
            f"{what} this {type(network).__name__}: {'; '.join(parts)}",
            {key: value.shape for key, value in state.items()},
        )


def _check_finite(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Path) -> None:
    """Raise ValueError where weights are not finite, which those of the new network are."""
    for key in expected:
        if not state[key].isfinite().all() and expected[key].isfinite().all():
            kind = "hold NaN" if state[key].isnan().any() else "are not finite"
            raise ValueError(
                f"weights {file}: the weights {kind}, first in {key}; take those of an earlier step"
            )


def _list_names(
    names: Sequence[str], tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor] | None = None
) -> str:
    shown = []
    for name in names[:SHOWN]:
        shape = f"{name} {tuple(tensors[name].shape)}"
        shown.append(f"{shape} for {tuple(wanted[name].shape)}" if wanted else shape)
    more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    noun = "tensor" if len(names) == 1 else "tensors"
    return f"{len(names)} {noun} ({', '.join([*shown, *more])})"
