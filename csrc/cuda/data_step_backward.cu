// The gradients of the data step, see data_step_backward in ops/_reference.py:
//
//   w = S A grad,  z = S (y − A v),  x = v + Aᵀz,
//   dv = grad − Aᵀw,  dy = w,  dρ = −w·z,  dm = Σ dv·z − x·w
#include "parts.cuh"
#include "rows.cuh"

namespace cassi {
namespace cuda {
namespace {

struct Fused {
  DataStepBackward a;
  Rows r;
  Tile grad, v, out;
  View mask;  // rows of dm that this kernel writes, of each sample
  View w, z;  // where they are kept for a kernel that follows, if any
};

// The sum over the threads of each row, which all of them get, in an order that does not change.
template <class T>
CASSI_DEVICE_INLINE T sum_row(T part, T* space) {
  const unsigned i = threadIdx.x;
  space[i] = part;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (i < half && i + half < blockDim.x) space[i] += space[i + half];
    __syncthreads();
  }
  return space[0];
}

// As `emit` with v = grad and z = -w, and dm besides.
template <int N, class T, class E, class D>
CASSI_DEVICE_INLINE void emit_both(const Fused& p, const Factors<T, E>& f, const T* z, int column,
                                   const D* grad, const D* v, D* out, Apart<N> out_on) {
  constexpr int pair = N > 1 ? kPair : 1, at_once = N > 1 ? 2 : 4;
  const DataStepBackward& a = p.a;
  const int bands = static_cast<int>(a.g.bands);
  const int start = static_cast<int>(band_offset(a.g, 0)) + column;
  const MaskRow<T, E> mask = mask_row<T, E>(f.mask, f.at, 0, f.staged, f.width);
  typename MaskRow<T, E>::Offset m = mask.offset(0, column);
  T factor[N];
  if constexpr (MaskRow<T, E>::staged) mask.run(factor, m);
  const T* w = f.z + start;
  z += start;
  T* dm = static_cast<T*>(p.mask.data) + index(p.mask, f.at.b, 0, 0, f.at.h, column);
  T sum[N] = {};
  int c = 0;
  const auto some = [&](auto count) {
    constexpr int n = decltype(count)::value;
    T part[n][N], dv[n][N];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if constexpr (!MaskRow<T, E>::staged) {
        mask.run(factor, m);
        m += mask.band;
      }
      T wi[N], zi[N], x[N];
      load_run<N, pair>(wi, w + i * f.step);
      load_run<N, pair>(zi, z + i * f.step);
      load_run<N, N>(dv[i], grad + i * p.grad.band);
      load_run<N, N>(x, v + i * p.v.band);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dv[i][j] -= factor[j] * wi[j];
        x[j] += factor[j] * zi[j];
        part[i][j] = dv[i][j] * zi[j] - x[j] * wi[j];
      }
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      store_run(out, dv[i]);
      advance(out, out_on);
      if (a.per_band) {
        store_run(dm + (c + i) * p.mask.stride[2], part[i]);
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += part[i][j];
      }
    }
    grad += n * p.grad.band;
    v += n * p.v.band;
    w += n * f.step;
    z += n * f.step;
    c += n;
  };
  while (c + at_once <= bands) some(std::integral_constant<int, at_once>());
  while (c < bands) some(std::integral_constant<int, 1>());
  if (!a.per_band) store_run(dm, sum);
}

