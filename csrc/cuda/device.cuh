// Shared by all CUDA kernels: storage types, checked launches, shared and scratch memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "../kernels.h"
#include "memory.h"

#define CASSI_DEVICE_INLINE static __device__ __forceinline__

namespace cassi {
namespace cuda {

// Storage of a dtype that is only known at run time. Typed kernels exist for the common cubes.
// Small or rare tensors are read through a switch, in which all threads take the same branch.
struct Any {};

template <class T, class D>
CASSI_DEVICE_INLINE T widen(D a) {
  if constexpr (std::is_same_v<D, __nv_bfloat16>)
    return static_cast<T>(__bfloat162float(a));
  else if constexpr (std::is_same_v<D, __half>)
    return static_cast<T>(__half2float(a));
  else
    return static_cast<T>(a);
}

template <class D, class T>
CASSI_DEVICE_INLINE D narrow(T a) {
  if constexpr (std::is_same_v<D, __nv_bfloat16>)
    return __float2bfloat16_rn(static_cast<float>(a));
  else if constexpr (std::is_same_v<D, __half>)
    return __float2half_rn(static_cast<float>(a));
  else
    return static_cast<D>(a);
}

template <class T>
CASSI_DEVICE_INLINE T load(const void* data, Dtype dtype, int64_t i) {
  switch (dtype) {
    case Dtype::f32:
      return static_cast<T>(static_cast<const float*>(data)[i]);
    case Dtype::f64:
      return static_cast<T>(static_cast<const double*>(data)[i]);
    case Dtype::bf16:
      return widen<T>(static_cast<const __nv_bfloat16*>(data)[i]);
    default:
      return widen<T>(static_cast<const __half*>(data)[i]);
  }
}

template <class T>
CASSI_DEVICE_INLINE T load(const View& v, int64_t i) {
  return load<T>(v.data, v.dtype, i);
}

template <class T>
CASSI_DEVICE_INLINE void store(const View& v, int64_t i, T a) {
  switch (v.dtype) {
    case Dtype::f32:
      static_cast<float*>(v.data)[i] = static_cast<float>(a);
      return;
    case Dtype::f64:
      static_cast<double*>(v.data)[i] = static_cast<double>(a);
      return;
    case Dtype::bf16:
      static_cast<__nv_bfloat16*>(v.data)[i] = narrow<__nv_bfloat16>(a);
      return;
    default:
      static_cast<__half*>(v.data)[i] = narrow<__half>(a);
  }
}

// An element of a tensor that the kernel does not write, in storage E or Any.
template <class T, class E>
CASSI_DEVICE_INLINE T fetch(const void* data, Dtype dtype, int64_t i) {
  if constexpr (std::is_same_v<E, Any>)
    return load<T>(data, dtype, i);
  else
    return widen<T>(__ldg(static_cast<const E*>(data) + i));
}

// Where an element lies: cubes and measurements (B, C or K, H, W), masks and grams one more.
CASSI_INLINE int64_t index(const View& v, int64_t b, int64_t c, int64_t h, int64_t w) {
  return b * v.stride[0] + c * v.stride[1] + h * v.stride[2] + w * v.stride[3];
}

CASSI_INLINE int64_t index(const View& v, int64_t b, int64_t k, int64_t c, int64_t h, int64_t w) {
  return b * v.stride[0] + k * v.stride[1] + c * v.stride[2] + h * v.stride[3] + w * v.stride[4];
}

CASSI_INLINE int64_t size_of(Dtype d) { return d == Dtype::f64 ? 8 : d == Dtype::f32 ? 4 : 2; }

template <class T>
constexpr Dtype dtype_of() {
  return sizeof(T) == 8 ? Dtype::f64 : Dtype::f32;
}

// The block's dynamic shared memory, 16-byte aligned.
CASSI_DEVICE_INLINE char* shared_memory() {
  extern __shared__ uint4 cassi_shared[];
  return reinterpret_cast<char*>(cassi_shared);
}

inline void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which the next call would report again
  // A lack of memory is named as that of results is, see ops.cpp.
  const char* lack = code == cudaErrorMemoryAllocation ? "can't allocate memory: " : "";
  throw std::runtime_error(std::string("cassi: ") + lack + what + ": " + cudaGetErrorString(code));
}

inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

inline int64_t attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, current_device()), "cudaDeviceGetAttribute");
  return value;
}

