// Groups of similar patches: the singular values of each matrix shrunk, and the patches added up;
// see cpu/shrink_groups.cpp.
#include "device.cuh"

namespace cassi {
namespace cuda {
namespace {

constexpr int kThreads = 64;          // to a group
constexpr int kSweeps = 16;           // at most; five to seven are enough
constexpr int64_t kStack = 20 << 10;  // bytes of the patches of a group in shared memory, about
constexpr int kElements = 256;        // of a row, to a block that adds
constexpr int kRows = 4;
constexpr int kGroups = 16;  // that a thread of it looks at in turn
constexpr int kPatches = 4;

template <class T>
struct Limits {
  static constexpr T epsilon = sizeof(T) == 8 ? T(0x1p-52) : T(0x1p-23);
  static constexpr T least = sizeof(T) == 8 ? T(0x1p-1000) : T(0x1p-120);
};

template <class T>
struct alignas(16) Four {
  T at[4];
};

// The layout of a block's shared memory. Matrices have whole tiles of 4 x 4, with zeros beyond the
// patches. If the patches of a group do not fit, they are read twice, in slabs of values.
struct Layout {
  int matches, side;        // of a matrix
  int slab, pitch, slices;  // a tile of the Gram matrix is summed in so many slices
  CASSI_MEMBER int tiles() const { return side / 4; }
  CASSI_MEMBER int pairs() const { return tiles() * (tiles() + 1) / 2; }
  CASSI_MEMBER int matrix() const { return side * side; }
  // Sums of the slices at first, eigenvectors and what is next later.
  CASSI_MEMBER int work() const {
    const int sums = 16 * pairs() * slices;
    return sums > 3 * matrix() ? sums : 3 * matrix();
  }
  CASSI_MEMBER int stack() const { return (matches + 1) * pitch; }
  template <class T>
  CASSI_MEMBER int64_t bytes() const {
    return (matrix() + work() + stack() + 2 * side) * static_cast<int64_t>(sizeof(T)) +
           side * static_cast<int64_t>(sizeof(int64_t)) + (2 * side + kSweeps) * sizeof(int);
  }
};

template <class T>
Layout layout_of(const Groups& g) {
  Layout l = {};
  l.matches = static_cast<int>(g.matches);
  l.side = (l.matches + 3) / 4 * 4;
  const int64_t fit = kStack / ((g.matches + 1) * static_cast<int64_t>(sizeof(T)));
  l.slab = static_cast<int>(g.numbers() < fit ? g.numbers() : fit);
  l.pitch = l.slab | 1;  // rows begin in different banks
  l.slices = l.pairs() < kThreads ? kThreads / l.pairs() : 1;
  return l;
}

template <class T>
struct alignas(2 * sizeof(T)) Two {
  T x, y;
};

// The shared memory of a block.
template <class T>
struct Shared {
  int64_t* places;  // of the patches' first numbers in the image
  T *matrix, *work, *stack, *factors;
  Two<T>* turns;  // cosine and sine
  T *next, *vectors, *next_vectors;
  int *rows, *columns, *turned;
  CASSI_MEMBER explicit Shared(const Layout& l, char* memory) {
    places = reinterpret_cast<int64_t*>(memory);
    matrix = reinterpret_cast<T*>(places + l.side);
    work = matrix + l.matrix();
    next = work;
    vectors = next + l.matrix();
    next_vectors = vectors + l.matrix();
    turns = reinterpret_cast<Two<T>*>(work + l.work());
    factors = work + l.work() + l.side;
    stack = factors + l.side;
    rows = reinterpret_cast<int*>(stack + l.stack());
    columns = rows + l.side;
    turned = columns + l.side;
  }
  CASSI_MEMBER void swap() {
    T* const a = matrix;
    T* const v = vectors;
    matrix = next;
    next = a;
    vectors = next_vectors;
    next_vectors = v;
  }
};

// Rows 2k and 2k + 1 meet in a round. Where a row sits in the next one, so that in n - 1 rounds
// each meets every other; then all sit where they began.
CASSI_DEVICE_INLINE int seat(int n, int row) {
  if (row == 0) return 0;
  if (row % 2 != 0) return row == 1 ? 2 : row - 2;
  return row + 2 < n ? row + 2 : n - 1;
}

template <class T>
CASSI_DEVICE_INLINE Two<T> two(const T* from) {
  return *reinterpret_cast<const Two<T>*>(from);
}

// Turns a symmetric matrix until it is as good as diagonal; the rows of `vectors` become the
// eigenvectors. All threads of the block take part: rows that meet turn at once, and go to their
// next seats in the other half of the memory, where the results may stay.
template <class T>
CASSI_DEVICE_INLINE void diagonalize(Shared<T>& m, int n, T largest) {
  const int thread = static_cast<int>(threadIdx.x), half = n / 2;
  const T small = largest * Limits<T>::epsilon;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int k = thread; k < n * n; k += kThreads)
      if (k / n < k % n && (m.matrix[k] < 0 ? -m.matrix[k] : m.matrix[k]) > small)
        m.turned[sweep] = 1;
    __syncthreads();
    if (m.turned[sweep] == 0) return;
    for (int round = 0; round < n - 1; ++round) {
      for (int k = thread; k < half; k += kThreads) {
        const T* const at = m.matrix + 2 * k * (n + 1);
        const Two<T> upper = two(at);
        const T apart = upper.y, difference = at[n + 1] - upper.x, twice = apart + apart;
        T c = T(1), s = T(0), moved = T(0);
        if ((apart < 0 ? -apart : apart) > small) {
          const T below = (difference < 0 ? -difference : difference) +
                          sqrt(difference * difference + twice * twice);
          const T t = (difference < 0 ? -twice : twice) /
                      (below > Limits<T>::least ? below : Limits<T>::least);
          c = T(1) / sqrt(t * t + T(1));
          s = t * c;
          moved = t * apart;
        }
        m.turns[k] = {c, s};
        m.factors[k] = moved;
      }
      __syncthreads();
      for (int k = thread; k < half * half; k += kThreads) {
        const int i = k / half, j = k % half;
        const Two<T> u = m.turns[i], v = m.turns[j];
        const T* const at = m.matrix + 2 * i * n + 2 * j;
        const Two<T> p = two(at), q = two(at + n);
        Two<T> x = {u.x * p.x - u.y * q.x, u.x * p.y - u.y * q.y};
        Two<T> y = {u.y * p.x + u.x * q.x, u.y * p.y + u.x * q.y};
        x = {v.x * x.x - v.y * x.y, v.y * x.x + v.x * x.y};
        y = {v.x * y.x - v.y * y.y, v.y * y.x + v.x * y.y};
        if (i == j) {
          const T moved = m.factors[i];
          x = {p.x - moved, moved != T(0) ? T(0) : p.y};
          y = {moved != T(0) ? T(0) : q.x, q.y + moved};
        }
        const int left = seat(n, 2 * j), right = seat(n, 2 * j + 1);
        T* const upper = m.next + seat(n, 2 * i) * n;
        T* const lower = m.next + seat(n, 2 * i + 1) * n;
        upper[left] = x.x;
        upper[right] = x.y;
        lower[left] = y.x;
        lower[right] = y.y;
      }
      for (int k = thread; k < half * half; k += kThreads) {
        const int i = k / half, j = k % half;
        const Two<T> u = m.turns[i];
        const T* const at = m.vectors + 2 * i * n + 2 * j;
        const Two<T> p = two(at), q = two(at + n);
        T* const to = m.next_vectors + 2 * j;
        *reinterpret_cast<Two<T>*>(to + seat(n, 2 * i) * n) = {u.x * p.x - u.y * q.x,
                                                               u.x * p.y - u.y * q.y};
        *reinterpret_cast<Two<T>*>(to + seat(n, 2 * i + 1) * n) = {u.y * p.x + u.x * q.x,
                                                                   u.y * p.y + u.x * q.y};
      }
      m.swap();
      __syncthreads();
    }
  }
}

// Reads numbers of all patches, less their mean, which becomes the last row of the stack.
template <class T>
CASSI_DEVICE_INLINE void fill(const ShrinkGroups& a, const Layout& l, const Shared<T>& m,
                              int64_t first, int count) {
  const int channels = static_cast<int>(a.g.channels), side = static_cast<int>(a.g.patch);
  for (int d = static_cast<int>(threadIdx.x); d < count; d += kThreads) {
    const int number = static_cast<int>(first) + d, pixel = number / channels;
    const int64_t there = index(a.image, 0, number % channels, pixel / side, pixel % side);
    T* const to = m.stack + d;
    T mean = 0;
    for (int i = 0; i < l.matches; ++i) {
      const T value = load<T>(a.image, m.places[i] + there);
      to[i * l.pitch] = value;
      mean += value;
    }
    mean /= static_cast<T>(l.matches);
    for (int i = 0; i < l.matches; ++i) to[i * l.pitch] -= mean;
    to[l.matches * l.pitch] = mean;
  }
}

// Adds what the numbers in the stack give to the tiles of the Gram matrix, slice by slice.
template <class T>
CASSI_DEVICE_INLINE void add_products(const Layout& l, const Shared<T>& m, bool begin, int count) {
  const int items = l.pairs() * l.slices, last = l.matches - 1;
  for (int k = static_cast<int>(threadIdx.x); k < items; k += kThreads) {
    int high = 0, pair = k / l.slices;
    while (pair > high) pair -= ++high;
    const T *x[4], *y[4];
    for (int i = 0; i < 4; ++i) {
      const int low_row = 4 * pair + i, high_row = 4 * high + i;
      x[i] = m.stack + (low_row < last ? low_row : last) * l.pitch;
      y[i] = m.stack + (high_row < last ? high_row : last) * l.pitch;
    }
    T sums[16] = {};
    for (int d = k % l.slices; d < count; d += l.slices)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sums[4 * i + j] += x[i][d] * y[j][d];
    for (int i = 0; i < 16; ++i) {
      T& to = m.work[i * items + k];
      to = begin ? sums[i] : to + sums[i];
    }
  }
}

template <class T>
CASSI_DEVICE_INLINE T product(const Layout& l, const Shared<T>& m, int i, int j) {
  if (i > j) return product(l, m, j, i);
  if (j >= l.matches) return T(0);
  const int high = j / 4, items = l.pairs() * l.slices;
  const T* from =
      m.work + (4 * (i % 4) + j % 4) * items + (high * (high + 1) / 2 + i / 4) * l.slices;
  T sum = 0;
  for (int k = 0; k < l.slices; ++k) sum += from[k];
  return sum;
}

// A block takes one group. N is the number of rows of its matrix if the compiler knows it, else 0.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    shrink(const __grid_constant__ ShrinkGroups a, const __grid_constant__ Layout l) {
  const int n = N > 0 ? N : l.side, thread = static_cast<int>(threadIdx.x);
  const int64_t numbers = a.g.numbers();
  const T threshold = load<T>(a.threshold, 0), square = threshold * threshold;
  const bool whole = l.slab == numbers;
  const auto length = [&](int64_t first) {
    return static_cast<int>(numbers - first < l.slab ? numbers - first : l.slab);
  };
  for (int64_t group = blockIdx.x; group < a.g.count; group += gridDim.x) {
    Shared<T> m(l, shared_memory());
    for (int k = thread; k < l.matches; k += kThreads) {
      const Corner corner = corner_of(a.g, group, k);
      m.places[k] = index(a.image, 0, 0, corner.row, corner.column);
      m.rows[k] = static_cast<int>(corner.row);
      m.columns[k] = static_cast<int>(corner.column);
    }
    for (int k = thread; k < kSweeps; k += kThreads) m.turned[k] = 0;
    __syncthreads();
    if (thread == 0) {
      int* const reach = static_cast<int*>(a.reach) + 4 * group;
      for (int side = 0; side < 2; ++side) {
        const int* const corners = side == 0 ? m.rows : m.columns;
        int least = corners[0], most = corners[0];
        for (int k = 1; k < l.matches; ++k) {
          least = corners[k] < least ? corners[k] : least;
          most = corners[k] > most ? corners[k] : most;
        }
        reach[2 * side] = least;
        reach[2 * side + 1] = most;
      }
    }
    for (int64_t first = 0; first < numbers; first += l.slab) {
      fill(a, l, m, first, length(first));
      __syncthreads();
      add_products(l, m, first == 0, length(first));
      __syncthreads();
    }
    for (int k = thread; k < n * n; k += kThreads) m.matrix[k] = product(l, m, k / n, k % n);
    __syncthreads();
    T trace = 0;
    for (int i = 0; i < n; ++i) trace += m.matrix[i * n + i];
    // No singular value is above the threshold where all of them together are not.
    const bool any = !(trace <= square), finite = trace - trace == T(0);
    for (int k = thread; k < n * n; k += kThreads) m.vectors[k] = k / n == k % n ? T(1) : T(0);
    if (any && finite) diagonalize(m, n, trace);
    for (int k = thread; k < n; k += kThreads) {
      const T value = m.matrix[k * n + k];
      const T ratio = square / (value > Limits<T>::least ? value : Limits<T>::least);
      m.factors[k] = any && ratio < T(1) ? (T(1) + sqrt(T(1) - ratio)) / T(2) : T(0);
    }
    __syncthreads();
    for (int k = thread; k < n * n; k += kThreads) {
      const int i = k / n, j = k % n;
      T sum = 0;
      for (int v = 0; v < n; ++v) sum += m.factors[v] * m.vectors[v * n + i] * m.vectors[v * n + j];
      m.matrix[k] = finite ? sum : static_cast<T>(NAN);
    }
    __syncthreads();
    T* const clean = static_cast<T*>(a.clean) + group * l.matches * numbers;
    for (int64_t first = 0; first < numbers; first += l.slab) {
      // A thread reads the numbers that it has filled in.
      if (!whole) fill(a, l, m, first, length(first));
      for (int d = thread; d < length(first); d += kThreads) {
        const T mean = m.stack[l.matches * l.pitch + d];
        for (int i = 0; i < l.matches; i += 4) {
          T sums[4] = {mean, mean, mean, mean};
          for (int j = 0; j < l.matches; ++j) {
            const T value = m.stack[j * l.pitch + d];
            const Four<T> row = *reinterpret_cast<const Four<T>*>(m.matrix + j * n + i);
            for (int k = 0; k < 4; ++k) sums[k] += row.at[k] * value;
          }
          for (int k = 0; k < 4 && i + k < l.matches; ++k)
            clean[(i + k) * numbers + first + d] = sums[k];
        }
      }
    }
    if (!whole) __syncthreads();  // places are read until here
  }
}

