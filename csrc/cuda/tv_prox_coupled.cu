// The iterations of tv_prox with one norm for all bands of a pixel (Frobenius or nuclear): several
// at once where a block can hold enough pixels of all bands, else one at a time, through global
// memory.
#include "parts.cuh"
#include "tv.cuh"

namespace cassi {
namespace cuda {
namespace {

// A block holds u, p and q of kColumns × Rows pixels of all bands in shared memory, the planes of a
// band behind each other. As for single bands (tv_prox.cu) what lies beyond is made up, and the
// pixels near the border are not written.
constexpr int kColumns = 32, kAcross = 16;  // and rows of threads

struct Sweep {
  int64_t down, across, count;
};

template <int Rows>
constexpr int kept(int iterations) {
  const int off = 2 * iterations + 1;
  return off < Rows && off < kColumns ? (Rows - off) * (kColumns - off) : 0;
}

template <class D, class T, int Rows>
__global__ void __launch_bounds__(kColumns* kAcross, 2)
    tv_held(const __grid_constant__ TvProx a, const __grid_constant__ Sweep s) {
  constexpr int plane = Rows * kColumns, band = 3 * plane, P = plane, Q = 2 * plane;
  const Geometry& g = a.g;
  const int iterations = static_cast<int>(a.iterations), margin = iterations + 1;
  const int bands = static_cast<int>(g.bands), column = static_cast<int>(threadIdx.x);
  T* const shared = reinterpret_cast<T*>(shared_memory());
  const D* const x = static_cast<const D*>(a.x.data);
  for (int64_t block = blockIdx.x; block < s.count; block += gridDim.x) {
    const int64_t rest = block / s.across, b = rest / s.down;
    const int64_t h0 = rest % s.down * (Rows - 2 * iterations - 1) - margin;
    const int64_t w = block % s.across * (kColumns - 2 * iterations - 1) - margin + column;
    const T limit = limit_of<T>(a, b);
    // Calls f(row, h, is the pixel in the image, is it written, where its u of the first band is).
    const auto each_pixel = [&](auto f) {
      for (int row = static_cast<int>(threadIdx.y); row < Rows; row += kAcross) {
        const int64_t h = h0 + row;
        const bool inside = h >= 0 && h < g.height && w >= 0 && w < g.width;
        const bool written = inside && row >= margin && row < Rows - iterations &&
                             column >= margin && column < kColumns - iterations;
        f(row, h, inside, written, shared + row * kColumns + column);
      }
    };
    each_pixel([&](int, int64_t h, bool inside, bool, T* at) {
      const bool some = inside && a.dual_in.data;
      int64_t from = some ? index(a.dual_in, b, 0, 0, h, w) : 0;
      for (int c = 0; c < bands; ++c, at += band, from += a.dual_in.stride[2]) {
        at[P] = some ? load<T>(a.dual_in, from) : T(0);
        at[Q] = some ? load<T>(a.dual_in, from + a.dual_in.stride[1]) : T(0);
      }
    });
    __syncthreads();
    for (int n = 0;; ++n) {
      const bool last = n == iterations;
      each_pixel([&](int row, int64_t h, bool inside, bool written, T* at) {
        const D* image = x + (inside ? index(a.x, b, 0, h, w) : 0);
        D* to = static_cast<D*>(a.u.data) + (written ? index(a.u, b, 0, h, w) : 0);
#pragma unroll 2
        for (int c = 0; c < bands; ++c, at += band, image += a.x.stride[1]) {
          const T above = row > 0 ? at[P - kColumns] : T(0), left = column > 0 ? at[Q - 1] : T(0);
          const T own = inside ? widen<T>(__ldg(image)) : T(0);
          const T u = own + (at[P] - above) + (at[Q] - left);
          if (!last)
            at[0] = u;
          else if (written && a.u.data)
            to[c * a.u.stride[1]] = narrow<D>(u);
        }
      });
      if (last) break;
      __syncthreads();
      each_pixel([&](int row, int64_t h, bool inside, bool, T* at) {
        const bool below = row + 1 < Rows && h + 1 < g.height;
        const bool right = column + 1 < kColumns && w + 1 < g.width;
        Symmetric<T> square = {};  // P Pᵀ of the 2×C dual P
        T* edge = at;
#pragma unroll 2
        for (int c = 0; c < bands; ++c, edge += band) {
          const T u = edge[0];
          T down = edge[P], across = edge[Q];
          if (below) down += static_cast<T>(kTvStep) * (edge[kColumns] - u);
          if (right) across += static_cast<T>(kTvStep) * (edge[1] - u);
          edge[P] = down;
          edge[Q] = across;
          square.a += down * down;
          square.b += down * across;
          square.c += across * across;
        }
        const Symmetric<T> shrink = a.norm == Norm::nuclear ? nuclear_shrinkage(limit, square)
                                                            : frobenius_shrinkage(limit, square);
        // Edges outside of the image stay zero.
#pragma unroll 2
        for (int c = 0; c < bands; ++c, at += band) {
          const T down = at[P], across = at[Q];
          at[P] = inside ? shrink.a * down + shrink.b * across : T(0);
          at[Q] = inside ? shrink.b * down + shrink.c * across : T(0);
        }
      });
      __syncthreads();
    }
    if (a.dual_out.data)
      each_pixel([&](int, int64_t h, bool, bool written, const T* at) {
        if (!written) return;
        T* to = static_cast<T*>(a.dual_out.data) + index(a.dual_out, b, 0, 0, h, w);
        for (int c = 0; c < bands; ++c, at += band, to += a.dual_out.stride[2]) {
          to[0] = at[P];
          to[a.dual_out.stride[1]] = at[Q];
        }
      });
    __syncthreads();
  }
}

// As many iterations as leave two fifths of the pixels that are held to be written; none where not
// even one does, or the pixels do not fit.
template <class T, int Rows>
int64_t most_held(const Geometry& g) {
  if (g.bands > shared_limit() / static_cast<int64_t>(3 * Rows * kColumns * sizeof(T))) return 0;
  int64_t n = 0;
  while (5 * kept<Rows>(static_cast<int>(n) + 1) >= 2 * Rows * kColumns) ++n;
  return n;
}

template <class D, class T, int Rows>
void run_held(const TvProx& a, void* stream) {
  const Geometry& g = a.g;
  const int64_t off = 2 * a.iterations + 1;
  Sweep s;
  s.down = (g.height + Rows - off - 1) / (Rows - off);
  s.across = (g.width + kColumns - off - 1) / (kColumns - off);
  s.count = g.batch * s.down * s.across;
  run(tv_held<D, T, Rows>, s.count, dim3(kColumns, kAcross),
      g.bands * 3 * Rows * kColumns * sizeof(T), stream, a, s);
}

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
  const int64_t by_many = most_held<T, 2 * kAcross>(g), by_few = most_held<T, kAcross>(g);
  const int64_t held = by_many > 0 ? by_many : by_few, most = held > 0 ? held : 1;
  if (held == 0 && a.iterations > 0 && a.dual_in.data && a.dual_in.dtype != a.sums) {
    TvProx convert = a;
    convert.u = {};
    convert.dual_out = buffer(memory[2]);
    run_lines(finish<D, T>, all, stream, convert, all.rows);
    a.dual_in = convert.dual_out;
  }
  // The sweeps write by turns into two buffers, the last one into dual_out if there is one.
  const View u = a.u, result = a.dual_out;
  View turns[2] = {result, {}};
  const int64_t sweeps = (a.iterations + most - 1) / most;
  for (int64_t left = a.iterations, after = sweeps - 1; after >= 0; --after) {
    const bool direct = held > 0 && after == 0;  // to u, without a dual in between
    View& turn = turns[after % 2];
    if (!turn.data && !direct) turn = buffer(memory[after % 2]);
    a.dual_out = direct ? result : turn;
    a.u = direct ? u : View{};
    a.iterations = (left + after) / (after + 1);
    left -= a.iterations;
    if (by_many > 0)
      run_held<D, T, 2 * kAcross>(a, stream);
    else if (by_few > 0)
      run_held<D, T, kAcross>(a, stream);
    else
      run_lines(iterate<D, T>, pixels, stream, a, pixels.rows);
    a.dual_in = a.dual_out;
  }
  if (held > 0 && sweeps > 0) return;
  a.u = u;
  a.dual_out = sweeps == 0 ? result : View{};
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
