"""Files of tensors, which are written atomically and checked when they are read."""

import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from cassi.data.atomic import atomic_path, check_archive


def write_tensors(path: str | os.PathLike[str], content: Mapping[str, object]) -> None:
    """Write tensors in the format of `torch.save`; make the folder if needed."""
    # The content is first written to memory, because torch's own writer does not name a full disk
    # as the reason when it fails.
    buffer = BytesIO()
    torch.save(content, buffer)
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(final) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of `write_tensors`, onto the CPU; no code in the file is executed.

    Raises:
        ValueError: the file is damaged.
    """
    check_archive(Path(path))
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content
