"""The parts of a training, made from settings: scenes, simulator, callbacks, loggers."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cassi.apps.camera.system import find_offsets
from cassi.apps.command import end_at_once
from cassi.apps.settings import Data, Train, Validation, to_dict
from cassi.apps.train.files import read_run_ids, write_run_ids
from cassi.checks import is_list, whole_number
from cassi.config import build
from cassi.data.bundled import bundled_path
from cassi.data.datasets import TrainingCrops, WholeScenes, load_split
from cassi.data.io import load_mask
from cassi.data.scenes import Scene, as_scenes, load_scene
from cassi.data.simulation import MixedMasks, RandomMasks, Simulator
from cassi.systems import SDCassi
from cassi.systems.band_positions import check_places, find_places

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger

    from cassi.training.data import TrainingData
    from cassi.training.module import PictureFunction

UNLIMITED_SAMPLES = 2**40
"""Number of samples of a training that only a time limit ends."""

_CAVE_HINT = (
    "; data=cave reads conversions that are not distributed. For CAVE as it ships sort its scenes "
    "into DIR/train and DIR/validation, and give data=folder data.root=DIR "
    "data.simulator.masks.mask=FILE; for cave_1024_28 of MST give data=mst data.root=DIR"
)


def load_scenes(data: Data, split: str, wavelengths: tuple[float, ...]) -> list[Scene]:
    """Read the scenes of a split. For the data set of a plugin, call the plugin's function.

    Without `data.root` every split is the bundled scene.

    Args:
        data: settings of the data set.
        split: `train`, `validation` or another split of the data set.
        wavelengths: nm, one per band, to which the scenes are resampled.

    Raises:
        OSError: a file is missing, or cannot be read.
        ValueError: a setting or a file does not fit.
    """
    if data.source is not None:
        return _load_plugin_scenes(data, split, wavelengths)
    scale, setting = data.scale, "data.scale"
    if split == "validation" and data.validation is not None and data.validation.scale is not None:
        scale, setting = data.validation.scale, "data.validation.scale"
    # In Python a bool is an int, but `scale=true` is a mistake.
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if scale not in ("auto", "maximum") and not (is_number and 0 < scale < math.inf):
        raise ValueError(f"{setting}: expected auto, maximum or a number above 0, got {scale!r}")
    if data.root is None:
        return [load_scene(bundled_path("scene.tif"), wavelengths, scale=scale)]
    root = data.root
    if isinstance(root, str) and not Path(root).expanduser().is_dir():
        hint = _CAVE_HINT if data.manifest == "cave" else ""
        raise ValueError(
            f"data.root: no folder {root}; give data.root=DIR or set $CASSI_DATA{hint}"
        )
    try:
        return load_split(
            root,
            split,
            wavelengths=wavelengths,
            manifest=data.manifest,
            cache=data.cache,
            scale=scale,
            key=data.key,
            axes=data.axes,
        )
    except FileNotFoundError as error:
        if data.manifest != "cave":
            raise
        raise FileNotFoundError(f"{error}{_CAVE_HINT}") from None


def _load_plugin_scenes(data: Data, split: str, wavelengths: tuple[float, ...]) -> list[Scene]:
    if data.scale != "auto" or (data.validation and data.validation.scale is not None):
        raise ValueError(f"data.scale: expected auto, data={data.name} has scales of its own")
    scenes = build(data.source)(split)
    if isinstance(scenes, list) and all(isinstance(scene, Scene) for scene in scenes):
        return scenes
    return [scene.compact() for scene in as_scenes(scenes, wavelengths)]


def load_data(settings: Train) -> TrainingData:
    """Read all scenes, and make a `TrainingData` from them.

    Raises:
        OSError: a file is missing, or cannot be read.
        ValueError: a setting or a file does not fit.
    """
    from cassi.training.data import TrainingData

    data = settings.data
    batch_size = whole_number("data.batch_size", data.batch_size, 1, 2**20)
    wavelengths = data_wavelengths(data)
    validation = data.validation or Validation()
    _check_crops(settings, validation, wavelengths)
    scenes = load_scenes(data, "train", wavelengths)
    validation_scenes = load_scenes(data, "validation", wavelengths)
    # The data set is as long as the whole training, so no index repeats. The crop of a sample
    # depends only on its index and on the seed. So every sample has its own crop.
    steps = whole_number("trainer.max_steps", settings.trainer.get("max_steps"), -1)
    length = steps * batch_size if steps > 0 else UNLIMITED_SAMPLES
    sample_options: dict[str, Any] = {"size": data.crop, "length": length, "seed": settings.seed}
    if data.samples is None:
        augment = None if data.augment is None else build(data.augment)
        samples = TrainingCrops(scenes, **sample_options, augment=augment)
    elif data.augment is None:
        samples = build(data.samples, scenes, **sample_options)
    else:
        raise ValueError(
            f"data.augment: expected null, data={data.name} varies its samples by a rule of its "
            "own; give data.samples=null to vary them by data.augment"
        )
    validation_samples = WholeScenes(
        validation_scenes, crop=validation.crop, downsample=validation.downsample
    )
    return TrainingData(
        samples,
        validation_samples,
        batch_size=batch_size,
        steps_per_epoch=whole_number("data.steps_per_epoch", data.steps_per_epoch, 1),
        workers=whole_number("data.workers", data.workers, 0),
        pool=data.pool,
        reuse=data.reuse,
    )


def _check_crops(settings: Train, validation: Validation, wavelengths: tuple[float, ...]) -> None:
    """Check that the mask fits the crops now, because reading the scenes takes long."""
    if settings.task["_target_"].endswith(".Denoising"):  # a task without a camera
        return
    data = settings.data
    validation_simulator, downsample = validation.simulator or data.simulator, validation.downsample
    for node, crop, block_side in (
        (data.simulator, data.crop, 1),
        (validation_simulator, validation.crop, downsample),
    ):
        sizes = [crop, crop] if isinstance(crop, int) else crop
        # A wrong size and a missing file give better errors later, when the scenes are read.
        if not is_list(sizes, 2) or not is_list([block_side], 1) or block_side == 0:
            continue
        with contextlib.suppress(OSError):
            masks = build_simulator(node, wavelengths).masks
            # A file's mask that is smaller than a crop raises ValueError when a part is drawn.
            for source in masks.sources if isinstance(masks, MixedMasks) else [masks]:
                source.draw(1, sizes[0] // block_side, sizes[1] // block_side, torch.Generator())


def describe_highlights(data: TrainingData) -> list[str]:
    """Return lines about validation scenes with highlights, and how to read their PSNR."""
    scenes = data.scenes.scenes
    lines = [
        f"validation: {scene.name} has highlights up to {scene.scale:.3g}; its PSNR is computed on "
        "the values of its file, clipped at 1"
        for scene in scenes
        if scene.scale != 1
    ]
    dim_names = [scene.name for scene in scenes if scene.scale == 1 and _is_dim(scene)]
    if dim_names:
        lines.append(
            f"validation: 99 % of the values of {', '.join(dim_names)} lie below half of the peak, "
            "which a few highlights set, so the PSNR is high; compare it on the same scenes only"
        )
    return lines


def _is_dim(scene: Scene) -> bool:
    """Tell whether less than 1 % of a scene is brighter than half of its peak."""
    values = scene.values()
    return bool(values.max() > 0.99) and float((values > 0.5).double().mean()) < 0.01


def data_wavelengths(data: Data) -> tuple[float, ...]:
    """Return the wavelengths of the training data, nm."""
    if data.simulator is None:
        # A network must not be trained or chosen on the scenes of published tables.
        raise ValueError(
            f"data={data.name} cannot train: its scenes are for evaluation; give data=cave, or "
            "data=folder data.root=DIR"
        )
    wavelengths = data.given_wavelengths
    if wavelengths is None:
        raise ValueError("data.wavelengths: expected a list in nm, one per band, got none")
    return wavelengths


def build_simulator(node: dict[str, Any], wavelengths: tuple[float, ...]) -> Simulator:
    """Make the simulator of a config node, and read the files of its masks.

    Raises:
        OSError: a mask cannot be read.
        ValueError: a value does not fit.
    """
    settings, bands = dict(node), len(wavelengths)
    masks = _build_masks(settings.pop("masks"), bands)
    if settings.get("offsets") is not None:
        try:
            settings["offsets"] = find_offsets(settings, bands, wavelengths)
        except ValueError as error:
            # The message names the settings of a camera, `system.…`.
            raise ValueError(str(error).replace("system.", "data.simulator.")) from None
    simulator = build(settings, masks=masks)
    # A detector may be too small for a band. The network would learn to invent such a band.
    if settings.get("detector") is not None:
        axis, offsets = simulator.axis, simulator.offsets
        camera = SDCassi(masks.mask, bands, simulator.steps[0], axis, offsets, settings["detector"])
        check_places(find_places(camera))
    return simulator


def _build_masks(node: dict[str, Any], bands: int) -> Any:
    if "sources" in node:  # a mixture of several mask sources
        sources = [_build_masks(source, bands) for source in node["sources"]]
        # Hydra merges configs. So the node of a mixture may still have the key `mask` of the
        # default config, which is left out here.
        return build(
            {key: value for key, value in node.items() if key not in ("sources", "mask")},
            sources=sources,
        )
    if "mask" not in node:
        return build(node)
    if isinstance(node["mask"], list):
        return MixedMasks([_build_masks(node | {"mask": mask}, bands) for mask in node["mask"]])
    if node["mask"] == "random":
        return RandomMasks()
    if node["mask"] == "???":
        raise ValueError(
            "data.simulator.masks.mask: expected a file, a list of files, or random, got none; "
            "give it, or camera=FILE.yaml"
        )
    path = bundled_path("mask.tif") if node["mask"] is None else Path(str(node["mask"]))
    hints = {name: node[name] for name in ("key", "axes") if name in node}
    mask: torch.Tensor = load_mask(path, bands=bands, **hints).data
    return build(
        {key: value for key, value in node.items() if key not in ("mask", *hints)}, mask=mask
    )


def build_callbacks(settings: Train) -> list[Callback]:
    """Make the callbacks of the settings; a callback that is null is switched off."""
    from lightning.pytorch.callbacks import LambdaCallback

    nodes = [node for node in settings.callbacks.values() if node is not None]
    # Lightning refuses a callback for a progress bar that the trainer has switched off.
    if not settings.trainer.get("enable_progress_bar", True):
        nodes = [node for node in nodes if not node["_target_"].endswith("ProgressBar")]
    return [*(build(node) for node in nodes), LambdaCallback(on_train_start=end_at_once)]


def build_plugins() -> list[Any]:
    """Make the Trainer's plugins: for atomic checkpoints, and for SLURM."""
    from lightning.fabric.plugins.environments import SLURMEnvironment

    from cassi.training.callbacks import AtomicCheckpoints

    # With auto_requeue Lightning would save a checkpoint in the middle of a step.
    slurm = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
    return [AtomicCheckpoints(), *slurm]


