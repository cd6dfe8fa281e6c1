// The iterations of tv_prox with one norm for all bands of a pixel (Frobenius or nuclear): one at a
// time, through global memory, as the pixels of all bands are more than a block can hold.
#include "parts.cuh"
#include "tv.cuh"

namespace cassi {
namespace cuda {
namespace {

// Around one pixel of one band: x and the dual, which is zero where it is null and outside of the
// image.
template <class D, class T>
struct Pixel {
  const D* x;
  const T *p, *q;
  int64_t x_row, x_column, row, column;
  bool above, left;  // are there any

  __device__ __forceinline__ T u(int down, int across) const {
    const T image = widen<T>(__ldg(x + down * x_row + across * x_column));
    if (!p) return image;
    const int64_t i = down * row + across * column;
    const T last_p = down > 0 || above ? __ldg(p + i - row) : T(0);
    const T last_q = across > 0 || left ? __ldg(q + i - column) : T(0);
    return image + (__ldg(p + i) - last_p) + (__ldg(q + i) - last_q);
  }
};

// dual_out from dual_in, both in the dtype of the sums. All bands of a pixel by one thread, twice:
// for the norm, then to shrink.
template <class D, class T>
__global__ void __launch_bounds__(256) iterate(const __grid_constant__ TvProx a, int64_t rows) {
  const Geometry& g = a.g;
  const View &in = a.dual_in, &out = a.dual_out;
  const D* x = static_cast<const D*>(a.x.data);
  const T* dual = static_cast<const T*>(in.data);
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, b = row / g.height;
    const T limit = limit_of<T>(a, b);
    for (int64_t w = threadIdx.x; w < g.width; w += blockDim.x) {
      Pixel<D, T> first = {};
      first.x = x + index(a.x, b, 0, h, w);
      first.x_row = a.x.stride[2];
      first.x_column = a.x.stride[3];
      if (dual) {
        first.p = dual + index(in, b, 0, 0, h, w);
        first.q = first.p + in.stride[1];
        first.row = in.stride[3];
        first.column = in.stride[4];
        first.above = h > 0;
        first.left = w > 0;
      }
      T* to = static_cast<T*>(out.data) + index(out, b, 0, 0, h, w);
      Symmetric<T> square = {}, shrink = {};  // P Pᵀ of the 2×C dual P, and what P is multiplied by
      for (int pass = 0; pass < 2; ++pass) {
        Pixel<D, T> here = first;
#pragma unroll 1
        for (int64_t c = 0; c < g.bands; ++c) {
          const T u = here.u(0, 0);
          T down = dual ? __ldg(here.p) : T(0), across = dual ? __ldg(here.q) : T(0);
          if (h + 1 < g.height) down += static_cast<T>(kTvStep) * (here.u(1, 0) - u);
          if (w + 1 < g.width) across += static_cast<T>(kTvStep) * (here.u(0, 1) - u);
          here.x += a.x.stride[1];
          if (dual) {
            here.p += in.stride[2];
            here.q += in.stride[2];
          }
          if (pass == 0) {
            square.a += down * down;
            square.b += down * across;
            square.c += across * across;
          } else {
            to[0] = shrink.a * down + shrink.b * across;
            to[out.stride[1]] = shrink.b * down + shrink.c * across;
            to += out.stride[2];
          }
        }
        shrink = a.norm == Norm::nuclear ? nuclear_shrinkage(limit, square)
                                         : frobenius_shrinkage(limit, square);
      }
    }
  }
}

// u from dual_in, and a copy of dual_in in dual_out, each if there is one.
template <class D, class T>
__global__ void __launch_bounds__(256) finish(const __grid_constant__ TvProx a, int64_t rows) {
  const Geometry& g = a.g;
  const View& in = a.dual_in;
  for (int64_t row = first_row(); row < rows; row += rows_apart()) {
    const int64_t h = row % g.height, c = row / g.height % g.bands, b = row / g.height / g.bands;
    for (int64_t w = threadIdx.x; w < g.width; w += blockDim.x) {
      const auto dual = [&](int64_t which, int64_t up, int64_t left) {
        const bool some = in.data && up <= h && left <= w;
        return some ? load<T>(in, index(in, b, which, c, h - up, w - left)) : T(0);
      };
      const T p = dual(0, 0, 0), q = dual(1, 0, 0);
      if (a.u.data) {
        const T x = fetch<T, D>(a.x.data, a.x.dtype, index(a.x, b, c, h, w));
        const T u = x + (p - dual(0, 1, 0)) + (q - dual(1, 0, 1));
        static_cast<D*>(a.u.data)[index(a.u, b, c, h, w)] = narrow<D>(u);
      }
      if (a.dual_out.data) {
        store(a.dual_out, index(a.dual_out, b, 0, c, h, w), p);
        store(a.dual_out, index(a.dual_out, b, 1, c, h, w), q);
      }
    }
  }
}

template <class D, class T>
void launch_as(TvProx a, void* stream) {
  const Geometry& g = a.g;
  const Lines pixels = {g.batch * g.height, g.width}, all = {pixels.rows * g.bands, g.width};
  const int64_t n = g.bands * g.height * g.width;
  Memory memory[3] = {};
  const auto buffer = [&](Memory& own) -> View {
    own = scratch(2 * g.batch * n * sizeof(T));
    return {own.data, a.sums, {2 * n, n, g.height * g.width, g.width, 1}};
  };
  if (a.iterations > 0 && a.dual_in.data && a.dual_in.dtype != a.sums) {
    TvProx convert = a;
    convert.u = {};
    convert.dual_out = buffer(memory[2]);
    run_lines(finish<D, T>, all, stream, convert, all.rows);
    a.dual_in = convert.dual_out;
  }
  // The iterations write by turns into two buffers, the last one into dual_out if there is one.
  const View result = a.dual_out;
  View turns[2] = {result, {}};
  for (int64_t i = 0; i < 2 && i < a.iterations; ++i)
    if (!turns[i].data) turns[i] = buffer(memory[i]);
  for (int64_t left = a.iterations; left > 0; --left) {
    a.dual_out = turns[(left - 1) % 2];
    run_lines(iterate<D, T>, pixels, stream, a, pixels.rows);
    a.dual_in = a.dual_out;
  }
  a.dual_out = a.iterations == 0 ? result : View{};
  if (a.u.data || a.dual_out.data) run_lines(finish<D, T>, all, stream, a, all.rows);
}

}  // namespace

void tv_coupled(const TvProx& a, void* stream) {
  with_types(a.x.dtype, a.sums, [&](auto d, auto t) {
    launch_as<decltype(d), decltype(t)>(a, stream);
    return true;
  });
}

}  // namespace cuda
}  // namespace cassi
