"""Pure-torch selective scan: the specification of the compiled kernels.

Canonical shapes: sequences `(B, L, D)`, rates `(1|B, D, N)`, b and c `(B, L, N)`. Sums run in
float32 at least; the result has the dtype of u, gradients that are sums over a batch or over
channels have the dtype of the sums.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi.ops._reference import accumulation_dtype

GROUP = 16
"""Channels that share a part of the gradient of b and c."""


def selective_scan(u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Step by step: h_t = exp(Δ_t a) h_{t−1} + Δ_t b_t u_t,  y_t = Σ_n c_t h_t."""
    values = _widened(u, delta, rates, b, c)
    pairs = zip(_states(*values), _steps(values[4]), strict=True)
    outputs = [(state * of_c).sum(-1) for state, of_c in pairs]
    return torch.stack(outputs, 1).to(u.dtype) if outputs else torch.empty_like(u)


def selective_scan_backward(
    grad: Tensor, u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Differentiate `selective_scan`.

        λ_t = c_t g_t + exp(Δ_{t+1} a) λ_{t+1}, the gradient of h_t

    Written without changes in place, so that torch can differentiate it again.

    Returns:
        Gradients of u and Δ `(B, L, D)`, of the rates of every sample `(B, D, N)`, and of b and c
        the share of every sixteen channels, `(⌈D/16⌉, B, L, N)`.
    """
    dtypes = u.dtype, delta.dtype
    u, delta, rates, b, c = _widened(u, delta, rates, b, c)
    upstream = grad.to(u.dtype).unsqueeze(-1)  # (B, L, D, 1)
    decay = torch.exp(delta.unsqueeze(-1) * rates.unsqueeze(1))  # (B, L, D, N)
    states = _stack(_states(u, delta, rates, b, c), decay)
    before = pad(states, (0, 0, 0, 0, 1, 0))[:, :-1]
    carried, totals = torch.zeros_like(decay[:, :1].sum(1)), []
    for t in reversed(range(u.shape[1])):
        totals.append(carried + upstream[:, t] * c[:, t, None])
        carried = totals[-1] * decay[:, t]
    total = _stack(totals[::-1], decay)
    exponent = total * before * decay
    of_input = (total * b.unsqueeze(2)).sum(-1)
    grad_delta = of_input * u + (exponent * rates.unsqueeze(1)).sum(-1)
    return (
        (of_input * delta).to(dtypes[0]).contiguous(),
        grad_delta.to(dtypes[1]).contiguous(),
        (exponent * delta.unsqueeze(-1)).sum(1).contiguous(),
        _shares(total * (delta * u).unsqueeze(-1)),
        _shares(states * upstream),
    )


def _widened(*tensors: Tensor) -> list[Tensor]:
    dtype = accumulation_dtype(*tensors)
    return [tensor.to(dtype) for tensor in tensors]


def _steps(value: Tensor) -> list[Tensor]:  # (B, L, N) → L × (B, 1, N)
    return list(value.unsqueeze(2).unbind(1))


def _states(u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    state, states = u.new_zeros(()), []
    for t, of_b in enumerate(_steps(b)):
        step = delta[:, t, :, None]
        state = torch.exp(step * rates) * state + step * u[:, t, :, None] * of_b
        states.append(state)
    return states


def _stack(values: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(values, 1) if values else torch.zeros_like(like)


def _shares(values: Tensor) -> Tensor:  # (B, L, D, N) → (⌈D/16⌉, B, L, N)
    padded = pad(values, (0, 0, 0, -values.shape[2] % GROUP))
    return padded.unflatten(2, (-1, GROUP)).sum(3).movedim(2, 0).contiguous()
