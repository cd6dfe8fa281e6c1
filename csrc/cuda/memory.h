// Scratch memory on a CUDA device.
#pragma once

#include <cstdint>
#include <memory>

namespace cassi {
namespace cuda {

struct Memory {
  std::shared_ptr<void> owner;
  void* data;
};

// Memory of torch's allocator, for kernels on torch's current stream: once its owner is gone, it is
// only handed out to what is queued behind them.
Memory allocate(int64_t bytes, int device);

// Throws what an earlier call has left on the current device, which fails everything from then on,
// a request for memory too.
void check_earlier();

}  // namespace cuda
}  // namespace cassi