// One shot: rows of grad, and of v where z is needed, stay in shared memory, each read once.
template <bool Mask, class D, class T, class E, int N>
__global__ void __launch_bounds__(kMost<N>, kBlocks<T, E, N>)
    backward_rows(const __grid_constant__ Fused p) {
  const DataStepBackward& a = p.a;
  const Geometry& g = a.g;
  const Rows& r = p.r;
  const int bands = static_cast<int>(g.bands), step = static_cast<int>(g.step);
  const bool both = a.need_mask || a.need_rho;
  constexpr int pair = N > 1 ? kPair : 1;
  const bool through = N == 1 && p.grad.bands_inner && p.out.bands_inner;
  char* memory = row_memory(r);
  D* grad = reinterpret_cast<D*>(memory);
  D* v = reinterpret_cast<D*>(memory + r.second);
  T* staged = reinterpret_cast<T*>(memory + r.mask);
  T* w = reinterpret_cast<T*>(memory + r.first_line);
  T* z = reinterpret_cast<T*>(memory + r.second_line);
  for (unsigned block = blockIdx.x; block < r.count; block += gridDim.x) {
    const Place at = place(r, g, block);
    if (at.inside) {
      copy_in(p.grad, grad, row_of<const D>(a.grad, at, 0), bands, r.width);
      if (both) copy_in(p.v, v, row_of<const D>(a.v, at, 0), bands, r.width);
      if (std::is_same_v<E, Staged>) stage_mask(a.mask, at, 1, r.width, false, staged);
      for (int i = threadIdx.x; both && i < r.wide; i += blockDim.x)  // copies are under way
        z[i] = load<T>(a.y, index(a.y, at.b, 0, at.h, i));
    }
    await_copies();
    __syncthreads();
    T product = 0;
    if (at.inside) {
      const MaskRow<T, E> mask = mask_row<T, E>(a.mask, at, 0, staged, r.width);
      for (int first = pair * threadIdx.x; first < r.wide; first += pair * blockDim.x) {
        T of_grad[pair] = {}, of_v[pair] = {};
        gather(of_grad, g, p.grad, grad, 0, mask, 0, bands, first);
        if (both) gather(of_v, g, p.v, v, 0, mask, 0, bands, first);
#pragma unroll
        for (int j = 0; j < pair; ++j) {
          const int i = first + j;
          const T rho = load<T>(a.rho, index(a.rho, at.b, 0, at.h, i));
          const T gram = load<T>(a.gram, index(a.gram, at.b, 0, 0, at.h, i));
          const T wi = damped_solve(of_grad[j], gram, rho);
          w[i] = wi;
          store(a.grad_y, index(a.grad_y, at.b, 0, at.h, i), wi);
          if (p.w.data) store(p.w, index(p.w, at.b, 0, at.h, i), wi);
          if (!both) continue;
          const T zi = damped_solve(z[i] - of_v[j], gram, rho);
          z[i] = zi;
          if (p.z.data) store(p.z, index(p.z, at.b, 0, at.h, i), zi);
          product += wi * zi;
          if (a.need_rho && a.per_pixel)
            store(a.grad_rho, index(a.grad_rho, at.b, 0, at.h, i), -wi * zi);
        }
      }
    }
    __syncthreads();
    if (a.need_rho && !a.per_pixel) {
      const T sum = sum_row(product, z + r.wide);
      if (at.inside && threadIdx.x == 0)
        static_cast<T*>(a.grad_rho.data)[at.b * g.height + at.h] = -sum;
    }
    if (at.inside) {
      const Factors<T, E> factors = {a.mask, at, staged, w, r.width, r.wide, 1, step, T(-1), false};
      const int offset = static_cast<int>(band_offset(g, 0));
      for (int i = N * threadIdx.x; i < r.width; i += N * blockDim.x) {
        D* here = grad + i * p.grad.column;
        D* out = through ? here : row_of<D>(a.grad_v, at, 0) + i * a.grad_v.stride[3];
        const Apart<N> out_on = through ? p.grad.band : a.grad_v.stride[1];
        if constexpr (Mask)
          emit_both<N>(p, factors, z, i, here, v + i * p.v.column, out, out_on);
        else
          emit<true, N, pair, false>(factors, 0, bands, offset, i, here, p.grad.band, out, out_on);
      }
    }
    __syncthreads();
    if (through) {
      if (at.inside) copy_out(p.out, row_of<D>(a.grad_v, at, 0), grad, bands, r.width);
      __syncthreads();
    }
  }
}

