// z = (G + diag ρ)⁻¹ r along detector rows, G a symmetric band: a thread takes a row, in double
// precision, with scratch memory that interleaves those of neighbouring threads.
#include "device.cuh"

namespace cassi {
namespace cuda {
namespace {

__global__ void __launch_bounds__(128)
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
  // As many threads as a moderate amount of memory serves.
  constexpr int64_t most = 512 << 20, threads = 128;
  const int64_t bytes = (size * (reach + 2) + reach) * threads * sizeof(double);
  const int64_t enough = most / bytes < 1 ? 1 : most / bytes, all = (rows + threads - 1) / threads;
  const int64_t blocks = all < enough ? all : enough;
  const Memory space = scratch(blocks * bytes);
  run(solve_rows, blocks, dim3(threads), 0, stream, a, rows, static_cast<double*>(space.data));
}

}  // namespace cassi
