"""In which floating types a device convolves and multiplies fast, and what a precision stands for.

Precisions have the names that Lightning's Trainer gives them. "auto" is bfloat16 where that is
fast, else float32, and so depends on the device alone.
"""

import os
import platform
import time
import warnings
from collections.abc import Mapping
from functools import cache

import torch
import torch.nn.functional as F

PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""What autocast computes in."""

_AVX512 = "AVX512"
_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_ARITHMETIC = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16"),
}
"""The instructions of a processor that multiply numbers of each type."""
_WITHIN = {
    torch.bfloat16: ("BF16", "FP16", "AMX", "AVX10", "ALL", "DEFAULT"),
    torch.float16: ("FP16", "AVX10", "ALL", "DEFAULT"),
}
"""Parts of the values of `ONEDNN_MAX_CPU_ISA` that leave those instructions to oneDNN."""


def fast_types(device: torch.device | str = "cpu") -> tuple[torch.dtype, ...]:
    """Return in which of float32, bfloat16 and float16 a device convolves and multiplies fast.

    float32 is always among them. A GPU's compute capability tells: float16 from 7.0 on, bfloat16
    from 8.0 on. An x86 processor needs AVX-512 with instructions for the type, which
    `ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` can take from torch and from oneDNN: without
    them torch convolves in a plain loop, which is slow. Of another processor for which
    oneDNN has such convolutions a trial of some milliseconds decides, once per process.
    """
    device = torch.device(device)
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        least = {torch.bfloat16: 8, torch.float16: 7}
        fast = [dtype for dtype, capability in least.items() if major >= capability]
    elif device.type == "cpu":
        fast = [dtype for dtype in _ARITHMETIC if _is_fast_on_cpu(dtype)]
    else:
        fast = []
    return torch.float32, *fast


def resolve(precision: str, device: torch.device | str = "cpu") -> str:
    """Return the precision that one stands for on a device: of "auto" 32-true or bf16-mixed.

    >>> resolve("32-true")
    '32-true'
    """
    check_precision(precision)
    if precision != "auto":
        return precision
    return "bf16-mixed" if torch.bfloat16 in fast_types(device) else "32-true"


def check_precision(precision: str) -> None:
    """Refuse a precision that is neither "auto" nor one of `PRECISIONS`; ValueError."""
    if precision != "auto" and precision not in PRECISIONS:
        raise ValueError(
            f"precision: expected {', '.join(PRECISIONS)} or auto, got {precision!r}; a network's "
            "weights stay float32"
        )


def autocast(precision: str, device: torch.device | str) -> torch.autocast:
    """Return the context in which a network computes in a precision; of float32 it does nothing."""
    dtype = PRECISIONS[resolve(precision, device)]
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None)


def doubt(precision: str, device: torch.device | str) -> str | None:
    """Say in one line that a device is slow in a precision that was asked for, and what to set."""
    dtype = PRECISIONS.get(precision)
    if dtype is None or dtype in fast_types(device):
        return None
    name = str(dtype).removeprefix("torch.")
    return (
        f"precision={precision}: this device ({device}) has no fast {name} and takes many times as "
        f"long as in float32; set precision={'auto' if name == 'bfloat16' else '32-true'}"
    )


def warn_if_slow(precision: str, device: torch.device | str) -> None:
    """Warn where `doubt` has something to say."""
    if (said := doubt(precision, device)) is not None:
        warnings.warn(said, stacklevel=3)


def _is_fast_on_cpu(dtype: torch.dtype) -> bool:
    """Tell whether the CPU has instructions for a type, and torch and oneDNN use them."""
    if not _convolves(dtype):
        return False
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return _wins(dtype)
    capability = torch.backends.cpu.get_cpu_capability()
    allowed = next((os.environ[name] for name in _VARIABLES if name in os.environ), "ALL")
    if not capability.startswith(_AVX512) or not any(
        part in allowed.upper() for part in _WITHIN[dtype]
    ):
        return False
    found = _instructions()
    return any(found.get(name, False) for name in _ARITHMETIC[dtype])


def _convolves(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN has convolutions of a type; without, torch takes its plain loop."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def _instructions() -> Mapping[str, object]:
    """Return which instructions the processor has, by torch's names of them."""
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    return {"avx512_bf16": torch.cpu._is_avx512_bf16_supported()}


@cache
def _wins(dtype: torch.dtype) -> bool:
    """Try one convolution: whether it takes less time in a type than in float32."""
    x = torch.ones(1, 32, 64, 64).contiguous(memory_format=torch.channels_last)
    weight = torch.ones(32, 32, 3, 3)
    seconds = []
    with torch.no_grad():
        for a, b in ((x, weight), (x.to(dtype), weight.to(dtype))):
            runs = []
            for _ in range(4):
                start = time.perf_counter()
                F.conv2d(a, b, padding=1)
                runs.append(time.perf_counter() - start)
            seconds.append(min(runs))
    return seconds[1] < seconds[0]
