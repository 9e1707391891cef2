#include "core/norm_plan.h"

#include <algorithm>
#include <bit>
#include <cinttypes>

#include "core/check.h"
#include "core/norm_index.h"
#include "core/norm_measured.h"
#include "core/norm_tuning.h"

namespace fastnorm {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// By a power of two, without a division: a call has several.
int64_t divide_up_pow2(int64_t a, int64_t b) {
  return (a + b - 1) >> std::countr_zero(static_cast<uint64_t>(b));
}

FASTNORM_HOT int64_t row_vectors(const NormDesc& d) {
  return divide_up_pow2(d.n * dtype_bytes(d.dtype), 16);
}

struct Rung {
  int32_t vectors;  // longest row in 16-byte vectors
  int32_t threads;  // of one block for such a row
};

// Threads for a row of `vectors`, from a ladder whose last rung is the longest row one block holds; 0 beyond it.
template <size_t kRungs>
int32_t climb(const Rung (&ladder)[kRungs], int64_t vectors) {
  for (const Rung& rung : ladder) {
    if (vectors <= rung.vectors) return rung.threads;
  }
  return 0;
}

FASTNORM_HOT Tile tile_of(int64_t vectors, int32_t threads, int32_t blocks = 1) {
  return {static_cast<int16_t>(threads),
          static_cast<int8_t>(divide_up_pow2(vectors, int64_t{threads} * blocks)),
          static_cast<int8_t>(blocks)};
}

// One block a row. Measured on an H200 at 4096 rows of bf16, 2026-11-21 and 22; other dtypes go by the number of vectors.
constexpr Rung kRms[] = {{8, 4},     {16, 16},    {128, 32},   {256, 128},
                         {640, 128}, {1280, 256}, {3584, 512}, {4096, 1024}};
constexpr Rung kLayer[] = {{8, 4},     {16, 16},    {128, 32},  {256, 64},
                           {640, 128}, {2048, 256}, {4096, 512}};
constexpr Rung kAdd[] = {{8, 4},      {16, 16},    {64, 32},    {128, 16},   {256, 128},
                         {1024, 256}, {1536, 512}, {1792, 256}, {4096, 1024}};
// Few rows: more threads a row, since latency and not throughput is what counts.
constexpr Rung kFewRows[] = {{8, 4},      {16, 16},    {64, 32},    {384, 128},
                             {1024, 256}, {2048, 512}, {4096, 1024}};
constexpr Rung kFewSums[] = {{8, 4},      {16, 16},    {64, 32},    {640, 128},
                             {1024, 256}, {2048, 512}, {4096, 1024}};
// RMS by a given scale: 4096 x 5120 and x 10240 with 5 vectors a thread (x 10240 31.7 us for 35.9; but x 12288 40.0 for 39.0 with 6), 768 x
// 14336 with 7 (11.9 us for 12.6).
constexpr Rung kRmsCodes[] = {{8, 4},      {16, 16},    {128, 32},   {256, 64},  {640, 128},
                              {1280, 256}, {1536, 512}, {1792, 256}, {4096, 512}};
// By scales from the values: 6 vectors a thread are best.
constexpr Rung kScales[] = {{8, 4},     {16, 16},    {128, 32},  {384, 64},
                            {896, 128}, {2048, 256}, {4096, 512}};
// With f32 columns, or quantised: fewer tiles, as each is a kernel more.
constexpr Rung kColumns[] = {{8, 4},     {16, 16},    {64, 32},   {256, 64},
                             {640, 128}, {2048, 256}, {4096, 512}};
constexpr Rung kWideCodes[] = {{8, 4},     {16, 16},    {128, 32},  {256, 64},
                               {512, 128}, {2048, 256}, {4096, 512}};
constexpr Rung kCodes[] = {{8, 4},     {16, 16},    {128, 32},  {256, 64},
                           {512, 128}, {1024, 256}, {4096, 512}};
constexpr Rung kRareSums[] = {{8, 4}, {16, 16}, {128, 32}, {512, 128}, {1024, 256}, {4096, 512}};

// Rows of 16 bits whose columns are kept in registers, for the rows that a block takes in turn.
constexpr Rung kKept[] = {{128, 32}, {256, 64}, {640, 128}, {1024, 256}};
constexpr int64_t kLeastKeptVectors = 65;

// Threads of all multiprocessors: see ArchSpec.
FASTNORM_HOT int64_t wave_threads(const DeviceFacts& facts) {
  return facts.multiprocessors * facts.arch->wave_threads;
}

// True if all rows are resident at once, with 64 registers, where each has 256 threads, but not with 512.
FASTNORM_HOT bool resident_by_256(int64_t rows, const DeviceFacts& facts) {
  const int64_t resident = 2 * wave_threads(facts);
  return rows > facts.arch->decode_rows && rows * 512 > resident && rows * 256 <= resident;
}

FASTNORM_HOT bool is_rare(NormKey key) {
  return key.sink != Sink::kStore || key.affine == Affine::kF32;
}

FASTNORM_HOT int32_t rare_threads(int64_t rows, int64_t vectors, NormKey key, bool latency,
                                  const DeviceFacts& facts) {
  if (key.source == Source::kAdd) return climb(kRareSums, vectors);
  if (vectors > 128 && vectors <= 256) {
    // Codes by a given scale: LAYER 1024 x 1536 3.31 us for 3.52; RMS 2048 x 2048 5.18 for 5.36, and LAYER, of which other
    // rows keep their columns, 16384 x 2048 28.2 for 29.0.
    const bool given = key.sink == Sink::kStatic;
    if (given && key.stat == Stat::kLayer && vectors <= 192 && rows > 2 * facts.arch->decode_rows)
      return 64;
    const bool wider =
        given && (key.stat == Stat::kLayer || rows <= facts.arch->kept_rows / 2) && vectors > 192;
    if (latency || wider) return 128;
  }
  if (key.affine == Affine::kF32)
    return latency && vectors > 384 && vectors <= 640 ? 256 : climb(kColumns, vectors);
  // Scales, 129 to 512 rows: RMS 512 x 12288 7.9 us for 9.4, LAYER 512 x 5120 5.4 for 5.9, x 16384 12.7 for 17.6; but RMS 512 x 7168 5.9 for 5.7.
  const bool many_vectors = key.sink == Sink::kQuant && rows > facts.arch->decode_rows &&
                            vectors > (key.stat == Stat::kLayer ? 512 : 1024);
  // By a given scale: LAYER 512 x 10240 7.6 us for 9.2, 300 x 14336 7.9 for 8.6, RMS 512 x 14336 7.8 for 9.4, x 16384 8.9 for 9.9.
  if (key.sink == Sink::kStatic && vectors > (key.stat == Stat::kLayer ? 1024 : 1536) &&
      vectors <= 2048 && resident_by_256(rows, facts)) {
    return 256;
  }
  if (latency && !many_vectors) return climb(kCodes, vectors);
  // Of a few waves: LAYER 1024 x 16384 18.9 us for 19.5.
  if (key.sink == Sink::kStatic && key.stat == Stat::kLayer && vectors > 1792 && vectors <= 2048 &&
      rows <= facts.arch->latency_rows_short) {
    return 512;
  }
  if (key.sink == Sink::kQuant) {
    // While few blocks come one after another: 1536 x 3072 6.5 us for 6.8.
    if (vectors > 256 && vectors <= 384 && rows * 128 <= 3 * wave_threads(facts)) return 128;
    // RMS 4096 x 8192 27.4 us for 28.5.
    if (vectors > 896 && vectors <= 1024 && key.stat == Stat::kRms && key.dtype != Dtype::kF32)
      return 128;
    return climb(kScales, vectors);
  }
  return key.stat == Stat::kLayer ? climb(kWideCodes, vectors) : climb(kRmsCodes, vectors);
}

// Threads of the one block that takes a row. LAYER has no registers for 1024 threads, nor for two blocks of 512 with a residual: half
// of them hold twice the vectors each.
FASTNORM_HOT int32_t block_threads(int64_t rows, int64_t vectors, NormKey key, bool latency,
                                   const DeviceFacts& facts) {
  if (is_rare(key)) return rare_threads(rows, vectors, key, latency, facts);
  const bool add = key.source == Source::kAdd, layer = key.stat == Stat::kLayer,
             decode = rows <= facts.arch->decode_rows;
  int32_t threads =
      latency ? add && !layer && !decode ? climb(kFewSums, vectors) : climb(kFewRows, vectors)
      : add ? climb(kAdd, vectors)
      : layer ? climb(kLayer, vectors)
              : climb(kRms, vectors);
  // RMS 1024 x 32768: 38.1 us for 40.8, 256 x 32768: 11.4 for 12.9; but 2048 x 32768 70.2 for 69.3, 4096 x 32768 132.5 for 131.1.
  // The threshold lies about where prefetching begins, and is that one.
  if (threads == 1024 && (layer || (!add && rows * vectors * 16 < facts.arch->prefetch_bytes_read)))
    threads = 512;
  // RMS 512 x 12288 8.0 us for 8.9.
  if (!add && threads == 512 && vectors <= 2048 && resident_by_256(rows, facts)) threads = 256;
  if (layer && add && !latency && threads == 512 && vectors <= 1536) threads = 256;
  // Of a few waves: RMS 2048 x 14336 31.4 us for 32.8 (but 1024 x 14336 17.9 for 17.0), LAYER 1024 x 16384 21.7 for 22.7; sums 2048 x 14336
  // 59.3 for 60.5.
  if (!latency && rows <= facts.arch->kept_rows / 2 && key.dtype != Dtype::kF32) {
    const bool longer = vectors > 1536 && vectors <= 1792;
    if (!add && !layer && longer && rows > facts.arch->latency_rows_short) threads = 256;
    if (add && !layer && longer) threads = 512;
    if (!add && layer && vectors > 1792 && vectors <= 2048) threads = 512;
  }
  return threads;
}

// Rows spread over a cluster so that each block reads little: a cluster size and threads, or 0 where one block is better.
FASTNORM_HOT Tile few_rows_cluster(int64_t rows, int64_t vectors, NormKey key, int32_t max_blocks) {
  int32_t threads = 0, blocks = 0;
  const bool add = key.source == Source::kAdd, layer = key.stat == Stat::kLayer,
             columns = key.affine == Affine::kF32 && !add;
  // Of the tiles for more than 64 rows codes have those of up to 1024 vectors: LAYER by a given scale 128 x 8192 3.63 us for 3.81.
  const bool given = key.sink == Sink::kStatic && !add && vectors <= 1024;
  if (is_rare(key) && rows > 64 && !columns && !given) return {};
  if (vectors > 2048 && vectors <= 4096) {
    // While all rows are resident at once: RMS 64 x 32768 4.4 us for 5.5, LAYER 32 x 32768 3.9 for 6.6, scales from the values 3.9 for
    // 5.0; sums gain beyond that, too (20 x 32768 3.6 for 5.8, 128 x 32768 10.7 for 11.1). Other rows without a residual or
    // codes in two blocks: RMS 128 x 32768 6.6 for 7.7, LAYER 7.6 for 9.1.
    const bool many_registers = key.sink == Sink::kQuant || (columns && layer);
    const int64_t in_eights = add ? rows : many_registers ? 32 : layer || columns ? 48 : 64;
    if (rows <= in_eights) {
      threads = 256, blocks = 8;
    } else if (!add && key.sink == Sink::kStore) {
      threads = 512, blocks = 2;
    }
  } else if (vectors > 1024 && vectors <= 2048) {
    if (rows <= 64) {
      threads = 128, blocks = 8;
    } else if (add || layer || columns) {
      threads = 256, blocks = 2;
    } else {
      threads = 256, blocks = 4;
    }
  } else if (vectors > 512 && vectors <= 1024) {
    // One block is better of up to 768 vectors (128 x 5120: LAYER 8 %, 64 x 5120: RMS and sums 4 and 3 %, LAYER 5 %, 1 to 16 x 5120: RMS 3 %,
    // LAYER 3 to 4 %; by a given scale 64 x 6144: sums 6 %, LAYER 5 %), but for 16 sums; and of more from 65 rows on for RMS (128 x 8192: 0.60
    // us more than the stream for 0.69), from 49 on for sums (64 x 8192 3.28 us for 3.38, x 7168 3.13 for 3.24, to e4m3 3.12 for 3.22).
    const bool given_scale = key.sink == Sink::kStatic,
               measured = (key.sink == Sink::kStore || given_scale) && !columns &&
                          key.dtype != Dtype::kF32 && !(add && layer),
               short_row = vectors <= 768 && (rows > 16 || !add || given_scale),
               many = !layer && rows > 48 && (add || !given_scale);
    const bool block = measured && (short_row || many);
    if (block) {
    } else if (rows <= 16) {
      threads = 64, blocks = 8;
    } else {
      threads = 128, blocks = 4;
    }
  } else if (vectors > 256 && vectors <= 512 && columns && layer && rows <= 64) {
    threads = 64, blocks = 4;  // LAYER 1 x 4096: 2.08 us, in a block 2.15
  }
  if (blocks == 0 || blocks > max_blocks) return {};
  return tile_of(vectors, threads, blocks);
}

// A residual's rows, as many as are all resident at once with 8 vectors a thread and 128 registers, where 4 vectors and 96 are not enough:
// their loads are all on their way together (512 x 8192: 9.7 us, in two waves 10.8; 1024 x 4096: 9.6 and 10.4). Rows too long for that are
// spread over clusters so that each block is small (512 x 16384: 18.9 us for 19.7).
FASTNORM_HOT Tile one_wave_tile(int64_t rows, int64_t vectors, const DeviceFacts& facts,
                                int32_t max_blocks) {
  if (vectors <= 128 || vectors > 2048) return {};
  int32_t threads = 32, blocks = 1;
  while (vectors > int64_t{8} * threads * blocks) {
    if (threads < 128) {
      threads *= 2;
    } else {
      blocks *= 2;
    }
  }
  const int64_t wave = rows * threads * blocks, all = wave_threads(facts);
  if (wave > all / 2 && wave <= all && blocks <= max_blocks)
    return tile_of(vectors, threads, blocks);
  if (vectors > 1024 && wave > all && rows <= facts.arch->latency_rows_short && max_blocks >= 4)
    return tile_of(vectors, 128, 4);
  return {};
}

// Rows of whole vectors that one block does not hold are spread over a cluster. Two blocks of 512 threads run beside each other on a
// multiprocessor up to 4 vectors a thread, so that one loads while the other stores; a residual's sum is held in f32 and leaves room for
// one. No tile where the row is longer than a cluster's registers.
//
// Many rows without a residual: four blocks of 256 threads beside each other, which hold rows of 16 bits as they were loaded, twice as much
// as unpacked in 512 threads. 4096 x 65536 RMS 263.7 us for 306.8, LAYER 289 for 352, with f32 columns 318 for 392; 4096 x 262144 1123 for 1389, 1263 for 1724, 1600 for 2194;
// 32 x 65536 5.8 for 6.2; but 8 x 65536 4.5 for 3.0 (2026-11-23).
constexpr int64_t kOneBlockVectors = 4096;
constexpr int64_t kFewLongRows = 16;

// With f32 columns a sum has none, and longer rows have none.
constexpr int64_t kLongColumnsVectors = 32768;

Tile long_row_tile(int64_t rows, int64_t vectors, bool add, bool columns,
                   const DeviceFacts& facts) {
  if (columns && (add || vectors > kLongColumnsVectors)) return {};
  struct LongRung {
    int32_t vectors, threads, blocks;
  };
  constexpr LongRung kFew[] = {{16384, 512, 8}, {65536, 512, 16}, {131072, 1024, 16}},
                     kMany[] = {{8192, 256, 4},
                                {16384, 256, 8},
                                {32768, 256, 16},
                                {65536, 512, 16},
                                {131072, 1024, 16}},
                     kSum[] = {{28672, 512, 8}, {57344, 512, 16}};
  const int32_t max_blocks = std::min(facts.arch->max_cluster_blocks, facts.max_cluster_blocks);
  const auto find = [&](std::span<const LongRung> ladder) -> Tile {
    for (const LongRung& rung : ladder) {
      if (vectors <= rung.vectors && rung.blocks <= max_blocks)
        return tile_of(vectors, rung.threads, rung.blocks);
    }
    return {};
  };
  if (add) return find(kSum);
  return rows <= kFewLongRows && max_blocks >= 8 ? find(kFew) : find(kMany);
}

// Rows of any access that no tile holds are streamed, by a cluster of the architecture's largest size where the device can schedule it.
Tile stream_tile(const DeviceFacts& facts) {
  const int32_t blocks = facts.arch->max_cluster_blocks;
  return {256, 0, static_cast<int8_t>(facts.max_cluster_blocks < blocks ? 1 : blocks)};
}

// The tile for rows of up to so many vectors.
struct TileRung {
  int32_t vectors;
  Tile tile;
};

template <size_t kRungs>
Tile first_of(const TileRung (&ladder)[kRungs], int64_t vectors) {
  for (const TileRung& rung : ladder) {
    if (vectors <= rung.vectors) return rung.tile;
  }
  return {};
}

// Rows that are no whole vectors, or not at multiples of 16 bytes.
constexpr TileRung kUnevenTiles[] = {{4, {4, 1, 1}},      {8, {4, 2, 1}},      {16, {8, 2, 1}},
                                     {32, {16, 2, 1}},    {48, {16, 3, 1}},    {64, {16, 4, 1}},
                                     {96, {32, 3, 1}},    {128, {32, 4, 1}},   {192, {64, 3, 1}},
                                     {256, {64, 4, 1}},   {384, {128, 3, 1}},  {512, {128, 4, 1}},
                                     {640, {128, 5, 1}},  {768, {256, 3, 1}},  {1024, {256, 4, 1}},
                                     {1536, {512, 3, 1}}, {2048, {512, 4, 1}}, {2560, {512, 5, 1}},
                                     {3072, {512, 6, 1}}, {3584, {512, 7, 1}}, {4096, {512, 8, 1}}};

// Few rows: more threads a row, of bare kernels, which have these tiles, too.
constexpr TileRung kFewUnevenTiles[] = {{8, {}},
                                        {16, {16, 1, 1}},
                                        {32, {32, 1, 1}},
                                        {64, {32, 2, 1}},
                                        {128, {128, 1, 1}},
                                        {256, {128, 2, 1}},
                                        {384, {128, 3, 1}},
                                        {512, {256, 2, 1}},
                                        {768, {256, 3, 1}}};

// Codes of uneven rows, or with f32 columns, by any scheme.
constexpr TileRung kUnevenCodesTiles[] = {
    {16, {16, 1, 1}},   {32, {16, 2, 1}},   {64, {32, 2, 1}},    {96, {32, 3, 1}},
    {128, {32, 4, 1}},  {256, {128, 2, 1}}, {384, {128, 3, 1}},  {512, {128, 4, 1}},
    {640, {128, 5, 1}}, {768, {256, 3, 1}}, {1024, {256, 4, 1}}, {1536, {512, 3, 1}},
    {2048, {512, 4, 1}}};

// Of longer ones, clusters.
constexpr TileRung kLongUnevenTiles[] = {
    {2048, {256, 1, 8}},  {4096, {256, 2, 8}},  {6144, {256, 3, 8}},   {8192, {256, 4, 8}},
    {12288, {512, 3, 8}}, {16384, {512, 4, 8}}, {24576, {512, 3, 16}}, {32768, {512, 4, 16}}};

Tile uneven_tile(int64_t vectors, NormKey key, const DeviceFacts& facts) {
  if (key.sink == Sink::kQuant) return first_of(kUnevenCodesTiles, vectors);
  // A sum's rows lie in shared memory three times, of which sm_120 has 99 KB for a block; LAYER's sums take more of it, too.
  const bool add = key.source == Source::kAdd;
  const int64_t most = !add ? 4096 : key.stat == Stat::kRms ? 2048 : 1536;
  if (vectors > most) {
    const Tile tile = first_of(kLongUnevenTiles, vectors);
    const bool runs =
        tile.blocks <= std::min(facts.arch->max_cluster_blocks, facts.max_cluster_blocks);
    return runs ? tile : Tile{};
  }
  // A sum of two vectors a thread loses: 65536 x 111 30.6 us, 27.2.
  if (add && vectors > 8 && vectors <= 16) return {16, 1, 1};
  return first_of(kUnevenTiles, vectors);
}

// The general kernels predicate every vector, so a tile serves all rows up to its size and a handful is enough. They are bound by
// instructions, most of which are a thread's and not a vector's: four vectors a thread (LAYER with f32 columns, 65536 x 111: 33 us, one
// vector 70), but for few rows, which are bound by latency (1 x 111: 3.0 us for 4.6).
Tile any_access_tile(int64_t rows, int64_t vectors, NormKey key, const DeviceFacts& facts) {
  constexpr struct {
    int32_t vectors;
    Tile tile;
    bool codes;  // has those, too
    bool sums;   // is theirs, to y alone: what is summed may be f32, which is more than seldom
  } kTiles[] = {{16, {4, 4, 1}, false, false},    {32, {32, 1, 1}, false, false},
                {128, {32, 4, 1}, true, false},   {256, {64, 4, 1}, false, true},
                {512, {128, 4, 1}, false, false}, {1024, {256, 4, 1}, false, false},
                {2048, {512, 4, 1}, true, false}, {4096, {512, 8, 1}, false, false}};
  const bool few_rows = rows <= facts.arch->decode_rows;
  for (const auto& t : kTiles) {
    const bool fits = key.sink == Sink::kStore ? (t.tile.vectors <= 4 || key.stat == Stat::kRms) &&
                                                     (!t.sums || key.source == Source::kAdd)
                                               : t.codes;
    const bool slow = few_rows && t.tile.vectors == 4 && t.tile.threads < 32;
    if (vectors <= t.vectors && fits && !slow) return t.tile;
  }
  return stream_tile(facts);
}

// The greatest power of two up to `limit`, one itself, that divides what `bits` was made of.
int32_t widest_access(uint64_t bits, int32_t limit) {
  bits |= static_cast<uint64_t>(limit);
  return static_cast<int32_t>(bits & (~bits + 1));
}

// True if columns can be read by 16 bytes, whatever the rows allow.
bool columns_aligned(const NormDesc& d) {
  uint64_t bits = 0;
  for (const ColumnTensor& c : {d.weight, d.bias})
    bits |= reinterpret_cast<uintptr_t>(c.data) | static_cast<uint64_t>(c.head_stride_bytes);
  return widest_access(bits, 16) == 16;
}

// What a call's tensors come to, all together.
struct Totals {
  // Every number that limits how wide rows and columns can be accessed (address, stride, length in bytes), or'ed.
  uint64_t alignment = 0;
  // Distinct bytes: dimensions that are broadcast are read once.
  uint64_t bytes_read = 0, bytes_written = 0;
};

// Bytes unsigned: rows, and heads of columns, may overlap each other.
FASTNORM_HOT Totals totals_of(const NormDesc& d) {
  Totals sum;
  const auto rows = [&](const RowTensor& t, int64_t columns, uint64_t* alignment)
      __attribute__((always_inline)) {
    if (!t) return uint64_t{0};
    auto bytes = static_cast<uint64_t>(columns * dtype_bytes(t.dtype));
    *alignment |= reinterpret_cast<uintptr_t>(t.data) | bytes;
    for (int i = 0; i < d.outer_rank; ++i) {
      *alignment |= static_cast<uint64_t>(t.stride_bytes[i]);
      if (t.stride_bytes[i] != 0) bytes *= static_cast<uint64_t>(d.outer[i]);
    }
    return bytes;
  };
  const auto columns = [&](const ColumnTensor& c) __attribute__((always_inline)) {
    if (!c) return uint64_t{0};
    sum.alignment |=
        reinterpret_cast<uintptr_t>(c.data) | static_cast<uint64_t>(c.head_stride_bytes);
    const int64_t heads = c.head_stride_bytes != 0 ? d.outer[0] : 1;
    return static_cast<uint64_t>(d.n * dtype_bytes(c.dtype)) * static_cast<uint64_t>(heads);
  };
  sum.bytes_read = rows(d.x, d.n, &sum.alignment) + rows(d.residual, d.n, &sum.alignment) +
                   columns(d.weight) + columns(d.bias);
  sum.bytes_written = rows(d.y, d.n, &sum.alignment) + rows(d.residual_out, d.n, &sum.alignment);
  uint64_t any = 0;  // these are not accessed by vectors, or codes_aligned() says how
  if (d.mean || d.rstd) sum.bytes_written += rows(d.mean, 1, &any) + rows(d.rstd, 1, &any);
  const QuantDesc& q = d.quant;
  if (q.scheme != FASTNORM_QUANT_NONE) {
    sum.bytes_written += rows(q.codes, q.code_bytes(d.n), &any);
    sum.bytes_written += q.swizzled ? static_cast<uint64_t>(q.swizzled_bytes(d.rows, d.n))
                                    : rows(q.scale, q.scales(d.n), &any);
  }
  return sum;
}

uint64_t alignment_bits(const NormDesc& d) { return totals_of(d).alignment; }

fastnorm_status plan_cpu(const NormDesc& d, const DeviceFacts& facts, NormPlan* plan) {
  // A worker pays from about 64 Ki elements: waking it costs as much as 32 to 64 rows of 1024.
  constexpr int64_t kGrainElements = 65536;
  const int64_t grain = std::clamp<int64_t>(divide_up(kGrainElements, d.n), 1, INT32_MAX);
  plan->rows_per_block = static_cast<int32_t>(grain);
  const int64_t ranges = std::min<int64_t>(divide_up(d.rows, grain), facts.threads);
  plan->blocks = static_cast<uint64_t>(ranges);
  // Stores past the caches win from an output slice of 1.5 L2 a thread (measured: 0.76 of the time at 2 MiB, 1.07 at 1.5 MiB,
  // L2 2 MiB; a reader of y right after gains from there on too).
  plan->non_temporal = plan->bytes_written / static_cast<uint64_t>(ranges) >=
                       static_cast<uint64_t>(facts.l2_bytes) * 3 / 2;
  return FASTNORM_OK;
}

// Blocks of a grid whose blocks take `all` shares in turn: as many as are resident at once, or up to 1/32 fewer where each then has as many
// shares (LAYER 4096 x 8192: 36.3 us with 256 blocks, 36.9 with 264; with fewer, 128 and so on, it is slower).
uint64_t blocks_in_turn(uint64_t all, Tile tile, const DeviceFacts& facts) {
  const auto resident = static_cast<uint64_t>(facts.multiprocessors) *
                        static_cast<uint64_t>(std::max(kept_blocks(tile), 1));
  if (all <= resident) return all;
  const uint64_t turns = (all + resident - 1) / resident, even = (all + turns - 1) / turns;
  return even >= resident - resident / 32 ? even : resident;
}

// True if rows are read past L1: never LAYER's. Of more than 32, 1 to 3 % less (128 x 7168 3.19 us and 3.11, sums 64 x 5120 2.85 and 2.80), of
// up to 512 long rows 1 to 4 % (512 x 16384 10.60 and 10.14); but sums to codes by a given scale 512 x 7168 9.08 us, not so 8.88,
// and without a residual codes and 2048 rows lose from 9 MB on (512 x 8192 5.33 and 5.21, 2048 x 1536 to y 4.88 and 4.78; H200, bf16,
// 2026-11-24).
FASTNORM_HOT bool streams_loads(const NormDesc& d, const ArchSpec& arch, const NormPlan& plan) {
  if (d.kind != FASTNORM_NORM_RMS || d.rows <= arch.stream_rows) return false;
  const bool codes = d.quant.any();
  int64_t most = arch.stream_bytes;
  if (!codes && (d.residual || d.rows <= arch.latency_rows)) {
    most = arch.stream_bytes_long;
  } else if (!d.residual && (codes || d.rows > arch.latency_rows_short)) {
    most /= 2;
  }
  return static_cast<int64_t>(plan.bytes_read + plan.bytes_written) <= most;
}

// The same for bare kernels of several rows a block: those of RMS to y are there both ways.
FASTNORM_HOT bool streams_short_loads(const NormDesc& d, NormKey key, Tile tile,
                                      const ArchSpec& arch, const NormPlan& plan) {
  return rows_per_block(tile) > 1 && d.outer_rank == 1 && key.stat == Stat::kRms &&
         key.source == Source::kPlain && key.sink == Sink::kStore &&
         static_cast<int64_t>(plan.bytes_read + plan.bytes_written) <= arch.stream_bytes_short;
}

// Rows that are brought into L2 ahead gain nothing where codes by a given scale leave and blocks hold rows as they were loaded: RMS to e4m3
// 8192 x 10240 62.4 us with it, 60.6 without, 8192 x 14336 87.7 and 85.6, 4096 x 32768 101.1 and 99.4, LAYER 8192 x 16384 102.2 and 100.3;
// but unpacked RMS 8192 x 16384 99.3 and 103.9, LAYER 8192 x 10240 71.4 and 73.8 (H200, 2026-11-24).
bool prefetches(NormKey key, Tile tile) {
  if (tile.blocks > 1 || tile.threads < 128) return false;  // no kernel does
  if (key.sink != Sink::kStatic || key.source != Source::kPlain || key.dtype == Dtype::kF32)
    return true;
  if (key.stat == Stat::kLayer) return tile.threads > 256 || tile.vectors < 7;
  return tile.vectors < 5 || tile == Tile{512, 5};
}

// The part of a CUDA plan that follows from the tile.
FASTNORM_HOT fastnorm_status plan_cuda(const NormDesc& d, const DeviceFacts& facts, Tile tile,
                                       NormKey key, NormPlan* plan, Error& error) {
  const ArchSpec& arch = *facts.arch;
  const bool kept = key.affine == Affine::kKept;
  const int32_t per_block = rows_per_block(tile);
  plan->rows_per_block = kept ? 1 : per_block;
  plan->blocks = static_cast<uint64_t>(divide_up_pow2(d.rows, plan->rows_per_block)) *
                 static_cast<uint64_t>(tile.blocks);
  if (kept) plan->blocks = blocks_in_turn(plan->blocks, tile, facts);
  constexpr int64_t kMaxRows = int64_t{0xffffff00};  // row numbers are 32 bits wide on the device
  FASTNORM_REQUIRE(d.rows <= kMaxRows, FASTNORM_ERROR_UNSUPPORTED,
                   "x has %" PRId64 " rows; a call takes %" PRId64
                   "; nearest: a call for each part of the rows",
                   d.rows, kMaxRows);
  FASTNORM_REQUIRE(plan->blocks <= arch.max_blocks, FASTNORM_ERROR_UNSUPPORTED,
                   "x has %" PRId64 " rows, which take %" PRIu64
                   " thread blocks; a grid holds %" PRIu64
                   "; nearest: a call for each part of the rows",
                   d.rows, plan->blocks, arch.max_blocks);
  const bool layer = d.kind == FASTNORM_NORM_LAYER;
  // Bare kernels of several rows a block to y are either the one or the other.
  const bool known = per_block > 1 && key.source == Source::kPlain && key.sink == Sink::kStore &&
                     (key.beside == Beside::kNothing || key.beside == Beside::kNothingCs);
  plan->stream_loads = known ? key.beside == Beside::kNothingCs
                             : key.access != Access::kUneven && streams_loads(d, arch, *plan);
  const int64_t read = static_cast<int64_t>(plan->bytes_read);
  if (d.outer_rank == 1 && arch.prefetch_bytes_ahead > 0 &&
      read >= (layer ? arch.prefetch_bytes_read_layer : arch.prefetch_bytes_read)) {
    const int64_t row_bytes = d.n * dtype_bytes(d.dtype) * (d.residual ? 2 : 1);
    if (!kept && prefetches(key, tile)) {
      plan->prefetch_rows = static_cast<uint32_t>(divide_up(arch.prefetch_bytes_ahead, row_bytes));
    } else if (kept && kept_prefetches(key.sink, tile)) {
      // The row after the next, which is on its way already.
      plan->prefetch_rows = static_cast<uint32_t>(2 * plan->blocks);
    }
  }
  return FASTNORM_OK;
}

// What does not depend on the tile. Returns alignment_bits().
FASTNORM_HOT uint64_t plan_common(const NormDesc& d, const DeviceFacts& facts, NormPlan* plan) {
  const Totals sum = totals_of(d);
  plan->vector_bytes = widest_access(sum.alignment, facts.vector_bytes);
  plan->bytes_read = sum.bytes_read;
  plan->bytes_written = sum.bytes_written;
  return sum.alignment;
}

}  // namespace

