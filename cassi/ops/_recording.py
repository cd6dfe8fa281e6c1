"""Differentiation of operators: reverse mode, forward mode, and the transforms of `torch.func`.

An operator only defines its gradient, u ↦ Jᵀu, with the Jacobian J. This map is linear in u. Its
gradient in the direction t is J t, the tangent that forward mode needs. So tangents are computed by
differentiating the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import _C, Tensor
from torch._functorch.eager_transforms import enable_inplace_requires_grad
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import Function, forward_ad

if TYPE_CHECKING:
    from torch._ops import OpOverload

Argument = Tensor | int | float | bool | None
Results = Tensor | tuple[Tensor, ...]
Dims = tuple[int | None, ...]
# One gradient for each argument of the operator.
Gradients = tuple[Tensor | None, ...]


class VmapInfo(Protocol):
    """The information that `torch.func.vmap` passes to a rule."""

    batch_size: int
    randomness: str


class Context(Protocol):
    """The values of a call that are stored for its gradient and its tangent."""

    needs_input_grad: tuple[bool, ...]
    constants: Sequence[Any]
    """Arguments that are not tensors."""

    saved_tensors: tuple[Any, ...]
    """Tensors, or None where None was saved."""

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


class FunctionContext(Context, Protocol):
    """The context of a `torch.autograd.Function`."""

    def save_for_forward(self, *tensors: Tensor | None) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...


Backward = Callable[..., Gradients]
Save = Callable[[Context, tuple[Any, ...], Results], None]


def is_transformed() -> bool:
    """Tell whether a transform of `torch.func` is running."""
    return not torch.compiler.is_compiling() and _C._functorch.peek_interpreter_stack() is not None


def is_forward_mode() -> bool:
    """Tell whether forward mode is active, here or in an outer transform."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def has_tangents() -> bool:
    """Tell whether forward mode is active here."""
    return is_forward_mode() and _C._is_fwd_grad_enabled()


def is_recorded() -> bool:
    """Tell whether a computation, such as an operator's gradient, may be differentiated again."""
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
    """Tell whether a transform of `torch.func` maps or differentiates a tensor."""
    return not torch.compiler.is_compiling() and _C._functorch.is_functorch_wrapped_tensor(value)


def unwrap(value: Tensor) -> Tensor:
    """Return a tensor without the wrappers of transforms; dimensions that vmap maps reappear.

    Use it if values decide when a loop ends: under vmap it ends for all mapped entries at once.
    """
    while is_wrapped(value):
        value = _C._functorch.get_unwrapped(value)
    return value.detach()


def leaf_of_zeros(tensor: Tensor) -> Tensor:
    """Return zeros that require a gradient, also within a transform of `torch.func`."""
    with enable_inplace_requires_grad(True):
        return torch.zeros_like(tensor).requires_grad_()


class _SavedInputs:
    """The values saved for an operator's gradient; forward mode computes its tangent from them."""

    constants: Sequence[Any] = ()

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors


class _TangentContext(Context, Protocol):
    """The values of a call that are stored in forward mode.

    `upstream` has zeros in the shape of each result. The gradient is computed for them, and is then
    differentiated with respect to them.
    """

    saved_inputs: _SavedInputs
    upstream: list[Tensor]


class Recorder:
    """The autograd rule of an operator; `run` is its kernel for the dispatch key `Autograd`.

    It replaces `torch.library.register_autograd`, whose kernels do not run under the transforms of
    `torch.func` and have no tangents.

    Args:
        op: the operator.
        backward: (ctx, *gradients) → one gradient or None per argument.
        save: (ctx, inputs, output); stores what `backward` needs.
    """

    def __init__(self, op: OpOverload, backward: Backward, save: Save) -> None:
        self.op, self.backward, self.save = op, backward, save
        methods = {
            "forward": self._forward,
            "backward": self._compute_gradient,
            "jvp": self._compute_tangent,
        }
        statics = {name: staticmethod(rule) for name, rule in methods.items()}
        function = type(f"{op._opname}_", (Function,), statics)
        # Under transforms of `torch.func`, `Function.apply` refuses a function without
        # `setup_context`. The `apply` of its base class handles one level of transforms, and the
        # dispatcher handles the other levels.
        self._apply = super(Function, function).apply  # type: ignore[misc]

    def run(self, keyset: _C.DispatchKeySet, *args: Argument) -> Results:
        """Compute the operator; record it if an argument needs a gradient or has a tangent."""
        has_tangent: tuple[bool, ...] = ()
        if has_tangents():
            has_tangent = tuple(isinstance(a, Tensor) and _tangent(a) is not None for a in args)
        if not any(has_tangent) and not (torch.is_grad_enabled() and _C._any_requires_grad(*args)):
            return self._run_below_autograd(keyset, args)
        if not is_transformed():
            return self._apply(*args, keyset, has_tangent)
        with enable_single_level_autograd_function():
            return self._apply(*args, keyset, has_tangent)

    def _run_below_autograd(self, keyset: _C.DispatchKeySet, args: tuple[Argument, ...]) -> Results:
        with _C._AutoDispatchBelowAutograd():
            return self.op.redispatch(keyset & _C._after_autograd_keyset, *args)

    def _forward(self, ctx: _TangentContext, *args: Any) -> Results:
        *inputs, keyset, has_tangent = args
        # torch turns recording off within a Function, but outer transforms have to record.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            result = self._run_below_autograd(keyset, tuple(inputs))
        schema = self.op._schema.arguments
        all_inputs = (*inputs, *(a.default_value for a in schema[len(inputs) :]))
        self.save(ctx, all_inputs, result)
        if has_tangent:
            ctx.saved_inputs = _SavedInputs(has_tangent)
            self.save(ctx.saved_inputs, all_inputs, result)
            ctx.upstream = [leaf_of_zeros(r) for r in _as_tuple(result)]
        return result

    def _compute_gradient(self, ctx: _TangentContext, *upstream: Tensor | None) -> Gradients:
        count = len(ctx.needs_input_grad) - 2
        needs_input_grad = ctx.needs_input_grad
        try:
            ctx.needs_input_grad = needs_input_grad[:count]
            gradients = self.backward(ctx, *upstream)
        finally:
            ctx.needs_input_grad = needs_input_grad
        return (*gradients[:count], None, None)

    def _compute_tangent(self, ctx: _TangentContext, *tangents: Tensor | None) -> Results:
        upstream, has_tangent = ctx.upstream, ctx.saved_inputs.needs_input_grad
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            gradients = self.backward(ctx.saved_inputs, *upstream)
        pairs = [
            (g, t)
            for g, t, argument_has_tangent in zip(gradients, tangents, has_tangent, strict=False)
            if argument_has_tangent and g is not None
        ]
        # If no argument with a tangent has a gradient, the output does not depend on any of them.
        if not pairs:
            return tuple(torch.zeros_like(u) for u in upstream)
        input_gradients, input_tangents = zip(*pairs, strict=True)
        results = torch.autograd.grad(
            input_gradients,
            upstream,
            input_tangents,
            create_graph=create_graph,
            materialize_grads=True,
        )
        return results if len(results) > 1 else results[0]


def _as_tuple(result: Results) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _tangent(value: Tensor) -> Tensor | None:
    return forward_ad.unpack_dual(value).tangent
