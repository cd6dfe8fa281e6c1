// Trilinear interpolation between the eight corners of unit cells, and its gradient. A row of
// threads takes one cell, a thread some of its channels.
#include "device.cuh"

namespace cassi {
namespace cuda {
namespace {

CASSI_INLINE int64_t at(const View& v, int64_t i, int64_t j, int64_t k = 0) {
  return i * v.stride[0] + j * v.stride[1] + k * v.stride[2];
}

template <class T>
CASSI_DEVICE_INLINE T coordinate(const View& points, int64_t cell, int axis) {
  return (load<T>(points, at(points, cell, axis)) + T(1)) / T(2);
}

template <class T>
__global__ void __launch_bounds__(256) interpolate(const __grid_constant__ Trilinear a) {
  for (int64_t n = first_row(); n < a.cells; n += rows_apart()) {
    const T u = coordinate<T>(a.points, n, 0), v = coordinate<T>(a.points, n, 1);
    const T w = coordinate<T>(a.points, n, 2);
    for (int64_t f = threadIdx.x; f < a.channels; f += blockDim.x) {
      T corner[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) corner[i] = load<T>(a.features, at(a.features, n, i, f));
      store(a.out, at(a.out, n, f), trilinear_value(corner, u, v, w));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(256)
    spread_gradient(const __grid_constant__ TrilinearBackward a) {
  for (int64_t n = first_row(); n < a.cells; n += rows_apart()) {
    const T u = coordinate<T>(a.points, n, 0), v = coordinate<T>(a.points, n, 1);
    const T w = coordinate<T>(a.points, n, 2);
    for (int64_t f = threadIdx.x; f < a.channels; f += blockDim.x) {
      const T upstream = load<T>(a.grad, at(a.grad, n, f));
      for (int i = 0; i < 8; ++i)
        store(a.grad_features, at(a.grad_features, n, i, f), corner_weight(i, u, v, w) * upstream);
    }
  }
}

// One thread a cell: the sum over the channels runs in their order.
template <class T>
__global__ void __launch_bounds__(256)
    differentiate_points(const __grid_constant__ TrilinearBackward a) {
  const int64_t apart = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; n < a.cells;
       n += apart) {
    T share[8] = {}, slope[3];
    for (int64_t f = 0; f < a.channels; ++f) {
      const T upstream = load<T>(a.grad, at(a.grad, n, f));
#pragma unroll
      for (int i = 0; i < 8; ++i)
        share[i] += load<T>(a.features, at(a.features, n, i, f)) * upstream;
    }
    point_gradient(share, coordinate<T>(a.points, n, 0), coordinate<T>(a.points, n, 1),
                   coordinate<T>(a.points, n, 2), slope);
    for (int axis = 0; axis < 3; ++axis)
      store(a.grad_points, at(a.grad_points, n, axis), slope[axis]);
  }
}

}  // namespace
}  // namespace cuda

void launch(const Trilinear& a, void* stream) {
  using namespace cuda;
  const Lines lines = {a.cells, a.channels};
  with_sums(a.sums, [&](auto t) { run_lines(interpolate<decltype(t)>, lines, stream, a); });
}

void launch(const TrilinearBackward& a, void* stream) {
  using namespace cuda;
  const Lines lines = {a.cells, a.channels};
  with_sums(a.sums, [&](auto t) {
    using T = decltype(t);
    if (a.channels > 0) run_lines(spread_gradient<T>, lines, stream, a);
    run(differentiate_points<T>, (a.cells + 255) / 256, dim3(256), 0, stream, a);
  });
}

}  // namespace cassi
