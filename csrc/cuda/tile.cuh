// Rows of a cube in shared memory: some bands of one image row, in the dtype of the cube.
//
// Global memory is read and written in runs, along the columns or, where the bands are innermost
// (channels_last), along the bands; the kernels in between walk along the columns either way.
#pragma once

#include "device.cuh"

namespace cassi {
namespace cuda {

// How a tile is copied: "lines" of adjacent units of 2 to 16 bytes. A line is a band where columns
// are innermost, and a pixel where bands are.
struct Tile {
  int64_t line, next;  // bytes in global memory between lines, and between the units of one
  int pitch, unit;     // bytes in shared memory between lines, and of one unit
  int band, column;    // elements in shared memory between neighbours
  bool bands_inner;

  __host__ __device__ int64_t bytes(int64_t bands, int64_t columns) const {
    return ((bands_inner ? columns : bands) * pitch + 15) / 16 * 16;
  }
};

// `chunk` bands × `columns`, both the most that is copied at a time: what is copied must begin at
// multiples of them. The tile must be small enough for int offsets.
inline Tile tile_of(const View& v, const Geometry& g, int64_t chunk, int64_t columns) {
  const int64_t size = size_of(v.dtype);
  Tile t = {};
  t.bands_inner = v.stride[1] == 1 && v.stride[3] != 1 && g.bands > 1;
  // All that a unit must divide, in bytes.
  int64_t all = (g.batch > 1 ? v.stride[0] : 0) | (g.height > 1 ? v.stride[2] : 0);
  if (t.bands_inner)
    all |= v.stride[3] | chunk | g.bands;
  else
    all |= (g.bands > 1 ? v.stride[1] : 0) | columns | g.width;
  all = all * size | static_cast<int64_t>(reinterpret_cast<uintptr_t>(v.data));
  int64_t unit = t.bands_inner || v.stride[3] == 1 ? 16 : size;
  while (unit > size && all % unit != 0) unit /= 2;
  if (t.bands_inner) {
    // An odd number of words between pixels: threads along the columns meet different banks.
    const int64_t word = size > 4 ? size : 4, words = (chunk * size + word - 1) / word;
    if (unit < 16 && unit > word) unit = word;
    t.pitch = static_cast<int>((words | 1) * word);
    t.band = 1;
    t.column = t.pitch / static_cast<int>(size);
    t.line = v.stride[3] * size;
  } else {
    t.pitch = static_cast<int>((columns * size + 15) / 16 * 16);
    t.band = t.pitch / static_cast<int>(size);
    t.column = 1;
    t.line = v.stride[1] * size;
  }
  t.unit = static_cast<int>(unit);
  t.next = t.bands_inner || v.stride[3] == 1 ? unit : v.stride[3] * size;
  return t;
}

template <int Bytes>
struct Unit;
template <>
struct Unit<2> {
  using type = unsigned short;
};
template <>
struct Unit<4> {
  using type = unsigned;
};
template <>
struct Unit<8> {
  using type = uint2;
};
template <>
struct Unit<16> {
  using type = uint4;
};

// N adjacent elements in steps of `Step`, each step one access, which must be aligned to its size.
// `Global`: of a tensor that the kernel does not write.
template <int N, int Step, bool Global = false, class T, class D>
CASSI_DEVICE_INLINE void load_run(T (&out)[N], const D* from) {
  using U = typename Unit<Step * sizeof(D)>::type;
#pragma unroll
  for (int i = 0; i < N; i += Step) {
    const U* place = reinterpret_cast<const U*>(from + i);
    U unit;
    if constexpr (Global)
      unit = __ldg(place);
    else
      unit = *place;
    if constexpr (std::is_same_v<D, __nv_bfloat16> && Step > 1) {
      // They are the upper halves of floats: an instruction each.
      unsigned pairs[Step / 2];
      memcpy(pairs, &unit, sizeof(U));
#pragma unroll
      for (int j = 0; j < Step; j += 2) {
        const unsigned halves[2] = {pairs[j / 2] << 16, pairs[j / 2] & 0xffff0000u};
        float both[2];
        memcpy(both, halves, sizeof(both));
        out[i + j] = both[0];
        out[i + j + 1] = both[1];
      }
    } else {
      D element[Step];
      memcpy(element, &unit, sizeof(U));
#pragma unroll
      for (int j = 0; j < Step; ++j) out[i + j] = widen<T>(element[j]);
    }
  }
}

template <int N, class T, class D>
CASSI_DEVICE_INLINE void store_run(D* to, const T (&values)[N]) {
  using U = typename Unit<N * sizeof(D)>::type;
  D element[N];
#pragma unroll
  for (int i = 0; i < N; ++i) element[i] = narrow<D>(values[i]);
  U unit;
  memcpy(&unit, element, sizeof(U));
  *reinterpret_cast<U*>(to) = unit;
}

// Load a run from element i of a tensor whose dtype is only known at run time.
template <int N, class T>
CASSI_DEVICE_INLINE void load_run(T (&out)[N], const View& v, int64_t i) {
  switch (v.dtype) {
    case Dtype::f32:
      return load_run<N, N, true>(out, static_cast<const float*>(v.data) + i);
    case Dtype::f64:
      return load_run<N, N, true>(out, static_cast<const double*>(v.data) + i);
    case Dtype::bf16:
      return load_run<N, N, true>(out, static_cast<const __nv_bfloat16*>(v.data) + i);
    default:
      return load_run<N, N, true>(out, static_cast<const __half*>(v.data) + i);
  }
}

template <int N, class T>
CASSI_DEVICE_INLINE void store_run(const View& v, int64_t i, const T (&values)[N]) {
  switch (v.dtype) {
    case Dtype::f32:
      return store_run(static_cast<float*>(v.data) + i, values);
    case Dtype::f64:
      return store_run(static_cast<double*>(v.data) + i, values);
    case Dtype::bf16:
      return store_run(static_cast<__nv_bfloat16*>(v.data) + i, values);
    default:
      return store_run(static_cast<__half*>(v.data) + i, values);
  }
}

// A copy of 4, 8 or 16 bytes that the thread does not wait for, see `await_copies`.
template <int Bytes>
CASSI_DEVICE_INLINE void copy_async(char* to, const char* from) {
#if defined(CASSI_EMULATED)
  return emulated::copy_later(to, from, Bytes);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
    return;
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(Bytes)
                 : "memory");
    return;
  }
#endif
  using U = typename Unit<Bytes>::type;
  *reinterpret_cast<U*>(to) = __ldg(reinterpret_cast<const U*>(from));
}

