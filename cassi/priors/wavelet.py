"""A prior of sparse wavelet coefficients."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from cassi.checks import not_negative, whole_number


@dataclass(frozen=True)
class Wavelet:
    """Soft threshold of the wavelet details of every band.

        prior(x, σ) = argmin_u ½‖u − x‖² + weight·σ·Σ|details of Wu| = Wᵀ soft(Wx, weight·σ)

    W is orthogonal, also at the border, where it has boundary filters. A side that is odd at some
    level is extended by its last pixel, and the equation holds for the extended cube. If `shifts`
    is above 1, the result is the mean over that many circular shifts along the diagonal (cycle
    spinning). The mean avoids the blocks of a single transform, but is no proximal map of a simple
    function.

    Args:
        weight: threshold per unit of σ, >= 0.
        wavelet: an orthogonal wavelet of PyWavelets: haar, db2, sym4, coif1, ….
        levels: number of levels of the transform, >= 1; fewer if a side is shorter than the
            filters.
        shifts: number of circular shifts, >= 1; 1 is the orthogonal transform.

    Raises:
        ValueError: a negative weight, a number below 1, or a wavelet that is not orthogonal.

    Source: Donoho, "De-noising by soft-thresholding", IEEE Trans. Information Theory 41(3), 1995;
    Coifman, Donoho, "Translation-invariant de-noising", 1995; boundary filters: Jensen, la
    Cour-Harbo, "Ripples in mathematics", 2001.
    """

    weight: float = 1.0
    wavelet: str = "db2"
    levels: int = 3
    shifts: int = 1

    def __post_init__(self) -> None:
        not_negative("Wavelet weight", self.weight)
        whole_number("Wavelet levels", self.levels, 1)
        whole_number("Wavelet shifts", self.shifts, 1)
        _check_wavelet(self.wavelet)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a cube `(B, C, H, W)`; σ, a number or `(B,)`, is in the unit of the cube."""
        image = x.to(torch.promote_types(x.dtype, torch.float32))
        threshold = self.weight * torch.as_tensor(sigma, dtype=image.dtype)
        threshold = threshold.to(x.device).reshape(-1, 1, 1, 1)
        total = torch.zeros_like(image)
        for shift in range(self.shifts):
            shifted_x = image.roll((shift, shift), (-2, -1))
            total += self._shrink(shifted_x, threshold, self.levels).roll(
                (-shift, -shift), (-2, -1)
            )
        return (total / self.shifts).to(x.dtype)

    def penalty(self, x: Tensor, sigma: float | Tensor) -> Tensor | None:
        """Return weight·σ·Σ|details of Wx| of each sample `(B,)`; None with several shifts."""
        if self.shifts > 1:
            return None
        total = x.new_zeros(len(x))
        for _ in range(self.levels):
            if self._is_short(x):
                break
            coefficients = self._analyse(x)
            x = _select_approximation(coefficients)
            total = total + coefficients.abs().flatten(1).sum(1) - x.abs().flatten(1).sum(1)
        return self.weight * sigma * total

    def _shrink(self, x: Tensor, threshold: Tensor, levels: int) -> Tensor:
        """Shrink the details of all levels."""
        if levels == 0 or self._is_short(x):
            return x
        # The details are shrunk. The approximation is not shrunk, but goes to the next level.
        coefficients = self._analyse(x)
        shrunk_x = _shrink_values(coefficients, threshold)
        approximation = self._shrink(_select_approximation(coefficients), threshold, levels - 1)
        _select_approximation(shrunk_x).copy_(approximation)
        for axis in (-2, -1):
            matrix = _make_orthogonal_matrix(self.wavelet, shrunk_x.shape[axis], x.dtype, x.device)
            shrunk_x = _multiply(matrix.t(), shrunk_x, axis)
        return shrunk_x[..., : x.shape[-2], : x.shape[-1]]  # without the extension of odd sides

    def _analyse(self, x: Tensor) -> Tensor:
        """Transform both axes by one level, low frequencies first: `(…, 2⌈H/2⌉, 2⌈W/2⌉)`."""
        height, width = x.shape[-2:]
        u = functional.pad(x, (0, width % 2, 0, height % 2), mode="replicate")
        for axis in (-1, -2):
            u = _multiply(
                _make_orthogonal_matrix(self.wavelet, u.shape[axis], x.dtype, x.device), u, axis
            )
        return u

    def _is_short(self, x: Tensor) -> bool:
        """Tell whether a side is shorter than the filters."""
        return min(x.shape[-2:]) < len(_read_low_pass(self.wavelet))


