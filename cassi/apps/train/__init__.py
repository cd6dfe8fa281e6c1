"""cassi-train: cubes in, a network that recovers them from snapshots out."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cassi.apps.command import (
    Run,
    Terminated,
    compile_privately,
    leave_to_lightning,
    prepare_process,
    run_command,
)
from cassi.apps.folders import is_new
from cassi.apps.printing import marked
from cassi.apps.reconstructors import build_network
from cassi.apps.settings import Train, Validation, check_nodes, to_dict
from cassi.apps.train import files, inputs
from cassi.apps.train.dry_run import rehearse
from cassi.config import build, homes
from cassi.models.load import Card
from cassi.models.network import memory_format_warning
from cassi.plugins import loaded_names
from cassi.precision import doubt
from cassi.priors.weights import check_fit
from cassi.systems import SDCassi

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

    from cassi.training.data import TrainingData
    from cassi.training.module import Training


def main() -> None:
    """Run the command."""
    sys.argv[1:] = ["dry_run=true" if word == "--dry-run" else word for word in sys.argv[1:]]
    run_command("cassi-train", Train, train, files.add_earlier_options)


def train(settings: Train, run: Run) -> float:
    """Train the network that the settings name; write checkpoints, numbers and the result.

    With `dry_run` it makes a few steps, says what all would take, and writes nothing.

    Returns:
        The best PSNR on the validation scenes in dB, for sweeps; NaN where there is none.
    """
    _check_extra(settings)
    _check_nodes(settings)
    if settings.ckpt == "last" and is_new(run.folder):
        raise ValueError(files.name_folder(run.folder))
    folder = Path(settings.folder) if settings.dry_run else run.folder
    prepare_process(settings)
    torch.manual_seed(settings.seed)
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    _quiet()
    # Of several processes the first one speaks, and may be ahead of the others.
    first = vars(rank_zero_only).get("rank", 0) == 0
    ckpt = settings.ckpt if first else settings.ckpt or "last"
    # A dry run starts anew, and repairs no checkpoint.
    start = None if settings.dry_run and ckpt else files.find_start(ckpt, folder)
    resumed = None
    if start is not None:
        content = files.read_checkpoint(start)
        files.check_plugins(content)
        resumed = content["global_step"]

    wavelengths = inputs.data_wavelengths(settings.data)
    net, card = build_network(settings.model, len(wavelengths))
    card = replace(card, wavelengths=wavelengths)
    if start is not None:
        check_fit(files.network_weights(content["state_dict"]), net, f"ckpt: {start} is not of")
        files.check_steps(start, folder, content["global_step"], settings.trainer["max_steps"])
    data = inputs.load_data(settings)
    if first and (said := _doubt_precision(settings)) is not None:
        print(f"{marked('warning')} {said}", file=sys.stderr)
    if settings.channels_last and first:
        _warn_of_layout(net, data.samples[0])
    if settings.dry_run:
        return _rehearse(settings, run, net, wavelengths, data)
    module = make_module(settings, net, wavelengths, data.scenes.scales)
    module.configure_optimizers()  # refuses wrong values before anything is written
    trainer = make_trainer(settings, folder, resumed)
    count = sum(p.numel() for p in net.parameters() if p.requires_grad)
    if first:
        inputs.open_services(trainer.loggers, settings, folder)
        scenes = f"{len(data.samples.scenes)} training and {len(data.scenes)} validation scenes"
        print(f"{scenes}, {len(wavelengths)} bands", *inputs.describe_highlights(data), sep="\n")
        begun = "" if resumed is None else f", going on after step {resumed}"
        print(f"{card.name}: {count / 1e6:.2f} M parameters{begun}", flush=True)
        files.save_options(folder, run.options)
    fit(trainer, module, data, start, f"go on with: {_name_command(settings, folder)}")
    return _write_result(settings, folder, trainer, card, count)


def _name_command(settings: Train, folder: Path) -> str:
    """Return the command that goes on with a training which was ended."""
    named = [settings.plugins] if isinstance(settings.plugins, str) else settings.plugins
    plugins = f" plugins=[{','.join(named)}]" if named else ""
    return f"cassi-train ckpt=last hydra.run.dir={folder}{plugins}"


def _write_result(settings: Train, folder: Path, trainer: Trainer, card: Card, count: int) -> float:
    """Write the trained network and what is said of it; return its best PSNR in dB, or NaN."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    best = trainer.callback_metrics.get("val_psnr")
    kept = [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
    scores = [callback.best_model_score for callback in kept]
    best = max((each for each in scores if each is not None), default=best)
    score = float("nan") if best is None else float(best)
    if trainer.is_global_zero:
        summary: dict[str, float] = {"parameters": count, "steps": trainer.global_step}
        summary |= {} if best is None else {"val_psnr": round(score, 4)}
        written = files.export(folder, settings, card, summary)
        said = "not validated" if best is None else f"best validation PSNR {score:.2f} dB"
        print(f"{trainer.global_step} steps, {said} -> {written[0]}")
    return score


def _rehearse(
    settings: Train, run: Run, net: nn.Module, wavelengths: tuple[float, ...], data: TrainingData
) -> float:
    from tempfile import TemporaryDirectory

    def try_some(small: Train, callbacks: list[Callback]) -> Trainer:
        with TemporaryDirectory() as place:
            if small.task.get("starts"):
                small = replace(small, task=small.task | {"starts": f"{place}/starts"})
            trainer = make_trainer(small, Path(place), None, callbacks)
            fit(trainer, make_module(small, net, wavelengths, data.scenes.scales), data)
            return trainer

    count = sum(p.numel() for p in net.parameters() if p.requires_grad)
    print(f"{len(data.samples.scenes)} training scenes, {count / 1e6:.2f} M parameters")
    print(rehearse(settings, try_some))
    more = "" if run.is_multirun else f"; the training would write into {Path(settings.folder)}"
    print(f"nothing was written{more}")
    return float("nan")


def make_module(
    settings: Train,
    net: nn.Module,
    wavelengths: tuple[float, ...],
    scales: Sequence[float] | None = None,
) -> Training:
    """Make the LightningModule of settings, and of the scales of the validation scenes."""
    data = settings.data
    validation = data.validation or Validation()
    judge = validation.simulator or data.simulator
    if settings.compile:
        compile_privately()
        net.compile()
    return build(
        settings.task,
        net,
        inputs.build_simulator(data.simulator, wavelengths),
        build(settings.loss),
        partial(build, settings.optimizer),
        None if settings.scheduler is None else partial(build, settings.scheduler),
        validate=inputs.build_simulator(judge, wavelengths),
        seed=settings.seed,
        pictures=inputs.make_pictures(wavelengths),
        plugins=loaded_names(),
        channels_last=settings.channels_last,
        pool=data.pool,
        reuse=data.reuse,
        scales=scales,
    )


def make_trainer(
    settings: Train, folder: Path, resumed: int | None, more: Sequence[Callback] = ()
) -> Trainer:
    """Make Lightning's Trainer of settings, with more callbacks than theirs."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    callbacks = [*inputs.build_callbacks(settings), *more]
    loggers = inputs.build_loggers(settings, resumed, folder)
    try:
        return build(
            settings.trainer,
            callbacks=callbacks,
            logger=loggers,
            plugins=inputs.build_plugins(),
            default_root_dir=str(folder),
        )
    except MisconfigurationException as error:
        raise ValueError(f"trainer: {error}") from None


def fit(
    trainer: Trainer,
    module: Training,
    data: TrainingData,
    start: Path | None = None,
    again: str = "",
) -> None:
    """Train, and turn Lightning's ways to end into those of a command, which say how to go on."""
    try:
        with leave_to_lightning(trainer):
            trainer.fit(module, datamodule=data, ckpt_path=start, weights_only=True)
    except (SystemExit, Terminated) as stop:
        # Lightning ends the process after Ctrl+C and, with status 0, after SIGTERM.
        ended = isinstance(stop, Terminated) or trainer.received_sigterm
        raise (Terminated if ended else KeyboardInterrupt)(again) from None


def _quiet() -> None:
    """Keep Lightning's advice to itself; errors still come."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")


def _doubt_precision(settings: Train) -> str | None:
    """Say that the trainer's precision is slow on its device, if it is; see `doubt`."""
    accelerator = settings.trainer.get("accelerator", "auto")
    on_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    said = doubt(str(settings.trainer.get("precision")), "cuda" if on_gpu else "cpu")
    # The trainer has no "auto".
    return said and said.replace("precision=", "trainer.precision=", 1).replace("=auto", "=32-true")


def _warn_of_layout(net: nn.Module, cube: Tensor) -> None:
    """Say which operator of the network, if any, does not keep the bands of a cube last."""
    # Through any camera, because a lesson without one has masks of another size than its crops.
    x = cube[None, :, :64, :64]
    system = SDCassi(torch.full(x.shape[-2:], 0.5), bands=len(cube), step=1)
    y = system(x)
    if (warning := memory_format_warning(net, y, system)) is not None:
        print(f"{marked('warning')} {warning}", file=sys.stderr)


def _check_nodes(settings: Train) -> None:
    """Refuse before scenes are read what would be refused when the objects are built."""
    names = ("optimizer", "scheduler", "loss", "task", "trainer")
    nodes = {name: vars(settings)[name] for name in names}
    for group in ("callbacks", "logger"):
        nodes |= {f"{group}.{name}": node for name, node in vars(settings)[group].items()}
    check_nodes({name: node for name, node in nodes.items() if node is not None})
    # A denoiser may be a program in a file, and options come from the folder of another's training.
    if any(home.startswith("cassi.priors.") for home in homes(to_dict(settings))):
        raise ValueError("cassi-train: a prior is part of a network; config nodes name none")


def _check_extra(settings: Train) -> None:
    """Say what to install where the libraries of a training are missing."""
    from importlib.util import find_spec

    wanted = ("lightning", *(["tensorboard"] if settings.logger.get("tensorboard") else []))
    if missing := [name for name in wanted if find_spec(name) is None]:
        raise ValueError(
            f"cassi-train needs {' and '.join(missing)}; install them with pip install cassi[train]"
        )