CASSI_INLINE int64_t strips(const Groups& g) { return (g.height + kRows - 1) / kRows; }

// Sums of the counts of all threads before this one; the whole sum follows them.
CASSI_DEVICE_INLINE int before(int* sums, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread + 1] = count;
  if (thread == 0) sums[0] = 0;
  __syncthreads();
  for (int step = 1; step < kElements; step *= 2) {
    const int other = thread >= step ? sums[thread + 1 - step] : 0;
    __syncthreads();
    sums[thread + 1] += other;
    __syncthreads();
  }
  return sums[thread];
}

// A patch that reaches a block: where its numbers are, and its first row and column.
struct Placed {
  int64_t first;
  int row, column;
};

// A block takes a part of a few rows, each thread an element of each. They find the groups that
// reach it, and the patches of these, in an order of their own that is always the same.
template <class T>
__global__ void __launch_bounds__(kElements) add(const __grid_constant__ AddGroups a) {
  const int thread = static_cast<int>(threadIdx.x);
  const int channels = static_cast<int>(a.g.channels), side = static_cast<int>(a.g.patch);
  const int matches = static_cast<int>(a.g.matches);
  int* const sums = reinterpret_cast<int*>(shared_memory());
  Placed* const patches = reinterpret_cast<Placed*>(sums + kElements + 2);
  uint16_t* const groups = reinterpret_cast<uint16_t*>(patches + kElements * kPatches);
  const int64_t width = a.g.width * channels, parts = (width + kElements - 1) / kElements;
  for (int64_t block = blockIdx.x; block < strips(a.g) * parts; block += gridDim.x) {
    const int64_t element = block % parts * kElements + thread;
    const int64_t last =
        (element - thread + kElements < width ? element - thread + kElements : width) - 1;
    const int row = static_cast<int>(block / parts) * kRows;
    const int begin = static_cast<int>((element - thread) / channels);
    const int end = static_cast<int>(last / channels);
    const int column = static_cast<int>(element / channels);
    const int channel = static_cast<int>(element % channels);
    const auto reaches = [&](int first_row, int last_row, int first_column, int last_column) {
      return first_row < row + kRows && row < last_row + side && first_column <= end &&
             begin < last_column + side;
    };
    T total[kRows] = {};
    for (int64_t start = 0; start < a.g.count; start += kElements * kGroups) {
      unsigned mask = 0;
      int count = 0;
      for (int k = 0; k < kGroups; ++k) {
        const int64_t group = start + k * kElements + thread;
        if (group >= a.g.count) break;
        const int* const r = static_cast<const int*>(a.reach) + 4 * group;
        if (!reaches(r[0], r[1], r[2], r[3])) continue;
        mask |= 1u << k;
        ++count;
      }
      int at = before(sums, count);
      const int found = sums[kElements];
      for (int k = 0; k < kGroups; ++k)
        if (mask >> k & 1) groups[at++] = static_cast<uint16_t>(k * kElements + thread);
      __syncthreads();
      for (int some = 0; some < found * matches; some += kElements * kPatches) {
        Placed kept[kPatches];
        count = 0;
        for (int k = 0; k < kPatches; ++k) {
          const int entry = some + k * kElements + thread;
          if (entry >= found * matches) break;
          const int64_t group = start + groups[entry / matches];
          const Corner corner = corner_of(a.g, group, entry % matches);
          const int there = static_cast<int>(corner.row), here = static_cast<int>(corner.column);
          if (!reaches(there, there, here, here)) continue;
          kept[count++] = {(group * matches + entry % matches) * a.g.numbers(), there, here};
        }
        at = before(sums, count);
        const int several = sums[kElements];
        for (int k = 0; k < count; ++k) patches[at + k] = kept[k];
        __syncthreads();
        for (int k = 0; k < several; ++k) {
          const int across = column - patches[k].column;
          if (across < 0 || across >= side || element > last) continue;
          const T* const from =
              static_cast<const T*>(a.clean) + patches[k].first + across * channels + channel;
          for (int i = 0; i < kRows; ++i) {
            const int down = row + i - patches[k].row;
            if (down >= 0 && down < side) total[i] += from[down * side * channels];
          }
        }
      }
    }
    for (int i = 0; i < kRows && row + i < a.g.height; ++i)
      if (element <= last) static_cast<T*>(a.total)[(row + i) * width + element] += total[i];
  }
}

}  // namespace
}  // namespace cuda

void launch(const ShrinkGroups& a, void* stream) {
  using namespace cuda;
  with_sums(a.g.sums, [&](auto t) {
    using T = decltype(t);
    const Layout l = layout_of<T>(a.g);
    const auto kernel = l.side == 16 ? shrink<T, 16> : l.side == 24 ? shrink<T, 24> : shrink<T, 0>;
    run(kernel, a.g.count, dim3(kThreads), l.bytes<T>(), stream, a, l);
  });
}

void launch(const AddGroups& a, void* stream) {
  using namespace cuda;
  const int64_t parts = (a.g.width * a.g.channels + kElements - 1) / kElements;
  const int64_t shared = (kElements + 2) * sizeof(int) + kElements * kPatches * sizeof(Placed) +
                         kElements * kGroups * sizeof(uint16_t);
  with_sums(a.g.sums, [&](auto t) {
    run(add<decltype(t)>, strips(a.g) * parts, dim3(kElements), shared, stream, a);
  });
}

}  // namespace cassi