bool plain_columns(const NormDesc& d) {
  if (d.weight && d.weight.dtype != d.dtype) return false;
  return !d.bias || (d.kind == FASTNORM_NORM_LAYER && d.bias.dtype == d.dtype);
}

bool f32_columns(const NormDesc& d) {
  const auto fits = [](const ColumnTensor& c) { return !c || c.dtype == Dtype::kF32; };
  return d.dtype != Dtype::kF32 && fits(d.weight) && fits(d.bias) &&
         (!d.bias || d.kind == FASTNORM_NORM_LAYER);
}

bool codes_aligned(const NormDesc& d, int vectors) {
  const QuantDesc& q = d.quant;
  // What one 16-byte vector of a row becomes: n bytes are as many times that as the row is vectors.
  const auto bytes =
      static_cast<uint64_t>(q.code_bytes(vectors * (d.dtype == Dtype::kF32 ? 4 : 8)));
  uint64_t bits = reinterpret_cast<uintptr_t>(q.codes.data);
  for (int i = 0; i < d.outer_rank; ++i) bits |= static_cast<uint64_t>(q.codes.stride_bytes[i]);
  return (bits & (bytes - 1)) == 0;
}

namespace {

// True if a call that a kernel of `key` computes may have one of Access::kWide, for a tile that has one.
FASTNORM_HOT bool may_be_wide(const NormDesc& d, NormKey key, const DeviceFacts& facts,
                              uint64_t bits) {
  if (facts.device_type != FASTNORM_DEVICE_CUDA || facts.arch->access_bytes != 32 ||
      widest_access(bits, 32) != 32 || key.access != Access::kVector) {
    return false;
  }
  if (key.sink == Sink::kStatic) return codes_aligned(d, 2);
  return key.sink == Sink::kStore && key.affine == Affine::kOnce;
}

NormKey wide_key(NormKey key) {
  key.access = Access::kWide;
  return key;
}

// True if all rows have the same weight and bias.
FASTNORM_HOT bool shares_columns(const NormDesc& d) {
  return (d.weight.head_stride_bytes | d.bias.head_stride_bytes) == 0;
}

// True if a call that a kernel of `key` computes may have one of Affine::kKept, for a tile that has one. Such rows are of 16 bits, and all
// have the same columns.
FASTNORM_HOT bool may_be_kept(const NormDesc& d, NormKey key, const DeviceFacts& facts) {
  if (key.stat == Stat::kRms || facts.device_type != FASTNORM_DEVICE_CUDA ||
      key.access != Access::kVector || key.source != Source::kPlain || key.sink == Sink::kQuant ||
      d.dtype == Dtype::kF32) {
    return false;
  }
  return shares_columns(d);
}

NormKey kept_key(NormKey key) {
  key.affine = Affine::kKept;
  return key;
}

// The tile with which it pays, or none. Columns of 16 bits are loaded and unpacked for every row else, f32 ones loaded, which is half of
// LAYER's instructions; but blocks that take rows in turn have equal shares, which the hardware's balance beats by some percent where
// memory is what counts. So they pay where instructions hold a kernel up, and in between: more rows than are resident at once, and not so
// many that the balance tells. Measured on an H200 with bf16 and f16, 2026-11-23; times are with kept columns and without.
FASTNORM_HOT Tile kept_tile(const NormDesc& d, NormKey key, const DeviceFacts& facts,
                            uint64_t bytes_moved) {
  const ArchSpec& arch = *facts.arch;
  const int64_t vectors = row_vectors(d);
  // Of 768 vectors 128 x 6 has no registers, and 256 x 3 too few blocks beside each other (f32 columns, 4096 x 6144: 28.9 us and 27.9).
  if (d.rows <= arch.decode_rows || vectors < kLeastKeptVectors || vectors > 1024 ||
      (vectors > 640 && vectors <= 768)) {
    return {};
  }
  const Tile tile = tile_of(vectors, climb(kKept, vectors));
  const int64_t resident = int64_t{facts.multiprocessors} * kept_blocks(tile);
  const bool more = d.rows > resident, thrice = d.rows > 2 * resident;
  bool pays = false;
  if (key.affine == Affine::kF32) {
    // 4096 x 1024: 6.1 us and 6.7, x 4096 19.0 and 19.8, 1024 x 8192 10.7 and 12.6; but 8192 x 4096 36.9 and 35.2.
    pays = 2 * d.rows > resident && (d.rows <= arch.kept_rows || vectors <= 256);
  } else if (key.sink == Sink::kStatic) {
    // 4096 x 2048: 8.9 us and 9.4, x 5120 18.5 and 21.5, x 8192 27.8 and 29.9; but 3 vectors a thread lose (4096 x 1536 7.7 and 7.3), 16384 x
    // 2048 (29.0 and 28.2) and x 4096 (53.7 and 52.7), and 1536 x 2048 (5.3 and 4.9).
    const bool some = tile.vectors > 4 || tile.threads > 128 || d.rows <= arch.kept_rows;
    pays = tile.vectors > 3 && some && (tile.threads > 64 ? more : 2 * d.rows > 3 * resident);
  } else if (tile.threads == 32) {
    // 8192 x 1024: 10.4 us and 11.3.
    pays = tile.vectors == 4 && thrice &&
           bytes_moved < static_cast<uint64_t>(arch.wide_row_bytes_moved);
  } else {
    // 2048 x 2048: 6.0 us and 6.5, 1024 x 4096 6.1 and 6.5, x 8192 10.7 and 11.2; 2048 x 3072 and x 5120 are no faster, nor is 2048 x 4096 (10.6
    // and 10.3) or x 8192 (19.4 and 19.1).
    pays = tile.vectors == 4 && more &&
           d.rows <= (tile.threads == 64 ? arch.kept_rows / 2 : arch.latency_rows_short);
  }
  return pays ? tile : Tile{};
}

// Of the kernels that can do little beside what a key says, those that do all that `desc` asks for, or kAny: kNothing or kRounded. Those of a
// tile with several rows a block know two indices, but of sums one.
FASTNORM_HOT Beside beside_of(const NormDesc& d, Tile tile) {
  if (d.outer_rank > (rows_per_block(tile) > 1 && !d.residual ? 2 : 1) || !d.weight ||
      (!d.bias && d.kind != FASTNORM_NORM_RMS) || !shares_columns(d) || d.mean || d.rstd ||
      (d.quant.any() && (d.y || d.quant.has_extras()))) {
    return Beside::kAny;
  }
  if (d.rounding == FASTNORM_ROUND_ONCE && d.residual_rounding == FASTNORM_RESIDUAL_EXACT)
    return Beside::kNothing;
  const bool sum_rounded =
      !d.residual || d.residual_rounding == FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS;
  // An offset of -0 leaves a weight of -0 as it is, 0 does not.
  const bool offset = std::bit_cast<uint32_t>(d.weight_offset) != 0;
  return d.rounding == FASTNORM_ROUND_NORMALIZED && sum_rounded && !offset ? Beside::kRounded
                                                                           : Beside::kAny;
}

// The same for calls of a key: beside uneven rows they read columns by 16 bytes.
FASTNORM_HOT Beside beside_of(const NormDesc& d, NormKey key, Tile tile) {
  if (key.access == Access::kUneven && (!columns_aligned(d) || d.outer_rank > 1))
    return Beside::kAny;
  return beside_of(d, tile);
}

// True if a call that bare kernels of `key` compute may run on one that reaches rows by 8 bytes.
FASTNORM_HOT bool may_be_halves(const NormDesc& d, NormKey key, Beside beside) {
  return beside == Beside::kNothing && key.access == Access::kUneven && key.sink == Sink::kStore &&
         (key.affine == Affine::kOnce ||
          (key.affine == Affine::kF32 && key.stat == Stat::kLayer)) &&
         widest_access(alignment_bits(d), 8) == 8;
}

// True if a kernel computes what `desc` asks for, where it holds its rows: one of the same key, or a more general one.
bool serves(const NormEntry& entry, const NormDesc& desc, const DeviceFacts& facts) {
  const NormKey have = entry.key, need = norm_key(desc, facts);
  if (facts.device_type == FASTNORM_DEVICE_CUDA) {
    if (have.affine == Affine::kOnce && !plain_columns(desc)) return false;
    if (have.affine == Affine::kF32 && !f32_columns(desc)) return false;
    if (have.beside != Beside::kAny) {
      const Beside asked = beside_of(desc, need, entry.tile);
      const bool does = have.beside == asked ||
                        (have.beside == past_l1(asked) && desc.outer_rank == 1) ||
                        (have.beside == Beside::kShared && asked == Beside::kNothing) ||
                        (have.beside == Beside::kHalves && may_be_halves(desc, need, asked));
      return does && have == bare_key(need, have.beside);
    }
    if (have.affine == Affine::kKept)
      return may_be_kept(desc, need, facts) && have == kept_key(need);
    if (have.access == Access::kWide)
      return may_be_wide(desc, need, facts, alignment_bits(desc)) && have == wide_key(need);
  }
  return have.dtype == need.dtype && have.source == need.source && have.stat == need.stat &&
         (have.sink == need.sink || (have.sink == Sink::kQuant && need.sink == Sink::kStatic)) &&
         have.affine >= (need.affine == Affine::kAny ? Affine::kAny : Affine::kOnce) &&
         have.access >= need.access;
}

// norm_key() where the alignment is known.
FASTNORM_HOT NormKey key_of(const NormDesc& d, const DeviceFacts& facts, uint64_t bits) {
  NormKey key;
  key.dtype = d.dtype;
  key.source = d.residual ? Source::kAdd : Source::kPlain;
  key.stat = d.kind == FASTNORM_NORM_RMS ? Stat::kRms : Stat::kLayer;
  const bool cuda = facts.device_type == FASTNORM_DEVICE_CUDA;
  // GPU kernels round the sum and the normalised row at run time, every one of them.
  const bool once =
      cuda ? d.rounding != FASTNORM_ROUND_EVERY_STEP &&
                 d.residual_rounding != FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY
           : d.rounding == FASTNORM_ROUND_ONCE && d.residual_rounding == FASTNORM_RESIDUAL_EXACT;
  const bool same_dtypes = (!d.residual || d.residual.dtype == d.dtype) &&
                           (!d.residual_out || d.residual_out.dtype == d.dtype);
  const int64_t vectors = row_vectors(d);
  const bool plain = plain_columns(d), quant = d.quant.any(), uneven = widest_access(bits, 16) < 16;
  if (quant) key.sink = Sink::kQuant;
  // Most calls.
  if (!uneven && once && same_dtypes && vectors <= kOneBlockVectors && !quant && (plain || !cuda))
    return key;
  const bool too_long =
      cuda && vectors > kOneBlockVectors &&
      long_row_tile(d.rows, vectors, key.source == Source::kAdd, !plain, facts).threads == 0;
  // Kernels exist for the plain corner of both axes and for everything: two, so that the table stays small.
  const bool general_sink =
      quant && (!cuda || !codes_aligned(d) || !plain || vectors > kOneBlockVectors);
  const bool aligned = columns_aligned(d),
             fours = !plain && key.source == Source::kPlain && f32_columns(d) && aligned;
  // Kernels for uneven rows write codes to any address and have f32 columns beside them.
  const bool uneven_codes =
      quant && cuda && once && same_dtypes && (plain || (fours && facts.arch->full_list)) &&
      aligned && d.dtype != Dtype::kF32 && !(d.residual && key.stat == Stat::kLayer) &&
      (uneven || !plain || !codes_aligned(d)) && uneven_tile(vectors, key, facts).threads != 0;
  if (uneven_codes) {
    key.access = Access::kUneven;
    if (!plain) key.affine = Affine::kF32;
  } else if (uneven && cuda && !quant && once && same_dtypes && (plain || fours) &&
             uneven_tile(vectors, key, facts).threads != 0) {
    key.access = Access::kUneven;
    if (fours) key.affine = Affine::kF32;
  } else if (!uneven && cuda && !quant && once && same_dtypes && !plain && f32_columns(d) &&
             !too_long) {
    key.affine = Affine::kF32;
  } else if (general_sink || !once || !same_dtypes || too_long || uneven || (cuda && !plain)) {
    key.affine = Affine::kAny;
    key.access = Access::kAny;
  } else if (d.quant.scheme == FASTNORM_QUANT_PER_TENSOR && !d.y && !d.quant.has_extras() &&
             d.quant.code_type() != CodeType::kE5M2 && d.dtype != Dtype::kF32) {
    key.sink = Sink::kStatic;
  }
  return key;
}

// norm_tile(), to be inlined.
FASTNORM_HOT Tile tile_for(const NormDesc& d, NormKey key, const DeviceFacts& facts,
                           uint64_t bytes_moved) {
  const ArchSpec& arch = *facts.arch;
  const int32_t max_blocks = std::min(arch.max_cluster_blocks, facts.max_cluster_blocks);
  const int64_t vectors = row_vectors(d);
  if (key.access == Access::kAny) return any_access_tile(d.rows, vectors, key, facts);
  if (key.access == Access::kUneven) return uneven_tile(vectors, key, facts);
  if (vectors > kOneBlockVectors)  // norm_key() asks for kAny where there is none
    return long_row_tile(d.rows, vectors, key.source == Source::kAdd, key.affine == Affine::kF32,
                         facts);
  const bool few_rows = d.rows <= arch.decode_rows;
  const bool add = key.source == Source::kAdd;
  if (add && key.stat == Stat::kRms && !is_rare(key) && !few_rows) {
    const Tile tile = one_wave_tile(d.rows, vectors, facts, max_blocks);
    if (tile.threads != 0) return tile;
  }
  // Sums of some hundred rows: 1024 x 8192 18.8 us for 19.2, 2048 x 8192 35.1 for 35.6; to codes by a given scale 256 x 16384 9.9 for 10.9, 1024 x
  // 16384 31.4 for 32.7.
  if (add && key.stat == Stat::kRms && !few_rows && max_blocks >= 8 && key.dtype != Dtype::kF32) {
    if (!is_rare(key) && vectors > 768 && vectors <= 1024 && d.rows > arch.latency_rows &&
        d.rows <= arch.kept_rows / 2) {
      return tile_of(vectors, 128, 4);
    }
    if (key.sink == Sink::kStatic && vectors > 1792 && vectors <= 2048 &&
        d.rows <= arch.latency_rows_short) {
      return tile_of(vectors, 128, 8);
    }
  }
  // A sum of long rows gains from a cluster for longer (512 x 16384: 19.6 us for 20.3).
  if (few_rows ||
      (add && d.rows <= arch.latency_rows && vectors > 1536 && vectors <= 2048 && !is_rare(key))) {
    const Tile tile = few_rows_cluster(d.rows, vectors, key, max_blocks);
    if (tile.threads != 0) return tile;
  }
  // Many short rows are bound by instructions: two vectors a thread share those of a row. Query and key heads have their tokens in
  // common, and need a tile in common for one launch.
  if (!add && !is_rare(key) && vectors > 8 && vectors <= 32) {
    const int64_t heads = d.outer_rank > 1 ? d.outer[0] : 64;
    int64_t least_rows = 0;
    if (!__builtin_mul_overflow(heads, arch.many_tokens, &least_rows) && d.rows >= least_rows)
      return tile_of(vectors, vectors <= 16 ? 8 : 16);
  }
  if (!few_rows && !is_rare(key) && vectors > 64 && vectors <= 128 &&
      bytes_moved >= static_cast<uint64_t>(arch.wide_row_bytes_moved)) {
    return tile_of(vectors, 64);
  }
  // Up to 2048 rows of about 1024 elements: RMS 2048 x 1024 3.94 us for 4.09, LAYER 4.03 for 4.29 with 64 threads, sums 5.94 for 6.70, 1536 x 768 4.3 for
  // 5.1.
  if (!is_rare(key) && vectors > (key.stat == Stat::kLayer ? 96 : 64) && vectors <= 128 &&
      key.dtype != Dtype::kF32 &&
      d.rows > (add || key.stat == Stat::kLayer ? arch.latency_rows_short : arch.latency_rows) &&
      d.rows <= arch.kept_rows / 2 && !(add && key.stat == Stat::kLayer)) {
    return tile_of(vectors, key.stat == Stat::kLayer ? 64 : 128);
  }
  const bool latency = d.rows <= arch.latency_rows ||
                       (d.rows <= arch.latency_rows_short && (add || key.stat == Stat::kLayer) &&
                        bytes_moved <= static_cast<uint64_t>(arch.latency_bytes_moved));
  return tile_of(vectors, block_threads(d.rows, vectors, key, latency, facts));
}

// The rung of a kind that a call is on, or nullptr.
FASTNORM_HOT const MeasuredRung* rung_of(const NormDesc& d, CallKind kind,
                                         const DeviceFacts& facts) {
  const int64_t vectors = row_vectors(d);
  for (const MeasuredRung& rung : measured_rungs(kind)) {
    if (vectors <= rung.above) break;  // they ascend
    if (vectors <= rung.most && d.rows >= rung.least_rows &&
        (d.rows <= rung.most_rows || rung.most_rows == kAllRows) &&
        rung.scales != (d.quant.block != 0 ? kOfRows : kOfBlocks)) {
      return rung.blocks <= std::min(facts.arch->max_cluster_blocks, facts.max_cluster_blocks)
                 ? &rung
                 : nullptr;
    }
  }
  return nullptr;
}

// The bare kernel that was measured to be faster than what tile_for() says, or nullptr.
FASTNORM_HOT const MeasuredRung* measured_rung(const NormDesc& d, NormKey key,
                                               const DeviceFacts& facts) {
  const bool uneven = key.access == Access::kUneven;
  if (!facts.arch->measured || (!uneven && row_vectors(d) <= kLeastMeasuredVectors)) return nullptr;
  const CallKind kind = call_kind(key);
  if (uneven && may_be_halves(d, key, Beside::kNothing)) {
    const MeasuredRung* const rung = rung_of(d, half_kind(kind), facts);
    if (rung != nullptr) return rung;
  }
  return rung_of(d, kind, facts);
}

// True if two calls without residual and codes are the same but for rows, addresses and strides.
FASTNORM_HOT bool asks_the_same(const NormDesc& a, const NormDesc& b) {
  const auto same_columns = [](const ColumnTensor& c, const ColumnTensor& other) {
    return bool{c} == bool{other} && c.dtype == other.dtype;
  };
  return a.n == b.n && a.dtype == b.dtype && a.outer_rank == b.outer_rank && a.kind == b.kind &&
         a.flags == b.flags && a.rounding == b.rounding &&
         std::bit_cast<uint32_t>(a.weight_offset) == std::bit_cast<uint32_t>(b.weight_offset) &&
         same_columns(a.weight, b.weight) && same_columns(a.bias, b.bias) &&
         shares_columns(a) == shares_columns(b) && bool{a.mean} == bool{b.mean} &&
         bool{a.rstd} == bool{b.rstd} && !b.residual && !b.quant.any();
}

}  // namespace

