// The selective scan and its gradient, in parallel along the sequence; see cpu/selective_scan.cpp.
// A unit is one chunk of steps of a group of channels of one sample, a thread one of its channels
// with all its states. The recurrence is linear: each chunk is run from zero, then the ends are
// joined in order, and each chunk is run again from the state that it really starts with. All sums
// have a fixed order. A sequence of one chunk is run once.
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

// Units that a block works on side by side, where they need no barrier.
constexpr int kUnits = 4;

struct Unit {
  int64_t sample, group, channel, tile, chunk, start, steps;
  __device__ __forceinline__ Unit(const SelectiveScan& a, int64_t unit, int64_t chunks)
      : sample(unit / chunks / a.groups()),
        group(unit / chunks % a.groups()),
        channel(group * kGroup + threadIdx.x),
        tile(unit / chunks),
        chunk(unit % chunks),
        start(chunk * kScanChunk),
        steps(a.length - start < kScanChunk ? a.length - start : kScanChunk) {}
};

CASSI_DEVICE_INLINE int64_t first_unit() {
  return static_cast<int64_t>(blockIdx.x) * kUnits + threadIdx.y;
}
CASSI_DEVICE_INLINE int64_t units_apart() { return static_cast<int64_t>(gridDim.x) * kUnits; }

// The values that chunks pass to each other, by tile, chunk, state and channel of the group.
template <class T>
struct Chunks {
  int64_t count, states;
  int64_t of_a_tile;  // numbers of `before`
  T* before;          // the state before each chunk; where it is joined, first the end from zero
  T* deltas;          // Σ Δ of each chunk, by tile, chunk and channel
  T* later;           // for the gradient: that of the state after each chunk
  T* rates;           // for the gradient: that of the rates, of each chunk
  __device__ __forceinline__ T* state(int64_t tile, int64_t chunk) const {
    return before + tile * of_a_tile + chunk * states * kGroup + threadIdx.x;
  }
  __device__ __forceinline__ int64_t at(int64_t tile, int64_t chunk) const {
    return (tile * count + chunk) * states * kGroup + threadIdx.x;
  }
  __device__ __forceinline__ T& delta(int64_t tile, int64_t chunk) const {
    return deltas[(tile * count + chunk) * kGroup + threadIdx.x];
  }
};

// The states at the end of each chunk but the last, from zero, where the next one begins.
template <class T>
__global__ void __launch_bounds__(kGroup* kUnits)
    run_chunks(const __grid_constant__ SelectiveScan a, const Chunks<T> chunks) {
  const int64_t units = a.batch * a.groups() * chunks.count;
  for (int64_t unit = first_unit(); unit < units; unit += units_apart()) {
    const Unit at_unit(a, unit, chunks.count);
    T sum = 0;
    if (at_unit.chunk + 1 == chunks.count) continue;
    T* h = chunks.state(at_unit.tile, at_unit.chunk + 1);
    for (int64_t n = 0; n < a.states; ++n) h[n * kGroup] = T(0);
    for (int64_t t = 0; t < at_unit.steps; ++t) {
      const Step<T> x = Step<T>::of(a, at_unit.sample, at_unit.start + t, at_unit.channel);
      sum += x.delta;
      for (int64_t n = 0; n < a.states; ++n)
        h[n * kGroup] =
            next_state(a, at_unit.sample, at_unit.start + t, at_unit.channel, n, x, h[n * kGroup]);
    }
    chunks.delta(at_unit.tile, at_unit.chunk) = sum;
  }
}

