"""Weights of networks: reading files without executing anything, and loading them."""

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

# Keys under which checkpoints hold the plain weights, which the optimizer changes.
_WEIGHT_KEYS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "params",
    "weights",
    "module",
)
# Keys under which checkpoints hold the moving average of these weights.
_AVERAGE_KEYS = ("ema", "params_ema", "ema_state_dict", "state_dict_ema", "model_ema", "ema_model")
# Prefixes that parallel training, `torch.compile` and training modules put before every name.
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
# Moving averages and profilers leave these entries among the weights.
_COUNTERS = ("n_averaged", "total_ops", "total_params")
# torch writes this counter of batch norms since 0.4.1. Nothing here uses the counter, so it may be
# missing.
_OPTIONAL_SUFFIX = "num_batches_tracked"
# Largest header of a safetensors file, bytes. A file may claim any length, so a longer header is
# refused before it is read.
_MAX_HEADER_BYTES = 1 << 24
# Largest file of torch before 1.6, bytes. Such a file is read into memory as a whole.
_MAX_OLD_FILE_BYTES = 1 << 29
CHECKSUM = "sha256"
"""Key, in the metadata of a safetensors file, of the checksum of its tensors."""
MAX_LISTED_NAMES = 4
"""Largest number of names of each kind that a message lists."""


Average = Mapping[str, Tensor] | Sequence[Tensor]
"""A moving average of weights, by name or in the order of the parameters."""


class MisfitError(ValueError):
    """Names or shapes of weights do not fit a network. `shapes` has the shapes of the weights."""

    def __init__(self, message: str, shapes: Mapping[str, torch.Size]) -> None:
        super().__init__(message)
        self.shapes = dict(shapes)


@runtime_checkable
class _Partial(Protocol):
    """A network whose files hold weights that the network does not need."""

    unneeded: Sequence[str]  # name: users' networks have this attribute


@runtime_checkable
class _Stateful(Protocol):
    """A network, or the moving average of torch_ema."""

    def state_dict(self) -> object: ...


def load_weights(
    network: nn.Module, path: str | os.PathLike[str], *, ema: bool | None = None
) -> None:
    """Load the weights of a file into a network. Every name and shape must agree.

    The file is a `.safetensors` file, or a file of `torch.save` with one of these contents:

    - a `state_dict`;
    - a checkpoint that holds a `state_dict` under `state_dict`, `model_state_dict`, `model`, `net`,
      `network`, `params`, `weights` or `module`: the first key in this order counts. The checkpoint
      may also hold a moving average, under `ema`, `params_ema`, `ema_state_dict`, `state_dict_ema`,
      `model_ema` or `ema_model`;
    - a moving average alone, by name, or as a list in the order of `network.parameters()`, as
      `torch_ema` writes it (`shadow_params`). Averages have no buffers, so the buffers come from
      the plain weights of the same file;
    - a checkpoint of cassi-train, `.ckpt`.

    All names may begin with `module.`, `_orig_mod.`, `model.`, `net.` or `network.`. Nothing in a
    file is executed, and nothing is loaded unless everything fits.

    Args:
        network: changed in place. If it has an attribute `unneeded`, names that begin with one of
            its entries belong to the training only and are left out.
        path: the file.
        ema: None takes the moving average if the file holds one, because published figures
            belong to the average. True requires the average. False takes the plain weights,
            which the optimizer changes.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not of these kinds, has no weights of the kind `ema` requires, or
            holds NaN.
        MisfitError: a `ValueError`: names or shapes do not fit.
    """
    file = Path(path).expanduser()
    content = read_file(file)
    weights, average = _split_content(content)
    if weights is None and average is None:
        raise ValueError(_explain_no_weights(file, content))
    if ema and average is None:
        raise ValueError(f"weights {file}: it holds no moving average; leave out ema=True")
    if weights is None and ema is False:
        raise ValueError(f"weights {file}: it holds a moving average only; leave out ema=False")
    expected = network.state_dict()
    state = {} if weights is None else _unwrap(weights, expected)
    if average is not None and ema is not False:
        state |= _name_average(network, average, expected, file)
    unneeded_prefixes = tuple(network.unneeded) if isinstance(network, _Partial) else ()
    state = {k: v for k, v in state.items() if k in expected or not k.startswith(unneeded_prefixes)}
    for key, value in expected.items():
        if key.endswith(_OPTIONAL_SUFFIX):
            state.setdefault(key, value)
    check_fit(state, network, f"weights {file}: not those of")
    _check_finite(state, expected, file)
    network.load_state_dict(state)


def _explain_no_weights(file: Path, content: object) -> str:
    """Return the message that a file has no weights, with the keys that hold some."""
    parts = content.items() if isinstance(content, Mapping) else ()
    keys = [key for key, part in parts if _split_content(part) != (None, None)]
    content_text, source = "got none", "network.state_dict()"
    if keys:
        content_text = f"got them under {', '.join(map(repr, keys[:MAX_LISTED_NAMES]))}"
        source = f"torch.load({str(file)!r})[{keys[0]!r}]"
    return (
        f"weights {file}: expected names and tensors, {content_text}; write the file by "
        f"torch.save({source}, FILE)"
    )


