// Memory of large results on a CPU: in large pages, and kept for the next result when it is freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace cassi {

// New memory costs a page fault for every 4 KiB, as much as the arithmetic. In pages of 2 MiB there
// are few, but each is filled with zeros first, and freed ones go back to the system: a loop that
// makes one cube after another pays for them every time. So some of what is freed waits here.
class Results {
 public:
  static constexpr std::size_t page = std::size_t{1} << 21, least = 2 * page;

  // Never destroyed: tensors may be freed when all else is.
  static Results& shared() {
    static Results* const results = new Results;
    return *results;
  }

  void* take(std::size_t bytes) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      for (auto block = waiting_.begin(); block != waiting_.end(); ++block)
        if (block->bytes == bytes) {
          void* start = block->start;
          held_ -= bytes;
          waiting_.erase(block);
          return start;
        }
    }
    void* start = map(bytes);
    if (start == nullptr) {  // what waits may be what is missing
      const std::lock_guard<std::mutex> guard(mutex_);
      shrink(0);
      start = map(bytes);
    }
    if (start == nullptr) throw std::bad_alloc();
    return start;
  }

  void give(void* start, std::size_t bytes) {
    const std::lock_guard<std::mutex> guard(mutex_);
    waiting_.push_front({start, bytes});
    held_ += bytes;
    shrink(most());
  }

 private:
  struct Block {
    void* start;
    std::size_t bytes;
  };

  // Bytes that wait at most. A command that has a budget of memory wants none.
  static std::size_t most() {
    static const char* const said = std::getenv("CASSI_KEEP_RESULTS");
    return said != nullptr && std::strcmp(said, "0") == 0 ? 0 : std::size_t{1} << 29;
  }

  static void* map(std::size_t bytes) {
    void* start = nullptr;
#if defined(__linux__)
    if (posix_memalign(&start, page, bytes) != 0) return nullptr;
    // A kernel that has no large pages does as before.
    madvise(start, bytes / page * page, MADV_HUGEPAGE);
#else
    start = std::malloc(bytes);
#endif
    return start;
  }

  // Frees what has waited longest.
  void shrink(std::size_t bytes) {
    while (held_ > bytes) {
      held_ -= waiting_.back().bytes;
      std::free(waiting_.back().start);
      waiting_.pop_back();
    }
  }

  std::mutex mutex_;
  std::list<Block> waiting_;  // the latest first
  std::size_t held_ = 0;
};

}  // namespace cassi
