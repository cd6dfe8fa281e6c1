"""The job of cassi-train: train a network on cubes and on snapshots simulated from them."""

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
    TerminationSignal,
    compile_privately,
    leave_to_lightning,
    prepare_process,
)
from cassi.apps.folders import is_new
from cassi.apps.printing import color_label
from cassi.apps.reconstructors import build_network
from cassi.apps.settings import Train, Validation, check_nodes, to_dict
from cassi.apps.train import files, inputs
from cassi.apps.train.dry_run import run_a_few_steps
from cassi.config import build, find_modules
from cassi.models.load import Card
from cassi.models.network import memory_format_warning
from cassi.plugins import loaded_names
from cassi.precision import describe_slow_precision
from cassi.priors.weights import check_fit
from cassi.systems import SDCassi

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

    from cassi.training.data import TrainingData
    from cassi.training.module import Training


def train(settings: Train, run: Run) -> float:
    """Train the network of the settings, and write checkpoints, numbers and the result.

    With `dry_run` a few steps are made, the cost of the whole training is printed, and nothing is
    written.

    Returns:
        The best PSNR on the validation scenes in dB, for sweeps; NaN without validation.
    """
    _check_packages(settings)
    _check_nodes(settings)
    # A new folder has no checkpoint, and `last` would silently start a new training.
    if settings.ckpt == "last" and is_new(run.folder):
        raise ValueError(files.describe_missing_training(run.folder))
    folder = Path(settings.folder) if settings.dry_run else run.folder
    prepare_process(settings)
    torch.manual_seed(settings.seed)
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    _silence_lightning()
    # Only the first of several processes prints. It may be ahead of the others and have written a
    # checkpoint already, so for them a checkpoint in the folder is no error.
    is_first = vars(rank_zero_only).get("rank", 0) == 0
    ckpt_setting = settings.ckpt if is_first else settings.ckpt or "last"
    # A dry run starts from new weights, because reading a checkpoint may repair its folder.
    starts_anew = settings.dry_run and ckpt_setting
    checkpoint = None if starts_anew else files.find_checkpoint(ckpt_setting, folder)
    resumed_step = None
    if checkpoint is not None:
        content = files.read_checkpoint(checkpoint)
        files.check_plugins(content)
        resumed_step = content["global_step"]

    wavelengths = inputs.data_wavelengths(settings.data)
    net, card = build_network(settings.model, len(wavelengths))
    card = replace(card, wavelengths=wavelengths)
    # The checkpoint is checked now, because reading the scenes takes long.
    if checkpoint is not None:
        weights = files.select_network_weights(content["state_dict"])
        check_fit(weights, net, f"ckpt: {checkpoint} is not of")
        files.check_steps(checkpoint, folder, content["global_step"], settings.trainer["max_steps"])
    data = inputs.load_data(settings)
    if is_first:
        _warn_of_slow_settings(settings, net, data)
    if settings.dry_run:
        return _print_cost(settings, run, net, wavelengths, data)
    module = make_module(settings, net, wavelengths, data.scenes.scales)
    module.configure_optimizers()  # refuses wrong values before anything is written
    trainer = make_trainer(settings, folder, resumed_step)
    n_parameters = sum(p.numel() for p in net.parameters() if p.requires_grad)
    if is_first:
        inputs.open_services(trainer.loggers, settings, folder)
        scenes = f"{len(data.samples.scenes)} training and {len(data.scenes)} validation scenes"
        print(f"{scenes}, {len(wavelengths)} bands", *inputs.describe_highlights(data), sep="\n")
        resumption = "" if resumed_step is None else f", going on after step {resumed_step}"
        print(f"{card.name}: {n_parameters / 1e6:.2f} M parameters{resumption}", flush=True)
        files.save_options(folder, run.options)
    fit(trainer, module, data, checkpoint, f"go on with: {_make_resume_command(settings, folder)}")
    return _write_result(settings, folder, trainer, card, n_parameters)