int32_t norm_vector_bytes(const NormDesc& desc, int32_t limit) {
  return widest_access(alignment_bits(desc), limit);
}

NormKey norm_key(const NormDesc& d, const DeviceFacts& facts) {
  return key_of(d, facts, alignment_bits(d));
}

Tile norm_tile(const NormDesc& desc, NormKey key, const DeviceFacts& facts, uint64_t bytes_moved) {
  return tile_for(desc, key, facts, bytes_moved);
}

int32_t find_entry(std::span<const NormEntry> table, NormKey key, Tile tile) {
  const uint64_t wanted = packed(key, tile);
  const auto found = std::lower_bound(
      table.begin(), table.end(), wanted,
      [](const NormEntry& entry, uint64_t order) { return entry.packed() < order; });
  if (found == table.end() || found->packed() != wanted) return -1;
  return static_cast<int32_t>(found - table.begin());
}

VectorRange vectors_held(const NormEntry& entry) {
  const int64_t threads = entry.tile.threads_per_row(), vectors = entry.tile.vectors;
  if (vectors == 0) return {1, INT64_MAX};
  if (entry.key.access == Access::kAny) return {1, threads * vectors};
  // Kernels predicate only what a thread loads last, so a row must reach into that.
  const int64_t run = vectors_side_by_side(entry.key.access);
  return {threads * (vectors - run) + run, threads * vectors};
}

