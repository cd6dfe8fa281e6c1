// 3×3 convolution of images by Winograd's algorithm F(4×4, 3×3), with what comes after it:
// 36 products in place of 144 for each 4×4 results of a channel.
//
//   d (6×6) → Bᵀ d B,   g (3×3) → G g Gᵀ,   y (4×4) = Aᵀ [Σ_c (G g Gᵀ) ⊙ (Bᵀ d B)] A
//
// A work is a few such tiles. For each of the 36 places their channels are a matrix, multiplied by
// that of the weights. The gradient of the weight is the transpose of this:
//
//   dg = Gᵀ [Σ_tiles (A dy Aᵀ) ⊙ (Bᵀ d B)] G
//
// Source: Lavin, Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.
#include "rows.h"

namespace cassi {
namespace CASSI_ISA {
namespace {

constexpr int64_t kSide = 4, kPatch = 6, kPlaces = kPatch * kPatch;
#if defined(__AVX512F__)
constexpr int kRows = 12;  // tiles whose sums are in registers
#else
constexpr int kRows = 6;
#endif
constexpr int64_t kBytes = 1 << 17;  // of the tiles of a work

template <class T>
using V = typename Vec<T>::type;

int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step; }

int64_t tiles_of(const Convolve3x3& a) {
  return a.batch * up(a.height, kSide) * up(a.width, kSide);
}

// Tiles of a work, a multiple of `kRows`.
template <class T>
int64_t count_of(const Convolve3x3& a) {
  const int64_t tile = kPlaces * (padded<T>(a.inputs) + padded<T>(a.outputs)) * sizeof(T);
  const int64_t fit = kBytes / (12 * tile);
  return 12 * (fit < 1 ? 1 : fit > 4 ? 4 : fit);
}

// Bᵀ d, one column.
template <class T>
static inline void transform_patch(const V<T>* d, int64_t step, V<T>* to) {
  const V<T> one = d[step], two = d[2 * step], three = d[3 * step], four = d[4 * step];
  const V<T> even = four - T(4) * two, odd = three - T(4) * one;
  const V<T> outer = four - two, twice = T(2) * (three - one);
  to[0] = T(4) * d[0] - T(5) * two + four;
  to[step] = even + odd;
  to[2 * step] = even - odd;
  to[3 * step] = outer + twice;
  to[4 * step] = outer - twice;
  to[5 * step] = T(4) * one - T(5) * three + d[5 * step];
}

// Aᵀ m, one column.
template <class T>
static inline void transform_sums(const V<T>* m, int64_t step, V<T>* to) {
  const V<T> near = m[step] + m[2 * step], tilt = m[step] - m[2 * step];
  const V<T> far = m[3 * step] + m[4 * step], slope = m[3 * step] - m[4 * step];
  to[0] = m[0] + near + far;
  to[step] = tilt + T(2) * slope;
  to[2 * step] = near + T(4) * far;
  to[3 * step] = tilt + T(8) * slope + m[5 * step];
}

// G g, one column of three.
template <class T>
static inline void transform_weights(const V<T>* g, int64_t step, V<T>* to, int64_t to_step) {
  const V<T> ends = (g[0] + g[2 * step]) * T(-1.0 / 6), middle = g[step] * T(1.0 / 6);
  const V<T> thin = g[0] * T(1.0 / 24) + g[2 * step] * T(1.0 / 6), half = g[step] * T(1.0 / 12);
  to[0] = g[0] * T(0.25);
  to[to_step] = ends - middle;
  to[2 * to_step] = ends + middle;
  to[3 * to_step] = thin + half;
  to[4 * to_step] = thin - half;
  to[5 * to_step] = g[2 * step];
}

// R rows of (rows × inputs)·(inputs × outputs), U vectors of each.
template <class T, int R, int U>
static inline void multiply(const T* rows, int64_t inputs, const T* weights, int64_t outputs,
                            T* to) {
  constexpr int64_t L = Vec<T>::lanes;
  V<T> sums[R][U] = {};
  for (int64_t c = 0; c < inputs; ++c) {
    V<T> w[U];
    for (int u = 0; u < U; ++u) w[u] = load(weights + c * outputs + u * L);
    for (int r = 0; r < R; ++r)
      for (int u = 0; u < U; ++u) sums[r][u] += rows[r * inputs + c] * w[u];
  }
  for (int r = 0; r < R; ++r)
    for (int u = 0; u < U; ++u) store(to + r * outputs + u * L, sums[r][u]);
}

template <class T, int U>
static inline void multiply_all(const T* rows, int64_t count, int64_t inputs, const T* weights,
                                int64_t outputs, T* to) {
  int64_t t = 0;
  for (; t + kRows <= count; t += kRows)
    multiply<T, kRows, U>(rows + t * inputs, inputs, weights, outputs, to + t * outputs);
  for (; t < count; ++t)
    multiply<T, 1, U>(rows + t * inputs, inputs, weights, outputs, to + t * outputs);
}

// A pointer to pixels whose channels lie side by side, and the distances between them.
template <class T>
struct Pixels {
  T* base;
  int64_t row, column;
  T* at(int64_t r, int64_t w) const { return base + r * row + w * column; }
};

template <class T>
bool in_place(const View& v, int64_t channels) {
  constexpr Dtype own = sizeof(T) == 8 ? Dtype::f64 : Dtype::f32;
  return v.dtype == own && v.stride[1] == 1 && channels % Vec<T>::lanes == 0;
}

char* address(const View& v, int64_t n, int64_t h, int64_t w) {
  return static_cast<char*>(v.data) +
         (n * v.stride[0] + h * v.stride[2] + w * v.stride[3]) * size_of(v.dtype);
}

template <class T>
Pixels<T> pixels(const View& v, int64_t n, int64_t h, int64_t w) {
  return {reinterpret_cast<T*>(address(v, n, h, w)), v.stride[2], v.stride[3]};
}

// The part of a view that begins at a pixel as rows of channels, and back.
Part row_of(const View& v, int64_t n, int64_t h, int64_t w) {
  return {address(v, n, h, w), v.dtype, 0, v.stride[3], v.stride[1]};
}

// Images of `channels` channels, and memory for a part of them.
template <class T>
struct Source {
  const View& view;
  int64_t channels, height, width;
  T* space;

