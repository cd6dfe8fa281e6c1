"""Creation of networks by name, and reading and writing of their weights."""

import json
import math
import os
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cassi.models.camera_adapters import HasShapes
from cassi.models.inference import prepare
from cassi.models.registry import Card as Card
from cassi.models.registry import find_model, list_models, plugins_of
from cassi.plugins import missing_plugins
from cassi.priors.weights import CHECKSUM, MisfitError, digest_tensors, load_weights, read_metadata

# Limits that are checked before memory is allocated, because a damaged or hostile file may describe
# a huge network. The largest number in the settings of a file, such as bands, stages or channels:
_MAX_SETTING = 4096
# A network may have at most twice as many weights as its file, plus this many:
_MAX_EXTRA_WEIGHTS = 1 << 20
# If weights do not fit, the sizes of their tensors below this limit are tried as numbers of bands.
# So the message can say for how many bands the file was made.
_MAX_BANDS_TRIED = 512
# Settings of "pretrained" that `prepare` takes, not the network.
_INFERENCE_SETTINGS = ("refined", "precision")


def create_model(
    name: str,
    system: HasShapes | None = None,
    *,
    bands: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    ema: bool | None = None,
    **settings: Any,
) -> Any:
    """Make a network `net(y, system) -> x` by its name.

    Args:
        name: one of `list_models()`.
        system: the camera that the network is for. For "pretrained", None postpones the check of
            the camera to each reconstruction.
        bands: number C of bands. The default is that of the camera, or 28 if there is no camera.
        weights: file of weights, see `load_published`. Without a file the weights are random,
            except for a network that comes with its weights.
        ema: whether to take the moving average of the weights, see `load_published`.
        settings: further arguments of the network's class. "pretrained" takes `size` and `noise`
            (`cassi.models.pretrained.shipped_network`), `refined` and `precision`
            (`cassi.models.inference.prepare`).

    Returns:
        The network. It is in evaluation mode if weights were loaded.

    Raises:
        ValueError: there is no such name, a setting is unknown or out of range, the weights belong
            to another network, or the weights do not fit the camera. In the last case the message
            names the best solver that needs no training.

    >>> net = create_model("gap_net", bands=5, stages=2)
    """
    has_weights = find_model(name).has_weights
    camera_bands = None if system is None else system.cube_shape[0]
    if has_weights and None not in (bands, camera_bands) and bands != camera_bands:
        raise ValueError(f"bands: the camera has {camera_bands}, got {bands}")
    inference_settings = {
        key: settings.pop(key) for key in _INFERENCE_SETTINGS if has_weights and key in settings
    }
    if bands is None:
        bands = 28 if camera_bands is None else camera_bands
    network = make_network(name, bands, weights, ema, **settings)
    if not has_weights:
        return network
    inference = prepare(
        network,
        inference_settings.get("refined", True),
        inference_settings.get("precision", "auto"),
    )
    if system is not None and inference.check is not None:
        inference.check(system)
    return inference


def make_network(
    name: str,
    bands: int,
    weights: str | os.PathLike[str] | None = None,
    ema: bool | None = None,
    /,
    **settings: Any,
) -> nn.Module:
    """Make the bare network, as it is trained; arguments and errors are those of `create_model`."""
    entry = find_model(name)
    if entry.has_weights and weights is not None:
        raise ValueError(f"model {name}: expected no weights, it has its own; got {weights}")
    try:
        network = entry.make(bands=bands, **{**entry.settings, **settings})
    except TypeError as error:
        raise ValueError(f"model {name}: {error}") from None
    if weights is not None:
        _load_into(network, bands, weights, ema, lambda count: _shapes(name, count, **settings))
    return network


def load_published(
    name: str,
    path: str | os.PathLike[str],
    bands: int = 28,
    *,
    ema: bool | None = None,
    **settings: Any,
) -> nn.Module:
    """Make a network with the weights of its authors' file, `net(y, system) -> x`.

    The file may be a `state_dict`, a checkpoint that holds one, or safetensors.
    `cassi.priors.load_weights` lists all formats. Only tensors are read, and nothing is loaded
    unless every name and shape fits. A pickled network (`torch.save(net)`) is refused, because
    reading it could run any code.

    Args:
        name: one of `list_models()`.
        path: the file.
        bands: number C of bands.
        ema: whether to take the moving average of the weights. Some files hold it beside the
            weights of the last step. None (the default) takes the average if there is one, else the
            weights of the last step. True takes the average, False the weights of the last step;
            if the file does not have them, a ValueError is raised. The published results of PADUT,
            RDLUF-MixS² and DERNN-LNLT are those of the average.
        settings: further arguments of the network's class (`size`, `stages`, …), as in
            `create_model`. They must be the settings that the weights were trained with.

    Returns:
        The network, in evaluation mode.

    Raises:
        OSError: the file cannot be read.
        ValueError: there is no such network, or the file does not hold its weights. The message
            counts the tensors that are missing, unknown or of another shape, and names the first of
            them. If the tensors fit another registered network, it names that network.
    """
    return create_model(name, bands=bands, weights=path, ema=ema, **settings)


def _load_into(
    network: nn.Module,
    bands: int,
    path: str | os.PathLike[str],
    ema: bool | None,
    shapes: Callable[[int], dict[str, torch.Size]],
) -> None:
    """Load weights into a network. If they do not fit, the error says which network they do fit.

    `shapes` returns the shapes of this network's weights for another number of bands.
    """
    try:
        load_weights(network, path, ema=ema)
    except MisfitError as error:
        sizes = {
            size for shape in error.shapes.values() for size in shape if 1 < size < _MAX_BANDS_TRIED
        }
        if fitting_counts := [count for count in sorted(sizes) if shapes(count) == error.shapes]:
            raise ValueError(
                f"weights {path}: made for {fitting_counts[0]} bands, but the camera has {bands}"
            ) from None
        names = list_models(shipped=False)
        fitting_names = [
            candidate for candidate in names if _known_shapes(candidate, bands) == error.shapes
        ]
        hint = f"; they fit {' and '.join(fitting_names)}" if fitting_names else ""
        raise ValueError(f"{error}{hint}") from None
    network.eval()


