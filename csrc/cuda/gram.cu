// G[b,k,l,h,w'] = Σ_c m[k,c,w'-o(c)] m[l,c,w'-o(c)], and z = (G + diag ρ)⁺ r at every detector
// pixel.
#include "parts.cuh"

namespace cassi {
namespace cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(256)
    gram_direct(const __grid_constant__ Gram a, int64_t rows, int64_t wide) {
  const Geometry& g = a.g;
  const View& m = a.mask;
  const int64_t d = g.step < 0 ? -g.step : g.step;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    int64_t rest = row;
    const int64_t h = rest % g.height;
    rest /= g.height;
    const int64_t l = rest % g.shots;
    rest /= g.shots;
    const int64_t k = rest % g.shots, b = rest / g.shots;
    for (int64_t w = threadIdx.x; w < wide; w += blockDim.x) {
      const Ranks<int64_t> reach = ranks_at(g, w);
      T sum = 0;
#pragma unroll 1
      for (int64_t rank = reach.first; rank < reach.last; ++rank) {
        const int64_t c = band_of_rank(g, rank), column = w - rank * d;
        sum += load<T>(m, index(m, b, k, c, h, column)) * load<T>(m, index(m, b, l, c, h, column));
      }
      store(a.gram, index(a.gram, b, k, l, h, w), sum);
    }
  }
}

template <class T>
CASSI_DEVICE_INLINE T right_side(const Solve& p, int64_t b, int64_t k, int64_t h, int64_t w) {
  const T r = load<T>(p.a.r, index(p.a.r, b, k, h, w));
  return p.y.data ? load<T>(p.y, index(p.y, b, k, h, w)) - r : r;
}

template <class T>
CASSI_DEVICE_INLINE void put(const Solve& p, int64_t b, int64_t k, int64_t h, int64_t w, T z) {
  store(p.a.z, index(p.a.z, b, k, h, w), z);
  if (p.copy.data) store(p.copy, index(p.copy, b, k, h, w), z);
}

template <class T>
__global__ void __launch_bounds__(256) solve_one(const __grid_constant__ Solve p, int64_t rows) {
  const Geometry& g = p.a.g;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, b = row / g.height;
    for (int64_t w = threadIdx.x; w < g.width; w += blockDim.x) {
      const T rho = load<T>(p.a.rho, index(p.a.rho, b, 0, h, w));
      const T gram = load<T>(p.a.gram, index(p.a.gram, b, 0, 0, h, w));
      put(p, b, 0, h, w, damped_solve(right_side<T>(p, b, 0, h, w), gram, rho));
    }
  }
}

// The matrices and vectors of a pixel in the thread's own memory, or, where there are more than
// kOwn shots, in `space`, those of neighbouring threads next to each other.
constexpr int64_t kOwn = 4;

template <class T>
__global__ void __launch_bounds__(256, 1)
    solve_several(const __grid_constant__ Solve p, int64_t rows, T* space) {
  const Geometry& g = p.a.g;
  T own[2 * kOwn * kOwn + 2 * kOwn];
  T* memory = own;
  int64_t pitch = 1;
  if (space) {
    pitch = static_cast<int64_t>(gridDim.x) * blockDim.x * blockDim.y;
    memory = space + first_row() * blockDim.x + threadIdx.x;
  }
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, b = row / g.height;
    for (int64_t w = threadIdx.x; w < g.width; w += blockDim.x)
      solve_pixel(
          g.shots,
          [&](int64_t k, int64_t l) { return load<T>(p.a.gram, index(p.a.gram, b, k, l, h, w)); },
          [&](int64_t k) { return load<T>(p.a.rho, index(p.a.rho, b, k, h, w)); },
          [&](int64_t k) { return right_side<T>(p, b, k, h, w); },
          [&](int64_t k, T z) { put(p, b, k, h, w, z); }, true, memory, pitch, p.a.gram.dtype);
  }
}

template <class T>
void solve_as(const Solve& p, void* stream) {
  const Geometry& g = p.a.g;
  const Lines lines = {g.batch * g.height, g.width};
  if (g.shots == 1) return run_lines(solve_one<T>, lines, stream, p, lines.rows);
  if (g.shots <= kOwn)
    return run_lines(solve_several<T>, lines, stream, p, lines.rows, static_cast<T*>(nullptr));
  // As many threads as a moderate amount of memory serves.
  constexpr int64_t most = 64 << 20;
  const dim3 threads = lines.threads();
  const int64_t block = static_cast<int64_t>(threads.x) * threads.y;
  const int64_t bytes = (2 * g.shots * g.shots + 2 * g.shots) * block * sizeof(T);
  const int64_t enough = most / bytes < 1 ? 1 : most / bytes;
  const int64_t blocks = lines.blocks() < enough ? lines.blocks() : enough;
  const Memory space = scratch(blocks * bytes);
  run(solve_several<T>, blocks, threads, 0, stream, p, lines.rows, static_cast<T*>(space.data));
}

}  // namespace

void solve(const Solve& p, void* stream) {
  with_sums(p.a.sums, [&](auto t) { solve_as<decltype(t)>(p, stream); });
}

}  // namespace cuda

void launch(const Gram& a, void* stream) {
  using namespace cuda;
  const int64_t wide = detector_width(a.g);
  const Lines lines = {a.g.batch * a.g.shots * a.g.shots * a.g.height, wide};
  with_sums(a.sums, [&](auto t) {
    run_lines(gram_direct<decltype(t)>, lines, stream, a, lines.rows, wide);
  });
}

void launch(const GramSolve& a, void* stream) { cuda::solve({a, {}, {}}, stream); }

}  // namespace cassi