template <class D, class T>
bool launch_rows(const DataStepBackward& a, void* stream) {
  const Geometry& g = a.g;
  const bool both = a.need_mask || a.need_rho, staged = a.mask.stride[2] == 0;
  const int64_t wide = detector_width(g), size = sizeof(T);
  if (g.shots != 1 || !is_small(g) || a.grad.dtype != a.v.dtype || a.grad_v.dtype != a.v.dtype ||
      g.bands * g.width > shared_limit())
    return false;
  Fused p = {a,
             {},
             tile_of(a.grad, g, g.bands, g.width),
             tile_of(a.v, g, g.bands, g.width),
             tile_of(a.grad_v, g, g.bands, g.width),
             a.grad_mask,
             {},
             {}};
  const bool runs = !p.grad.bands_inner && !(both && p.v.bands_inner) && in_pairs(g) &&
                    takes_runs(g, a.mask, a.v.dtype, kRun<T>) && in_runs(a.grad_v, 4, kRun<T>);
  if (!arrange(p.r, g, g.bands, p.grad.bytes(g.bands, g.width),
               both ? p.v.bytes(g.bands, g.width) : 0, staged ? g.width * size : 0, wide * size,
               both ? (wide + kThreads) * size : 0, runs, runs ? kPair : 1))
    return false;
  // dm summed over the batch: where it has few elements, each sample's is summed here and the
  // samples afterwards; else w and z are kept, for a kernel with a thread for each element.
  const bool over_batch = a.need_mask && !a.per_sample;
  const bool parts = over_batch && !a.per_band, later = over_batch && a.per_band;
  Memory memory = {};
  const int64_t plane = g.height * g.width, detector = g.batch * g.height * wide;
  if (parts) {
    memory = scratch(g.batch * plane * size);
    p.mask = {memory.data, a.sums, {plane, plane, 0, g.width, 1}};
  }
  if (later) {
    memory = scratch(2 * detector * size);
    p.w = scratch_view(memory, a.sums, 1, g.height, wide);
    p.z = p.w;
    p.z.data = static_cast<T*>(memory.data) + detector;
  }
  with_mask<D, kRun<T>, 1>(a.mask, a.v.dtype, g, runs, [&](auto e, auto n) {
    using E = decltype(e);
    const auto kernel = a.need_mask && !later ? backward_rows<true, D, T, E, n.cube>
                                              : backward_rows<false, D, T, E, n.cube>;
    run(kernel, p.r.count, p.r.threads, p.r.shared(), stream, p);
  });
  if (parts) sum_batch(memory.data, a.grad_mask.data, g.batch, plane, a.sums, stream);
  if (later) gradients(a, p.w, p.z, true, false, stream);
  return true;
}

}  // namespace
}  // namespace cuda

void launch(const DataStepBackward& a, void* stream) {
  using namespace cuda;
  if (with_types(a.v.dtype, a.sums,
                 [&](auto d, auto t) { return launch_rows<decltype(d), decltype(t)>(a, stream); }))
    return;
  // Several shots, or rows that do not fit: w and z pass through memory.
  const Geometry& g = a.g;
  const int64_t wide = detector_width(g), n = g.batch * g.shots * g.height * wide;
  const Geometry detector = {g.batch, g.shots, 1, g.height, wide, 0};
  const bool both = a.need_mask || a.need_rho;
  const Memory memory = scratch((both ? 2 : 1) * n * size_of(a.sums));
  const View w = scratch_view(memory, a.sums, g.shots, g.height, wide);
  launch(Forward{g, a.sums, a.grad, a.mask, w}, stream);
  solve({{detector, a.sums, w, a.gram, a.rho, w}, {}, a.grad_y}, stream);
  if (both) {
    View z = w;
    z.data = static_cast<char*>(memory.data) + n * size_of(a.sums);
    launch(Forward{g, a.sums, a.v, a.mask, z}, stream);
    solve({{detector, a.sums, z, a.gram, a.rho, z}, a.y, {}}, stream);
    gradients(a, w, z, a.need_mask, a.need_rho, stream);
  }
  backproject({{g, a.sums, w, a.mask, a.grad_v, false}, a.grad, true}, stream);
}

}  // namespace cassi