def build_loggers(settings: Train, resumed_step: int | None, folder: Path) -> list[Logger]:
    """Make the loggers. If the run is resumed, they append to its earlier records.

    Args:
        settings: settings of the training.
        resumed_step: step of the checkpoint, or None for a new training.
        folder: folder of the training.
    """
    nodes = {name: node for name, node in settings.logger.items() if node is not None}
    ids = {} if resumed_step is None else read_run_ids(folder)
    loggers = []
    for name, node in nodes.items():
        class_name = node["_target_"].rpartition(".")[2]
        arguments: dict[str, Any] = {}
        if class_name == "MetricsTable":
            arguments["first_step"] = resumed_step
        # A name of the run in the settings replaces the stored one.
        if class_name in ids and node.get(RUN_ID_ARGUMENTS[class_name]) is None:
            arguments[RUN_ID_ARGUMENTS[class_name]] = ids[class_name]
        with _shorten_service_errors(name):
            if class_name == "WandbLogger":
                _prepare_wandb()
                # wandb has already read its settings, in `_prepare_wandb`. Lightning sets offline
                # mode by an environment variable, which would come too late.
                if node.get("offline"):
                    arguments["mode"] = "offline"
            if class_name == "MLFlowLogger" and not node.get("tracking_uri"):
                arguments |= _make_mlflow_store(Path(node["save_dir"]))
            loggers.append(build(node, **arguments))
    return loggers


