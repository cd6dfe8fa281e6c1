"""The camera's compiled kernels against their reference: sizes, steps, shots, masks, dtypes."""

from itertools import product

import pytest
import torch
from kernel_calls import CAMERA as OPS
from kernel_calls import SOLVING
from torch import Tensor

MANY_SHOTS = [name for name in OPS if name != "ratio_inverse"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
STEPS = [0, 1, -1, 2, -2, 3, -5, 16, 17, -40]
# (B, C, H, W): rows shorter than a vector, of whole vectors, and with a rest.
SIZES = [
    (1, 1, 1, 1),
    (2, 5, 3, 1),
    (1, 2, 1, 7),
    (1, 28, 2, 16),
    (2, 33, 5, 17),
    (1, 9, 3, 31),
    (1, 28, 9, 100),
    (3, 3, 2, 259),
    (1, 4, 17, 40),
]
every_op = pytest.mark.parametrize("name", OPS)


def _kinds_of_rho(name):
    """One value for all detector pixels, and one for each."""
    return [{}, {"rho": "pixels"}] if name in SOLVING else [{}]


@every_op
@pytest.mark.parametrize("step", STEPS)
def test_geometry(name, step, parity, camera_arguments):
    for size, rho in product(SIZES, _kinds_of_rho(name)):
        parity(name, *camera_arguments(name, size, step, **rho))


@pytest.mark.parametrize("step", [0, 1, -2, 3, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_geometry_of_row_sums(step, dtype, parity, camera_arguments):
    """Every remainder of the width, and every number of bands that are summed together."""
    for width, bands in product((1, 4, 7, 8, 13, 16, 17, 31, 33, 47, 64, 81), (1, 3, 17, 28, 70)):
        for mask_bands in {1, bands}:
            size = (1, bands, 1, width)
            parity(
                "forward",
                *camera_arguments("forward", size, step, mask_bands=mask_bands, dtypes=[dtype] * 3),
            )


@every_op
@pytest.mark.parametrize("batch", [0, 1, 2, 3])
def test_masks(name, batch, parity, camera_arguments):
    """Of one shot or several, shared by samples, by bands, by both, by none."""
    for shots, step in ((1, 2), (1, -1), (2, -1), (3, 2), (5, 1)):
        if shots > 1 and name == "ratio_inverse":
            continue
        size = (batch, 5, 5, 19)
        for samples, mask_bands, rho in product({1, max(batch, 1)}, (1, 5), _kinds_of_rho(name)):
            parity(name, *camera_arguments(name, size, step, shots, samples, mask_bands, **rho))


@every_op
@pytest.mark.parametrize("cube", DTYPES)
def test_mixed_dtypes(name, cube, parity, camera_arguments):
    """Results are the exact ones, rounded once."""
    for measurement, mask in product(DTYPES, DTYPES):
        for shots, rho in product((1, 2) if name in MANY_SHOTS else (1,), _kinds_of_rho(name)):
            dtypes = (cube, measurement, mask)
            parity(name, *camera_arguments(name, (2, 5, 3, 19), 2, shots, dtypes=dtypes, **rho))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("compiled")
def test_conversions_of_every_half(dtype):
    """All numbers of half precision, those in the middle between two, and the neighbours of these.

    With an operand of ones, operators do nothing but convert.
    """
    kernels = torch.ops.cassi
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).float()
    finite = halves[halves.isfinite()].unique()
    middles = (finite[1:] + finite[:-1]) / 2
    around = [torch.nextafter(middles, torch.full_like(middles, end)) for end in (-1e38, 1e38)]
    large = torch.tensor([65519.996, 65520.0, 3.4e38, torch.nan, torch.inf, -torch.inf])
    values = torch.cat([halves, middles, *around, large, -large]).view(1, 1, 1, 1, -1)
    expected = values[0].to(dtype)
    ones = torch.ones_like(expected)
    for got in (
        kernels.forward(ones, values, 0),
        kernels.adjoint(ones, values, 2, 0, False),
        kernels.adjoint(ones, values, 2, 0, True),  # read and written along the other axis
    ):
        torch.testing.assert_close(got, expected.expand_as(got), rtol=0, atol=0, equal_nan=True)
    x = halves.to(dtype).view(1, 1, 1, -1)
    for cube in (x, x.expand(1, 2, 1, -1).contiguous(memory_format=torch.channels_last)):
        wide = kernels.mask_adjoint(cube, torch.ones(1, 1, 1, x.numel()), 0, True, True)
        torch.testing.assert_close(
            wide[:, 0], cube.float().expand_as(wide[:, 0]), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("name", SOLVING)
@pytest.mark.parametrize("shots", [1, 2])
def test_rho(name, shots, parity, camera_arguments):
    for rho in ((0.3, 2.0, 1e-3), (1e30,), (float("inf"),)):
        parity(name, *camera_arguments(name, (3, 5, 3, 19), -2, shots, rho=rho))


@pytest.mark.parametrize("name", SOLVING)
@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rho_of_one_dimension_or_another(name, shots, dtype, parity, camera_arguments):
    """It may be shared by samples, shots, rows and columns, each for itself."""
    args = camera_arguments(name, (2, 5, 4, 19), -2, shots, 2, dtypes=(dtype,) * 3, rho="pixels")
    (place,) = (i for i, value in enumerate(args) if _is_damping(value, shots))
    full = args[place]
    for kept in product((True, False), repeat=4):
        part = full
        for dim, whole in enumerate(kept):
            part = part if whole else part.narrow(dim, 0, 1)
        args[place] = part
        results = parity(name, *args)
        args[place] = part.expand_as(full).contiguous()
        for got, expected in zip(results[:3], parity(name, *args)[:3], strict=True):
            assert torch.equal(got, expected)


def _is_damping(value, shots):
    return isinstance(value, Tensor) and value.ndim == 4 and bool(value.isinf().any())


@pytest.mark.parametrize("name", SOLVING)
@pytest.mark.parametrize("shots", [1, 2, 4])
@pytest.mark.parametrize("equal", [False, True])
def test_a_pixel_of_infinite_rho_is_not_there(name, shots, equal, parity, camera_arguments):
    """Whatever y is, also where the matrix of the shots is singular."""
    args = camera_arguments(
        name, (2, 5, 3, 35), 2, shots, mask_bands=5, dtypes=(torch.float64,) * 3, rho="pixels"
    )
    named = dict(zip(schema_names(name), args, strict=True))
    if equal:
        named["gram"] = named["gram"].new_ones(1, 1, 1, 1, 1).expand_as(named["gram"])
    (rho,) = (value for value in args if _is_damping(value, shots))
    first = parity(name, *named.values())
    for value in (1e30, -7.0, torch.nan, torch.inf):
        for key in {"y", "r"} & named.keys():
            absent = rho.isinf().expand_as(named[key])
            named[key] = torch.where(absent, value, named[key])
        for a, b in zip(first, parity(name, *named.values()), strict=True):
            assert torch.equal(a, b)


def schema_names(name):
    return [argument.name for argument in getattr(torch.ops.cassi, name).default._schema.arguments]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shots", [2, 3])
@pytest.mark.usefixtures("compiled")
def test_rho_of_any_size_beside_singular_grams(dtype, shots):
    """A gram of rank one, with shots between which ρ differs by many orders of magnitude."""
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([0.0, 1e-3, 0.3, 1e4, 1e20, torch.inf], dtype=torch.float64)
    rho = torch.cartesian_prod(*[values] * shots).T.reshape(1, shots, 1, -1)
    r = torch.rand(1, shots, 1, rho.shape[-1], generator=generator, dtype=torch.float64)
    a = torch.tensor([1.0, 0.7, 0.3], dtype=torch.float64)[:shots]
    gram = (a[:, None] * a)[None, :, :, None, None].expand(-1, -1, -1, 1, rho.shape[-1])
    z = torch.ops.cassi.gram_solve(r.to(dtype), gram.to(dtype).contiguous(), rho.to(dtype))
    for w in range(rho.shape[-1]):
        there = rho[0, :, 0, w].isfinite()
        # The largest ρ would hide the others from a pseudo-inverse: in units in which they are 1.
        d = rho[0, there, 0, w]
        unit = torch.where(d > 0, (a[there] ** 2 + d).rsqrt(), 1 / a[:1])
        matrix = (a[there, None] * a[there] + torch.diag(d)) * unit[:, None] * unit
        exact = unit * (torch.linalg.pinv(matrix, rtol=1e-9) @ (unit * r[0, there, 0, w]))
        assert not z[0, ~there, 0, w].any()
        scale = 1 + exact.abs().sum().item()
        tolerance = (1e-2 if dtype == torch.float32 else 1e-8) * scale
        torch.testing.assert_close(z[0, there, 0, w].double(), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", SOLVING)
def test_detector_pixels_without_light(name, parity, camera_arguments):
    """Between bands that are further apart than they are wide, and behind a dark mask."""
    for size, step, rho in product([(2, 5, 3, 4), (1, 4, 2, 40)], (7, -45), ((0.0,), (0.2,))):
        args = camera_arguments(name, size, step, rho=rho)
        z = parity(name, *args)[0]
        assert z.isfinite().all()
    dark = camera_arguments(name, (2, 5, 3, 19), 2, rho=(0.0,))
    for value in dark:
        if isinstance(value, Tensor) and value.ndim == 5:  # mask and gram
            value.zero_()
    parity(name, *dark)


@pytest.mark.parametrize("need_mask", [False, True])
@pytest.mark.parametrize("need_rho", [False, True])
def test_gradients_that_are_needed(need_mask, need_rho, parity, camera_arguments):
    for shots, samples, mask_bands, rho in product((1, 3), (1, 2), (1, 5), ((0.1, 0.4), "pixels")):
        args = camera_arguments(
            "data_step_backward", (2, 5, 9, 33), 2, shots, samples, mask_bands, rho=rho
        )
        results = parity("data_step_backward", *args[:-2], need_mask, need_rho)
        assert [r.numel() > 0 for r in results] == [True, True, need_mask, need_rho]


def test_sums_over_parts_of_a_mask(parity, camera_arguments):
    args = camera_arguments("mask_adjoint", (3, 5, 9, 33), 2, shots=2)[:3]
    for per_sample, per_band in product((False, True), (False, True)):
        parity("mask_adjoint", *args, per_sample, per_band)


@pytest.mark.parametrize("name", ["adjoint", "ratio_inverse"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_last_results(name, dtype, parity, camera_arguments):
    for size in SIZES:
        args = camera_arguments(name, size, -2, dtypes=(dtype, dtype, torch.float32))
        parity(name, *args[:-1], True)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("forward", torch.float32),
        ("adjoint", torch.float32),
        ("ratio_inverse", torch.float64),
        ("data_step", torch.float32),
        ("data_step_backward", torch.float64),
    ],
)
def test_larger_than_the_caches(name, dtype, parity, camera_arguments):
    """More than 16 MiB, with rows that begin at any address."""
    height = 390 * 4 // dtype.itemsize
    parity(name, *camera_arguments(name, (1, 28, height, 397), 2, dtypes=(dtype,) * 3))


@pytest.mark.parametrize("y_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gram_dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("compiled")
def test_singular_grams(y_dtype, gram_dtype):
    """Shots through one mask, dimmed: what they disagree in is rounding error, of the gram's dtype.

    With G = s·aaᵀ the minimum-norm solution of G z = r is a (a·r) / (s |a|⁴).
    """
    generator = torch.Generator().manual_seed(0)
    r, level = (torch.rand(s, generator=generator).double() for s in ((2, 3, 9, 33), (9, 33)))
    a = torch.tensor([1.0, 0.7, 0.3], dtype=torch.float64)
    gram = (a.view(3, 1, 1, 1) * a.view(1, 3, 1, 1) * (level + 0.1)).unsqueeze(0)
    share = (a.view(3, 1, 1) * r).sum(1, keepdim=True) / (level + 0.1) / a.square().sum().square()
    args = (r.to(y_dtype), gram.to(gram_dtype), torch.zeros(1, 1, 1, 1, dtype=y_dtype))
    z = torch.ops.cassi.gram_solve(*args)
    torch.testing.assert_close(z.double(), a.view(3, 1, 1) * share, rtol=1e-4, atol=1e-5)
