"""The linear operators of a single-disperser CASSI camera, as functions of tensors.

Band c of the cube is multiplied by the mask, moved by o(c) pixels and summed on the detector:

    y[k, h, w'] = Σ_c m[k, c, h, w' - o(c)] · x[c, h, w' - o(c)],

with o(c) = c·step for step >= 0 and o(c) = (C-1-c)·|step| for step < 0. So the detector always has
W' = W + (C-1)|step| columns. There is no hidden scale (no 1/C, no 2/C).

Shapes: cube `(B, C, H, W)`, measurement `(B, K, H, W')`; both may lack the batch dimension. Mask
`(H, W)`, `(C, H, W)` or `(K, 1|C, H, W)` for K shots, or `(B, K, 1|C, H, W)` for a mask per sample.
Any floating dtype; sums run in float32 at least, and the result has the dtype of the cube or
measurement.

These operators have gradients, in reverse and forward mode and to any order, with respect to cube,
measurement, mask and ρ (if A Aᵀ + ρI is invertible). They run under
`torch.compile(fullgraph=True)`, `torch.export` and the transforms of `torch.func`. Tensors may have
any strides, and a cube in channels_last gives a cube in channels_last. `backend(device)` tells
whether the compiled kernels are in use.

The package also has operators that methods and networks use, such as `tv_prox`, `sample_volume` and
`selective_scan`.
"""

from cassi.ops._camera import (
    add_adjoint,
    adjoint,
    data_step,
    forward,
    gram,
    gram_solve,
    ratio_inverse,
)
from cassi.ops._convolve import convolve3x3 as convolve3x3
from cassi.ops._eigen import orthogonal_iteration as orthogonal_iteration
from cassi.ops._groups import shrink_groups as shrink_groups
from cassi.ops._layout import assert_memory_format
from cassi.ops._library import backend, load_compiled
from cassi.ops._scan import selective_scan
from cassi.ops._signal import convolve1d, sample_volume, trilinear
from cassi.ops._subspace import adjoint_subspace, forward_subspace
from cassi.ops._taps import (
    add_adjoint_taps,
    adjoint_taps,
    band_solve,
    detector_columns,
    forward_taps,
    gram_taps,
    linear_taps,
    step_offsets,
)
from cassi.ops._tv import NORMS as NORMS
from cassi.ops._tv import Norm as Norm
from cassi.ops._tv import tv_prox

__all__ = [
    "add_adjoint",
    "add_adjoint_taps",
    "adjoint",
    "adjoint_subspace",
    "adjoint_taps",
    "assert_memory_format",
    "backend",
    "band_solve",
    "convolve1d",
    "data_step",
    "detector_columns",
    "forward",
    "forward_subspace",
    "forward_taps",
    "gram",
    "gram_solve",
    "gram_taps",
    "linear_taps",
    "ratio_inverse",
    "sample_volume",
    "selective_scan",
    "step_offsets",
    "trilinear",
    "tv_prox",
]

load_compiled(__path__)