@contextlib.contextmanager
def _shorten_service_errors(name: str) -> Iterator[None]:
    """Turn errors of a service's library into ValueError of one line, also if it is missing."""
    try:
        yield
    except ModuleNotFoundError:
        raise ValueError(
            f"logger: {name} needs a library; install it with pip install 'cassi[{name}]'"
        ) from None
    except Exception as error:
        # Other exceptions come from this package, or are defects that need their traceback.
        if type(error).__module__.partition(".")[0] not in ("mlflow", "wandb"):
            raise
        raise ValueError(f"logger: {name}: {' '.join(str(error).split())}") from None


def _make_mlflow_store(folder: Path) -> dict[str, str]:
    """Return the arguments for runs without a server: MLflow keeps them in an SQLite file."""
    # mlflow-skinny does not install these two packages. If one is missing, its import fails here,
    # and the error says what to install.
    import alembic  # noqa: F401
    import sqlalchemy  # noqa: F401

    folder.mkdir(parents=True, exist_ok=True)
    store = f"sqlite:///{folder.resolve()}/mlflow.db"
    return {"tracking_uri": store, "artifact_location": folder.resolve().as_uri()}


def _prepare_wandb() -> None:
    """Let wandb read its settings outside of the current folder, and without git.

    The current folder may be a stranger's. `wandb/settings` in it could name a host that gets the
    user's key, and `.git` in it could name programs.
    """
    import wandb

    os.environ.setdefault("WANDB_DISABLE_GIT", "true")
    with contextlib.chdir("/"):
        wandb.setup()


