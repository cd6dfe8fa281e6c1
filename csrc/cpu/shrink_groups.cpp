// Groups of similar patches: the singular values of each matrix shrunk, and the patches added up.
//
// A tile is as many groups as a vector has lanes. Gram matrices lie side by side in the lanes, so
// that Jacobi's rotations run on all of them at once; a lane that has converged is turned by
// nothing, and comes out the same whatever is beside it.
#include "rows.h"

namespace cassi {
namespace CASSI_ISA {
namespace {

constexpr int64_t kSweeps = 16;   // at most; five to seven are enough
constexpr int64_t kStrands = 64;  // parts of an image that are added up side by side
constexpr int64_t kScatter = 37;  // neighbouring rows go to strands far apart

template <class T>
constexpr T epsilon = sizeof(T) == 8 ? T(0x1p-52) : T(0x1p-23);
template <class T>
constexpr T least = sizeof(T) == 8 ? T(0x1p-1000) : T(0x1p-120);

template <class T>
using V = typename Vec<T>::type;

template <class T>
static inline V<T> larger(V<T> a, V<T> b) {
  return a > b ? a : b;
}

template <class T>
static inline V<T> magnitude(V<T> a) {
  return a < V<T>{} ? -a : a;
}

template <class T>
static inline V<T> root(V<T> a) {
  return a * reciprocal_root<T>(larger<T>(a, splat<T>(least<T>)));
}

// 1/√(1 + t²), with another Newton step: thousands of turns that all shorten would add up.
template <class T>
static inline V<T> cosine(V<T> t) {
  const V<T> square = t * t + T(1), c = reciprocal_root<T>(square);
  return c + c * (T(0.5) - T(0.5) * square * c * c);
}

template <class T>
static inline bool any_above(V<T> a, V<T> b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)) != 0;
#endif
  for (int64_t i = 0; i < Vec<T>::lanes; ++i)
    if (a[i] > b[i]) return true;
  return false;
}

template <class T>
static inline void turn(V<T>& x, V<T>& y, V<T> c, V<T> s) {
  const V<T> moved = c * x - s * y;
  y = s * x + c * y;
  x = moved;
}

// Turns symmetric matrices, of which the upper triangles are used, until they are as good as
// diagonal; the rows of `vectors` become the eigenvectors. What is left beside the diagonal is no
// more than rounding errors of the matrix, or of what is compared with its eigenvalues.
template <class T>
CASSI_APART void diagonalize(V<T>* a, V<T>* vectors, int64_t n, V<T> square) {
  V<T> trace = {};
  for (int64_t i = 0; i < n; ++i) {
    trace += a[i * n + i];
    for (int64_t k = 0; k < n; ++k) vectors[i * n + k] = splat<T>(i == k ? T(1) : T(0));
  }
  const V<T> small = larger<T>(square, trace) * epsilon<T>;
  bool turned = true;
  for (int64_t sweep = 0; sweep < kSweeps && turned; ++sweep) {
    turned = false;
    for (int64_t p = 0; p + 1 < n; ++p)
      for (int64_t q = p + 1; q < n; ++q) {
        const V<T> apart = a[p * n + q], size = magnitude<T>(apart);
        if (!any_above<T>(size, small)) continue;
        turned = true;
        const V<T> difference = a[q * n + q] - a[p * n + p], twice = apart + apart;
        const V<T> length = root<T>(difference * difference + twice * twice);
        const V<T> below = larger<T>(magnitude<T>(difference) + length, splat<T>(least<T>));
        const V<T> tangent = (difference < V<T>{} ? -twice : twice) / below;
        const V<T> t = size > small ? tangent : V<T>{};
        const V<T> c = size > small ? cosine<T>(t) : splat<T>(T(1));
        const V<T> s = t * c;
        a[p * n + p] -= t * apart;
        a[q * n + q] += t * apart;
        a[p * n + q] = size > small ? V<T>{} : apart;
        for (int64_t k = 0; k < p; ++k) turn<T>(a[k * n + p], a[k * n + q], c, s);
        for (int64_t k = p + 1; k < q; ++k) turn<T>(a[p * n + k], a[k * n + q], c, s);
        for (int64_t k = q + 1; k < n; ++k) turn<T>(a[p * n + k], a[q * n + k], c, s);
        V<T>*const x = vectors + p * n, *const y = vectors + q * n;
        for (int64_t k = 0; k < n; ++k) turn<T>(x[k], y[k], c, s);
      }
  }
}

template <class T>
T sum_of(V<T> a) {
  T sum = 0;
  for (int64_t i = 0; i < Vec<T>::lanes; ++i) sum += a[i];
  return sum;
}

// The groups of a tile and what is made of them.
template <class T>
struct Tile {
  static constexpr int64_t lanes = Vec<T>::lanes;
  const ShrinkGroups& a;
  int64_t n, numbers, pitch;
  T *stacks, *means;    // (lanes, n, pitch), (lanes, pitch)
  V<T>*gram, *vectors;  // (n, n)
  V<T>* factors;        // (n)
  T* scale;             // (n, n), of one group