  // side × side pixels from (h, w) on; those outside the image are zero.
  Pixels<T> open(int64_t n, int64_t h, int64_t w, int64_t side) const {
    const bool inside = h >= 0 && w >= 0 && h + side <= height && w + side <= width;
    if (inside && in_place<T>(view, channels)) return pixels<T>(view, n, h, w);
    const int64_t count = padded<T>(channels);
    const Pixels<T> own = {space, side * count, count};
    for (int64_t i = 0; i < side * side * count; ++i) space[i] = T(0);
    const int64_t left = w > 0 ? w : 0, right = w + side < width ? w + side : width;
    for (int64_t r = 0; r < side; ++r) {
      if (h + r < 0 || h + r >= height) continue;
      read_block(Block<T>{own.at(r, left - w), 0, count}, row_of(view, n, h + r, left), 1,
                 right - left, channels);
    }
    return own;
  }
};

// Bᵀ d B of a tile: place k of channel c goes to to[k * step + c].
template <class T>
void open_patch(const Source<T>& image, int64_t n, int64_t h, int64_t w, T* to, int64_t step) {
  const Pixels<T> from = image.open(n, h - 1, w - 1, kPatch);
  for (int64_t c = 0; c < padded<T>(image.channels); c += Vec<T>::lanes) {
    V<T> d[kPlaces], half[kPlaces];
    for (int i = 0; i < kPatch; ++i)
      for (int j = 0; j < kPatch; ++j) d[i * kPatch + j] = load(from.at(i, j) + c);
    for (int j = 0; j < kPatch; ++j) transform_patch<T>(d + j, kPatch, half + j);
    for (int i = 0; i < kPatch; ++i) {
      transform_patch<T>(half + i * kPatch, 1, d + i * kPatch);
      for (int j = 0; j < kPatch; ++j) store(to + (i * kPatch + j) * step + c, d[i * kPatch + j]);
    }
  }
}

template <class T>
struct Winograd {
  static constexpr int64_t L = Vec<T>::lanes;
  const Convolve3x3& a;
  int64_t inputs, outputs, count;  // padded to vectors; tiles of a work
  T *weights, *bias, *patches, *sums, *patch, *before, *after;

  static int64_t size(const Convolve3x3& a) {
    const int64_t in = padded<T>(a.inputs), out = padded<T>(a.outputs), count = count_of<T>(a);
    return ((kPlaces + 9) * in * out + out + kPlaces * (count * (in + out) + in) +
            2 * kSide * kSide * out + padded<T>(9 * a.inputs)) *
           sizeof(T);
  }