fastnorm_status make_plan(const NormDesc& desc, const DeviceFacts& facts,
                          std::span<const NormEntry> table, NormPlan* plan, Error& error,
                          const NormTuning* tuning, const NormIndex* index) {
  *plan = NormPlan{};
  if (desc.rows == 0) return FASTNORM_OK;
  const uint64_t bits = plan_common(desc, facts, plan);
  NormKey key = key_of(desc, facts, bits);
  const bool cpu = facts.device_type == FASTNORM_DEVICE_CPU;
  const bool wide = may_be_wide(desc, key, facts, bits), kept = may_be_kept(desc, key, facts);
  if (tuning != nullptr) {
    const auto look = [&](bool may, NormKey wanted) {
      if (may && plan->index < 0) plan->index = tuning->find(desc, wanted);
    };
    const Beside beside = cpu ? Beside::kAny : beside_of(desc, key, Tile{});
    look(beside != Beside::kAny, bare_key(key, beside));
    look(beside != Beside::kAny, bare_key(key, past_l1(beside)));
    look(beside == Beside::kNothing, bare_key(key, Beside::kShared));
    look(may_be_halves(desc, key, beside), bare_key(key, Beside::kHalves));
    look(kept, kept_key(key));
    look(wide, wide_key(key));
    look(true, key);
  }
  Tile tile;
  if (plan->index >= 0) {
    tile = table[static_cast<size_t>(plan->index)].tile;
    key = table[static_cast<size_t>(plan->index)].key;
  } else {
    const uint64_t moved = plan->bytes_read + plan->bytes_written;
    // A key itself would wait in registers for its bytes to be put together, some ns of a call.
    const auto find_packed = [&](uint32_t wanted) {
      const uint64_t order = uint64_t{wanted} << 32 | tile.packed();
      return index != nullptr ? index->find(order) : find_entry(table, key_of_packed(order), tile);
    };
    const auto find = [&](NormKey wanted) __attribute__((always_inline)) {
      return find_packed(wanted.packed());
    };
    const MeasuredRung* const rung = cpu ? nullptr : measured_rung(desc, key, facts);
    if (rung != nullptr) {
      tile = tile_of(row_vectors(desc), rung->threads, rung->blocks);
      if (beside_of(desc, key, tile) == Beside::kNothing)
        plan->index = find(bare_key(key, rung->beside));
    }
    if (plan->index >= 0) {
      key = bare_key(key, rung->beside);
    } else {
      tile = kept ? kept_tile(desc, key, facts, moved) : Tile{};
      if (tile.threads != 0) {
        key = kept_key(key);
      } else if (!cpu) {
        tile = tile_for(desc, key, facts, moved);
        if (wide && holds_wide_rows(tile)) key = wide_key(key);
      }
      Beside beside = cpu ? Beside::kAny : beside_of(desc, key, tile);
      if (beside != Beside::kAny) {
        const bool may_stream = rows_per_block(tile) == 1 && tile.threads < 512 &&
                                tile.blocks == 1 && key.sink != Sink::kQuant &&
                                key.access != Access::kUneven;
        if (may_stream && streams_loads(desc, *facts.arch, *plan)) beside = past_l1(beside);
        if (beside == Beside::kNothing && key.access == Access::kVector &&
            streams_short_loads(desc, key, tile, *facts.arch, *plan)) {
          plan->index = find(bare_key(key, Beside::kNothingCs));
          if (plan->index >= 0) beside = Beside::kNothingCs;
        }
        if (key.access == Access::kUneven && desc.rows <= facts.arch->decode_rows) {
          const Tile most = tile;
          tile = first_of(kFewUnevenTiles, row_vectors(desc));
          plan->index = find(bare_key(key, beside));
          if (plan->index < 0) tile = most;
        }
        if (plan->index < 0) plan->index = find(bare_key(key, beside));
        if (plan->index >= 0) key.beside = beside;
      }
      if (plan->index < 0) plan->index = find(key);
    }
  }
  FASTNORM_TRY(cpu ? plan_cpu(desc, facts, plan) : plan_cuda(desc, facts, tile, key, plan, error));
  FASTNORM_REQUIRE(plan->index >= 0, FASTNORM_ERROR_INTERNAL, "no kernel \"%s\" in the table",
                   make_entry(key, tile).name);
  plan->entry = &table[static_cast<size_t>(plan->index)];
  return FASTNORM_OK;
}

