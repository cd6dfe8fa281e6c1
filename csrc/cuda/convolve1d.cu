// out[n] = Σ_m v[m] a[n-m] (convolve) and out[n] = Σ_m v[m] g[n+m] (correlate), row by row. A
// thread sums one output, in order of m; rows of threads share what they read through the cache.
#include "device.cuh"

namespace cassi {
namespace cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(256)
    convolve_rows(const __grid_constant__ Convolve a, int64_t length) {
  for (int64_t row = first_row(); row < a.rows; row += rows_apart()) {
    const int64_t a_row = row * a.a.stride[0], v_row = row * a.v.stride[0];
    for (int64_t n = threadIdx.x; n < length; n += blockDim.x) {
      // The taps m for which a has an element: n - m, or n + m, in [0, a.n).
      const int64_t first = a.correlate || n < a.n ? 0 : n - a.n + 1;
      const int64_t last = a.correlate || n >= a.m ? a.m : n + 1;
      T sum = 0;
#pragma unroll 4
      for (int64_t m = first; m < last; ++m)
        sum += load<T>(a.v, v_row + m * a.v.stride[1]) *
               load<T>(a.a, a_row + (a.correlate ? n + m : n - m) * a.a.stride[1]);
      store(a.out, row * a.out.stride[0] + n * a.out.stride[1], sum);
    }
  }
}

}  // namespace
}  // namespace cuda

void launch(const Convolve& a, void* stream) {
  using namespace cuda;
  const int64_t length = a.correlate ? a.n - a.m + 1 : a.n + a.m - 1;
  const Lines lines = {a.rows, length};
  with_sums(a.sums,
            [&](auto t) { run_lines(convolve_rows<decltype(t)>, lines, stream, a, length); });
}

}  // namespace cassi
