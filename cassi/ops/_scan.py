"""The selective scan of state-space models, as a function of tensors.

Any floating dtype; sums run in float32 at least, and the result has the dtype of the first
argument. It has reverse-mode gradients to any order with respect to all arguments, runs under
`torch.compile(fullgraph=True)`, and gives the same bits for every number of threads.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi.ops._checks import check_floating, check_same_device, shape_of
from cassi.ops._library import define, differentiable, operators
from cassi.ops._recording import Context, Gradients, is_recorded
from cassi.ops._reference import accumulation_dtype

# Most states of a channel; the kernels hold them all at once.
MAX_STATES = 64


def selective_scan(u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Run a linear recurrence whose coefficients change from step to step.

        h_t[n] = exp(Δ_t a[n]) h_{t−1}[n] + Δ_t b_t[n] u_t,   y_t = Σ_n c_t[n] h_t[n],   h_{−1} = 0

    for every channel, which has N states h, rates of decay a, and its own u and Δ. All channels
    share the input weights b_t and the output weights c_t of a step.

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
    arguments = {"u": u, "delta": delta, "rates": rates, "b": b, "c": c}
    for name, value in arguments.items():
        check_floating(name, value)
    if u.ndim != 3:
        raise ValueError(f"u: expected (B, L, D), got shape {shape_of(u)}")
    batch, length, channels = u.shape
    if rates.ndim != 2 or rates.shape[0] != channels or not 1 <= rates.shape[1] <= MAX_STATES:
        raise ValueError(
            f"rates: expected (D, N) = ({channels}, 1 to {MAX_STATES}), got shape {shape_of(rates)}"
        )
    states = rates.shape[1]
    for name, shape in (
        ("delta", (batch, length, channels)),
        ("b", (batch, length, states)),
        ("c", (batch, length, states)),
    ):
        if tuple(arguments[name].shape) != shape:
            raise ValueError(f"{name}: expected {shape}, got shape {shape_of(arguments[name])}")
    check_same_device(**arguments)
    return operators.selective_scan(u, delta, rates[None], b, c)


# Pure-torch references, the specification of the compiled kernels. Sums run in float32 at least.

# A kernel sums the gradients of b and c over groups of so many channels. The caller adds the sums.
CHANNELS_PER_GROUP = 16


def _reference(u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Compute h_t = exp(Δ_t a) h_{t−1} + Δ_t b_t u_t and y_t = Σ_n c_t h_t step by step."""
    values = _to_accumulation_dtype(u, delta, rates, b, c)
    pairs = zip(_states(*values), _steps(values[4]), strict=True)
    outputs = [(state * c_t).sum(-1) for state, c_t in pairs]
    return torch.stack(outputs, 1).to(u.dtype) if outputs else torch.empty_like(u)


