"""cassi-reconstruct: measurements and a mask in; a cube, pictures and numbers of each out."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from omegaconf import DictConfig

from cassi.apps import results as outputs
from cassi.apps.command import run_command
from cassi.apps.inputs import load_inputs
from cassi.apps.memory import keep_freed_memory, use_huge_pages
from cassi.apps.processes import follow_first_process, is_first_process, own_device
from cassi.apps.reconstruct.blocks import reconstruct_big
from cassi.apps.reconstruct.one import Method, recover, write_results
from cassi.apps.reconstruct.snapshots import is_many
from cassi.apps.reconstruct_many import reconstruct_many
from cassi.apps.reconstructors import rewrite_model_path, store_models
from cassi.apps.settings import check_denoiser, check_keys, choose_device, whole_number
from cassi.config import plain
from cassi.data.io import WRITE_SUFFIXES


def main() -> None:
    """Run the command."""
    store_models()
    sys.argv[1:] = rewrite_model_path(sys.argv[1:])
    follow_first_process()
    run_command("cassi-reconstruct", "reconstruct", reconstruct)


def reconstruct(config: DictConfig) -> float:
    """Reconstruct what the config names and write the results into Hydra's output folder.

    Returns:
        The relative residual, for sweeps that minimise something; of many snapshots the mean.
    """
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    check_keys(config)
    check_denoiser(config)
    _check_output(config)
    device = own_device(choose_device(config.device))
    use_huge_pages() if config.memory_budget is not None else keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(whole_number("threads", config.threads, 1, 1024))
    seed = whole_number("seed", config.seed, 0, 2**63 - 1)
    method = Method(config, device)
    if is_many(config.measurement):
        return reconstruct_many(config, folder, method, device)
    if not is_first_process():
        return float("nan")  # one snapshot is work for one
    if config.memory_budget is not None:
        return reconstruct_big(config, folder, method, device)
    inputs, solver = method.fit(load_inputs(config, device))
    for note in inputs.notes:
        print(note)
    result = recover(inputs, solver, seed, visible=config.output.progress)
    write_results(folder, config, result)
    print(outputs.one_line(result.numbers), f"-> {folder}", sep="\n")
    return float(result.numbers["relative_residual"])


def _check_output(config: DictConfig) -> None:
    # Before minutes of work, not after them.
    name = Path(str(config.output.cube))
    if name.suffix.lower() not in WRITE_SUFFIXES or name.name != str(name):
        raise ValueError(
            "output.cube: expected a file name without a folder that ends in "
            f"{' '.join(WRITE_SUFFIXES)}, got {name}"
        )
    points = plain(config.output.points)
    pairs = points if isinstance(points, list) else [points]
    if points is not None and not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"output.points: expected [[row, column], …], got {points!r}")
