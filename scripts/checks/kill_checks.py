"""What a command leaves when it is killed, or after it: files, differences, its last words."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from cassi import read_cube
from cassi.data.checksums import SUMS, check_archive, check_sums, unseal
from cassi.models.saved import read_card
from cassi.training.tensors import read_tensors
from scripts.checks.kill_cases import Case

TERMINATED = 143


def check_file(file: Path) -> None:
    """Read a final file to its end.

    Raises:
        Exception: it cannot be read, or is not what its checksum says.
    """
    if file.name == SUMS:
        check_sums(file.parent)
    elif file.suffix == ".json":
        content = json.loads(file.read_text())
        if "records" in file.parts:
            unseal(content)
    elif file.suffix in (".npy", ".npz", ".tif"):
        read_cube(file, axes=None)
    elif file.suffix == ".csv":
        with file.open(newline="") as stream:
            rows = list(csv.reader(stream, strict=True))
        if len({len(row) for row in rows}) != 1:
            raise ValueError("rows of different lengths")
    elif file.suffix == ".ckpt":
        read_tensors(file)
    elif file.suffix == ".safetensors":
        read_card(file)
    elif file.suffix == ".png":
        from PIL import Image

        with Image.open(file) as picture:
            picture.load()
    elif file.suffix == ".html":
        if not file.read_text(encoding="utf-8").rstrip().endswith("</html>"):
            raise ValueError("it is cut")
    elif file.suffix == ".yaml":
        from omegaconf import OmegaConf

        OmegaConf.load(file)
    elif file.suffix == ".pt":
        check_archive(file)
    elif file.suffix not in (".md", ".tex", ".bin", ".drawn"):
        raise ValueError("no check for this kind of file")


def final_files(folder: Path) -> Iterator[Path]:
    """Yield the files that are not temporary, nor Hydra's own copies of the configuration."""
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.is_file() and not any(part.startswith(".") for part in parts):
            yield file


def find_faults(folder: Path) -> list[str]:
    """Say of every final file what is wrong with it."""
    faults = []
    for file in final_files(folder):
        try:
            check_file(file)
        except Exception as error:
            faults.append(f"{file.relative_to(folder)}: {type(error).__name__}: {error}")
    return faults


def find_differences(case: Case, folder: Path, whole: Path) -> list[str]:
    """Say what a completed run has left, or made otherwise than the undisturbed one."""
    faults = [f"{name}: other bytes" for name in case.same if not _same(folder, whole, name)]
    for name in case.checkpoints:
        a, b = (_read_state(place / name) for place in (folder, whole))
        keys = [key for key in a.keys() | b.keys() if not _equal(a.get(key), b.get(key))]
        faults += [f"{name}: another {key}" for key in sorted(keys)]
    left = folder.rglob(".*cassi-*")
    return faults + [f"{file.relative_to(folder)}: was left" for file in left]


def _same(folder: Path, whole: Path, name: str) -> bool:
    return (folder / name).read_bytes() == (whole / name).read_bytes()


def _read_state(file: Path) -> dict[str, Any]:
    if file.suffix == ".safetensors":  # its bytes are in another order in each process
        return {**load_file(file), "card": asdict(read_card(file))}
    # Paths differ, and so does the time that Lightning's timers have seen.
    state = read_tensors(file)
    return {key: value for key, value in state.items() if key not in ("callbacks", "loops")}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def judge_end(number: int, status: int, log: Path) -> list[str]:
    """Say what is wrong with how a command ended after a signal."""
    text = log.read_text(errors="replace")
    faults = ["a traceback"] if "Traceback" in text else []
    if number == signal.SIGKILL:
        return faults
    # Before the command has taken charge of the signal the system ends it, and at the very end it
    # may be done all the same.
    if status not in (TERMINATED, -signal.SIGTERM, 0):
        faults.append(f"exit status {status}")
    if "ignored" in text:
        faults.append(f"ignored: {text[text.index('ignored') - 20 :][:300]!r}")
    said = [line for line in text.splitlines() if "terminated; " in line]
    if status == TERMINATED and len(said) != 1:
        faults.append(f"{len(said)} lines about it")
    return faults
