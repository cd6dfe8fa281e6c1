"""Operators that apply a camera to spectral components of a cube, without forming the cube."""

import torch
from torch import Tensor

from cassi.ops import _checks, _reference
from cassi.ops._library import call, differentiable, operators
from cassi.ops._recording import Context, Gradients


def forward_subspace(components: Tensor, basis: Tensor, mask: Tensor, step: int) -> Tensor:
    """Apply the camera to the cube E a, from its components a in the basis E: y = A E a.

    Args:
        components: a, `(B, R, H, W)` or `(R, H, W)`.
        basis: E, `(C, R)`, or `(B, C, R)` for one per sample.
        mask: transmission, in a shape that `cassi.ops` lists.
        step: dispersion, pixels per band; if negative, the last band has offset 0.

    Returns:
        Measurement `(B, K, H, W + (C-1)|step|)`, without B if the components have none.

    Raises:
        TypeError: an argument is not a floating tensor, or `step` is not an integer.
        ValueError: shapes or devices do not fit each other.

    >>> forward_subspace(torch.ones(1, 1, 2), torch.tensor([[1.0], [2.0]]), torch.ones(1, 2), 1)
    tensor([[[1., 3., 2.]]])
    """
    m = _checks.canonical_mask(mask)
    meaning = "components (B, R, H, W) or (R, H, W)"
    a, squeeze = _checks.canonical_batch("components", components, meaning)
    e = _checks.canonical_basis(basis, "components", a)
    step = _checks.check_int("step", step)
    _checks.check_bands(m, e.shape[1])
    if a.shape[1] != e.shape[2] or a.shape[-2:] != m.shape[-2:]:
        height, width = m.shape[-2:]
        raise ValueError(
            f"components: expected (B, R, H, W) = (B, {e.shape[2]}, {height}, {width}), got shape "
            f"{_checks.shape_of(components)}"
        )
    _checks.check_samples("components", a, m)
    _checks.check_same_device(components=a, basis=e, mask=m)
    y = call(operators.forward_subspace.default, a, e, m, step)
    return y[0] if squeeze else y


def adjoint_subspace(y: Tensor, basis: Tensor, mask: Tensor, step: int) -> Tensor:
    """Apply the transpose of `forward_subspace`: Eᵀ Aᵀ y.

    Args:
        y: measurement `(B, K, H, W')` or `(K, H, W')`.
        basis: E, `(C, R)`, or `(B, C, R)` for one per sample.
        mask: transmission, in a shape that `cassi.ops` lists.
        step: dispersion, pixels per band.

    Returns:
        Components `(B, R, H, W)`, without B if y has none.

    Raises:
        TypeError: an argument is not a floating tensor, or `step` is not an integer.
        ValueError: shapes or devices do not fit each other.
    """
    m = _checks.canonical_mask(mask)
    y, squeeze = _checks.canonical_batch("y", y, "a measurement (B, K, H, W') or (K, H, W')")
    e = _checks.canonical_basis(basis, "y", y)
    step = _checks.check_int("step", step)
    _checks.check_measurement(y, m, e.shape[1], step)
    _checks.check_same_device(y=y, basis=e, mask=m)
    a = call(operators.adjoint_subspace.default, y, e, m, step)
    return a[0] if squeeze else a


def _fake_forward(components: Tensor, basis: Tensor, mask: Tensor, step: int) -> Tensor:
    batch, _, height, width = components.shape
    width_of_detector = _reference.detector_width(width, basis.shape[1], step)
    return components.new_empty((batch, mask.shape[1], height, width_of_detector))


def _fake_adjoint(y: Tensor, basis: Tensor, mask: Tensor, step: int) -> Tensor:
    return y.new_empty((y.shape[0], basis.shape[2], y.shape[2], mask.shape[-1]))


# Both operators are derivatives of the form yᵀ A E a: with respect to y, and to a. The form is
# linear in basis and mask too. So one function computes the gradients of both operators with
# respect to basis and mask.


def _shared_gradients(
    ctx: Context, components: Tensor, basis: Tensor, mask: Tensor, y: Tensor, basis_index: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of basis and mask, which are the arguments from `basis_index` on."""
    (step,) = ctx.constants
    grad_basis = grad_mask = None
    if ctx.needs_input_grad[basis_index]:
        cube = operators.adjoint(y, mask, basis.shape[1], step, False)
        dtype = _reference.accumulation_dtype(components, basis, mask)
        grad_basis = torch.einsum("bchw,brhw->bcr", cube.to(dtype), components.to(dtype))
        if basis.shape[0] != len(components):
            grad_basis = grad_basis.sum(0, keepdim=True)
        grad_basis = grad_basis.to(basis.dtype)
    if ctx.needs_input_grad[basis_index + 1]:
        bases = basis.expand(len(components), -1, -1)
        dtype = _reference.accumulation_dtype(components, basis)
        cube = torch.einsum("bcr,brhw->bchw", bases.to(dtype), components.to(dtype))
        per_sample = mask.shape[0] > 1 or len(components) == 1
        full_gradient = operators.mask_adjoint(cube, y, step, per_sample, mask.shape[2] > 1)
        grad_mask = full_gradient.to(mask.dtype)
    return grad_basis, grad_mask


@differentiable(
    "forward_subspace(Tensor components, Tensor basis, Tensor mask, SymInt step) -> Tensor",
    _reference.forward_subspace,
    _fake_forward,
)
def _backward_forward(ctx: Context, g: Tensor) -> Gradients:
    components, basis, mask = ctx.saved_tensors
    grad = None
    if ctx.needs_input_grad[0]:
        grad = operators.adjoint_subspace(g, basis, mask, ctx.constants[0]).to(components.dtype)
    return grad, *_shared_gradients(ctx, components, basis, mask, g, 1), None


@differentiable(
    "adjoint_subspace(Tensor y, Tensor basis, Tensor mask, SymInt step) -> Tensor",
    _reference.adjoint_subspace,
    _fake_adjoint,
)
def _backward_adjoint(ctx: Context, g: Tensor) -> Gradients:
    y, basis, mask = ctx.saved_tensors
    grad = None
    if ctx.needs_input_grad[0]:
        grad = operators.forward_subspace(g, basis, mask, ctx.constants[0]).to(y.dtype)
    return grad, *_shared_gradients(ctx, g, basis, mask, y, 1), None