// The calling thread's copies have arrived; a barrier makes them visible to the others.
CASSI_DEVICE_INLINE void await_copies() {
#if defined(CASSI_EMULATED)
  emulated::await_copies();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// The units of a tile that the calling thread copies: of each line the same, of every `lines_on`-th
// line. Pointers to them step from line to line, by the bytes `tile_on` and `cube_on`.
struct Walk {
  int across, unit, line, lines_on, tile_on;
  int64_t cube_on;
  __device__ Walk(const Tile& t, int units) {
    const int threads = blockDim.x, thread = threadIdx.x;
    const int passes = units <= threads ? 1 : (units + threads - 1) / threads;
    across = passes == 1 ? units : (units + passes - 1) / passes;
    lines_on = threads / across;
    line = thread / across;
    unit = line < lines_on ? thread - line * across : units;
    tile_on = lines_on * t.pitch;
    cube_on = lines_on * t.line;
  }
};

// Units that a thread carries through registers: four at a time, all loaded before any is stored.
// Those of 16 bytes are stored word by word, as a pixel need not begin at a multiple of 16 there.
template <int Bytes>
CASSI_DEVICE_INLINE void copy_in_held(const Tile& t, char* tile, const char* cube, int lines,
                                      int units) {
  using U = typename Unit<Bytes>::type;
  const Walk at(t, units);
  for (int unit = at.unit; unit < units; unit += at.across) {
    char* to = tile + at.line * t.pitch + unit * Bytes;
    const char* from = cube + at.line * t.line + unit * t.next;
    for (int line = at.line; line < lines; line += 4 * at.lines_on) {
      U value[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i, from += at.cube_on)
        if (line + i * at.lines_on < lines) value[i] = __ldg(reinterpret_cast<const U*>(from));
#pragma unroll
      for (int i = 0; i < 4; ++i, to += at.tile_on) {
        if (line + i * at.lines_on >= lines) continue;
        if constexpr (Bytes == 16) {
          unsigned* words = reinterpret_cast<unsigned*>(to);
          words[0] = value[i].x;
          words[1] = value[i].y;
          words[2] = value[i].z;
          words[3] = value[i].w;
        } else {
          *reinterpret_cast<U*>(to) = value[i];
        }
      }
    }
  }
}

template <int Bytes>
CASSI_DEVICE_INLINE void copy_in_units(const Tile& t, char* tile, const char* cube, int lines,
                                       int units) {
  const Walk at(t, units);
  for (int unit = at.unit; unit < units; unit += at.across) {
    char* to = tile + at.line * t.pitch + unit * Bytes;
    const char* from = cube + at.line * t.line + unit * t.next;
    int line = at.line;
    const auto some = [&](auto count) {
#pragma unroll
      for (int i = 0; i < decltype(count)::value; ++i) {
        copy_async<Bytes>(to, from);
        to += at.tile_on;
        from += at.cube_on;
      }
      line += decltype(count)::value * at.lines_on;
    };
    while (line + 3 * at.lines_on < lines) some(std::integral_constant<int, 4>());
    while (line < lines) some(std::integral_constant<int, 1>());
  }
}

template <int Bytes>
CASSI_DEVICE_INLINE void copy_out_units(const Tile& t, char* cube, const char* tile, int lines,
                                        int units) {
  using U = typename Unit<Bytes>::type;
  const Walk at(t, units);
  for (int unit = at.unit; unit < units; unit += at.across) {
    char* to = cube + at.line * t.line + unit * t.next;
    const char* from = tile + at.line * t.pitch + unit * Bytes;
#pragma unroll 4
    for (int line = at.line; line < lines; line += at.lines_on) {
      if constexpr (Bytes == 16) {
        const unsigned* words = reinterpret_cast<const unsigned*>(from);
        *reinterpret_cast<U*>(to) = {words[0], words[1], words[2], words[3]};
      } else {
        *reinterpret_cast<U*>(to) = *reinterpret_cast<const U*>(from);
      }
      to += at.cube_on;
      from += at.tile_on;
    }
  }
}

// By the threads of one row, threadIdx.x: `tile` ← cube, whose first element is at `from`.
template <class D>
CASSI_DEVICE_INLINE void copy_in(const Tile& t, D* tile, const D* from, int bands, int columns) {
  char* to = reinterpret_cast<char*>(tile);
  const char* source = reinterpret_cast<const char*>(from);
  const int lines = t.bands_inner ? columns : bands;
  const int units = (t.bands_inner ? bands : columns) * static_cast<int>(sizeof(D)) / t.unit;
  switch (t.unit) {
    case 16:
      if (t.bands_inner)
        copy_in_held<16>(t, to, source, lines, units);
      else
        copy_in_units<16>(t, to, source, lines, units);
      break;
    case 8:
      copy_in_units<8>(t, to, source, lines, units);
      break;
    case 4:
      copy_in_units<4>(t, to, source, lines, units);
      break;
    default:
      copy_in_held<2>(t, to, source, lines, units);
  }
}

// Cube, whose first element is at `to`, ← `tile`; only where the bands are innermost, as kernels
// write along the columns themselves.
template <class D>
CASSI_DEVICE_INLINE void copy_out(const Tile& t, D* to, const D* tile, int bands, int columns) {
  char* target = reinterpret_cast<char*>(to);
  const char* from = reinterpret_cast<const char*>(tile);
  const int units = bands * static_cast<int>(sizeof(D)) / t.unit;
  switch (t.unit) {
    case 16:
      copy_out_units<16>(t, target, from, columns, units);
      break;
    case 8:
      copy_out_units<8>(t, target, from, columns, units);
      break;
    case 4:
      copy_out_units<4>(t, target, from, columns, units);
      break;
    default:
      copy_out_units<2>(t, target, from, columns, units);
  }
}

}  // namespace cuda
}  // namespace cassi