// The most shared memory that a block may ask for.
inline int64_t shared_limit() { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

// Lets a kernel ask for all of it, once on each device: host threads that set what each call needs
// would take it from each other between setting and launch.
inline void raise_shared_limit(const void* kernel) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> raised;
  const std::pair<const void*, int> place = {kernel, current_device()};
  const std::lock_guard<std::mutex> lock(mutex);
  if (raised.count(place)) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_limit())),
        "shared memory");
  raised.insert(place);
}

template <class T>
struct Same {
  using type = T;
};

// Queues a kernel. Every kernel strides over its work by the size of the grid, so a grid may be
// shorter than the work. Shared memory is declared as units of 16 bytes: the compiler may read the
// whole of its last one.
template <class... P>
void run(void (*kernel)(P...), int64_t blocks, dim3 threads, int64_t shared, void* stream,
         typename Same<P>::type... args) {
  constexpr int64_t most = 0x7fffffff, by_default = 48 << 10;
  if (blocks == 0) return;
  shared = (shared + 15) / 16 * 16;
  if (shared > by_default) raise_shared_limit(reinterpret_cast<const void*>(kernel));
  void* pointers[] = {static_cast<void*>(&args)...};
  check(
      cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks < most ? blocks : most)), threads,
                       pointers, static_cast<size_t>(shared), static_cast<cudaStream_t>(stream)),
      "kernel launch");
}

// Rows of `width` elements, one warp or more to a row: for kernels that need no shared memory.
struct Lines {
  int64_t rows, width;
  dim3 threads() const {
    unsigned x = 32;
    while (x < 256 && x < width) x *= 2;
    return dim3(x, 256 / x);
  }
  int64_t blocks() const {
    const unsigned y = threads().y;
    return (rows + y - 1) / y;
  }
};

template <class... P>
void run_lines(void (*kernel)(P...), const Lines& lines, void* stream,
               typename Same<P>::type... args) {
  run<P...>(kernel, lines.blocks(), lines.threads(), 0, stream, args...);
}

CASSI_DEVICE_INLINE int64_t first_row() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}
CASSI_DEVICE_INLINE int64_t rows_apart() { return static_cast<int64_t>(gridDim.x) * blockDim.y; }

inline Memory scratch(int64_t bytes) {
  const int device = current_device();
  try {
    return allocate(bytes, device);
  } catch (const std::exception&) {  // torch's words stay behind the stable interface
    check_earlier();
    throw std::runtime_error("cassi: can't allocate memory for " + std::to_string(bytes) +
                             " bytes of scratch");
  }
}

// A contiguous (B, C, H, W) tensor in it, in the dtype of the sums.
inline View scratch_view(const Memory& memory, Dtype sums, int64_t c, int64_t h, int64_t w) {
  return {memory.data, sums, {c * h * w, h * w, w, 1, 0}};
}

// Calls f with the storage type of a cube and the type of the sums, as values of them, where a
// typed kernel exists; a narrower cube summed in double precision is rare and has none.
template <class F>
bool with_types(Dtype cube, Dtype sums, F f) {
  if (cube == Dtype::f64) return f(double(), double());
  if (sums == Dtype::f64) return false;
  if (cube == Dtype::f32) return f(float(), float());
  if (cube == Dtype::bf16) return f(__nv_bfloat16(), float());
  return f(__half(), float());
}

template <class F>
void with_sums(Dtype sums, F f) {
  sums == Dtype::f64 ? f(double()) : f(float());
}

}  // namespace cuda
}  // namespace cassi
