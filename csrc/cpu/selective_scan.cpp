// The selective scan and its gradient: a tile is a group of channels of one sample, side by side in
// vectors, with all its states. The gradient runs backwards through chunks of steps, whose states
// it makes again from those kept at the chunk's beginning.
#include "rows.h"

namespace cassi {
namespace CASSI_ISA {
namespace {

constexpr int64_t kGroup = kScanGroup, kChunk = kScanChunk;

// Rows of steps, or of states: from row `row` and column `column` of sample s on.
Part part_of(const View& v, int64_t s, int64_t row, int64_t column) {
  const int64_t offset = s * v.stride[0] + row * v.stride[1] + column * v.stride[2];
  return {static_cast<char*>(v.data) + offset * size_of(v.dtype), v.dtype, 0, v.stride[1],
          v.stride[2]};
}

// The part of a matrix (D, N), as rows of states.
Part turned_part(const View& v, int64_t s, int64_t channel) {
  Part p = part_of(v, s, channel, 0);
  p.row = v.stride[2];
  p.column = v.stride[1];
  return p;
}

// The inputs of a tile, in the dtype of the sums; lanes without a channel are zero.
template <class T>
struct Tile {
  using V = typename Vec<T>::type;
  const SelectiveScan& a;
  int64_t sample = 0, channel = 0, width = 0;
  Block<T> u, delta, rates, b, c;
  char* from;
  int64_t bytes;

  static int64_t size(const SelectiveScan& a) {
    return (2 * kChunk * kGroup + a.states * kGroup + 2 * kChunk * padded<T>(a.states)) * sizeof(T);
  }

  Tile(const SelectiveScan& a, Arena& arena) : a(a), from(arena.next), bytes(size(a)) {
    u = arena.block<T>(1, kChunk, kGroup);
    delta = arena.block<T>(1, kChunk, kGroup);
    rates = arena.block<T>(1, a.states, kGroup);
    b = arena.block<T>(1, kChunk, padded<T>(a.states));
    c = arena.block<T>(1, kChunk, padded<T>(a.states));
  }

  void open(int64_t tile) {
    sample = tile / a.groups();
    channel = tile % a.groups() * kGroup;
    width = a.channels - channel < kGroup ? a.channels - channel : kGroup;
    __builtin_memset(from, 0, bytes);
    read_block(rates, turned_part(a.rates, sample, channel), 1, a.states, width);
  }

  void read(int64_t start, int64_t steps) {
    read_block(u, part_of(a.u, sample, start, channel), 1, steps, width);
    read_block(delta, part_of(a.delta, sample, start, channel), 1, steps, width);
    read_block(b, part_of(a.b, sample, start, 0), 1, steps, a.states);
    read_block(c, part_of(a.c, sample, start, 0), 1, steps, a.states);
  }

