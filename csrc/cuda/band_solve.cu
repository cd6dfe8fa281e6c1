// z = (G + diag ρ)⁻¹ r along detector rows, G a symmetric band, in double precision.
#include "device.cuh"

namespace cassi {
namespace cuda {
namespace {

constexpr int kWarp = 32;

// A row by a block of one warp, in its shared memory: from column u of the band, all that it
// changes in those behind it is subtracted at once, in the order in which `solve_band` subtracts
// it.
__global__ void __launch_bounds__(kWarp)
    solve_row(const __grid_constant__ BandSolve a, int64_t rows) {
  const int K = static_cast<int>(a.g.shots), D = static_cast<int>(a.g.width), size = K * D;
  const int reach = K * static_cast<int>(a.couplings) - 1, column = reach + 1;
  const int thread = static_cast<int>(threadIdx.x);
  const double dependent = dependence(a.r.dtype);
  double* band = reinterpret_cast<double*>(shared_memory());  // G[u + d, u], then L·D, at u, d
  double* inverse = band + size * column;                     // of the pivots; first the diagonal
  double* z = inverse + size;
  // The pair i >= j > 0 that the thread subtracts first: product of what is i and j below u.
  int own_i = 1, own_j = thread + 1;
  const auto settle = [](int& i, int& j) {
    for (; j > i; ++i) j -= i;
  };
  settle(own_i, own_j);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t h = row % a.g.height, b = row / a.g.height;
    // Unknown u is shot u % K of column u / K.
    for (int l = 0; l < K; ++l) {
      for (int d = 0; d <= reach; ++d) {
        const int apart = (l + d) / K, k = (l + d) % K;
        for (int w = thread; w < D - apart; w += kWarp)
          band[(w * K + l) * column + d] =
              apart < a.couplings ? load<double>(a.gram, index(a.gram, b, apart * K + l, k, h, w))
                                  : 0.0;
      }
      for (int w = thread; w < D; w += kWarp) {
        const int u = w * K + l;
        inverse[u] = band[u * column] += load<double>(a.rho, index(a.rho, b, l, h, w));
        z[u] = load<double>(a.r, index(a.r, b, l, h, w));
      }
    }
    __syncthreads();
    for (int u = 0; u < size; ++u) {
      const double *below = band + u * column, pivot = below[0];
      const double one = pivot <= dependent * inverse[u] ? 0.0 : 1.0 / pivot;  // a NaN stays a NaN
      const double value = one == 0.0 ? 0.0 : z[u];
      const int most = reach < size - 1 - u ? reach : size - 1 - u;
      for (int i = own_i, j = own_j; i <= most; j += kWarp, settle(i, j))
        band[(u + j) * column + i - j] -= below[i] * (below[j] * one);
      for (int i = thread + 1; i <= most; i += kWarp) z[u + i] -= below[i] * one * value;
      __syncthreads();
      if (thread > 0) continue;
      inverse[u] = one;
      z[u] = value * one;
    }
    __syncthreads();
    const auto solution = [&](int u) { return inverse[u] == 0.0 ? 0.0 : z[u]; };
    for (int u = size - 1; u > 0; --u) {
      const double value = solution(u);
      for (int i = thread + 1; i <= reach && i <= u; i += kWarp)
        z[u - i] -= band[(u - i) * column + i] * inverse[u - i] * value;
      __syncthreads();
    }
    for (int k = 0; k < K; ++k)
      for (int w = thread; w < D; w += kWarp)
        store(a.z, index(a.z, b, k, h, w), solution(w * K + k));
  }
}

// Rows of any size: a thread takes one, with scratch memory that interleaves those of neighbouring
// threads.
__global__ void __launch_bounds__(kWarp)
    solve_rows(const __grid_constant__ BandSolve a, int64_t rows, double* space) {
  const int64_t K = a.g.shots, D = a.g.width, size = K * D, reach = K * a.couplings - 1;
  const int64_t pitch = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  double* const lower = space + thread;
  double *const inverse = lower + size * reach * pitch, *const z = inverse + size * pitch;
  double* const raw = z + size * pitch;
  for (int64_t row = thread; row < rows; row += pitch) {
    const int64_t h = row % a.g.height, b = row / a.g.height;
    for (int64_t u = 0; u < size; ++u)
      z[u * pitch] = load<double>(a.r, index(a.r, b, u % K, h, u / K));
    // Unknown u is shot u % K of column u / K.
    const auto entry = [&](int64_t u, int64_t j) {
      const int64_t apart = u / K - j / K;
      return apart < a.couplings
                 ? load<double>(a.gram, index(a.gram, b, apart * K + j % K, u % K, h, j / K))
                 : 0.0;
    };
    const auto rho = [&](int64_t u) {
      return load<double>(a.rho, index(a.rho, b, u % K, h, u / K));
    };
    solve_band(size, reach, entry, rho, dependence(a.r.dtype), lower, inverse, raw, z, pitch);
    for (int64_t u = 0; u < size; ++u) store(a.z, index(a.z, b, u % K, h, u / K), z[u * pitch]);
  }
}

}  // namespace
}  // namespace cuda

void launch(const BandSolve& a, void* stream) {
  using namespace cuda;
  const int64_t rows = a.g.batch * a.g.height, size = a.g.shots * a.g.width;
  const int64_t reach = a.g.shots * a.couplings - 1;
  const int64_t shared = size * (reach + 3) * sizeof(double);
  if (shared <= shared_limit()) return run(solve_row, rows, dim3(kWarp), shared, stream, a, rows);
  // As many threads as a moderate amount of memory serves.
  constexpr int64_t most = 512 << 20;
  const int64_t bytes = (size * (reach + 2) + reach) * kWarp * sizeof(double);
  const int64_t enough = most / bytes < 1 ? 1 : most / bytes, all = (rows + kWarp - 1) / kWarp;
  const int64_t blocks = all < enough ? all : enough;
  const Memory space = scratch(blocks * bytes);
  run(solve_rows, blocks, dim3(kWarp), 0, stream, a, rows, static_cast<double*>(space.data));
}

}  // namespace cassi