  Winograd(const Convolve3x3& a, char* memory)
      : a(a), inputs(padded<T>(a.inputs)), outputs(padded<T>(a.outputs)), count(count_of<T>(a)) {
    Arena arena = {memory};
    const auto take = [&](int64_t n) { return arena.block<T>(1, 1, n).base; };
    weights = take(kPlaces * inputs * outputs);
    bias = take(outputs);
    patches = take(kPlaces * count * inputs);
    sums = take(kPlaces * count * outputs);
    patch = take(kPlaces * inputs);
    before = take(kSide * kSide * outputs);
    after = take(kSide * kSide * outputs);
    prepare(take(9 * inputs * outputs), take(padded<T>(9 * a.inputs)));
  }

  // The weights (9, C, O) and then (36, C, O), zero where channels were added.
  void prepare(T* plain, T* one) {
    for (int64_t i = 0; i < 9 * inputs * outputs; ++i) plain[i] = T(0);
    for (int64_t o = 0; o < outputs; ++o) bias[o] = o < a.outputs ? scalar_at<T>(a.bias, o) : T(0);
    for (int64_t o = 0; o < a.outputs; ++o) {
      const View& v = a.weight;
      char* const start = static_cast<char*>(v.data) + o * v.stride[0] * size_of(v.dtype);
      read_block(Block<T>{one, 9, 3}, Part{start, v.dtype, v.stride[1], v.stride[2], v.stride[3]},
                 a.inputs, 3, 3);
      for (int64_t c = 0; c < a.inputs; ++c)
        for (int64_t k = 0; k < 9; ++k) plain[(k * inputs + c) * outputs + o] = one[c * 9 + k];
    }
    const int64_t matrix = inputs * outputs;
    for (int64_t i = 0; i < matrix; i += L) {
      V<T> g[9], half[18], all[kPlaces];
      for (int k = 0; k < 9; ++k) g[k] = load(plain + k * matrix + i);
      for (int k = 0; k < 3; ++k) transform_weights<T>(g + k, 3, half + k, 3);
      for (int k = 0; k < kPatch; ++k) transform_weights<T>(half + 3 * k, 1, all + kPatch * k, 1);
      for (int k = 0; k < kPlaces; ++k) store(weights + k * matrix + i, all[k]);
    }
  }

  void open(int64_t n, int64_t h, int64_t w, int64_t tile) const {
    const Source<T> image = {a.image, a.inputs, a.height, a.width, patch};
    open_patch(image, n, h, w, patches + tile * inputs, count * inputs);
  }

  void sum(int64_t tiles) const {
    for (int64_t k = 0; k < kPlaces; ++k) {
      const T *const rows = patches + k * count * inputs, *const w = weights + k * inputs * outputs;
      T* const to = sums + k * count * outputs;
      int64_t o = 0;
      for (; o + 2 * L <= outputs; o += 2 * L)
        multiply_all<T, 2>(rows, tiles, inputs, w + o, outputs, to + o);
      if (o < outputs) multiply_all<T, 1>(rows, tiles, inputs, w + o, outputs, to + o);
    }
  }