def _make_resume_command(settings: Train, folder: Path) -> str:
    """Return the command that resumes a training."""
    names = [settings.plugins] if isinstance(settings.plugins, str) else settings.plugins
    plugins = f" plugins=[{','.join(names)}]" if names else ""
    return f"cassi-train ckpt=last hydra.run.dir={folder}{plugins}"


def _write_result(
    settings: Train, folder: Path, trainer: Trainer, card: Card, n_parameters: int
) -> float:
    """Write the trained network with its settings; return its best PSNR in dB, or NaN."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    # Without a checkpoint of the best weights, the score is that of the last validation.
    best_score = trainer.callback_metrics.get("val_psnr")
    callbacks = trainer.checkpoint_callbacks
    scores = [c.best_model_score for c in callbacks if isinstance(c, ModelCheckpoint)]
    best_score = max((score for score in scores if score is not None), default=best_score)
    psnr = float("nan") if best_score is None else float(best_score)
    if trainer.is_global_zero:
        summary: dict[str, float] = {"parameters": n_parameters, "steps": trainer.global_step}
        summary |= {} if best_score is None else {"val_psnr": round(psnr, 4)}
        files_written = files.export(folder, settings, card, summary)
        outcome = "not validated" if best_score is None else f"best validation PSNR {psnr:.2f} dB"
        print(f"{trainer.global_step} steps, {outcome} -> {files_written[0]}")
    return psnr


def _print_cost(
    settings: Train, run: Run, net: nn.Module, wavelengths: tuple[float, ...], data: TrainingData
) -> float:
    """Print the cost of a training after a few of its steps; return NaN."""
    from tempfile import TemporaryDirectory

    def fit_briefly(short_settings: Train, callbacks: list[Callback]) -> Trainer:
        with TemporaryDirectory() as folder:
            # A dry run leaves nothing behind, so its store of first cubes is a temporary one.
            if short_settings.task.get("starts"):
                task = short_settings.task | {"starts": f"{folder}/starts"}
                short_settings = replace(short_settings, task=task)
            trainer = make_trainer(short_settings, Path(folder), None, callbacks)
            fit(trainer, make_module(short_settings, net, wavelengths, data.scenes.scales), data)
            return trainer

    n_parameters = sum(p.numel() for p in net.parameters() if p.requires_grad)
    print(f"{len(data.samples.scenes)} training scenes, {n_parameters / 1e6:.2f} M parameters")
    print(run_a_few_steps(settings, fit_briefly))
    target = "" if run.is_multirun else f"; the training would write into {Path(settings.folder)}"
    print(f"nothing was written{target}")
    return float("nan")


def make_module(
    settings: Train,
    net: nn.Module,
    wavelengths: tuple[float, ...],
    scales: Sequence[float] | None = None,
) -> Training:
    """Make the LightningModule of a training.

    Args:
        settings: settings of the training.
        net: the network.
        wavelengths: nm, one per band.
        scales: one factor for each validation scene; it turns the scene's values into those of the
            scene's file.
    """
    data = settings.data
    validation = data.validation or Validation()
    validation_simulator = validation.simulator or data.simulator
    if settings.compile:
        compile_privately()
        net.compile()
    # The module makes optimizer and scheduler itself, because they need the network's parameters.
    return build(
        settings.task,
        net,
        inputs.build_simulator(data.simulator, wavelengths),
        build(settings.loss),
        partial(build, settings.optimizer),
        None if settings.scheduler is None else partial(build, settings.scheduler),
        validate=inputs.build_simulator(validation_simulator, wavelengths),
        seed=settings.seed,
        pictures=inputs.make_pictures(wavelengths),
        plugins=loaded_names(),
        channels_last=settings.channels_last,
        pool=data.pool,
        reuse=data.reuse,
        scales=scales,
    )


def make_trainer(
    settings: Train,
    folder: Path,
    resumed_step: int | None,
    further_callbacks: Sequence[Callback] = (),
) -> Trainer:
    """Make Lightning's Trainer.

    Args:
        settings: settings of the training, with the callbacks and loggers.
        folder: folder of the training.
        resumed_step: step of the checkpoint, or None for a new training.
        further_callbacks: callbacks beside those of the settings.

    Raises:
        ValueError: Lightning refuses the settings of the trainer.
    """
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    callbacks = [*inputs.build_callbacks(settings), *further_callbacks]
    loggers = inputs.build_loggers(settings, resumed_step, folder)
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
    checkpoint: Path | None = None,
    advice: str = "",
) -> None:
    """Train the network.

    Args:
        trainer: made by `make_trainer`.
        module: made by `make_module`.
        data: training and validation scenes.
        checkpoint: checkpoint to resume from; None starts with new weights.
        advice: text on how to resume; it becomes the message of the exceptions.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C.
        TerminationSignal: the process got SIGTERM.
    """
    try:
        with leave_to_lightning(trainer):
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    except (SystemExit, TerminationSignal) as end:
        # Lightning ends the process after Ctrl+C and, with status 0, after SIGTERM.
        is_terminated = isinstance(end, TerminationSignal) or trainer.received_sigterm
        raise (TerminationSignal if is_terminated else KeyboardInterrupt)(advice) from None


def _silence_lightning() -> None:
    """Hide Lightning's advice and warnings, and keep its errors."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")