RUN_ID_ARGUMENTS = {"MLFlowLogger": "run_id", "WandbLogger": "id"}
"""Argument for the name of a resumed run, by the class of the logger of a service."""


def open_services(loggers: Sequence[Any], settings: Train, folder: Path) -> None:
    """Send the settings to services that compare runs, and store the names that they give the run.

    A command that resumes the run needs these names.
    """
    ids = earlier_ids = read_run_ids(folder)
    for logger in loggers:
        if (class_name := type(logger).__name__) not in RUN_ID_ARGUMENTS:
            continue
        with _shorten_service_errors(class_name):
            logger.experiment  # noqa: B018  reading the attribute opens the run
            ids = ids | {class_name: logger.version}
            # MLflow refuses other values of the settings for a run that it has already.
            if class_name != "MLFlowLogger" or ids[class_name] != earlier_ids.get(class_name):
                logger.log_hyperparams(to_dict(settings))
    if ids != earlier_ids:
        write_run_ids(folder, ids)


def make_pictures(wavelengths: tuple[float, ...]) -> dict[str, PictureFunction]:
    """Return functions that draw a validation scene, by name: (estimate, truth) → picture."""
    from cassi import viz

    def colours(x: torch.Tensor, truth: torch.Tensor) -> np.ndarray:
        return np.concatenate([viz.srgb(cube, wavelengths) for cube in (x, truth)], axis=1)

    def spectra(x: torch.Tensor, truth: torch.Tensor) -> np.ndarray:
        return viz.draw_spectra(x, wavelengths, truth=truth)

    return {"validation (estimate, truth)": colours, "validation spectra": spectra}