def _shapes(name: str, bands: int, **settings: Any) -> dict[str, torch.Size]:
    """Return the shapes of a network's weights; {} if the network cannot be made on "meta"."""
    try:
        with torch.device("meta"):
            state = make_network(name, bands, **settings).state_dict()
    except (ValueError, RuntimeError, NotImplementedError):
        # The network refuses these bands, or its constructor computes with the values of weights,
        # which tensors on "meta" do not have.
        return {}
    return {key: value.shape for key, value in state.items()}


_known_shapes = cache(_shapes)


def save_model(
    path: str | os.PathLike[str], weights: Mapping[str, Tensor], card: Card, half: bool = False
) -> None:
    """Write weights as safetensors with their card and a checksum in the file's metadata.

    Args:
        path: a name that ends in `.safetensors`; an existing file is overwritten.
        weights: the network's `state_dict`.
        card: name, settings, bands, wavelengths and training of the network.
        half: whether float32 tensors are written as float16. This halves the file. Reading makes
            them float32 again. A tensor with a value beyond ±65504 stays float32 in the file.
    """
    from safetensors.torch import save

    metadata = {
        "format": "pt",  # other tools need this entry
        "model": json.dumps({"name": card.name, "settings": dict(card.settings)}),
        "bands": json.dumps(card.bands),
        "wavelengths": json.dumps(card.wavelengths),
        "training": json.dumps(dict(card.training)),
    }
    if plugins := card.plugins or plugins_of(card.name):
        metadata["plugins"] = json.dumps(list(plugins))
    # Stages that share weights refer to the same memory. safetensors refuses that, so they are
    # copied.
    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in weights.items()}
    if half:
        tensors = {key: _halve(value) for key, value in tensors.items()}
    # The checksum covers only the data after the header. So it stays right when it is added to the
    # metadata, which are in the header.
    metadata[CHECKSUM] = digest_tensors(BytesIO(save(tensors, metadata)))
    # Python writes the file, because the writer of safetensors does not report a full disk as such.
    Path(path).write_bytes(save(tensors, metadata))


def _halve(value: Tensor) -> Tensor:
    max_half = torch.finfo(torch.float16).max
    fits = value.dtype == torch.float32 and bool((value.abs() <= max_half).all())
    return value.half() if fits else value


def read_card(path: str | os.PathLike[str]) -> Card:
    """Read the card of a file of weights, and check the weights by their checksum.

    Raises:
        OSError: there is no such file.
        ValueError: the file was not written by `save_model`, is damaged, needs a plugin that is not
            loaded, or describes a network that is too large.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"model: no file {file}")
    metadata = read_metadata(file)
    try:
        model = json.loads(metadata["model"])
        wavelengths = json.loads(metadata["wavelengths"])
        card = Card(
            name=str(model["name"]),
            bands=int(json.loads(metadata["bands"])),
            settings={str(key): value for key, value in dict(model["settings"]).items()},
            wavelengths=None if wavelengths is None else tuple(map(float, wavelengths)),
            training=dict(json.loads(metadata.get("training", "{}"))),
            plugins=tuple(map(str, json.loads(metadata.get("plugins", "[]")))),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise ValueError(
            f"model {file}: it does not say what network it holds; give model=NAME "
            f"model.weights={file}"
        ) from None
    largest = max([card.bands, *_list_numbers(card.settings)])
    if card.name not in list_models() and (missing := missing_plugins(card.plugins)) is not None:
        raise ValueError(f"model {file}: these weights need {missing}; in Python import it first")
    if largest > _MAX_SETTING:
        raise ValueError(
            f"model {file}: expected a network whose settings are at most {_MAX_SETTING}, "
            f"got {largest}"
        )
    return card


def _list_numbers(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [number for item in items for number in _list_numbers(item)]
    return [value] if isinstance(value, int | float) else []


def load_model(path: str | os.PathLike[str]) -> tuple[nn.Module, Card]:
    """Make the network of a file that `save_model` wrote, in evaluation mode.

    Raises:
        OSError: there is no such file.
        ValueError: it was not written by `save_model`, or its network is not registered here.
    """
    card = read_card(path)
    _check_size(Path(path).expanduser(), card)
    network = make_network(card.name, card.bands, path, **card.settings)
    return network, card


def _check_size(file: Path, card: Card) -> None:
    """Raise a ValueError for a network that is far larger than its file.

    The network is made on "meta", so no memory is allocated for it.
    """
    from safetensors import safe_open

    with safe_open(file, framework="pt") as content:
        keys = list(content.keys())
        n_stored = sum(math.prod(content.get_slice(key).get_shape()) for key in keys)
    try:
        with torch.device("meta"):
            state = make_network(card.name, card.bands, **card.settings).state_dict()
    except (RuntimeError, NotImplementedError):
        # The constructor of the network computes with the values of weights, which tensors on
        # "meta" do not have. So the size is not checked.
        return
    n_weights = sum(value.numel() for value in state.values())
    if n_weights > 2 * n_stored + _MAX_EXTRA_WEIGHTS:
        raise ValueError(f"model {file}: its network has {n_weights} weights, the file {n_stored}")
