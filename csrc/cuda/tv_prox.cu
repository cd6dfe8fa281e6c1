// Projected-gradient iterations on the dual of total variation, see ops/_reference_tv.py:
//
//   u = x + p − p↑ + q − q←,   (p, q) ← s·((p, q) + STEP·∇u),   s = min(1, limit / |·|)
#include "parts.cuh"
#include "tv.cuh"

namespace cassi {
namespace cuda {
namespace {

// Band by band: a block takes kSide × kSide pixels through all iterations. A thread holds kStrip of
// them, one below the other, in registers; neighbours in other threads pass u and q of all pixels,
// and p of the last in each strip, through shared memory. Values beyond the square are not known.
// Each iteration carries the error of that one pixel further inwards, so `iterations` pixels along
// the border are not written; above and to the left, where u uses earlier pixels, one more.
constexpr int kSide = 64, kStrip = 8;

struct Squares {
  int side;  // of what a block writes
  int64_t down, across, count;
  bool bands_first;  // neighbouring blocks take the bands of one place
};

template <class D, class T>
__global__ void __launch_bounds__(kSide* kSide / kStrip, sizeof(T) == 4 ? 2 : 1)
    tv_bands(const __grid_constant__ TvProx a, const __grid_constant__ Squares s) {
  const Geometry& g = a.g;
  const int iterations = static_cast<int>(a.iterations), margin = iterations + 1;
  T* u_shared = reinterpret_cast<T*>(shared_memory());
  T* q_shared = u_shared + kSide * kSide;
  T* p_shared = q_shared + kSide * kSide;  // of the last row of each strip
  const int column = static_cast<int>(threadIdx.x), strip = static_cast<int>(threadIdx.y);
  const int first = strip * kStrip * kSide + column;  // the strip's first pixel
  for (int64_t block = blockIdx.x; block < s.count; block += gridDim.x) {
    int64_t rest = block, c = 0;
    if (s.bands_first) {
      c = rest % g.bands;
      rest /= g.bands;
    }
    const int64_t w0 = rest % s.across * s.side - margin;
    rest /= s.across;
    const int64_t h0 = rest % s.down * s.side - margin + strip * kStrip;
    rest /= s.down;
    if (!s.bands_first) {
      c = rest % g.bands;
      rest /= g.bands;
    }
    const int64_t b = rest, w = w0 + column;
    const T limit = limit_of<T>(a, b);
    T x[kStrip], p[kStrip], q[kStrip], u[kStrip];
#pragma unroll
    for (int i = 0; i < kStrip; ++i) {
      const int64_t h = h0 + i;
      const bool inside = h >= 0 && h < g.height && w >= 0 && w < g.width;
      x[i] = p[i] = q[i] = 0;
      if (inside) {
        x[i] = fetch<T, D>(a.x.data, a.x.dtype, index(a.x, b, c, h, w));
        if (a.dual_in.data) {
          p[i] = load<T>(a.dual_in, index(a.dual_in, b, 0, c, h, w));
          q[i] = load<T>(a.dual_in, index(a.dual_in, b, 1, c, h, w));
        }
      }
      q_shared[first + i * kSide] = q[i];
    }
    p_shared[strip * kSide + column] = p[kStrip - 1];
    __syncthreads();
    for (int n = 0;; ++n) {
      T above = strip > 0 ? p_shared[(strip - 1) * kSide + column] : T(0);
#pragma unroll
      for (int i = 0; i < kStrip; ++i) {
        const T left = column > 0 ? q_shared[first + i * kSide - 1] : T(0);
        u[i] = x[i] + (p[i] - above) + (q[i] - left);
        above = p[i];
      }
      if (n == iterations) break;
#pragma unroll
      for (int i = 0; i < kStrip; ++i) u_shared[first + i * kSide] = u[i];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kStrip; ++i) {
        const int64_t h = h0 + i;
        T below = u[i], right = u[i];
        if (h + 1 < g.height) {
          if (i + 1 < kStrip)
            below = u[i + 1 < kStrip ? i + 1 : i];
          else if (strip + 1 < kSide / kStrip)
            below = u_shared[first + kStrip * kSide];
        }
        if (w + 1 < g.width && column + 1 < kSide) right = u_shared[first + i * kSide + 1];
        const T down = p[i] + static_cast<T>(kTvStep) * (below - u[i]);
        const T across = q[i] + static_cast<T>(kTvStep) * (right - u[i]);
        const T shrink = shrinkage(limit, down * down + across * across);
        // Edges outside of the image stay zero.
        const bool inside = h >= 0 && h < g.height && w >= 0 && w < g.width;
        p[i] = inside ? down * shrink : T(0);
        q[i] = inside ? across * shrink : T(0);
        q_shared[first + i * kSide] = q[i];
      }
      p_shared[strip * kSide + column] = p[kStrip - 1];
      __syncthreads();
    }
    const bool in_columns = column >= margin && column < margin + s.side && w < g.width;
#pragma unroll
    for (int i = 0; i < kStrip; ++i) {
      const int row = strip * kStrip + i;
      const int64_t h = h0 + i;
      if (!in_columns || row < margin || row >= margin + s.side || h >= g.height) continue;
      if (a.u.data) static_cast<D*>(a.u.data)[index(a.u, b, c, h, w)] = narrow<D>(u[i]);
      if (a.dual_out.data) {
        store(a.dual_out, index(a.dual_out, b, 0, c, h, w), p[i]);
        store(a.dual_out, index(a.dual_out, b, 1, c, h, w), q[i]);
      }
    }
    __syncthreads();
  }
}

template <class D, class T>
void launch_bands(const TvProx& a, void* stream) {
  const Geometry& g = a.g;
  Squares s;
  s.side = kSide - 2 * static_cast<int>(a.iterations) - 1;
  if (a.iterations > kSide / 4)
    throw std::runtime_error("cassi: too many iterations at once for a block of tv_prox");
  s.down = (g.height + s.side - 1) / s.side;
  s.across = (g.width + s.side - 1) / s.side;
  s.count = g.batch * g.bands * s.down * s.across;
  s.bands_first = a.x.stride[1] == 1 && a.x.stride[3] != 1;
  const int64_t shared = (2 * kSide + kSide / kStrip) * kSide * sizeof(T);
  if (const int64_t limit = shared_limit(); shared > limit)  // float64 on compute capability 7.5
    throw std::runtime_error("cassi: tv_prox needs " + std::to_string(shared) +
                             " bytes of shared memory, and this device has " +
                             std::to_string(limit) + ": use float32");
  run(tv_bands<D, T>, s.count, dim3(kSide, kSide / kStrip), shared, stream, a, s);
}

}  // namespace
}  // namespace cuda

void launch(const TvProx& a, void* stream) {
  using namespace cuda;
  if (a.sums != (a.x.dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32))
    throw std::runtime_error("cassi: tv_prox sums in the dtype of x, float32 at least");
  if (a.norm != Norm::band) return tv_coupled(a, stream);
  with_types(a.x.dtype, a.sums, [&](auto d, auto t) {
    launch_bands<decltype(d), decltype(t)>(a, stream);
    return true;
  });
}

}  // namespace cassi