def read_file(file: Path) -> Any:
    """Read a file of tensors without executing anything.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a file of tensors, is damaged, or holds other Python objects.
    """
    if not file.is_file():
        raise FileNotFoundError(f"weights: no file {file}")
    _check_fetched(file)
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        read_metadata(file)
        return load_file(file)
    try:
        # A file of torch before 1.6 states the lengths of its tensors. If the file is in memory, a
        # wrong length is an error. From a path, torch would allocate the stated length.
        source: Path | BytesIO = file
        if not _is_archive(file):
            source = BytesIO(read_regular(file, _MAX_OLD_FILE_BYTES))
        with torch.serialization.safe_globals(_list_harmless_types()):
            return torch.load(source, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch.load raises many kinds of errors for other files
        text = str(error)
        if match := re.search(r"GLOBAL (\S+)", text):
            raise ValueError(
                f"weights {file}: holds a Python object ({match[1]}), and creating it may run any "
                "code; if you trust the file, and the code of the object is installed, run "
                "from cassi.priors.weights import find_weights; torch.save(find_weights(torch.load("
                f"{str(file)!r}, weights_only=False)), {f'{file.stem}_weights.pth'!r})"
            ) from None
        reason = text.splitlines()[0] if text else type(error).__name__
        raise ValueError(
            f"weights {file}: expected a file of tensors written by torch.save ({reason[:120]})"
        ) from None


def find_weights(content: object) -> dict[str, Average]:
    """Return the weights in the content of a checkpoint, to write them into a separate file.

    Args:
        content: the result of `torch.load`: a network, or a checkpoint as in `load_weights`, which
            may hold networks and any other objects.

    Returns:
        The weights as `state_dict`, their moving average as `ema`; only those that exist.

    Raises:
        ValueError: there are neither weights nor an average.
    """
    weights, average = _split_content(content)
    if weights is None and average is None:
        names = list(content) if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(
            f"expected a network or its weights, got {names}; give the entry that holds them"
        )
    checkpoint = {"state_dict": weights, "ema": average}
    return {key: value for key, value in checkpoint.items() if value is not None}


def _check_fetched(file: Path) -> None:
    check_readable(file)
    with file.open("rb") as stream:
        check_fetched(file, stream.read(64))


def check_header(file: Path) -> None:
    """Raise ValueError if the header of a safetensors file is too long for weights."""
    _check_fetched(file)
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if length > min(_MAX_HEADER_BYTES, file.stat().st_size):
        raise ValueError(
            f"weights {file}: not a safetensors file (its header claims {length} bytes)"
        )


def read_metadata(file: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file. A checksum in it must fit the tensors."""
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
    """Return the checksum of the tensors of a safetensors file, which follow its header."""
    # A file begins with the length of the header, 8 bytes; then come the header and all tensors.
    stream.seek(int.from_bytes(stream.read(8), "little"), os.SEEK_CUR)
    digest = hashlib.sha256()
    while block := stream.read(2**20):
        digest.update(block)
    return digest.hexdigest()


def _is_archive(file: Path) -> bool:
    """Tell whether a file is an archive of torch since 1.6.

    Raises:
        ValueError: the archive claims more bytes than the file holds, or a checksum does not fit.
    """
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        # torch writes no compressed members. A small compressed member could fill the memory.
        if size > file.stat().st_size or any(member.compress_type for member in members):
            raise ValueError(f"it claims {size} bytes of data or is compressed")
        # torch does not check the checksums of the members.
        if (damaged_member := archive.testzip()) is not None:
            raise ValueError(f"it is damaged at {damaged_member}")
    return True


def _list_harmless_types() -> list[Any]:
    """Return the types besides tensors that a file may hold: they run no code of the file."""
    # Many checkpoints also hold scores, as numbers of NumPy, and options, as Namespaces that only
    # hold values. NumPy's function for numbers has another module name since release 2.
    import numpy as np

    make = np.float64(0).__reduce__()[0]
    kinds = {type(np.dtype(kind)) for kind in "?bhilqBHILQefd"}
    names = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
    return [*((make, name) for name in names), np.dtype, *kinds, argparse.Namespace]


def _split_content(content: object) -> tuple[Mapping[str, Tensor] | None, Average | None]:
    """Return the weights and the moving average in the content of a file, or None for each."""
    if isinstance(content, _Stateful) and callable(content.state_dict):
        return _split_content(content.state_dict())
    if _is_tensor_list(content):
        return None, content
    if not isinstance(content, Mapping):
        return None, None
    if _is_state_dict(content):
        return content, None
    for key in ("shadow_params", "shadow"):
        if _is_tensor_list(content.get(key)) or _is_state_dict(content.get(key)):
            return None, content[key]
    if "averaging_state" in content and "current_model_state" in content:  # Lightning's
        return content["current_model_state"], content.get("state_dict")
    # A key may hold a whole checkpoint, with weights and an average. Under a key of averages, the
    # weights of that checkpoint count as an average, unless the checkpoint has another average.
    weights = average = None
    for key in _AVERAGE_KEYS:
        nested_weights, nested_average = _split_content(content.get(key))
        if average is None:
            average = nested_weights if nested_average is None else nested_average
    for key in _WEIGHT_KEYS:
        nested_weights, nested_average = _split_content(content.get(key))
        weights = nested_weights if weights is None else weights
        average = nested_average if average is None else average
    return weights, average


def _is_state_dict(content: object) -> TypeGuard[Mapping[str, Tensor]]:
    return (
        isinstance(content, Mapping)
        and len(content) > 0
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())
    )


def _is_tensor_list(content: object) -> TypeGuard[Sequence[Tensor]]:
    return (
        isinstance(content, list | tuple)
        and len(content) > 0
        and all(isinstance(value, Tensor) for value in content)
    )


def _unwrap(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the names of the network, without the prefixes of wrappers."""
    result = {
        key: value
        for key, value in state.items()
        if key in expected or key.rpartition(".")[2] not in _COUNTERS
    }
    while (
        result
        and (prefix := _find_common_prefix(result))
        and _find_common_prefix(expected) != prefix
    ):
        result = {key.removeprefix(prefix): value for key, value in result.items()}
    for key in [key for key in result if key not in expected]:
        # Perhaps only a part of the network was wrapped.
        inner_name = key.replace("_orig_mod.", "")
        # Some networks have a part that is named `module`, so the name with it is tried first.
        for name in (inner_name, inner_name.replace("module.", "")):
            if name in expected and name not in result:
                result[name] = result.pop(key)
                break
    return result


def _find_common_prefix(names: Mapping[str, Tensor]) -> str | None:
    return next((p for p in _PREFIXES if all(name.startswith(p) for name in names)), None)


def _name_average(
    network: nn.Module, average: Average, expected: Mapping[str, Tensor], file: Path
) -> dict[str, Tensor]:
    """Return a moving average with the names of the network's weights."""
    parameters = dict(network.named_parameters())
    trained_names = [key for key, value in parameters.items() if value.requires_grad]
    if isinstance(average, Mapping):
        result = _unwrap(average, expected)
        # Plain weights must not fill the gaps: nobody would see that two networks were mixed.
        if missing := [key for key in trained_names if key not in result]:
            raise ValueError(
                f"weights {file}: the moving average lacks {_list_names(missing, expected)}; "
                "take the other weights with ema=False"
            )
        return result
    # Some averages have all parameters, others only those that were trained.
    for names in (list(parameters), trained_names):
        if len(names) == len(average):
            values = {parameters[key]: value for key, value in zip(names, average, strict=True)}
            # A tensor with two names is in the list once, and the network needs both names.
            all_names = network.named_parameters(remove_duplicate=False)
            return {key: values[p] for key, p in all_names if p in values}
    raise ValueError(
        f"weights {file}: expected a moving average of {len(parameters)} tensors, the parameters "
        f"of this {type(network).__name__}, got {len(average)}"
    )


def check_fit(state: Mapping[str, Tensor], network: nn.Module, prefix: str) -> None:
    """Raise `MisfitError` unless names and shapes fit a network. `prefix` begins the message."""
    expected = network.state_dict()
    missing = [key for key in expected if key not in state]
    unknown = [key for key in state if key not in expected]
    other_shape = [k for k in expected if k in state and state[k].shape != expected[k].shape]
    parts = [f"{_list_names(missing, expected)} missing"] if missing else []
    parts += [f"{_list_names(unknown, state)} unknown"] if unknown else []
    parts += (
        [f"{_list_names(other_shape, state, expected)} of another shape"] if other_shape else []
    )
    if parts:
        raise MisfitError(
            f"{prefix} this {type(network).__name__}: {'; '.join(parts)}",
            {key: value.shape for key, value in state.items()},
        )


def _check_finite(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Path) -> None:
    """Raise ValueError where weights are not finite."""
    for key in expected:
        # If the new network has such a value, the file may have it too.
        if not state[key].isfinite().all() and expected[key].isfinite().all():
            kind = "hold NaN" if state[key].isnan().any() else "are not finite"
            raise ValueError(
                f"weights {file}: the weights {kind}, first in {key}; take those of an earlier step"
            )


def _list_names(
    names: Sequence[str],
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Tensor] | None = None,
) -> str:
    """Return the first names with their shapes, and how many there are."""
    items = []
    for name in names[:MAX_LISTED_NAMES]:
        text = f"{name} {tuple(tensors[name].shape)}"
        items.append(f"{text} for {tuple(expected[name].shape)}" if expected else text)
    if len(names) > MAX_LISTED_NAMES:
        items.append(f"and {len(names) - MAX_LISTED_NAMES} more")
    noun = "tensor" if len(names) == 1 else "tensors"
    return f"{len(names)} {noun} ({', '.join(items)})"