// Joins the ends, a thread one state of one channel.
template <class T>
__global__ void __launch_bounds__(kGroup* kUnits)
    join_chunks(const __grid_constant__ SelectiveScan a, const Chunks<T> chunks) {
  const int64_t units = a.batch * a.groups() * a.states;
  for (int64_t unit = first_unit(); unit < units; unit += units_apart()) {
    const int64_t tile = unit / a.states, n = unit % a.states, s = tile / a.groups();
    const T rate = rate_of<T>(a, s, tile % a.groups() * kGroup + threadIdx.x, n);
    T state = 0;
    for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      T* place = chunks.state(tile, chunk) + n * kGroup;
      if (chunk == 0)
        state = T(0);
      else if (chunk == 1)
        state = *place;
      else
        state = exp(rate * chunks.delta(tile, chunk - 1)) * state + *place;
      *place = state;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kGroup* kUnits)
    scan(const __grid_constant__ SelectiveScan a, const Chunks<T> chunks) {
  T* h = reinterpret_cast<T*>(shared_memory()) + threadIdx.y * a.states * kGroup + threadIdx.x;
  const int64_t units = a.batch * a.groups() * chunks.count;
  for (int64_t unit = first_unit(); unit < units; unit += units_apart()) {
    const Unit at_unit(a, unit, chunks.count);
    const int64_t s = at_unit.sample, d = at_unit.channel;
    if (d >= a.channels) continue;
    for (int64_t n = 0; n < a.states; ++n)
      h[n * kGroup] = at_unit.chunk ? chunks.state(at_unit.tile, at_unit.chunk)[n * kGroup] : T(0);
    for (int64_t t = at_unit.start; t < at_unit.start + at_unit.steps; ++t) {
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

// The gradient of the state before each chunk but the first, from none after it.
template <class T>
__global__ void __launch_bounds__(kGroup* kUnits)
    run_back(const __grid_constant__ SelectiveScanBackward args, const Chunks<T> chunks) {
  const SelectiveScan& a = args.scan;
  const int64_t units = a.batch * a.groups() * chunks.count;
  for (int64_t unit = first_unit(); unit < units; unit += units_apart()) {
    const Unit at_unit(a, unit, chunks.count);
    const int64_t s = at_unit.sample, d = at_unit.channel;
    if (at_unit.chunk == 0) continue;
    T* carried = chunks.later + chunks.at(at_unit.tile, at_unit.chunk - 1);
    for (int64_t n = 0; n < a.states; ++n) carried[n * kGroup] = T(0);
    for (int64_t t = at_unit.start + at_unit.steps - 1; t >= at_unit.start; --t) {
      const T delta = Step<T>::of(a, s, t, d).delta;
      const T upstream = d < a.channels ? load<T>(args.grad, at(args.grad, s, t, d)) : T(0);
      for (int64_t n = 0; n < a.states; ++n)
        carried[n * kGroup] = (carried[n * kGroup] + upstream * load<T>(a.c, at(a.c, s, t, n))) *
                              exp(delta * rate_of<T>(a, s, d, n));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kGroup* kUnits)
    join_back(const __grid_constant__ SelectiveScan a, const Chunks<T> chunks) {
  const int64_t units = a.batch * a.groups() * a.states;
  for (int64_t unit = first_unit(); unit < units; unit += units_apart()) {
    const int64_t tile = unit / a.states, n = unit % a.states, s = tile / a.groups();
    const T rate = rate_of<T>(a, s, tile % a.groups() * kGroup + threadIdx.x, n);
    T carried = 0;
    for (int64_t chunk = chunks.count - 1; chunk >= 0; --chunk) {
      T* place = chunks.later + chunks.at(tile, chunk) + n * kGroup;
      if (chunk == chunks.count - 1)
        carried = T(0);
      else if (chunk == chunks.count - 2)
        carried = *place;
      else
        carried = exp(rate * chunks.delta(tile, chunk + 1)) * carried + *place;
      *place = carried;
    }
  }
}

// The gradients of one chunk, from the state before it and the gradient of the state after it.
template <class T>
__global__ void __launch_bounds__(kGroup, 8)
    scan_backward(const __grid_constant__ SelectiveScanBackward args, const Chunks<T> chunks,
                  T* states_inside) {
  const SelectiveScan& a = args.scan;
  const int64_t N = a.states, lane = threadIdx.x;
  T* carried = reinterpret_cast<T*>(shared_memory());  // the gradient of h, from later steps
  T* grad_rates = carried + N * kGroup;
  T* of_b = grad_rates + N * kGroup;
  T* of_c = of_b + N * kGroup;
  T* inside = states_inside + blockIdx.x * kScanChunk * N * kGroup + lane;
  const int64_t units = a.batch * a.groups() * chunks.count;
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const Unit at_unit(a, unit, chunks.count);
    const int64_t s = at_unit.sample, d = at_unit.channel, group = at_unit.group;
    const int64_t start = at_unit.start, steps = at_unit.steps;
    const bool used = d < a.channels;
    const int64_t width =
        a.channels - group * kGroup < kGroup ? a.channels - group * kGroup : kGroup;
    const T* first = chunks.state(at_unit.tile, at_unit.chunk);
    const int64_t place = chunks.at(at_unit.tile, at_unit.chunk);
    for (int64_t n = 0; n < N; ++n) {
      carried[n * kGroup + lane] = chunks.later[place + n * kGroup];
      grad_rates[n * kGroup + lane] = T(0);
    }
    for (int64_t t = 0; t < steps; ++t) {
      const Step<T> x = Step<T>::of(a, s, start + t, d);
      const T* before = t ? inside + (t - 1) * N * kGroup : first;
      for (int64_t n = 0; n < N; ++n)
        inside[(t * N + n) * kGroup] = next_state(a, s, start + t, d, n, x, before[n * kGroup]);
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
        store(args.grad_delta, at(args.grad_delta, s, start + t, d), of_input * x.u + of_exponent);
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
    for (int64_t n = 0; n < N; ++n)
      chunks.rates[place + n * kGroup] = grad_rates[n * kGroup + lane];
  }
}

// The gradient of the rates, from the last chunk to the first.
template <class T>
__global__ void __launch_bounds__(kGroup* kUnits)
    sum_rates(const __grid_constant__ SelectiveScanBackward args, const Chunks<T> chunks) {
  const SelectiveScan& a = args.scan;
  const int64_t units = a.batch * a.groups() * a.states;
  for (int64_t unit = first_unit(); unit < units; unit += units_apart()) {
    const int64_t tile = unit / a.states, n = unit % a.states;
    const int64_t d = tile % a.groups() * kGroup + threadIdx.x;
    if (d >= a.channels) continue;
    T sum = 0;
    for (int64_t chunk = chunks.count - 1; chunk >= 0; --chunk)
      sum += chunks.rates[chunks.at(tile, chunk) + n * kGroup];
    store(args.grad_rates, at(args.grad_rates, tile / a.groups(), d, n), sum);
  }
}

int64_t blocks_for(int64_t units) { return (units + kUnits - 1) / kUnits; }

// Fills in the states before all chunks.
template <class T>
void join(const SelectiveScan& a, const Chunks<T>& chunks, void* stream) {
  const int64_t tiles = a.batch * a.groups();
  const dim3 threads(kGroup, kUnits);
  if (chunks.count > 1)
    run(run_chunks<T>, blocks_for(tiles * chunks.count), threads, 0, stream, a, chunks);
  run(join_chunks<T>, blocks_for(tiles * a.states), threads, 0, stream, a, chunks);
}

}  // namespace
}  // namespace cuda

void launch(const SelectiveScan& a, void* stream) {
  using namespace cuda;
  with_sums(a.sums, [&](auto t) {
    using T = decltype(t);
    const int64_t tiles = a.batch * a.groups();
    const int64_t count = (a.length + kScanChunk - 1) / kScanChunk;
    const int64_t numbers = count > 1 ? tiles * count * kGroup : 0;
    const Memory memory = scratch((a.states + 1) * numbers * sizeof(T));
    T* before = static_cast<T*>(memory.data);
    const Chunks<T> chunks = {
        count,   a.states, count * a.states * kGroup, before, before + a.states * numbers,
        nullptr, nullptr};
    if (count > 1) join(a, chunks, stream);
    run(scan<T>, blocks_for(tiles * count), dim3(kGroup, kUnits),
        kUnits * a.states * kGroup * sizeof(T), stream, a, chunks);
  });
}

void launch(const SelectiveScanBackward& args, void* stream) {
  using namespace cuda;
  constexpr int64_t most = 512;  // blocks, each with memory for the states of one chunk
  const SelectiveScan& a = args.scan;
  with_sums(a.sums, [&](auto t) {
    using T = decltype(t);
    const int64_t tiles = a.batch * a.groups(), count = args.chunks(), units = tiles * count;
    const int64_t blocks = units < most ? units : most, numbers = units * kGroup;
    const Memory memory = scratch(
        ((2 * a.states + 1) * numbers + blocks * kScanChunk * a.states * kGroup) * sizeof(T));
    T* later = static_cast<T*>(memory.data);
    T* rates = later + a.states * numbers;
    T* deltas = rates + a.states * numbers;
    const Chunks<T> chunks = {
        count, a.states, args.kept_by_a_tile(), static_cast<T*>(args.kept), deltas, later, rates};
    const dim3 threads(kGroup, kUnits);
    join(a, chunks, stream);
    if (count > 1) run(run_back<T>, blocks_for(units), threads, 0, stream, args, chunks);
    run(join_back<T>, blocks_for(tiles * a.states), threads, 0, stream, a, chunks);
    run(scan_backward<T>, blocks, dim3(kGroup), 4 * a.states * kGroup * sizeof(T), stream, args,
        chunks, deltas + numbers);
    run(sum_rates<T>, blocks_for(tiles * a.states), threads, 0, stream, args, chunks);
  });
}

}  // namespace cassi
