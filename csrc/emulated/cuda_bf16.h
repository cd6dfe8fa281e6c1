#pragma once

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 b) {
  const uint32_t bits = uint32_t{b.bits} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline __nv_bfloat16 __float2bfloat16_rn(float a) {
  if (a != a) return {0x7fff};
  uint32_t bits;
  std::memcpy(&bits, &a, 4);
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
