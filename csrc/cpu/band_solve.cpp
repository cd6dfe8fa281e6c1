// z = (G + diag ρ)⁻¹ r along detector rows, G a symmetric band; as many rows at a time as a vector
// has lanes, always in double precision.
#include "camera.h"

namespace cassi {
namespace CASSI_ISA {

using Lanes = Vec<double>::type;
constexpr int64_t kLanes = Vec<double>::lanes;

int64_t work(const BandSolve& a) { return tiles(a.g, kLanes, a.g.batch); }

void run(const BandSolve& a, int64_t begin, int64_t end) {
  const int64_t K = a.g.shots, D = a.g.width, size = K * D, reach = K * a.couplings - 1;
  const int64_t rows = a.couplings * K * K;  // of the gram, per image row
  const int64_t line = padded<double>(D), most = K > rows ? K : rows;
  const int64_t vectors = rows * D + size * (reach + 3) + reach;
  Arena arena = {scratch(vectors * sizeof(Lanes) + most * kLanes * line * sizeof(double))};
  Lanes* const gram = reinterpret_cast<Lanes*>(arena.next);
  Lanes *const lower = gram + rows * D, *const inverse = lower + size * reach;
  Lanes *const z = inverse + size, *const damping = z + size, *const raw = damping + size;
  arena.next = reinterpret_cast<char*>(raw + reach);
  const Block<double> space = arena.block<double>(most, kLanes, line);
  for (int64_t t = begin; t < end; ++t) {
    const Tile tile = tile_at(a.g, kLanes, t);
    const Part matrix = mask_part(a.gram, tile.sample, 0, tile.h);
    for (int64_t i = 0; i < a.couplings * K; ++i) {
      Part part = matrix;
      part.data += i * a.gram.stride[1] * size_of(part.dtype);
      read_block(Block<double>{space.at(i * K, 0), space.band, space.row}, part, K, tile.rows, D);
    }
    const auto turn = [&](Lanes* to, int64_t i, int64_t apart) {
      for (int64_t w = 0; w < D; ++w) {
        Lanes v = {};
        for (int64_t r = 0; r < tile.rows; ++r) v[r] = space.at(i, r)[w];
        to[w * apart] = v;
      }
    };
    for (int64_t i = 0; i < rows; ++i) turn(gram + i * D, i, 1);
    read_block(space, cube_part(a.rho, tile.sample, tile.h), K, tile.rows, D);
    for (int64_t k = 0; k < K; ++k) turn(damping + k, k, K);
    const Part right = cube_part(a.r, tile.sample, tile.h);
    read_block(space, right, K, tile.rows, D);
    for (int64_t k = 0; k < K; ++k) turn(z + k, k, K);
    // Unknown u is shot u % K of column u / K.
    const auto entry = [&](int64_t u, int64_t j) {
      const int64_t apart = u / K - j / K;
      return apart < a.couplings ? gram[((apart * K + j % K) * K + u % K) * D + j / K] : Lanes{};
    };
    solve_band(
        size, reach, entry, [&](int64_t u) { return damping[u]; }, dependence(a.r.dtype), lower,
        inverse, raw, z, 1);
    for (int64_t k = 0; k < K; ++k)
      for (int64_t w = 0; w < D; ++w)
        for (int64_t r = 0; r < tile.rows; ++r) space.at(k, r)[w] = z[w * K + k][r];
    write_block(cube_part(a.z, tile.sample, tile.h), space, K, tile.rows, D);
  }
}

}  // namespace CASSI_ISA
}  // namespace cassi