def _reference_backward(
    grad: Tensor, u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Differentiate `selective_scan`.

        λ_t = c_t g_t + exp(Δ_{t+1} a) λ_{t+1}, the gradient of h_t

    Returns:
        Gradients of u and Δ `(B, L, D)`, of the rates `(B, D, N)`, and of b and c
        `(⌈D/16⌉, B, L, N)`: partial sums over groups of 16 channels, which the caller adds.
    """
    # No tensor is changed in place, so that torch can differentiate this function again.
    dtypes = u.dtype, delta.dtype
    u, delta, rates, b, c = _to_accumulation_dtype(u, delta, rates, b, c)
    upstream = grad.to(u.dtype).unsqueeze(-1)  # (B, L, D, 1)
    decay = torch.exp(delta.unsqueeze(-1) * rates.unsqueeze(1))  # (B, L, D, N)
    states = _stack(_states(u, delta, rates, b, c), decay)
    previous_states = pad(states, (0, 0, 0, 0, 1, 0))[:, :-1]
    carried_gradient, state_gradients = torch.zeros_like(decay[:, :1].sum(1)), []
    for t in reversed(range(u.shape[1])):
        state_gradients.append(carried_gradient + upstream[:, t] * c[:, t, None])
        carried_gradient = state_gradients[-1] * decay[:, t]
    state_gradient = _stack(state_gradients[::-1], decay)
    exponent = state_gradient * previous_states * decay
    input_gradient = (state_gradient * b.unsqueeze(2)).sum(-1)
    grad_delta = input_gradient * u + (exponent * rates.unsqueeze(1)).sum(-1)
    return (
        (input_gradient * delta).to(dtypes[0]).contiguous(),
        grad_delta.to(dtypes[1]).contiguous(),
        (exponent * delta.unsqueeze(-1)).sum(1).contiguous(),
        _sum_groups(state_gradient * (delta * u).unsqueeze(-1)),
        _sum_groups(states * upstream),
    )


def _to_accumulation_dtype(*tensors: Tensor) -> list[Tensor]:
    dtype = accumulation_dtype(*tensors)
    return [tensor.to(dtype) for tensor in tensors]


def _steps(value: Tensor) -> list[Tensor]:  # (B, L, N) → L × (B, 1, N)
    return list(value.unsqueeze(2).unbind(1))


def _states(u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    state, states = u.new_zeros(()), []
    for t, b_t in enumerate(_steps(b)):
        step = delta[:, t, :, None]
        state = torch.exp(step * rates) * state + step * u[:, t, :, None] * b_t
        states.append(state)
    return states


def _stack(values: list[Tensor], tensor: Tensor) -> Tensor:
    return torch.stack(values, 1) if values else torch.zeros_like(tensor)


def _sum_groups(values: Tensor) -> Tensor:  # (B, L, D, N) → (⌈D/16⌉, B, L, N)
    padded = pad(values, (0, 0, 0, -values.shape[2] % CHANNELS_PER_GROUP))
    return padded.unflatten(2, (-1, CHANNELS_PER_GROUP)).sum(3).movedim(2, 0).contiguous()


def _fake_selective_scan(u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return u.new_empty(u.shape)


def _fake_selective_scan_backward(
    grad: Tensor, u: Tensor, delta: Tensor, rates: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, length, channels = u.shape
    group, states = CHANNELS_PER_GROUP, rates.shape[2]
    sums_dtype = accumulation_dtype(u, delta, rates, b, c)
    sums_shape = ((channels + group - 1) // group, batch, length, states)
    return (
        u.new_empty(u.shape),
        delta.new_empty(delta.shape),
        u.new_empty((batch, channels, states), dtype=sums_dtype),
        u.new_empty(sums_shape, dtype=sums_dtype),
        u.new_empty(sums_shape, dtype=sums_dtype),
    )


@differentiable(
    "selective_scan(Tensor u, Tensor delta, Tensor rates, Tensor b, Tensor c) -> Tensor",
    _reference,
    _fake_selective_scan,
)
def _backward_selective_scan(ctx: Context, grad: Tensor) -> Gradients:
    values = ctx.saved_tensors
    # The fused kernel has no gradient. If a second derivative may be needed, torch differentiates
    # the reference.
    is_composed = is_recorded()
    backward = _reference_backward if is_composed else operators.selective_scan_backward
    *sequences, rates_gradient, b_gradient, c_gradient = backward(grad, *values)
    if values[2].shape[0] == 1:
        rates_gradient = rates_gradient.sum(0, keepdim=True)
    gradients = (*sequences, rates_gradient, b_gradient.sum(0), c_gradient.sum(0))
    return tuple(
        value.to(argument.dtype) if is_needed else None
        for value, argument, is_needed in zip(gradients, values, ctx.needs_input_grad, strict=True)
    )


define(
    "selective_scan_backward(Tensor grad, Tensor u, Tensor delta, Tensor rates, Tensor b, Tensor c)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _reference_backward,
    _fake_selective_scan_backward,
)