def _select_approximation(coefficients: Tensor) -> Tensor:
    """Return a view of the low frequencies of both axes."""
    height, width = coefficients.shape[-2:]
    return coefficients[..., : height // 2, : width // 2]


def _multiply(matrix: Tensor, x: Tensor, axis: int) -> Tensor:
    """Multiply an axis of x by a sparse matrix."""
    axis_first = x.movedim(axis, 0)
    return (
        (matrix @ axis_first.reshape(len(axis_first), -1)).view(axis_first.shape).movedim(0, axis)
    )


@lru_cache(maxsize=64)
def _make_orthogonal_matrix(
    wavelet: str, n: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return one level of the transform of n values, n even, as a sparse matrix `(n, n)`.

    Row r of the first n/2 rows is Σ_k h_k x[2r + L/2 − k] with the low pass h of L taps. The other
    rows have the high pass g_k = (−1)^(k+1) h_{L−1−k}. Rows that extend over an end lose the taps
    there. These cut rows are made orthogonal to each other. They are orthogonal to the other rows
    already.
    """
    low = _read_low_pass(wavelet)
    taps = torch.arange(len(low))
    high = low.flip(0) * (2.0 * (taps % 2) - 1)
    columns = 2 * torch.arange(n // 2)[:, None] + len(low) // 2 - taps
    columns, values = columns.repeat(2, 1), torch.stack([low, high]).repeat_interleave(n // 2, 0)
    is_inside = (columns >= 0) & (columns < n)
    rows = torch.arange(n)[:, None].expand_as(columns)
    is_complete = is_inside.all(1)
    cut_rows = (~is_complete).nonzero().flatten()
    indices = [torch.stack([rows[is_complete].flatten(), columns[is_complete].flatten()])]
    entries = [values[is_complete].flatten()]
    if len(cut_rows):
        # The boundary filters come from a QR decomposition of the cut rows, in their columns.
        is_inside, columns, values = is_inside[cut_rows], columns[cut_rows], values[cut_rows]
        used_columns = columns[is_inside].unique()
        boundary = values.new_zeros(len(cut_rows), n)
        boundary[torch.where(is_inside)[0], columns[is_inside]] = values[is_inside]
        q = torch.linalg.qr(boundary[:, used_columns].T).Q.T
        row_index = cut_rows.repeat_interleave(len(used_columns))
        indices.append(torch.stack([row_index, used_columns.repeat(len(cut_rows))]))
        entries.append(q.flatten())
    matrix = torch.sparse_coo_tensor(
        torch.cat(indices, 1), torch.cat(entries), (n, n), check_invariants=True
    )
    return matrix.to(device, dtype).coalesce()


@lru_cache(maxsize=8)
def _read_low_pass(wavelet: str) -> Tensor:
    """Return the taps of the low pass of a wavelet, `(L,)`, float64."""
    import pywt

    return torch.tensor(pywt.Wavelet(wavelet).dec_lo, dtype=torch.float64)


def _shrink_values(values: Tensor, threshold: Tensor) -> Tensor:
    """Return values that are moved towards 0 by at most the threshold."""
    return values - torch.maximum(torch.minimum(values, threshold), -threshold)


def _check_wavelet(name: str) -> None:
    import pywt

    if name not in pywt.wavelist(kind="discrete") or not pywt.Wavelet(name).orthogonal:
        raise ValueError(
            f"Wavelet wavelet: expected an orthogonal one (haar, db2, sym4, coif1, …), got {name!r}"
        )
