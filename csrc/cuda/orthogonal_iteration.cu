// V ← Q of (M + εI) V, for the leading eigenvectors of small matrices; see
// cpu/orthogonal_iteration.cpp. A block takes a sample.
#include "device.cuh"

namespace cassi {
namespace cuda {
namespace {

constexpr int kThreads = 128;

CASSI_INLINE int64_t numbers(const OrthogonalIteration& a) { return 2 * (a.size + 1) * a.rank; }

CASSI_DEVICE_INLINE double dot(const double* x, const double* y, int64_t size, int64_t apart) {
  double sum = 0;
  for (int64_t c = 0; c < size; ++c) sum += x[c * apart] * y[c * apart];
  return sum;
}

// In shared memory, or in scratch memory where `space` is not null.
__global__ void __launch_bounds__(kThreads)
    iterate(const __grid_constant__ OrthogonalIteration a, double* space) {
  const int64_t C = a.size, R = a.rank, thread = threadIdx.x;
  double* const v = space != nullptr ? space + blockIdx.x * numbers(a)
                                     : reinterpret_cast<double*>(shared_memory());
  double *const w = v + C * R, *const lengths = w + C * R, *const shares = lengths + R;
  for (int64_t b = blockIdx.x; b < a.batch; b += gridDim.x) {
    const View &m = a.moments, &f = a.frame;
    const auto moment = [&](int64_t c, int64_t j) {
      return load<double>(m, b * m.stride[0] + c * m.stride[1] + j * m.stride[2]);
    };
    const auto multiply = [&](double shift) {  // w = (M + shift I) v
      for (int64_t k = thread; k < C * R; k += kThreads) {
        const int64_t c = k / R, r = k % R;
        double sum = shift * v[k];
        for (int64_t j = 0; j < C; ++j) sum += moment(c, j) * v[j * R + r];
        w[k] = sum;
      }
      __syncthreads();
    };
    double trace = 0;
    for (int64_t c = 0; c < C; ++c) trace += moment(c, c);
    for (int64_t k = thread; k < C * R; k += kThreads)
      v[k] = load<double>(f, b * f.stride[0] + k / R * f.stride[1] + k % R * f.stride[2]);
    __syncthreads();
    for (int64_t step = 0; step < a.steps; ++step) {
      multiply(diagonal_shift(trace));
      for (int64_t r = thread; r < R; r += kThreads) lengths[r] = dot(w + r, w + r, C, R);
      // Project column r out of the columns after it.
      for (int64_t r = 0; r < R; ++r) {
        for (int64_t i = r + thread; i < R; i += kThreads) shares[i] = dot(w + r, w + i, C, R);
        __syncthreads();
        const double inverse = inverse_length(shares[r], lengths[r]), square = inverse * inverse;
        const int64_t behind = R - r;  // with itself
        for (int64_t k = thread; k < C * behind; k += kThreads) {
          const int64_t c = k / behind, i = r + k % behind;
          if (i == r)
            v[c * R + r] = w[c * R + r] * inverse;
          else
            w[c * R + i] -= shares[i] * square * w[c * R + r];
        }
        __syncthreads();
      }
    }
    multiply(0.0);
    for (int64_t k = thread; k < C * R; k += kThreads) a.found[b * C * R + k] = -v[k];
    for (int64_t r = thread; r < R; r += kThreads) {
      const double value = dot(v + r, w + r, C, R);
      a.values[b * R + r] = value < 0 ? 0.0 : value;  // a NaN stays a NaN
    }
    __syncthreads();  // v is read until here
  }
}

}  // namespace
}  // namespace cuda

void launch(const OrthogonalIteration& a, void* stream) {
  using namespace cuda;
  const int64_t bytes = numbers(a) * static_cast<int64_t>(sizeof(double));
  if (bytes <= shared_limit())
    return run(iterate, a.batch, dim3(kThreads), bytes, stream, a, nullptr);
  constexpr int64_t most = 512;  // blocks
  const int64_t blocks = a.batch < most ? a.batch : most;
  const Memory space = scratch(blocks * bytes);
  run(iterate, blocks, dim3(kThreads), 0, stream, a, static_cast<double*>(space.data));
}

}  // namespace cassi
