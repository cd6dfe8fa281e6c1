"""Choose the precision of networks, by the floating types in which a device is fast.

Precisions have the names that Lightning's Trainer gives them. "auto" is bfloat16 on a device that
is fast in bfloat16, else float32. It depends on the device only.
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
"""For each precision the type that autocast computes in; None: no autocast."""

# An x86 processor needs at least this capability, as torch names it, for fast convolutions in
# 16 bits.
_MIN_CAPABILITY = "AVX512"
# The user limits oneDNN's instructions by one of these variables; the first is the newer name.
_ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
# A processor's instructions, by torch's names, that multiply numbers of each type.
_INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16"),
}
# oneDNN may use these instructions if the value of its variable contains one of these words.
_ISA_WORDS = {
    torch.bfloat16: ("BF16", "FP16", "AMX", "AVX10", "ALL", "DEFAULT"),
    torch.float16: ("FP16", "AVX10", "ALL", "DEFAULT"),
}


def fast_types(device: torch.device | str = "cpu") -> tuple[torch.dtype, ...]:
    """Return those of float32, bfloat16 and float16 in which a device convolves fast.

    float32 is always among them. A GPU is fast in float16 from compute capability 7.0 on, in
    bfloat16 from 8.0 on. An x86 processor needs AVX-512 with instructions for the type. Without
    these instructions torch convolves in a plain loop, which is slow. The variables
    `ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` can forbid torch and oneDNN to use them. On other
    processors a trial of some milliseconds decides, if oneDNN has convolutions of the type. The
    trial runs once per process.
    """
    device = torch.device(device)
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        min_capability = {torch.bfloat16: 8, torch.float16: 7}
        fast = [dtype for dtype, capability in min_capability.items() if major >= capability]
    elif device.type == "cpu":
        fast = [dtype for dtype in _INSTRUCTIONS if _is_fast_on_cpu(dtype)]
    else:
        fast = []
    return torch.float32, *fast


def resolve(precision: str, device: torch.device | str = "cpu") -> str:
    """Return the precision itself, or for "auto" 32-true or bf16-mixed, by the device.

    >>> resolve("32-true")
    '32-true'
    """
    check_precision(precision)
    if precision != "auto":
        return precision
    return "bf16-mixed" if torch.bfloat16 in fast_types(device) else "32-true"


def check_precision(precision: str) -> None:
    """Raise ValueError unless a precision is "auto" or one of `PRECISIONS`."""
    if precision != "auto" and precision not in PRECISIONS:
        raise ValueError(
            f"precision: expected {', '.join(PRECISIONS)} or auto, got {precision!r}; a network's "
            "weights stay float32"
        )


def autocast(precision: str, device: torch.device | str) -> torch.autocast:
    """Return the context in which a network computes in a precision; float32 changes nothing."""
    dtype = PRECISIONS[resolve(precision, device)]
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None)


def describe_slow_precision(precision: str, device: torch.device | str) -> str | None:
    """Say in one line that a device is slow in a precision, and what to set; None if it is fast.

    "auto" and float32 are never slow.
    """
    dtype = PRECISIONS.get(precision)
    if dtype is None or dtype in fast_types(device):
        return None
    name = str(dtype).removeprefix("torch.")
    return (
        f"precision={precision}: this device ({device}) has no fast {name} and takes many times as "
        f"long as in float32; set precision={'auto' if name == 'bfloat16' else '32-true'}"
    )


def warn_if_slow(precision: str, device: torch.device | str) -> None:
    """Warn if a device is slow in a precision; see `describe_slow_precision`."""
    if (message := describe_slow_precision(precision, device)) is not None:
        warnings.warn(message, stacklevel=3)


def _is_fast_on_cpu(dtype: torch.dtype) -> bool:
    """Tell whether the CPU has instructions for a type, and torch and oneDNN use them."""
    # If the processor has AVX-512 but no instructions for bfloat16, oneDNN emulates bfloat16. Such
    # convolutions exist, but are slow. So three things must hold: oneDNN has the convolutions, it
    # may use the instructions, and the processor has the instructions.
    if not _has_convolutions(dtype):
        return False
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return _is_faster_in_trial(dtype)
    if not torch.backends.cpu.get_cpu_capability().startswith(_MIN_CAPABILITY):
        return False
    isa = next((os.environ[name] for name in _ISA_VARIABLES if name in os.environ), "ALL").upper()
    if not any(word in isa for word in _ISA_WORDS[dtype]):
        return False
    instructions = _read_instructions()
    return any(instructions.get(name, False) for name in _INSTRUCTIONS[dtype])


def _has_convolutions(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN has convolutions of a type; torch's own are a slow plain loop."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def _read_instructions() -> Mapping[str, object]:
    """Return the instructions of the processor, by torch's names: True for those it has."""
    # Older versions of torch lack this function, and can only be asked for bfloat16.
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    return {"avx512_bf16": torch.cpu._is_avx512_bf16_supported()}


@cache
def _is_faster_in_trial(dtype: torch.dtype) -> bool:
    """Time one convolution, and tell whether it takes less time in a type than in float32."""
    # The tensors have the layout of an image network. The shortest of four runs counts: the first
    # one also prepares oneDNN's kernel, and other processes may slow any of them.
    float32_image = torch.ones(1, 32, 64, 64).contiguous(memory_format=torch.channels_last)
    float32_kernel = torch.ones(32, 32, 3, 3)
    seconds = []
    with torch.no_grad():
        for image, kernel in (
            (float32_image, float32_kernel),
            (float32_image.to(dtype), float32_kernel.to(dtype)),
        ):
            runs = []
            for _ in range(4):
                start = time.perf_counter()
                F.conv2d(image, kernel, padding=1)
                runs.append(time.perf_counter() - start)
            seconds.append(min(runs))
    return seconds[1] < seconds[0]
