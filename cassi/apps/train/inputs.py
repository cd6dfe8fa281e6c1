"""From settings to what a training is given: data, camera, callbacks, loggers."""

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
    from cassi.training.module import Picture

UNLIMITED = 2**40
"""Samples of a training that only a time limit ends."""

_CAVE = (
    "; data=cave reads conversions that are not distributed. For CAVE as it ships sort its scenes "
    "into DIR/train and DIR/validation, and give data=folder data.root=DIR "
    "data.simulator.masks.mask=FILE; for cave_1024_28 of MST give data=mst data.root=DIR"
)


def load_scenes(data: Data, split: str, wavelengths: tuple[float, ...]) -> list[Scene]:
    """Read the scenes of a split, those of a plugin's data set from its function.

    Without `data.root` it is the bundled one, whatever the split.
    """
    if data.source is not None:
        return _load_made(data, split, wavelengths)
    scale, place = data.scale, "data.scale"
    if split == "validation" and data.validation is not None and data.validation.scale is not None:
        scale, place = data.validation.scale, "data.validation.scale"
    number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if scale not in ("auto", "maximum") and not (number and 0 < scale < math.inf):
        raise ValueError(f"{place}: expected auto, maximum or a number above 0, got {scale!r}")
    if data.root is None:
        return [load_scene(bundled_path("scene.tif"), wavelengths, scale=scale)]
    root = data.root
    if isinstance(root, str) and not Path(root).expanduser().is_dir():
        instead = _CAVE if data.manifest == "cave" else ""
        raise ValueError(
            f"data.root: no folder {root}; give data.root=DIR or set $CASSI_DATA{instead}"
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
        raise FileNotFoundError(f"{error}{_CAVE}") from None


def _load_made(data: Data, split: str, wavelengths: tuple[float, ...]) -> list[Scene]:
    if data.scale != "auto" or (data.validation and data.validation.scale is not None):
        raise ValueError(f"data.scale: expected auto, data={data.name} has scales of its own")
    made = build(data.source)(split)
    if isinstance(made, list) and all(isinstance(scene, Scene) for scene in made):
        return made
    return [scene.compact() for scene in as_scenes(made, wavelengths)]


def load_data(settings: Train) -> TrainingData:
    """Make the `TrainingData` of settings."""
    from cassi.training.data import TrainingData

    data = settings.data
    batch_size = whole_number("data.batch_size", data.batch_size, 1, 2**20)
    wavelengths = data_wavelengths(data)
    validation = data.validation or Validation()
    _check_crops(settings, validation, wavelengths)
    scenes = load_scenes(data, "train", wavelengths)
    judges = load_scenes(data, "validation", wavelengths)
    steps = whole_number("trainer.max_steps", settings.trainer.get("max_steps"), -1)
    length = steps * batch_size if steps > 0 else UNLIMITED
    wanted: dict[str, Any] = {"size": data.crop, "length": length, "seed": settings.seed}
    if data.samples is None:
        augment = None if data.augment is None else build(data.augment)
        samples = TrainingCrops(scenes, **wanted, augment=augment)
    elif data.augment is None:
        samples = build(data.samples, scenes, **wanted)
    else:
        raise ValueError(
            f"data.augment: expected null, data={data.name} varies its samples by a rule of its "
            "own; give data.samples=null to vary them as augment says"
        )
    checks = WholeScenes(judges, crop=validation.crop, downsample=validation.downsample)
    return TrainingData(
        samples,
        checks,
        batch_size=batch_size,
        steps_per_epoch=whole_number("data.steps_per_epoch", data.steps_per_epoch, 1),
        workers=whole_number("data.workers", data.workers, 0),
        pool=data.pool,
        reuse=data.reuse,
    )


def _check_crops(settings: Train, validation: Validation, wavelengths: tuple[float, ...]) -> None:
    """Refuse crops that the mask does not fit before the scenes are read, which takes long."""
    if settings.task["_target_"].endswith(".Denoising"):  # has no camera
        return
    data = settings.data
    judge, block = validation.simulator or data.simulator, validation.downsample
    for node, crop, side in ((data.simulator, data.crop, 1), (judge, validation.crop, block)):
        sizes = [crop, crop] if isinstance(crop, int) else crop
        # What is no size, and a missing file, are refused with the scenes.
        if not is_list(sizes, 2) or not is_list([side], 1) or side == 0:
            continue
        with contextlib.suppress(OSError):
            masks = build_simulator(node, wavelengths).masks
            for source in masks.sources if isinstance(masks, MixedMasks) else [masks]:
                source.draw(1, sizes[0] // side, sizes[1] // side, torch.Generator())


def describe_highlights(data: TrainingData) -> list[str]:
    """Say which validation scenes have highlights, and what their PSNR then means."""
    scenes = data.scenes.scenes
    lines = [
        f"validation: {scene.name} has highlights up to {scene.scale:.3g}; its PSNR is that of the "
        "values of its file, where all beyond 1 count as 1"
        for scene in scenes
        if scene.scale != 1
    ]
    dim = [scene.name for scene in scenes if scene.scale == 1 and _is_dim(scene)]
    if dim:
        lines.append(
            f"validation: 99 % of {', '.join(dim)} lie below half of the peak of PSNR, the scene's "
            "highlights, which makes it high; compare it with that of the same scenes only"
        )
    return lines


def _is_dim(scene: Scene) -> bool:
    values = scene.values()
    return bool(values.max() > 0.99) and float((values > 0.5).double().mean()) < 0.01


def data_wavelengths(data: Data) -> tuple[float, ...]:
    """Return the wavelengths of the training data, nm."""
    if data.simulator is None:
        # The scenes that published tables are made of must not choose a network.
        raise ValueError(
            f"data={data.name} cannot train: it is there to evaluate on; give data=cave, or "
            "data=folder data.root=DIR"
        )
    wavelengths = data.given_wavelengths
    if wavelengths is None:
        raise ValueError("data.wavelengths: expected a list in nm, one per band, got none")
    return wavelengths


def build_simulator(node: dict[str, Any], wavelengths: tuple[float, ...]) -> Simulator:
    """Make the simulator of a config node; the masks' files are read."""
    settings, bands = dict(node), len(wavelengths)
    masks = _build_masks(settings.pop("masks"), bands)
    if settings.get("offsets") is not None:
        try:
            settings["offsets"] = find_offsets(settings, bands, wavelengths)
        except ValueError as error:
            raise ValueError(str(error).replace("system.", "data.simulator.")) from None
    simulator = build(settings, masks=masks)
    if settings.get("detector") is not None:
        axis, offsets = simulator.axis, simulator.offsets
        whole = SDCassi(masks.mask, bands, simulator.steps[0], axis, offsets, settings["detector"])
        check_places(find_places(whole))
    return simulator


def _build_masks(node: dict[str, Any], bands: int) -> Any:
    if "sources" in node:  # a mixture of others
        inner = [_build_masks(source, bands) for source in node["sources"]]
        # A file may be left over from the mask that the mixture stands in for.
        return build({k: v for k, v in node.items() if k not in ("sources", "mask")}, sources=inner)
    if "mask" not in node:
        return build(node)
    if isinstance(node["mask"], list):
        return MixedMasks([_build_masks(node | {"mask": one}, bands) for one in node["mask"]])
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
    return build({key: v for key, v in node.items() if key not in ("mask", *hints)}, mask=mask)


def build_callbacks(settings: Train) -> list[Callback]:
    """Make the callbacks of settings; null in place of one switches it off."""
    from lightning.pytorch.callbacks import LambdaCallback

    nodes = [node for node in settings.callbacks.values() if node is not None]
    if not settings.trainer.get("enable_progress_bar", True):
        nodes = [node for node in nodes if not node["_target_"].endswith("ProgressBar")]
    return [*(build(node) for node in nodes), LambdaCallback(on_train_start=end_at_once)]


def build_plugins() -> list[Any]:
    """Make what the Trainer writes checkpoints with, and what it takes from SLURM."""
    from lightning.fabric.plugins.environments import SLURMEnvironment

    from cassi.training.callbacks import AtomicCheckpoints

    # Lightning's way to queue a job again would save in the middle of a step.
    slurm = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
    return [AtomicCheckpoints(), *slurm]


def build_loggers(settings: Train, resumed: int | None, folder: Path) -> list[Logger]:
    """Make the loggers; of a resumed run they go on where they were."""
    nodes = {name: node for name, node in settings.logger.items() if node is not None}
    ids = {} if resumed is None else read_run_ids(folder)
    made = []
    for name, node in nodes.items():
        kind = node["_target_"].rpartition(".")[2]
        more: dict[str, Any] = {"resumed": resumed} if kind == "MetricsTable" else {}
        if kind in ids and node.get(RUN_ID[kind]) is None:
            more[RUN_ID[kind]] = ids[kind]
        with _said_in_a_line(name):
            if kind == "WandbLogger":
                _prepare_wandb()
                # It has read its settings: what Lightning writes into the environment is too late.
                more |= {"mode": "offline"} if node.get("offline") else {}
            if kind == "MLFlowLogger" and not node.get("tracking_uri"):
                more |= _local_store(Path(node["save_dir"]))
            made.append(build(node, **more))
    return made


@contextlib.contextmanager
def _said_in_a_line(name: str) -> Iterator[None]:
    """Raise ValueError where a service's library is missing, or refuses what it is asked for."""
    try:
        yield
    except ModuleNotFoundError:
        raise ValueError(
            f"logger: {name} needs a library; install it with pip install 'cassi[{name}]'"
        ) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("mlflow", "wandb"):
            raise
        raise ValueError(f"logger: {name}: {' '.join(str(error).split())}") from None


def _local_store(folder: Path) -> dict[str, str]:
    """Return where MLflow keeps runs without a server; it writes no plain files any more."""
    import alembic  # noqa: F401  mlflow-skinny comes without these
    import sqlalchemy  # noqa: F401

    folder.mkdir(parents=True, exist_ok=True)
    store = f"sqlite:///{folder.resolve()}/mlflow.db"
    return {"tracking_uri": store, "artifact_location": folder.resolve().as_uri()}


def _prepare_wandb() -> None:
    """Let it read its settings, and start no git, elsewhere than in the current folder.

    `wandb/settings` there may name the host that gets the user's key, and `.git` there programs.
    """
    import wandb

    os.environ.setdefault("WANDB_DISABLE_GIT", "true")
    with contextlib.chdir("/"):
        wandb.setup()


RUN_ID = {"MLFlowLogger": "run_id", "WandbLogger": "id"}
"""Services that compare runs, and their argument that names the run to go on with."""


def open_services(loggers: Sequence[Any], settings: Train, folder: Path) -> None:
    """Let services that compare runs know the settings; a run's folder has them in model.yaml.

    The names that the services give the run are kept for those that resume it.
    """
    ids = earlier = read_run_ids(folder)
    for logger in loggers:
        if (kind := type(logger).__name__) not in RUN_ID:
            continue
        with _said_in_a_line(kind):
            logger.experiment  # noqa: B018  it is made now
            ids = ids | {kind: logger.version}
            # Of a run that goes on MLflow takes no other values.
            if kind != "MLFlowLogger" or ids[kind] != earlier.get(kind):
                logger.log_hyperparams(to_dict(settings))
    if ids != earlier:
        write_run_ids(folder, ids)


def make_pictures(wavelengths: tuple[float, ...]) -> dict[str, Picture]:
    """Return what is drawn of a validation scene, by name: (estimate, truth) → picture."""
    from cassi import viz

    def colours(x: torch.Tensor, truth: torch.Tensor) -> np.ndarray:
        return np.concatenate([viz.srgb(cube, wavelengths) for cube in (x, truth)], axis=1)

    def spectra(x: torch.Tensor, truth: torch.Tensor) -> np.ndarray:
        return viz.draw_spectra(x, wavelengths, truth=truth)

    return {"validation (estimate, truth)": colours, "validation spectra": spectra}
