"""Files of tensors: written atomically, checked when they are read."""

import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from cassi.data.atomic import atomic_path, check_archive


def write_tensors(path: str | os.PathLike[str], content: Mapping[str, object]) -> None:
    """Write a checkpoint in the format of `torch.save`."""
    # The file is made in memory first, because torch's own writer does not name a full disk as the
    # reason when it fails.
    buffer = BytesIO()
    torch.save(content, buffer)
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(final) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `write_tensors` wrote, onto the CPU; nothing in it is executed."""
    check_archive(Path(path))
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content
