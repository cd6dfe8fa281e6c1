"""cassi-train: cubes in, a network that recovers them from snapshots out."""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from cassi.apps.command import run_command
from cassi.apps.memory import keep_freed_memory
from cassi.apps.reconstructors import build_model, rewrite_model_path, store_models
from cassi.apps.settings import whole_number
from cassi.apps.signals import Terminated, leave_to_lightning
from cassi.apps.train import files as training_files
from cassi.apps.train import inputs as training_inputs
from cassi.apps.train import options as training_options
from cassi.config import build


def main() -> None:
    """Run the command."""
    store_models()
    arguments = training_options.add_earlier_options(sys.argv[1:])
    sys.argv[1:] = rewrite_model_path(arguments)
    run_command("cassi-train", "train", train)


def train(config: DictConfig) -> float:
    """Train the network that the config names; write checkpoints, numbers and the result.

    Returns:
        The best PSNR on the validation scenes in dB, for sweeps.
    """
    from hydra.core.hydra_config import HydraConfig

    folder = Path(HydraConfig.get().runtime.output_dir).resolve()
    config.folder = str(folder)
    keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(whole_number("threads", config.threads, 1, 1024))
    torch.manual_seed(whole_number("seed", config.seed, 0, 2**63 - 1))
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    _quiet()
    # Of several processes the first one speaks, and may be ahead of the others.
    first = getattr(rank_zero_only, "rank", 0) == 0
    start = training_files.find_start(config.ckpt if first else config.ckpt or "last", folder)
    resumed = None if start is None else training_files.read_checkpoint(start)["global_step"]

    wavelengths = training_inputs.data_wavelengths(config)
    net, card = build_model(config.model, len(wavelengths))
    card = replace(card, wavelengths=wavelengths)
    data = training_inputs.load_data(config)
    module = make_module(config, net, wavelengths)
    trainer = make_trainer(config, folder, resumed)
    count = sum(p.numel() for p in net.parameters() if p.requires_grad)
    if first:
        scenes = f"{len(data.samples.scenes)} training and {len(data.scenes)} validation scenes"
        print(f"{scenes}, {len(wavelengths)} bands")
        begun = "" if resumed is None else f", going on after step {resumed}"
        print(f"{card.name}: {count / 1e6:.2f} M parameters{begun}", flush=True)
        training_options.save_options(folder, HydraConfig.get().overrides.task)
    fit(trainer, module, data, start)

    best = trainer.callback_metrics.get("val_psnr")
    best = max((c.best_model_score for c in _selectors(trainer)), default=best)
    score = float("nan") if best is None else float(best)
    if trainer.is_global_zero:
        summary = {"val_psnr": round(score, 4), "parameters": count, "steps": trainer.global_step}
        files = training_files.export(folder, config, card, summary)
        print(f"{trainer.global_step} steps, best validation PSNR {score:.2f} dB -> {files[0]}")
    return score


def make_module(config: DictConfig, net: Any, wavelengths: tuple[float, ...]) -> Any:
    """Make the LightningModule of a config."""
    from cassi import viz

    bands = len(wavelengths)
    judge = config.data.validation.simulator or config.data.simulator
    for name in ("compile", "channels_last"):
        if not isinstance(config[name], bool):
            raise ValueError(f"{name}: expected true or false, got {config[name]!r}")
    if config.compile:
        net.compile()
    return build(
        config.task,
        net,
        training_inputs.build_simulator(config.data.simulator, bands),
        build(config.loss),
        partial(build, config.optimizer),
        None if config.scheduler is None else partial(build, config.scheduler),
        validate=training_inputs.build_simulator(judge, bands),
        seed=config.seed,
        picture=lambda cube: viz.srgb(cube, wavelengths),
        channels_last=config.channels_last,
        pool=config.data.pool,
    )


def make_trainer(config: DictConfig, folder: Path, resumed: int | None) -> Any:
    """Make Lightning's Trainer of a config."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    callbacks = training_inputs.build_callbacks(config)
    loggers = training_inputs.build_loggers(config, resumed)
    try:
        return build(
            config.trainer,
            callbacks=callbacks,
            logger=loggers,
            plugins=training_inputs.build_plugins(),
            default_root_dir=str(folder),
        )
    except MisconfigurationException as error:
        raise ValueError(f"trainer: {error}") from None


def fit(trainer: Any, module: Any, data: Any, start: Path | None) -> None:
    """Train, and turn Lightning's ways to end into those of a command."""
    try:
        with leave_to_lightning(trainer):
            trainer.fit(module, datamodule=data, ckpt_path=start, weights_only=True)
    except (SystemExit, Terminated) as stop:
        # Lightning ends the process after Ctrl+C and, with status 0, after SIGTERM.
        go_on = f"go on with: cassi-train ckpt=last hydra.run.dir={trainer.default_root_dir}"
        ended = isinstance(stop, Terminated) or trainer.received_sigterm
        raise (Terminated if ended else KeyboardInterrupt)(go_on) from None


def _selectors(trainer: Any) -> list[Any]:
    return [c for c in trainer.checkpoint_callbacks if c.best_model_score is not None]


def _quiet() -> None:
    """Keep Lightning's advice to itself; errors still come."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")