  void close(int64_t n, int64_t h, int64_t w, int64_t tile) const {
    const int64_t rows = a.height - h < kSide ? a.height - h : kSide;
    const int64_t columns = a.width - w < kSide ? a.width - w : kSide;
    const bool whole = rows == kSide && columns == kSide, adds = a.residual.data != nullptr;
    const Pixels<T> own = {before, kSide * outputs, outputs};
    Pixels<T> residual = own, to = {after, kSide * outputs, outputs};
    if (adds && whole && in_place<T>(a.residual, a.outputs)) {
      residual = pixels<T>(a.residual, n, h, w);
    } else if (adds) {
      for (int64_t r = 0; r < rows; ++r)
        read_block(Block<T>{own.at(r, 0), 0, outputs}, row_of(a.residual, n, h + r, w), 1, columns,
                   a.outputs);
    }
    const bool direct = whole && in_place<T>(a.out, a.outputs);
    if (direct) to = pixels<T>(a.out, n, h, w);
    for (int64_t o = 0; o < outputs; o += L) {
      V<T> m[kPlaces], half[kSide * kPatch];
      for (int64_t k = 0; k < kPlaces; ++k) m[k] = load(sums + (k * count + tile) * outputs + o);
      for (int j = 0; j < kPatch; ++j) transform_sums<T>(m + j, kPatch, half + j);
      const V<T> shift = load(bias + o);
      for (int i = 0; i < kSide; ++i) {
        V<T> y[kSide];
        transform_sums<T>(half + i * kPatch, 1, y);
        for (int j = 0; j < kSide; ++j) {
          V<T> value = y[j] + shift;
          if (adds) value += load(residual.at(i, j) + o);
          // A NaN stays one.
          if (a.rectify) value = value < V<T>{} ? V<T>{} : value;
          store(to.at(i, j) + o, value);
        }
      }
    }
    if (direct) return;
    for (int64_t r = 0; r < rows; ++r)
      write_block(row_of(a.out, n, h + r, w), Block<T>{to.at(r, 0), 0, outputs}, 1, columns,
                  a.outputs);
  }
};

// A dy, one column.
template <class T>
static inline void transform_slopes(const V<T>* y, int64_t step, V<T>* to, int64_t to_step) {
  const V<T> one = y[step], two = y[2 * step], three = y[3 * step];
  const V<T> even = y[0] + two, odd = one + three;
  const V<T> far = y[0] + T(4) * two, slope = T(2) * one + T(8) * three;
  to[0] = y[0];
  to[to_step] = even + odd;
  to[2 * to_step] = even - odd;
  to[3 * to_step] = far + slope;
  to[4 * to_step] = far - slope;
  to[5 * to_step] = three;
}

// Gᵀ u, one column.
template <class T>
static inline void transform_total(const V<T>* u, int64_t step, V<T>* to, int64_t to_step) {
  const V<T> near = u[step] + u[2 * step], tilt = u[2 * step] - u[step];
  const V<T> far = u[3 * step] + u[4 * step], slope = u[3 * step] - u[4 * step];
  to[0] = u[0] * T(0.25) - near * T(1.0 / 6) + far * T(1.0 / 24);
  to[to_step] = tilt * T(1.0 / 6) + slope * T(1.0 / 12);
  to[2 * to_step] = (far - near) * T(1.0 / 6) + u[5 * step];
}

// Adds a product (R × tiles)·(tiles × U vectors); `rows` has a tile after another, too.
template <class T, int R, int U>
static inline void add_product(const T* rows, int64_t inputs, const T* columns, int64_t outputs,
                               int64_t tiles, T* to) {
  constexpr int64_t L = Vec<T>::lanes;
  V<T> sums[R][U];
  for (int r = 0; r < R; ++r)
    for (int u = 0; u < U; ++u) sums[r][u] = load(to + r * outputs + u * L);
  for (int64_t t = 0; t < tiles; ++t) {
    V<T> y[U];
    for (int u = 0; u < U; ++u) y[u] = load(columns + t * outputs + u * L);
    for (int r = 0; r < R; ++r)
      for (int u = 0; u < U; ++u) sums[r][u] += rows[t * inputs + r] * y[u];
  }
  for (int r = 0; r < R; ++r)
    for (int u = 0; u < U; ++u) store(to + r * outputs + u * L, sums[r][u]);
}

template <class T>
struct WinogradBackward {
  static constexpr int64_t L = Vec<T>::lanes, kCount = 48;  // tiles at a time
  static constexpr int R = L < 4 ? 2 : L < 16 ? 4 : 8;      // channels whose sums are in registers
  const Convolve3x3Backward& a;
  int64_t inputs, outputs;  // padded to vectors
  T *patches, *slopes, *total, *space;

  static int64_t size(const Convolve3x3Backward& a) {
    const int64_t in = padded<T>(a.inputs), out = padded<T>(a.outputs);
    return kPlaces * (kCount * (in + out) + in * out + (in > out ? in : out)) * sizeof(T);
  }

  WinogradBackward(const Convolve3x3Backward& a, char* memory)
      : a(a), inputs(padded<T>(a.inputs)), outputs(padded<T>(a.outputs)) {
    Arena arena = {memory};
    const auto take = [&](int64_t n) { return arena.block<T>(kPlaces, 1, n).base; };
    patches = take(kCount * inputs);
    slopes = take(kCount * outputs);
    total = take(inputs * outputs);
    space = take(inputs > outputs ? inputs : outputs);
  }