  static int64_t size(const ShrinkGroups& a) {
    const int64_t n = a.g.matches, pitch = padded<T>(a.g.numbers());
    return (lanes * (n + 1) * pitch + lanes * n * (2 * n + 1) + padded<T>(n * n)) * sizeof(T);
  }

  Tile(const ShrinkGroups& a, char* memory)
      : a(a), n(a.g.matches), numbers(a.g.numbers()), pitch(padded<T>(numbers)) {
    Arena arena = {memory};
    stacks = arena.block<T>(lanes, n, pitch).base;
    means = arena.block<T>(lanes, 1, pitch).base;
    gram = reinterpret_cast<V<T>*>(arena.block<T>(n, n, lanes).base);
    vectors = reinterpret_cast<V<T>*>(arena.block<T>(n, n, lanes).base);
    factors = reinterpret_cast<V<T>*>(arena.block<T>(1, n, lanes).base);
    scale = arena.block<T>(1, 1, padded<T>(n * n)).base;
  }

  T* row(int64_t lane, int64_t i) const { return stacks + (lane * n + i) * pitch; }

  void read_patch(int64_t group, int64_t match, T* to) const {
    const Corner corner = corner_of(a.g, group, match);
    const int64_t side = a.g.patch, channels = a.g.channels;
    const View& v = a.image;
    constexpr Dtype own = sizeof(T) == 8 ? Dtype::f64 : Dtype::f32;
    const int64_t from = corner.row * v.stride[2] + corner.column * v.stride[3];
    if (v.dtype == own && v.stride[1] == 1 && v.stride[3] == channels) {
      for (int64_t r = 0; r < side; ++r)
        __builtin_memcpy(to + r * side * channels,
                         static_cast<const T*>(v.data) + from + r * v.stride[2],
                         side * channels * sizeof(T));
      return;
    }
    // A pixel is a row of the block, its components the columns.
    for (int64_t r = 0; r < side; ++r) {
      char* const start = static_cast<char*>(v.data) + (from + r * v.stride[2]) * size_of(v.dtype);
      const Part part = {start, v.dtype, 0, v.stride[3], v.stride[1]};
      read_block(Block<T>{to + r * side * channels, 0, channels}, part, 1, side, channels);
    }
  }