bool plan_like(const NormDesc& first, const NormPlan& first_plan, const NormDesc& second,
               const DeviceFacts& facts, NormPlan* plan, Error& error) {
  const NormEntry& entry = *first_plan.entry;
  if (facts.device_type != FASTNORM_DEVICE_CUDA || !runs_pairs(entry) || first.outer_rank > 2 ||
      second.rows > first.rows || second.rows == 0 || !asks_the_same(first, second)) {
    return false;
  }
  *plan = NormPlan{};
  plan_common(second, facts, plan);
  plan->index = first_plan.index;
  plan->entry = &entry;
  return plan->vector_bytes == first_plan.vector_bytes &&
         plan_cuda(second, facts, entry.tile, entry.key, plan, error) == FASTNORM_OK;
}

bool plan_together(const NormDesc& first, const NormDesc& second, const DeviceFacts& facts,
                   std::span<const NormEntry> table, NormPlan* first_plan, NormPlan* second_plan) {
  if (facts.device_type != FASTNORM_DEVICE_CUDA) return false;
  // Grids of two calls know two indices of a row: [tokens, heads, d].
  if (first.flags != second.flags || first.outer_rank > 2 || second.outer_rank > 2) return false;
  const NormEntry &a = *first_plan->entry, &b = *second_plan->entry;
  if (a.order == b.order && runs_pairs(a)) return true;
  const auto key_before_tile = [&](const NormEntry& entry, const NormDesc& d) {
    const bool by_tile = entry.key.access == Access::kWide || entry.key.affine == Affine::kKept ||
                         entry.key.beside != Beside::kAny;
    return by_tile ? norm_key(d, facts) : entry.key;
  };
  const NormKey key = key_before_tile(a, first), other = key_before_tile(b, second);
  if (key != other) return false;
  const auto may = [&](const NormDesc& d) { return may_be_wide(d, key, facts, alignment_bits(d)); };
  const bool wide = may(first) && may(second);
  const int64_t vectors = std::max(row_vectors(first), row_vectors(second));
  if (vectors > 128) return false;  // more than a warp holds
  const Tile warp = tile_of(vectors, 32);
  const bool first_has_more = first.rows >= second.rows;
  for (const Tile tile :
       {first_has_more ? a.tile : b.tile, first_has_more ? b.tile : a.tile, warp}) {
    const auto both = [&](NormKey wanted) {
      const int32_t index = find_entry(table, wanted, tile);
      if (index < 0 || !runs_pairs(table[static_cast<size_t>(index)])) return false;
      NormPlan plans[2];
      Error not_held;
      if (make_plan_for_entry(first, facts, table, index, &plans[0], not_held) != FASTNORM_OK ||
          make_plan_for_entry(second, facts, table, index, &plans[1], not_held) != FASTNORM_OK) {
        return false;
      }
      *first_plan = plans[0];
      *second_plan = plans[1];
      return true;
    };
    if (wide && holds_wide_rows(tile) && both(wide_key(key))) return true;
    if (both(bare_key(key)) || both(bare_key(key, Beside::kRounded)) || both(key)) return true;
  }
  return false;
}

