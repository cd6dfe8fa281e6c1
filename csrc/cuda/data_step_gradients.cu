// The gradients of the data step with respect to mask and ρ, for any number of shots, any dtype and
// any size, from w and z in memory.
#include "parts.cuh"

namespace cassi {
namespace cuda {
namespace {

// dm[k,c,h,w] = Σ_b dv[b,c,h,w] z[b,k,h,w+o] − x[b,c,h,w] w[b,k,h,w+o] with dv = grad − Σ_l m_l w_l
// and x = v + Σ_l m_l z_l, summed over the bands too where they share a mask.
template <class T>
__global__ void __launch_bounds__(256)
    mask_gradient(const __grid_constant__ DataStepBackward a, const __grid_constant__ View w,
                  const __grid_constant__ View z, int64_t rows, int64_t mask_bands) {
  const Geometry& g = a.g;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    int64_t rest = row;
    const int64_t h = rest % g.height;
    rest /= g.height;
    const int64_t band = rest % mask_bands;
    rest /= mask_bands;
    const int64_t k = rest % g.shots, sample = rest / g.shots;
    const int64_t b0 = a.per_sample ? sample : 0, b1 = a.per_sample ? sample + 1 : g.batch;
    const int64_t c0 = a.per_band ? band : 0, c1 = a.per_band ? band + 1 : g.bands;
    for (int64_t i = threadIdx.x; i < g.width; i += blockDim.x) {
      T sum = 0;
      for (int64_t b = b0; b < b1; ++b)
#pragma unroll 1
        for (int64_t c = c0; c < c1; ++c) {
          const int64_t o = i + band_offset(g, c);
          T dv = load<T>(a.grad, index(a.grad, b, c, h, i));
          T x = load<T>(a.v, index(a.v, b, c, h, i));
#pragma unroll 1
          for (int64_t l = 0; l < g.shots; ++l) {
            const T m = load<T>(a.mask, index(a.mask, b, l, c, h, i));
            dv -= m * load<T>(w, index(w, b, l, h, o));
            x += m * load<T>(z, index(z, b, l, h, o));
          }
          sum += dv * load<T>(z, index(z, b, k, h, o)) - x * load<T>(w, index(w, b, k, h, o));
        }
      store(a.grad_mask, index(a.grad_mask, sample, k, band, h, i), sum);
    }
  }
}

// dρ[b,k,h,w'] = −w z of each pixel.
template <class T>
__global__ void __launch_bounds__(256)
    rho_gradient_of_pixels(const __grid_constant__ DataStepBackward a,
                           const __grid_constant__ View w, const __grid_constant__ View z,
                           int64_t rows, int64_t wide) {
  const Geometry& g = a.g;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, k = row / g.height % g.shots, b = row / g.height / g.shots;
    for (int64_t i = threadIdx.x; i < wide; i += blockDim.x)
      store(a.grad_rho, index(a.grad_rho, b, k, h, i),
            -load<T>(w, index(w, b, k, h, i)) * load<T>(z, index(z, b, k, h, i)));
  }
}

// dρ[b,h] = −Σ_{k,w'} w z: a block for each row, summed in an order that does not change.
constexpr unsigned kSummands = 256;

template <class T>
__global__ void __launch_bounds__(kSummands)
    rho_gradient(const __grid_constant__ DataStepBackward a, const __grid_constant__ View w,
                 const __grid_constant__ View z, int64_t wide) {
  const Geometry& g = a.g;
  T* space = reinterpret_cast<T*>(shared_memory());
  for (int64_t row = blockIdx.x; row < g.batch * g.height; row += gridDim.x) {
    const int64_t h = row % g.height, b = row / g.height;
    T part = 0;
    for (int64_t k = 0; k < g.shots; ++k)
      for (int64_t i = threadIdx.x; i < wide; i += kSummands)
        part += load<T>(w, index(w, b, k, h, i)) * load<T>(z, index(z, b, k, h, i));
    space[threadIdx.x] = part;
    __syncthreads();
    for (unsigned half = kSummands / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) space[threadIdx.x] += space[threadIdx.x + half];
      __syncthreads();
    }
    // Only this thread writes space[0] for the next row: no barrier is needed.
    if (threadIdx.x == 0) static_cast<T*>(a.grad_rho.data)[row] = -space[0];
  }
}

}  // namespace

void gradients(const DataStepBackward& a, const View& w, const View& z, bool mask, bool rho,
               void* stream) {
  const Geometry& g = a.g;
  with_sums(a.sums, [&](auto t) {
    using T = decltype(t);
    if (mask) {
      const int64_t bands = a.per_band ? g.bands : 1;
      const Lines lines = {(a.per_sample ? g.batch : 1) * g.shots * bands * g.height, g.width};
      run_lines(mask_gradient<T>, lines, stream, a, w, z, lines.rows, bands);
    }
    const int64_t wide = detector_width(g);
    const Lines pixels = {g.batch * g.shots * g.height, wide};
    if (rho && a.per_pixel)
      run_lines(rho_gradient_of_pixels<T>, pixels, stream, a, w, z, pixels.rows, wide);
    else if (rho)
      run(rho_gradient<T>, g.batch * g.height, kSummands, kSummands * sizeof(T), stream, a, w, z,
          wide);
  });
}

}  // namespace cuda
}  // namespace cassi