  void open(int64_t n, int64_t h, int64_t w, int64_t tile) const {
    open_patch(Source<T>{a.image, a.inputs, a.height, a.width, space}, n, h, w,
               patches + tile * inputs, kCount * inputs);
    const Source<T> gradient = {a.gradient, a.outputs, a.height, a.width, space};
    const Pixels<T> from = gradient.open(n, h, w, kSide);
    for (int64_t o = 0; o < outputs; o += L) {
      V<T> y[kSide * kSide], half[kPatch * kSide], all[kPlaces];
      for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < kSide; ++j) y[i * kSide + j] = load(from.at(i, j) + o);
      for (int j = 0; j < kSide; ++j) transform_slopes<T>(y + j, kSide, half + j, kSide);
      for (int i = 0; i < kPatch; ++i)
        transform_slopes<T>(half + i * kSide, 1, all + i * kPatch, 1);
      for (int k = 0; k < kPlaces; ++k) store(slopes + (k * kCount + tile) * outputs + o, all[k]);
    }
  }

  void add(int64_t tiles) const {
    for (int64_t k = 0; k < kPlaces; ++k)
      for (int64_t c = 0; c < inputs; c += R) {
        const T *const rows = patches + k * kCount * inputs + c, *const y =
                                                                     slopes + k * kCount * outputs;
        T* const to = total + (k * inputs + c) * outputs;
        int64_t o = 0;
        for (; o + 2 * L <= outputs; o += 2 * L)
          add_product<T, R, 2>(rows, inputs, y + o, outputs, tiles, to + o);
        if (o < outputs) add_product<T, R, 1>(rows, inputs, y + o, outputs, tiles, to + o);
      }
  }

  void close(T* out) const {
    for (int64_t c = 0; c < a.inputs; ++c)
      for (int64_t o = 0; o < a.outputs; o += L) {
        V<T> u[kPlaces], half[3 * kPatch], g[9];
        for (int64_t k = 0; k < kPlaces; ++k) u[k] = load(total + (k * inputs + c) * outputs + o);
        for (int j = 0; j < kPatch; ++j) transform_total<T>(u + j, kPatch, half + j, kPatch);
        for (int i = 0; i < 3; ++i) transform_total<T>(half + i * kPatch, 1, g + 3 * i, 1);
        const int64_t count = a.outputs - o < L ? a.outputs - o : L;
        for (int64_t k = 0; k < 9; ++k)
          store_part(out + (k * a.inputs + c) * a.outputs + o, g[k], count);
      }
  }
};

template <class T>
void run_as(const Convolve3x3Backward& a, int64_t begin, int64_t end) {
  const WinogradBackward<T> all(a, scratch(WinogradBackward<T>::size(a)));
  const int64_t strips = up(a.height, kStrip);
  for (int64_t work = begin; work < end; ++work) {
    for (int64_t i = 0; i < kPlaces * all.inputs * all.outputs; ++i) all.total[i] = T(0);
    const int64_t n = work / strips, first = work % strips * kStrip;
    const int64_t last = first + kStrip < a.height ? first + kStrip : a.height;
    int64_t tiles = 0;
    for (int64_t h = first; h < last; h += kSide)
      for (int64_t w = 0; w < a.width; w += kSide) {
        all.open(n, h, w, tiles++);
        if (tiles < all.kCount) continue;
        all.add(tiles);
        tiles = 0;
      }
    if (tiles > 0) all.add(tiles);
    all.close(static_cast<T*>(a.out) + work * 9 * a.inputs * a.outputs);
  }
}

template <class T>
void run_as(const Convolve3x3& a, int64_t begin, int64_t end) {
  const Winograd<T> all(a, scratch(Winograd<T>::size(a)));
  const int64_t down = up(a.height, kSide), across = up(a.width, kSide), most = tiles_of(a);
  for (int64_t work = begin; work < end; ++work) {
    const int64_t first = work * all.count;
    const int64_t tiles = most - first < all.count ? most - first : all.count;
    const auto each = [&](auto step) {
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t tile = first + t, row = tile / across;
        step(row / down, row % down * kSide, tile % across * kSide, t);
      }
    };
    each([&](auto... place) { all.open(place...); });
    all.sum(tiles);
    each([&](auto... place) { all.close(place...); });
  }
}

}  // namespace

int64_t work(const Convolve3x3& a) {
  return up(tiles_of(a), a.sums == Dtype::f64 ? count_of<double>(a) : count_of<float>(a));
}

void run(const Convolve3x3& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

int64_t work(const Convolve3x3Backward& a) { return a.batch * up(a.height, kStrip); }

void run(const Convolve3x3Backward& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
