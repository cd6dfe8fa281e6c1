// The selective scan and its gradient. A block takes a group of channels of one sample from the
// first step to the last, a thread one channel with all its states; see cpu/selective_scan.cpp.
#include "device.cuh"

namespace cassi {
namespace cuda {
namespace {

constexpr int kGroup = kScanGroup;

CASSI_INLINE int64_t at(const View& v, int64_t i, int64_t j, int64_t k) {
  return i * v.stride[0] + j * v.stride[1] + k * v.stride[2];
}

// One channel of one sample at one step; zero where there is no such channel.
template <class T>
struct Step {
  T u, delta;
  static __device__ __forceinline__ Step of(const SelectiveScan& a, int64_t s, int64_t t,
                                            int64_t d) {
    if (d >= a.channels) return {T(0), T(0)};
    return {load<T>(a.u, at(a.u, s, t, d)), load<T>(a.delta, at(a.delta, s, t, d))};
  }
};

template <class T>
CASSI_DEVICE_INLINE T rate_of(const SelectiveScan& a, int64_t s, int64_t d, int64_t n) {
  return d < a.channels ? load<T>(a.rates, at(a.rates, s, d, n)) : T(0);
}

template <class T>
CASSI_DEVICE_INLINE T next_state(const SelectiveScan& a, int64_t s, int64_t t, int64_t d, int64_t n,
                                 Step<T> x, T before) {
  return exp(x.delta * rate_of<T>(a, s, d, n)) * before +
         x.delta * x.u * load<T>(a.b, at(a.b, s, t, n));
}

template <class T>
__global__ void __launch_bounds__(kGroup) scan(const __grid_constant__ SelectiveScan a) {
  T* h = reinterpret_cast<T*>(shared_memory()) + threadIdx.x;
  for (int64_t tile = blockIdx.x; tile < a.batch * a.groups(); tile += gridDim.x) {
    const int64_t s = tile / a.groups(), d = tile % a.groups() * kGroup + threadIdx.x;
    if (d >= a.channels) continue;
    for (int64_t n = 0; n < a.states; ++n) h[n * kGroup] = T(0);
    for (int64_t t = 0; t < a.length; ++t) {
      const Step<T> x = Step<T>::of(a, s, t, d);
      T sum = 0;
      for (int64_t n = 0; n < a.states; ++n) {
        const T state = next_state(a, s, t, d, n, x, h[n * kGroup]);
        h[n * kGroup] = state;
        sum += load<T>(a.c, at(a.c, s, t, n)) * state;
      }
      store(a.y, at(a.y, s, t, d), sum);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kGroup)
    scan_backward(const __grid_constant__ SelectiveScanBackward args) {
  const SelectiveScan& a = args.scan;
  const int64_t N = a.states, chunks = args.chunks(), lane = threadIdx.x;
  T* carried = reinterpret_cast<T*>(shared_memory());  // the gradient of h, from later steps
  T* grad_rates = carried + N * kGroup;
  T* of_b = grad_rates + N * kGroup;
  T* of_c = of_b + N * kGroup;
  for (int64_t tile = blockIdx.x; tile < a.batch * a.groups(); tile += gridDim.x) {
    const int64_t group = tile % a.groups(), s = tile / a.groups(), d = group * kGroup + lane;
    const bool used = d < a.channels;
    const int64_t width =
        a.channels - group * kGroup < kGroup ? a.channels - group * kGroup : kGroup;
    // Before each chunk, then after each step of one chunk.
    T* kept = static_cast<T*>(args.kept) + tile * args.kept_by_a_tile() + lane;
    T* inside = kept + chunks * N * kGroup;
    for (int64_t n = 0; n < N; ++n) {
      kept[n * kGroup] = T(0);
      carried[n * kGroup + lane] = grad_rates[n * kGroup + lane] = T(0);
    }
    for (int64_t pass = 0; pass < 2 * chunks - 1; ++pass) {
      // Forwards through all chunks but the last, then backwards from it.
      const bool forwards = pass + 1 < chunks;
      const int64_t chunk = forwards ? pass : 2 * chunks - 2 - pass, start = chunk * kScanChunk;
      const int64_t steps = a.length - start < kScanChunk ? a.length - start : kScanChunk;
      const T* first = kept + chunk * N * kGroup;
      for (int64_t t = 0; t < steps; ++t) {
        const Step<T> x = Step<T>::of(a, s, start + t, d);
        const T* before = t ? inside + (t - 1) * N * kGroup : first;
        for (int64_t n = 0; n < N; ++n)
          inside[(t * N + n) * kGroup] = next_state(a, s, start + t, d, n, x, before[n * kGroup]);
      }
      if (forwards) {
        for (int64_t n = 0; n < N; ++n)
          kept[((chunk + 1) * N + n) * kGroup] = inside[((steps - 1) * N + n) * kGroup];
        continue;
      }
      for (int64_t t = steps - 1; t >= 0; --t) {
        const Step<T> x = Step<T>::of(a, s, start + t, d);
        const T upstream = used ? load<T>(args.grad, at(args.grad, s, start + t, d)) : T(0);
        const T* before = t ? inside + (t - 1) * N * kGroup : first;
        T of_input = 0, of_exponent = 0;
        for (int64_t n = 0; n < N; ++n) {
          const int64_t k = n * kGroup + lane;
          const T rate = rate_of<T>(a, s, d, n), decay = exp(x.delta * rate);
          const T total = carried[k] + upstream * load<T>(a.c, at(a.c, s, start + t, n));
          const T exponent = total * decay * before[n * kGroup];
          of_input += total * load<T>(a.b, at(a.b, s, start + t, n));
          of_exponent += exponent * rate;
          grad_rates[k] += exponent * x.delta;
          carried[k] = total * decay;
          of_b[k] = total * x.delta * x.u;
          of_c[k] = upstream * inside[(t * N + n) * kGroup];
        }
        if (used) {
          store(args.grad_u, at(args.grad_u, s, start + t, d), of_input * x.delta);
          store(args.grad_delta, at(args.grad_delta, s, start + t, d),
                of_input * x.u + of_exponent);
        }
        __syncthreads();
        for (int64_t n = lane; n < N; n += kGroup) {
          T sum_b = 0, sum_c = 0;
          for (int64_t k = 0; k < width; ++k) {
            sum_b += of_b[n * kGroup + k];
            sum_c += of_c[n * kGroup + k];
          }
          const View &b = args.grad_b, &c = args.grad_c;
          store(b, at(b, group, s, start + t) + n * b.stride[3], sum_b);
          store(c, at(c, group, s, start + t) + n * c.stride[3], sum_c);
        }
        __syncthreads();
      }
    }
    for (int64_t n = 0; n < N && used; ++n)
      store(args.grad_rates, at(args.grad_rates, s, d, n), grad_rates[n * kGroup + lane]);
  }
}

}  // namespace
}  // namespace cuda

void launch(const SelectiveScan& a, void* stream) {
  using namespace cuda;
  with_sums(a.sums, [&](auto t) {
    using T = decltype(t);
    run(scan<T>, a.batch * a.groups(), dim3(kGroup), a.states * kGroup * sizeof(T), stream, a);
  });
}

void launch(const SelectiveScanBackward& a, void* stream) {
  using namespace cuda;
  with_sums(a.scan.sums, [&](auto t) {
    using T = decltype(t);
    run(scan_backward<T>, a.scan.batch * a.scan.groups(), dim3(kGroup),
        4 * a.scan.states * kGroup * sizeof(T), stream, a);
  });
}

}  // namespace cassi