  // Less their mean; its Gram matrix goes into a lane. Whether all of it is finite.
  bool open(int64_t group, int64_t lane) {
    T* const mean = means + lane * pitch;
    for (int64_t i = 0; i < n; ++i) {
      read_patch(group, i, row(lane, i));
      for (int64_t d = numbers; d < pitch; ++d) row(lane, i)[d] = T(0);
    }
    for (int64_t d = 0; d < pitch; d += lanes) {
      V<T> sum = {};
      for (int64_t i = 0; i < n; ++i) sum += load(row(lane, i) + d);
      sum /= static_cast<T>(n);
      store(mean + d, sum);
      for (int64_t i = 0; i < n; ++i) store(row(lane, i) + d, load(row(lane, i) + d) - sum);
    }
    T trace = 0;
    T* const into = reinterpret_cast<T*>(gram) + lane;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t first = i; first < n; first += 4) {
        const int64_t count = n - first < 4 ? n - first : 4;
        const T* const others[4] = {row(lane, first), row(lane, first + (count > 1)),
                                    row(lane, first + (count > 2 ? 2 : 0)),
                                    row(lane, first + (count > 3 ? 3 : 0))};
        V<T> sums[4] = {};
        for (int64_t d = 0; d < pitch; d += lanes) {
          const V<T> own = load(row(lane, i) + d);
          for (int k = 0; k < 4; ++k) sums[k] += own * load(others[k] + d);
        }
        for (int64_t k = 0; k < count; ++k) into[(i * n + first + k) * lanes] = sum_of<T>(sums[k]);
      }
      trace += into[(i * n + i) * lanes];
    }
    return trace - trace == T(0);
  }

  void close(int64_t lane) {  // leaves nothing to turn
    T* const into = reinterpret_cast<T*>(gram) + lane;
    for (int64_t i = 0; i < n * n; ++i) into[i * lanes] = T(0);
  }

  // What each group is multiplied by, in place of its Gram matrix.
  void solve(T threshold) {
    const V<T> limit = splat<T>(threshold * threshold);
    diagonalize<T>(gram, vectors, n, limit);
    for (int64_t k = 0; k < n; ++k) {
      const V<T> ratio = limit / larger<T>(gram[k * n + k], splat<T>(least<T>));
      const V<T> rest = root<T>(larger<T>(T(1) - ratio, V<T>{}));
      factors[k] = ratio < T(1) ? (rest + T(1)) / T(2) : V<T>{};
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = i; j < n; ++j) gram[i * n + j] = V<T>{};
    for (int64_t k = 0; k < n; ++k) {
      if (!any_above<T>(factors[k], V<T>{})) continue;
      const V<T>* const vector = vectors + k * n;
      for (int64_t i = 0; i < n; ++i) {
        const V<T> scaled = factors[k] * vector[i];
        for (int64_t j = i; j < n; ++j) gram[i * n + j] += scaled * vector[j];
      }
    }
  }

  template <int kRows>
  void write_rows(int64_t lane, int64_t first, T* to) const {
    for (int64_t d = 0; d < pitch; d += lanes) {
      V<T> sums[kRows];
      const V<T> mean = load(means + lane * pitch + d);
      for (int r = 0; r < kRows; ++r) sums[r] = mean;
      for (int64_t j = 0; j < n; ++j) {
        const V<T> other = load(row(lane, j) + d);
        for (int r = 0; r < kRows; ++r) sums[r] += scale[(first + r) * n + j] * other;
      }
      for (int r = 0; r < kRows; ++r) {
        T* const place = to + r * numbers + d;
        if (d + lanes <= numbers)
          store(place, sums[r]);
        else
          store_part<T>(place, sums[r], numbers - d);
      }
    }
  }

  void write(int64_t lane, T* to) {
    const T* const from = reinterpret_cast<const T*>(gram) + lane;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = i; j < n; ++j)
        scale[i * n + j] = scale[j * n + i] = from[(i * n + j) * lanes];
    int64_t i = 0;
    for (; i + 6 <= n; i += 6) write_rows<6>(lane, i, to + i * numbers);
    for (; i < n; ++i) write_rows<1>(lane, i, to + i * numbers);
  }
};

template <class T>
void run_as(const ShrinkGroups& a, int64_t begin, int64_t end) {
  constexpr int64_t lanes = Vec<T>::lanes;
  Tile<T> tile(a, scratch(Tile<T>::size(a)));
  const int64_t numbers = a.g.matches * tile.numbers;
  const T threshold = scalar_at<T>(a.threshold, 0);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t first = t * lanes;
    bool finite[lanes] = {};
    for (int64_t lane = 0; lane < lanes; ++lane) {
      if (first + lane < a.g.count) finite[lane] = tile.open(first + lane, lane);
      if (!finite[lane]) tile.close(lane);
    }
    tile.solve(threshold);
    for (int64_t lane = 0; lane < lanes && first + lane < a.g.count; ++lane) {
      T* const to = static_cast<T*>(a.clean) + (first + lane) * numbers;
      if (finite[lane])
        tile.write(lane, to);
      else
        for (int64_t i = 0; i < numbers; ++i) to[i] = static_cast<T>(__builtin_nan(""));
    }
  }
}

template <class T>
void run_as(const AddGroups& a, int64_t begin, int64_t end) {
  const int64_t side = a.g.patch, channels = a.g.channels, line = side * channels;
  const T* from = static_cast<const T*>(a.clean);
  for (int64_t group = 0; group < a.g.count; ++group)
    for (int64_t match = 0; match < a.g.matches; ++match, from += side * line) {
      const Corner corner = corner_of(a.g, group, match);
      for (int64_t r = 0; r < side; ++r) {
        const int64_t strand = (corner.row + r) * kScatter % kStrands;
        if (strand < begin || strand >= end) continue;
        T* const to =
            static_cast<T*>(a.total) + ((corner.row + r) * a.g.width + corner.column) * channels;
        for (int64_t i = 0; i < line; ++i) to[i] += from[r * line + i];
      }
    }
}

}  // namespace

int64_t work(const ShrinkGroups& a) {
  const int64_t lanes = a.g.sums == Dtype::f64 ? Vec<double>::lanes : Vec<float>::lanes;
  return (a.g.count + lanes - 1) / lanes;
}

void run(const ShrinkGroups& a, int64_t begin, int64_t end) {
  a.g.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

int64_t work(const AddGroups&) { return kStrands; }

void run(const AddGroups& a, int64_t begin, int64_t end) {
  a.g.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
