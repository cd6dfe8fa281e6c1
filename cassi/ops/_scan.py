"""The selective scan of state-space models, as a function of tensors.

Any floating dtype; sums run in float32 at least, and the result has the dtype of the first
argument. It has reverse-mode gradients to any order with respect to all arguments, runs under
`torch.compile(fullgraph=True)`, and gives the same bits for every number of threads.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi.ops._checks import check_floating, check_same_device, shape_of
from cassi.ops._library import define, differentiable, kernels
from cassi.ops._recording import Context, Gradients, is_recorded
from cassi.ops._reference import accumulation_dtype

MOST_STATES = 64


def selective_scan(u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Run a linear recurrence whose coefficients change from step to step.

        h_t = exp(Δ_t a) h_{t−1} + Δ_t b_t u_t,   y_t = Σ_n c_t h_t,   h_{−1} = 0

    Every channel d has N states h, which decay with its rates a. All channels share b_t, the input
    weights of a step, and c_t, its output weights.

    Args:
        u: sequences `(B, L, D)`: L steps of D channels.
        delta: step sizes Δ `(B, L, D)`, positive in state-space models.
        rates: a `(D, N)`, negative in state-space models, with 1 to 64 states N.
        b: `(B, L, N)`.
        c: `(B, L, N)`.

    Returns:
        y `(B, L, D)` in the dtype of u.

    Raises:
        TypeError: an argument is not a floating tensor.
        ValueError: shapes or devices do not fit each other, or there are not 1 to 64 states.

    Source: Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", COLM
    2024, algorithm 2.

    >>> import torch
    >>> ones = torch.ones(1, 3, 1)
    >>> selective_scan(ones, ones, torch.tensor([[-0.6931472]]), ones, ones).flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    named = {"u": u, "delta": delta, "rates": rates, "b": b, "c": c}
    for name, value in named.items():
        check_floating(name, value)
    if u.ndim != 3:
        raise ValueError(f"u: expected (B, L, D), got shape {shape_of(u)}")
    batch, length, channels = u.shape
    if rates.ndim != 2 or rates.shape[0] != channels or not 1 <= rates.shape[1] <= MOST_STATES:
        raise ValueError(
            f"rates: expected (D, N) = ({channels}, 1 to {MOST_STATES}), got shape "
            f"{shape_of(rates)}"
        )
    states = rates.shape[1]
    for name, wanted in (
        ("delta", (batch, length, channels)),
        ("b", (batch, length, states)),
        ("c", (batch, length, states)),
    ):
        if tuple(named[name].shape) != wanted:
            raise ValueError(f"{name}: expected {wanted}, got shape {shape_of(named[name])}")
    check_same_device(**named)
    return kernels.selective_scan(u, delta, rates[None], b, c)


# Pure torch, the specification of the compiled kernels; sums run in float32 at least.

GROUP = 16
"""Channels that share a part of the gradient of b and c."""


def _reference(u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Step by step: h_t = exp(Δ_t a) h_{t−1} + Δ_t b_t u_t,  y_t = Σ_n c_t h_t."""
    values = _widened(u, delta, rates, b, c)
    pairs = zip(_states(*values), _steps(values[4]), strict=True)
    outputs = [(state * of_c).sum(-1) for state, of_c in pairs]
    return torch.stack(outputs, 1).to(u.dtype) if outputs else torch.empty_like(u)


def _reference_backward(
    grad: Tensor, u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Differentiate `selective_scan`.

        λ_t = c_t g_t + exp(Δ_{t+1} a) λ_{t+1}, the gradient of h_t

    Written without changes in place, so that torch can differentiate it again.

    Gradients of u and Δ are `(B, L, D)`, of the rates `(B, D, N)`, and of b and c the share of
    every sixteen channels, `(⌈D/16⌉, B, L, N)`.
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


def _fake_selective_scan(u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return u.new_empty(u.shape)


def _fake_selective_scan_backward(
    grad: Tensor, u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, length, channels = u.shape
    group, states = GROUP, rates.shape[2]
    sums = accumulation_dtype(u, delta, rates, b, c)
    shares = ((channels + group - 1) // group, batch, length, states)
    return (
        u.new_empty(u.shape),
        delta.new_empty(delta.shape),
        u.new_empty((batch, channels, states), dtype=sums),
        u.new_empty(shares, dtype=sums),
        u.new_empty(shares, dtype=sums),
    )


@differentiable(
    "selective_scan(Tensor u, Tensor delta, Tensor rates, Tensor b, Tensor c) -> Tensor",
    _reference,
    _fake_selective_scan,
)
def _backward_selective_scan(ctx: Context, grad: Tensor) -> Gradients:
    values = ctx.saved_tensors
    # Fused where nothing records a second derivative; torch differentiates the reference otherwise.
    composed = is_recorded()
    backward = _reference_backward if composed else kernels.selective_scan_backward
    *sequences, of_rates, of_b, of_c = backward(grad, *values)
    if values[2].shape[0] == 1:
        of_rates = of_rates.sum(0, keepdim=True)
    found = (*sequences, of_rates, of_b.sum(0), of_c.sum(0))
    return tuple(
        value.to(like.dtype) if needed else None
        for value, like, needed in zip(found, values, ctx.needs_input_grad, strict=True)
    )


define(
    "selective_scan_backward(Tensor grad, Tensor u, Tensor delta, Tensor rates, Tensor b, Tensor c)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _reference_backward,
    _fake_selective_scan_backward,
)
