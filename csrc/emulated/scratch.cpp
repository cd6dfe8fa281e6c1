// Scratch memory for emulated kernels: filled with NaN, and guarded on both sides.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "../cuda/memory.h"

namespace cassi {
namespace cuda {

Memory allocate(int64_t bytes, int) {
  constexpr int64_t guard = 256;
  const char* most = std::getenv("CASSI_EMULATED_MEMORY");
  if (most && bytes > std::atoll(most) << 10) throw std::runtime_error("out of memory");
  char* all = static_cast<char*>(std::aligned_alloc(256, (bytes + 2 * guard + 255) / 256 * 256));
  if (!all) throw std::bad_alloc();
  std::memset(all, 0xff, bytes + 2 * guard);
  const auto release = [bytes](void* memory) {
    const char* end = static_cast<char*>(memory) + 2 * guard + bytes;
    bool intact = true;
    for (int64_t i = 0; i < guard; ++i)
      intact = intact && static_cast<char*>(memory)[i] == static_cast<char>(0xff) &&
               end[-1 - i] == static_cast<char>(0xff);
    if (!intact) {
      std::fputs("cassi: a kernel wrote beside its scratch memory\n", stderr);
      std::abort();
    }
    std::free(memory);
  };
  return {std::shared_ptr<void>(all, release), all + guard};
}

void check_earlier() {
  if (std::getenv("CASSI_EMULATED_BROKEN"))
    throw std::runtime_error("cassi: the device failed earlier: emulated");
}

}  // namespace cuda
}  // namespace cassi
