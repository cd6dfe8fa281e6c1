#pragma once

#include <cstdint>
#include <cstring>

struct __half {
  uint16_t bits;
};

inline float __half2float(__half h) {
  _Float16 value;
  std::memcpy(&value, &h, 2);
  return static_cast<float>(value);
}

inline __half __float2half_rn(float a) {
  const _Float16 value = static_cast<_Float16>(a);
  __half h;
  std::memcpy(&h, &value, 2);
  return h;
}
