"""How an operator is differentiated: backwards, forwards, and under the transforms of `torch.func`.

One function, the gradient, serves all of them. An operator's tangent follows from its gradient
u ↦ Jᵀu, which is linear in u: the gradient of that, at any u, is J.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import _C, Tensor
from torch._functorch.eager_transforms import enable_inplace_requires_grad
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import Function, forward_ad


def is_transformed() -> bool:
    """Tell whether a transform of `torch.func` is running."""
    return not torch.compiler.is_compiling() and _C._functorch.peek_interpreter_stack() is not None


def is_forward() -> bool:
    """Tell whether tangents are carried forwards, now or in a transform further out."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def has_tangents() -> bool:
    """Tell whether tangents are carried forwards now."""
    return is_forward() and _C._is_fwd_grad_enabled()


def is_recorded() -> bool:
    """Tell whether what an operator's gradient computes may be differentiated itself."""
    return torch.is_grad_enabled() or has_tangents()


def is_tracked(*tensors: Tensor | None) -> bool:
    """Tell whether one of the tensors requires a gradient or has a tangent, in any transform."""
    return any(map(_is_tracked, tensors))


def _is_tracked(value: Tensor | None) -> bool:
    if value is None or value.requires_grad:
        return value is not None
    if has_tangents() and _tangent(value) is not None:
        return True
    return is_wrapped(value) and _is_tracked(_C._functorch.get_unwrapped(value))


def is_wrapped(value: Tensor) -> bool:
    """Tell whether a transform of `torch.func` maps a tensor or differentiates it."""
    return not torch.compiler.is_compiling() and _C._functorch.is_functorch_wrapped_tensor(value)


def unwrapped(value: Tensor) -> Tensor:
    """Return a tensor without the wrappers of transforms, mapped dimensions included.

    What a loop decides by it holds for all mapped entries.
    """
    while is_wrapped(value):
        value = _C._functorch.get_unwrapped(value)
    return value.detach()


def leaf_of_zeros(like: Tensor) -> Tensor:
    """Return zeros that require a gradient, within a transform too."""
    with enable_inplace_requires_grad(True):
        return torch.zeros_like(like).requires_grad_()


class _Saved:
    """What an operator saves for its gradient, where the tangent needs it."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors


def autograd_kernel(
    op: Any, backward: Callable[..., Any], save: Callable[..., None]
) -> Callable[..., Any]:
    """Return the kernel that records an operator, for the dispatch key `Autograd`.

    It is what `torch.library.register_autograd` makes, which runs under no transform and carries no
    tangents.

    Args:
        op: the operator.
        backward: `(ctx, *gradients)` → one gradient or None per argument.
        save: `(ctx, inputs, output)`, what `backward` needs.
    """
    schema = op._schema.arguments

    def below(keyset: Any, args: tuple[Any, ...]) -> Any:
        with _C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & _C._after_autograd_keyset, *args)

    def forward(ctx: Any, *args: Any) -> Any:
        *inputs, keyset, moving = args
        # torch records nothing in here, but the transforms further out do.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            result = below(keyset, tuple(inputs))
        given = (*inputs, *(a.default_value for a in schema[len(inputs) :]))
        save(ctx, given, result)
        if moving:
            ctx.twin = _Saved(moving)
            save(ctx.twin, given, result)
            ctx.upstream = [leaf_of_zeros(r) for r in _several(result)]
        return result

    def gradient(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        count = len(ctx.needs_input_grad) - 2
        needed = ctx.needs_input_grad
        try:
            ctx.needs_input_grad = needed[:count]
            found = backward(ctx, *gradients)
        finally:
            ctx.needs_input_grad = needed
        return (*found[:count], None, None)

    def tangent(ctx: Any, *tangents: Tensor | None) -> Any:
        upstream, moving = ctx.upstream, ctx.twin.needs_input_grad
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            found = backward(ctx.twin, *upstream)
        pairs = [
            (g, t)
            for g, t, moves in zip(found, tangents, moving, strict=False)
            if moves and g is not None
        ]
        if not pairs:  # of what it depends on through another argument
            return tuple(torch.zeros_like(u) for u in upstream)
        transposed, along = zip(*pairs, strict=True)
        results = torch.autograd.grad(
            transposed, upstream, along, create_graph=again, materialize_grads=True
        )
        return results if len(results) > 1 else results[0]

    recorded = type(
        f"{op._opname}_",
        (Function,),
        {
            "forward": staticmethod(forward),
            "backward": staticmethod(gradient),
            "jvp": staticmethod(tangent),
        },
    )
    apply = super(Function, recorded).apply  # type: ignore[misc]  # of one level: the dispatcher handles the others

    def run(keyset: Any, *args: Any) -> Any:
        moving: tuple[bool, ...] = ()
        if has_tangents():
            moving = tuple(isinstance(a, Tensor) and _tangent(a) is not None for a in args)
        if not any(moving) and not (torch.is_grad_enabled() and _C._any_requires_grad(*args)):
            return below(keyset, args)
        if not is_transformed():
            return apply(*args, keyset, moving)
        with enable_single_level_autograd_function():
            return apply(*args, keyset, moving)

    return run


def _several(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _tangent(value: Tensor) -> Tensor | None:
    return forward_ad.unpack_dual(value).tangent