  // h_t of state n, in the lanes from `lane` on.
  V step(int64_t t, int64_t n, int64_t lane, V step_size, V input, V before) const {
    const V decay = exponential<T>(step_size * load(rates.at(0, n) + lane));
    return decay * before + input * splat<T>(b.at(0, t)[n]);
  }
};

template <class T>
void run_as(const SelectiveScan& a, int64_t begin, int64_t end) {
  using V = typename Vec<T>::type;
  Arena arena = {scratch(Tile<T>::size(a) + (a.states + kChunk) * kGroup * sizeof(T))};
  Tile<T> tile(a, arena);
  const Block<T> state = arena.block<T>(1, a.states, kGroup);
  const Block<T> y = arena.block<T>(1, kChunk, kGroup);
  for (int64_t i = begin; i < end; ++i) {
    tile.open(i);
    __builtin_memset(state.base, 0, a.states * kGroup * sizeof(T));
    for (int64_t start = 0; start < a.length; start += kChunk) {
      const int64_t steps = a.length - start < kChunk ? a.length - start : kChunk;
      tile.read(start, steps);
      for (int64_t lane = 0; lane < tile.width; lane += Vec<T>::lanes)
        for (int64_t t = 0; t < steps; ++t) {
          const V delta = load(tile.delta.at(0, t) + lane);
          const V input = delta * load(tile.u.at(0, t) + lane);
          V sum = {};
          for (int64_t n = 0; n < a.states; ++n) {
            T* h = state.at(0, n) + lane;
            const V after = tile.step(t, n, lane, delta, input, load(h));
            store(h, after);
            sum += splat<T>(tile.c.at(0, t)[n]) * after;
          }
          store(y.at(0, t) + lane, sum);
        }
      write_block(part_of(a.y, tile.sample, start, tile.channel), y, 1, steps, tile.width);
    }
  }
}

template <class T>
T* shares_of(const View& v, int64_t group, int64_t sample, int64_t step) {
  return static_cast<T*>(v.data) + group * v.stride[0] + sample * v.stride[1] + step * v.stride[2];
}

template <class T>
void run_as(const SelectiveScanBackward& args, int64_t begin, int64_t end) {
  using V = typename Vec<T>::type;
  constexpr int64_t L = Vec<T>::lanes;
  const SelectiveScan& a = args.scan;
  const int64_t N = a.states, chunks = args.chunks();
  Arena arena = {scratch(Tile<T>::size(a) + (3 * kChunk + 2 * N) * kGroup * sizeof(T))};
  Tile<T> tile(a, arena);
  const Block<T> grad = arena.block<T>(1, kChunk, kGroup);
  const Block<T> grad_u = arena.block<T>(1, kChunk, kGroup);
  const Block<T> grad_delta = arena.block<T>(1, kChunk, kGroup);
  const Block<T> carried = arena.block<T>(1, N, kGroup);  // the gradient of h, from later steps
  const Block<T> grad_rates = arena.block<T>(1, N, kGroup);
  for (int64_t i = begin; i < end; ++i) {
    tile.open(i);
    // Rows are states, one after another: before each chunk, then after each step of one chunk.
    T* kept = static_cast<T*>(args.kept) + i * args.kept_by_a_tile();
    T* inside = kept + chunks * N * kGroup;
    __builtin_memset(kept, 0, N * kGroup * sizeof(T));
    __builtin_memset(grad.base, 0, kChunk * kGroup * sizeof(T));
    __builtin_memset(carried.base, 0, 2 * N * kGroup * sizeof(T));
    const auto remake = [&](int64_t chunk, int64_t steps) {
      for (int64_t lane = 0; lane < tile.width; lane += L)
        for (int64_t t = 0; t < steps; ++t) {
          const T* before = t ? inside + (t - 1) * N * kGroup : kept + chunk * N * kGroup;
          const V delta = load(tile.delta.at(0, t) + lane);
          const V input = delta * load(tile.u.at(0, t) + lane);
          for (int64_t n = 0; n < N; ++n)
            store(inside + (t * N + n) * kGroup + lane,
                  tile.step(t, n, lane, delta, input, load(before + n * kGroup + lane)));
        }
    };
    for (int64_t chunk = 0; chunk + 1 < chunks; ++chunk) {
      tile.read(chunk * kChunk, kChunk);
      remake(chunk, kChunk);
      for (int64_t lane = 0; lane < tile.width; lane += L)
        for (int64_t n = 0; n < N; ++n)
          store(kept + ((chunk + 1) * N + n) * kGroup + lane,
                load(inside + ((kChunk - 1) * N + n) * kGroup + lane));
    }
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      const int64_t start = chunk * kChunk;
      const int64_t steps = a.length - start < kChunk ? a.length - start : kChunk;
      tile.read(start, steps);
      read_block(grad, part_of(args.grad, tile.sample, start, tile.channel), 1, steps, tile.width);
      remake(chunk, steps);
      const int64_t group = tile.channel / kGroup;
      for (int64_t lane = 0; lane < tile.width; lane += L)
        for (int64_t t = steps - 1; t >= 0; --t) {
          const T* before = t ? inside + (t - 1) * N * kGroup : kept + chunk * N * kGroup;
          const T* after = inside + t * N * kGroup;
          T* share_b = shares_of<T>(args.grad_b, group, tile.sample, start + t);
          T* share_c = shares_of<T>(args.grad_c, group, tile.sample, start + t);
          const int64_t used = tile.width - lane < L ? tile.width - lane : L;
          const V delta = load(tile.delta.at(0, t) + lane), u = load(tile.u.at(0, t) + lane);
          const V upstream = load(grad.at(0, t) + lane), input = delta * u;
          V of_input = {}, of_exponent = {};
          for (int64_t n = 0; n < N; ++n) {
            const V rate = load(tile.rates.at(0, n) + lane);
            const V decay = exponential<T>(delta * rate);
            const V total = load(carried.at(0, n) + lane) + upstream * splat<T>(tile.c.at(0, t)[n]);
            const V exponent = total * decay * load(before + n * kGroup + lane);
            of_input += total * splat<T>(tile.b.at(0, t)[n]);
            of_exponent += exponent * rate;
            store(grad_rates.at(0, n) + lane, load(grad_rates.at(0, n) + lane) + exponent * delta);
            store(carried.at(0, n) + lane, total * decay);
            const V of_b = total * input, of_c = upstream * load(after + n * kGroup + lane);
            T sum_b = lane ? share_b[n] : T(0), sum_c = lane ? share_c[n] : T(0);
            for (int64_t k = 0; k < used; ++k) {
              sum_b += of_b[k];
              sum_c += of_c[k];
            }
            share_b[n] = sum_b;
            share_c[n] = sum_c;
          }
          store(grad_u.at(0, t) + lane, of_input * delta);
          store(grad_delta.at(0, t) + lane, of_input * u + of_exponent);
        }
      write_block(part_of(args.grad_u, tile.sample, start, tile.channel), grad_u, 1, steps,
                  tile.width);
      write_block(part_of(args.grad_delta, tile.sample, start, tile.channel), grad_delta, 1, steps,
                  tile.width);
    }
    write_block(turned_part(args.grad_rates, tile.sample, tile.channel), grad_rates, 1, N,
                tile.width);
  }
}

}  // namespace

int64_t work(const SelectiveScan& a) { return a.batch * a.groups(); }

void run(const SelectiveScan& a, int64_t begin, int64_t end) {
  a.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

int64_t work(const SelectiveScanBackward& a) { return work(a.scan); }

void run(const SelectiveScanBackward& a, int64_t begin, int64_t end) {
  a.scan.sums == Dtype::f64 ? run_as<double>(a, begin, end) : run_as<float>(a, begin, end);
}

}  // namespace CASSI_ISA
}  // namespace cassi
