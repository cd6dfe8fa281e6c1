// Groups of similar patches: the singular values of each matrix shrunk, and the patches added up;
// see cpu/shrink_groups.cpp. A block takes one group, and one row of the image.
#include "device.cuh"

namespace cassi {
namespace cuda {
namespace {

constexpr int kThreads = 64, kEntries = 256;
constexpr int kSweeps = 16;  // at most; five to seven are enough

template <class T>
struct Limits {
  static constexpr T epsilon = sizeof(T) == 8 ? T(0x1p-52) : T(0x1p-23);
  static constexpr T least = sizeof(T) == 8 ? T(0x1p-1000) : T(0x1p-120);
};

// Turns a symmetric matrix, of which the upper triangle is used, until it is as good as diagonal;
// the rows of `vectors` become the eigenvectors. All threads of the block take part.
template <class T>
CASSI_DEVICE_INLINE void diagonalize(T* a, T* vectors, int n, T square) {
  const int thread = static_cast<int>(threadIdx.x);
  T trace = 0;
  for (int i = 0; i < n; ++i) trace += a[i * n + i];
  const T small = (square > trace ? square : trace) * Limits<T>::epsilon;
  bool turned = true;
  for (int sweep = 0; sweep < kSweeps && turned; ++sweep) {
    turned = false;
    for (int p = 0; p + 1 < n; ++p)
      for (int q = p + 1; q < n; ++q) {
        // The same for all threads, which read what none changes before the barrier.
        const T apart = a[p * n + q];
        if (!((apart < 0 ? -apart : apart) > small)) continue;
        turned = true;
        const T difference = a[q * n + q] - a[p * n + p], twice = apart + apart;
        const T below = (difference < 0 ? -difference : difference) +
                        sqrt(difference * difference + twice * twice);
        const T t = (difference < 0 ? -twice : twice) /
                    (below > Limits<T>::least ? below : Limits<T>::least);
        const T c = T(1) / sqrt(t * t + T(1)), s = t * c;
        __syncthreads();
        for (int k = thread; k < n; k += kThreads) {
          T *const x = vectors + p * n + k, *const y = vectors + q * n + k;
          const T turned_x = c * *x - s * *y;
          *y = s * *x + c * *y;
          *x = turned_x;
          if (k == p) {
            a[p * n + p] -= t * apart;
            a[q * n + q] += t * apart;
            a[p * n + q] = T(0);
          } else if (k != q) {
            T& u = k < p ? a[k * n + p] : a[p * n + k];
            T& v = k < q ? a[k * n + q] : a[q * n + k];
            const T turned_u = c * u - s * v;
            v = s * u + c * v;
            u = turned_u;
          }
        }
        __syncthreads();
      }
  }
}

template <class T>
CASSI_DEVICE_INLINE T number_at(const ShrinkGroups& a, int64_t group, int64_t match, int64_t d) {
  const Corner corner = corner_of(a.g, group, match);
  const int64_t pixel = d / a.g.channels, row = corner.row + pixel / a.g.patch;
  const int64_t column = corner.column + pixel % a.g.patch;
  return load<T>(a.image, index(a.image, 0, d % a.g.channels, row, column));
}

template <class T>
CASSI_DEVICE_INLINE T mean_at(const ShrinkGroups& a, int64_t group, int64_t d) {
  T sum = 0;
  for (int64_t i = 0; i < a.g.matches; ++i) sum += number_at<T>(a, group, i, d);
  return sum / static_cast<T>(a.g.matches);
}

template <class T>
__global__ void __launch_bounds__(kThreads) shrink(const __grid_constant__ ShrinkGroups a) {
  const int n = static_cast<int>(a.g.matches), thread = static_cast<int>(threadIdx.x);
  const int64_t numbers = a.g.numbers();
  T* const gram = reinterpret_cast<T*>(shared_memory());
  T *const vectors = gram + n * n, *const factors = vectors + n * n;
  const T threshold = load<T>(a.threshold, 0), square = threshold * threshold;
  for (int64_t group = blockIdx.x; group < a.g.count; group += gridDim.x) {
    T* const stack = static_cast<T*>(a.clean) + group * n * numbers;
    for (int64_t d = thread; d < numbers; d += kThreads) {
      const T mean = mean_at<T>(a, group, d);
      for (int i = 0; i < n; ++i) stack[i * numbers + d] = number_at<T>(a, group, i, d) - mean;
    }
    __syncthreads();
    for (int k = thread; k < n * n; k += kThreads) {
      const int i = k / n, j = k % n;
      vectors[k] = i == j ? T(1) : T(0);
      if (j < i) continue;
      T sum = 0;
      for (int64_t d = 0; d < numbers; ++d) sum += stack[i * numbers + d] * stack[j * numbers + d];
      gram[k] = sum;
    }
    __syncthreads();
    T trace = 0;
    for (int i = 0; i < n; ++i) trace += gram[i * n + i];
    const bool finite = trace - trace == T(0);
    __syncthreads();
    if (finite) diagonalize(gram, vectors, n, square);
    for (int k = thread; k < n; k += kThreads) {
      const T value = gram[k * n + k];
      const T ratio = square / (value > Limits<T>::least ? value : Limits<T>::least);
      factors[k] = ratio < T(1) ? (T(1) + sqrt(T(1) - ratio)) / T(2) : T(0);
    }
    __syncthreads();
    for (int k = thread; k < n * n; k += kThreads) {
      const int i = k / n, j = k % n;
      T sum = 0;
      for (int v = 0; v < n; ++v) sum += factors[v] * vectors[v * n + i] * vectors[v * n + j];
      gram[k] = finite ? sum : static_cast<T>(NAN);
    }
    __syncthreads();
    for (int64_t d = thread; d < numbers; d += kThreads) {
      const T mean = mean_at<T>(a, group, d);
      T column[kMostMatches];
      for (int j = 0; j < n; ++j) column[j] = stack[j * numbers + d];
      for (int i = 0; i < n; ++i) {
        T sum = mean;
        for (int j = 0; j < n; ++j) sum += gram[i * n + j] * column[j];
        stack[i * numbers + d] = sum;
      }
    }
    __syncthreads();
  }
}

// A thread adds up the same elements of a row to its end, so that none waits for another; which
// patches reach the row is found by all threads, some patches each.
template <class T>
__global__ void __launch_bounds__(kEntries) add(const __grid_constant__ AddGroups a) {
  const int64_t side = a.g.patch, line = side * a.g.channels, thread = threadIdx.x;
  const int64_t entries = a.g.count * a.g.matches;
  int64_t* const places = reinterpret_cast<int64_t*>(shared_memory());
  for (int64_t row = blockIdx.x; row < a.g.height; row += gridDim.x) {
    T* const to = static_cast<T*>(a.total) + row * a.g.width * a.g.channels;
    for (int64_t first = 0; first < entries; first += kEntries) {
      const int64_t entry = first + thread;
      int64_t place = -1;
      if (entry < entries) {
        const Corner corner = corner_of(a.g, entry / a.g.matches, entry % a.g.matches);
        const int64_t within = row - corner.row;
        if (within >= 0 && within < side) place = corner.column * side + within;
      }
      places[thread] = place;
      __syncthreads();
      const int64_t count = entries - first < kEntries ? entries - first : kEntries;
      for (int64_t k = 0; k < count; ++k) {
        if (places[k] < 0) continue;
        const int64_t start = places[k] / side * a.g.channels, within = places[k] % side;
        const T* const from = static_cast<const T*>(a.clean) + ((first + k) * side + within) * line;
        const int64_t own = (thread + kEntries - start % kEntries) % kEntries;
        for (int64_t i = own; i < line; i += kEntries) to[start + i] += from[i];
      }
      __syncthreads();
    }
  }
}

}  // namespace
}  // namespace cuda

void launch(const ShrinkGroups& a, void* stream) {
  using namespace cuda;
  with_sums(a.g.sums, [&](auto t) {
    using T = decltype(t);
    const int64_t shared = (2 * a.g.matches + 1) * a.g.matches * sizeof(T);
    run(shrink<T>, a.g.count, dim3(kThreads), shared, stream, a);
  });
}

void launch(const AddGroups& a, void* stream) {
  using namespace cuda;
  with_sums(a.g.sums, [&](auto t) {
    run(add<decltype(t)>, a.g.height, dim3(kEntries), kEntries * sizeof(int64_t), stream, a);
  });
}

}  // namespace cassi