def _find_precision_warning(settings: Train) -> str | None:
    """Return a warning if the trainer's precision is slow on its device."""
    accelerator = settings.trainer.get("accelerator", "auto")
    on_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    warning = describe_slow_precision(
        str(settings.trainer.get("precision")), "cuda" if on_gpu else "cpu"
    )
    if warning is None:
        return None
    # Lightning's precision has no value "auto", so the advice is another value.
    warning = warning.replace("precision=", "trainer.precision=", 1)
    return warning.replace("=auto", "=32-true")


def _find_layout_warning(net: nn.Module, cube: Tensor) -> str | None:
    """Return a warning if an operator of the network does not keep the bands last in memory."""
    # The network is tested with a small made-up camera, because a task may have masks of another
    # size than its crops.
    x = cube[None, :, :64, :64]
    system = SDCassi(torch.full(x.shape[-2:], 0.5), bands=len(cube), step=1)
    return memory_format_warning(net, system(x), system)


def _warn_of_slow_settings(settings: Train, net: nn.Module, data: TrainingData) -> None:
    """Print warnings about a precision or a layout in memory that is slow on this device."""
    messages = [_find_precision_warning(settings)]
    if settings.channels_last:
        messages.append(_find_layout_warning(net, data.samples[0]))
    for message in messages:
        if message is not None:
            print(f"{color_label('warning')} {message}", file=sys.stderr)


def _check_nodes(settings: Train) -> None:
    """Check config nodes now, because reading the scenes takes long; ValueError for a wrong one."""
    names = ("optimizer", "scheduler", "loss", "task", "trainer")
    nodes = {name: vars(settings)[name] for name in names}
    for group in ("callbacks", "logger"):
        nodes |= {f"{group}.{name}": node for name, node in vars(settings)[group].items()}
    check_nodes({name: node for name, node in nodes.items() if node is not None})
    # A denoiser may be a program in a file. The options of a resumed training come from a folder
    # that may be a stranger's, so they must not be able to name one.
    if any(home.startswith("cassi.priors.") for home in find_modules(to_dict(settings))):
        raise ValueError(
            "cassi-train: expected config nodes without cassi.priors; a prior is part of a network"
        )


def _check_packages(settings: Train) -> None:
    """Raise ValueError with the packages to install if a library is missing."""
    from importlib.util import find_spec

    packages = ("lightning", *(["tensorboard"] if settings.logger.get("tensorboard") else []))
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ValueError(
            f"cassi-train needs {' and '.join(missing)}; install them with pip install cassi[train]"
        )