fastnorm_status make_plan_for_entry(const NormDesc& desc, const DeviceFacts& facts,
                                    std::span<const NormEntry> table, int32_t index, NormPlan* plan,
                                    Error& error) {
  *plan = NormPlan{};
  const NormEntry& entry = table[static_cast<size_t>(index)];
  const Tile tile = entry.tile;
  const int64_t vectors = row_vectors(desc);
  FASTNORM_REQUIRE(desc.rows > 0 && serves(entry, desc, facts), FASTNORM_ERROR_UNSUPPORTED,
                   "kernel \"%s\" does not serve this call; nearest: \"%s\"", entry.name,
                   make_entry(norm_key(desc, facts), tile).name);
  plan_common(desc, facts, plan);
  plan->index = index;
  plan->entry = &entry;
  if (facts.device_type == FASTNORM_DEVICE_CPU) return plan_cpu(desc, facts, plan);
  const VectorRange held = vectors_held(entry);
  FASTNORM_REQUIRE(vectors >= held.least && vectors <= held.most, FASTNORM_ERROR_UNSUPPORTED,
                   "a row of %" PRId64 " vectors does not fit kernel \"%s\"; nearest: %" PRId64
                   " to %" PRId64 " vectors",
                   vectors, entry.name, held.least, held.most);
  return plan_cuda(desc, facts, tile, entry.key, plan, error);
}

}  // namespace fastnorm
