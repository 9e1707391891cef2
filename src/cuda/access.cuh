// Reading and writing the 16-byte vectors of a row, in place of their elements.
//
// Vector j of a row is elements j * kPerVector and on, wherever the row begins, so sums do not depend on alignment. Where rows are
// whole aligned vectors a vector is one access; otherwise it is words or elements, whatever the addresses allow, and nothing past
// the row's end is touched. The general kernels look at each vector's address, the uneven ones once at each row's.
#pragma once

#include "core/norm_key.h"
#include "cuda/element.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/tile.cuh"

namespace fastnorm::cuda {

template <int kBytes>
__device__ __forceinline__ void store_element(char* address, uint32_t bits) {
  if constexpr (kBytes == 4) {
    ptx::st_global_u32(address, bits);
  } else {
    ptx::st_global_u16(address, bits);
  }
}

// kRun vectors that lie side by side, by one access; kStream: not to stay in L1.
template <int kRun, bool kStream = false>
__device__ __forceinline__ void load_run(uint4* raw, const char* address) {
  if constexpr (kRun == 2) {
    if constexpr (kStream) {
      ptx::ld_global_cs_v8(raw[0], raw[1], address);
    } else {
      ptx::ld_global_v8(raw[0], raw[1], address);
    }
  } else {
    raw[0] = kStream ? ptx::ld_global_cs_v4(address) : ptx::ld_global_v4(address);
  }
}

// Where `wanted`, without a branch; else raw stays.
template <int kRun, bool kStream = false>
__device__ __forceinline__ void load_run_if(uint4* raw, const char* address, bool wanted) {
  if constexpr (kRun == 2) {
    if constexpr (kStream) {
      ptx::ld_global_cs_v8_if(raw[0], raw[1], address, wanted);
    } else {
      ptx::ld_global_v8_if(raw[0], raw[1], address, wanted);
    }
  } else if constexpr (kStream) {
    ptx::ld_global_cs_v4_if(raw[0], address, wanted);
  } else {
    ptx::ld_global_v4_if(raw[0], address, wanted);
  }
}

template <int kRun>
__device__ __forceinline__ void store_run(char* address, const uint4* words) {
  if constexpr (kRun == 2) {
    ptx::st_global_v8(address, words[0], words[1]);
  } else {
    ptx::st_global_v4(address, words[0]);
  }
}

// Of 16, 8, 4 and 2 bytes, the widest access at an address.
__device__ __forceinline__ int access_bytes(const void* address) {
  const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) | kVectorBytes;
  return static_cast<int>(bits & (~bits + 1));
}

template <int kBytes>
struct AccessBytes {
  static constexpr int kValue = kBytes;
};

template <int kBytes>
__device__ __forceinline__ void load_words_if(uint4& w, const char* address, bool wanted) {
  if constexpr (kBytes == 16) {
    ptx::ld_global_v4_if(w, address, wanted);
  } else if constexpr (kBytes == 8) {
    ptx::ld_global_v2_if(w.x, w.y, address, wanted);
    ptx::ld_global_v2_if(w.z, w.w, address + 8, wanted);
  } else {  // two in the middle at once would need other registers, and moves that wait
    ptx::ld_global_u32_if(w.x, address, wanted);
    ptx::ld_global_u32_if(w.y, address + 4, wanted);
    ptx::ld_global_u32_if(w.z, address + 8, wanted);
    ptx::ld_global_u32_if(w.w, address + 12, wanted);
  }
}

// A whole vector by accesses of 2 and 4 bytes: its first and last element are read by themselves.
__device__ __forceinline__ uint4 load_halves(const char* address) {
  const uint32_t first = ptx::ld_global_u16(address), a = ptx::ld_global_u32(address + 2),
                 b = ptx::ld_global_u32(address + 6), c = ptx::ld_global_u32(address + 10),
                 last = ptx::ld_global_u16(address + 14);
  return make_uint4(first | a << 16, a >> 16 | b << 16, b >> 16 | c << 16, c >> 16 | last << 16);
}

// Vectors at `address` and every `step` bytes on by accesses of `bytes`, those for which has(i); the others are zero. But for accesses of 2
// bytes nothing is waited for.
template <int kCount, typename Has>
__device__ __forceinline__ void load_words(uint4 (&raw)[kCount], const char* address, int64_t step,
                                           int bytes, Has has) {
#pragma unroll
  for (uint4& v : raw) v = make_uint4(0, 0, 0, 0);
  const auto load = [&](auto width) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      load_words_if<decltype(width)::kValue>(raw[i], address + i * step, has(i));
  };
  if (bytes == 16) {
    load(AccessBytes<16>{});
  } else if (bytes == 8) {
    load(AccessBytes<8>{});
  } else if (bytes == 4) {
    load(AccessBytes<4>{});
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (has(i)) raw[i] = load_halves(address + i * step);
    }
  }
}

__device__ __forceinline__ void store_whole(char* address, uint4 v, int bytes) {
  if (bytes == 16) {
    ptx::st_global_v4(address, v);
  } else if (bytes == 8) {
    ptx::st_global_v2(address, make_uint2(v.x, v.y));
    ptx::st_global_v2(address + 8, make_uint2(v.z, v.w));
  } else if (bytes == 4) {
    ptx::st_global_u32(address, v.x);
    ptx::st_global_u32(address + 4, v.y);
    ptx::st_global_u32(address + 8, v.z);
    ptx::st_global_u32(address + 12, v.w);
  } else {
    ptx::st_global_u16(address, v.x);
    ptx::st_global_u32(address + 2, v.x >> 16 | v.y << 16);
    ptx::st_global_u32(address + 6, v.y >> 16 | v.z << 16);
    ptx::st_global_u32(address + 10, v.z >> 16 | v.w << 16);
    ptx::st_global_u16(address + 14, v.w >> 16);
  }
}

// A row of f32 or of T's dtype, at any address: Access::kAny. Byte is char or const char.
template <class T, class Byte>
struct AnyRow {
  static constexpr int kPerVector = T::kPerVector;

  // `least`: bytes that all rows of the tensor allow at once; where that is 2, most rows allow more.
  __device__ __forceinline__ AnyRow(Byte* address, int least, bool is_f32)
      : data(address),
        bytes(least > 2 ? least : access_bytes(address)),
        f32(T::kBytes == 2 && is_f32) {}

  __device__ __forceinline__ Byte* at(int64_t vector) const {
    return data + vector * (f32 ? kPerVector * 4 : kVectorBytes);
  }

  Byte* const data;
  const int bytes;  // of the widest access
  const bool f32;
};

// Vectors of such a row as they were loaded.
template <class T, int kCount>
struct AnyVectors {
  // Vector `first` and every `stride`-th on, those for which has(i).
  template <class Byte, typename Has>
  __device__ __forceinline__ void load(const AnyRow<T, Byte>& row, int64_t first, int64_t stride,
                                       Has has) {
    const char* const address = row.at(first);
    const int64_t step = row.at(stride) - row.data;
    load_words(low, address, step, row.bytes, has);
    if constexpr (T::kBytes == 2)
      load_words(high, address + kVectorBytes, step, row.bytes,
                 [&](int i) { return row.f32 && has(i); });
  }

  __device__ __forceinline__ void take(float (&f)[T::kPerVector], int i, bool f32) const {
    if constexpr (T::kBytes == 2) {
      if (f32) {
        f[0] = __uint_as_float(low[i].x), f[1] = __uint_as_float(low[i].y);
        f[2] = __uint_as_float(low[i].z), f[3] = __uint_as_float(low[i].w);
        f[4] = __uint_as_float(high[i].x), f[5] = __uint_as_float(high[i].y);
        f[6] = __uint_as_float(high[i].z), f[7] = __uint_as_float(high[i].w);
        return;
      }
    }
    T::unpack(low[i], f);
  }

  uint4 low[kCount], high[T::kBytes == 2 ? kCount : 1];
};

// A whole vector as f32.
template <class T, class Byte>
__device__ __forceinline__ void load_values(float (&f)[T::kPerVector], const AnyRow<T, Byte>& row,
                                            int64_t vector) {
  AnyVectors<T, 1> loaded;
  loaded.load(row, vector, 0, [](int) { return true; });
  loaded.take(f, 0, row.f32);
}

// The first `count` of a vector's values, one by one; the others are zero.
template <class T, class Byte>
__device__ __forceinline__ void load_short_values(float (&f)[T::kPerVector],
                                                  const AnyRow<T, Byte>& row, int64_t vector,
                                                  int count) {
  const char* const address = row.at(vector);
  uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < T::kPerVector; ++i) {
    f[i] = 0.0f;
    if (i >= count) continue;
    if (T::kBytes == 4 || row.f32) {
      f[i] = ptx::ld_global_f32(address + i * 4);
    } else {
      words[i / T::kPerWord] |= ptx::ld_global_u16(address + i * 2) << (i % T::kPerWord * 16);
    }
  }
  if (T::kBytes == 2 && !row.f32) T::unpack(make_uint4(words[0], words[1], words[2], words[3]), f);
}

template <class T>
__device__ __forceinline__ void store_values(const float (&f)[T::kPerVector],
                                             const AnyRow<T, char>& row, int64_t vector) {
  char* const address = row.at(vector);
  uint4 low = T::pack(f);
  if constexpr (T::kBytes == 2) {
    if (row.f32) {
      const auto bits = [&](int i) {
        return make_uint4(__float_as_uint(f[i]), __float_as_uint(f[i + 1]),
                          __float_as_uint(f[i + 2]), __float_as_uint(f[i + 3]));
      };
      low = bits(0);
      store_whole(address + kVectorBytes, bits(4), row.bytes);
    }
  }
  store_whole(address, low, row.bytes);
}

template <class T>
__device__ __forceinline__ void store_short_values(const float (&f)[T::kPerVector],
                                                   const AnyRow<T, char>& row, int64_t vector,
                                                   int count) {
  char* const address = row.at(vector);
  const uint4 packed = T::pack(f);
#pragma unroll
  for (int i = 0; i < T::kPerVector; ++i) {
    if (i >= count) break;
    if (T::kBytes == 4 || row.f32) {
      ptx::st_global_u32(address + i * 4, __float_as_uint(f[i]));
    } else {
      ptx::st_global_u16(address + i * 2, word_of(packed, i / T::kPerWord) >> i % T::kPerWord * 16);
    }
  }
}

// What is known of a vector where the code is made: that a part of it is in the row, or nothing but its count.
enum class Part { kShort, kCounted };

template <Part kPart, class T, class Byte>
__device__ __forceinline__ void load_part(float (&f)[T::kPerVector], const AnyRow<T, Byte>& row,
                                          int64_t vector, int count) {
  if (kPart == Part::kCounted && count >= T::kPerVector) {
    load_values<T>(f, row, vector);
  } else {
    load_short_values<T>(f, row, vector, count);
  }
}

template <Part kPart, class T>
__device__ __forceinline__ void store_part(const float (&f)[T::kPerVector],
                                           const AnyRow<T, char>& row, int64_t vector, int count) {
  if (kPart == Part::kCounted && count >= T::kPerVector) {
    store_values<T>(f, row, vector);
  } else {
    store_short_values<T>(f, row, vector, count);
  }
}

// ---- Rows at any address, a thread's share at once: Access::kUneven.
//
// What an address allows is looked at once for all vectors that a thread has of a row, by a branch that is the same for the row's
// threads. Loads leave what they bring as it comes, so that nothing waits inside the branch; it is put together when every load of
// the row was issued. Of a row only the last vector may be short: it is reached by elements, in one place, by whoever has it.
//
// Where a row of 16-bit elements begins in the middle of a word, a thread reaches a window that begins one element behind its vector's
// start, and so at a word: the last element in it is the right neighbour's first, and its own first comes from the left neighbour. In
// each warp the first lane has no left neighbour and the last lane no right one: they reach what is missing by itself. The row's last
// vector, behind which there is nothing to read, is then reached by elements even where it is whole.

// A vector as it was loaded.
struct RawVector {
  uint4 words;  // of the vector, or of its window
  uint32_t
      first;  // in a window's row: the vector's first element, where there is no left neighbour
};

// Where a thread is among those of its row that are in a warp.
struct RowLanes {
  bool first, last;
};

template <class Tile>
__device__ __forceinline__ RowLanes row_lanes(const Place<Tile>& place) {
  return {place.lane == 0, place.lane == Tile::kLanes - 1};
}

// By words: of structs, the compiler would make an array in memory.
__device__ __forceinline__ uint4 selected(bool first, const uint4& a, const uint4& b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

template <class T>
__device__ __forceinline__ bool in_mid_word(const char* row) {
  return T::kBytes == 2 && (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row)) & 2) != 0;
}

// The word that ends with the first half of `b` and begins with the second of `a`.
__device__ __forceinline__ uint32_t across(uint32_t a, uint32_t b) { return a >> 16 | b << 16; }

// A vector, of its window and its first element.
__device__ __forceinline__ uint4 joined(const uint4& window, uint32_t first) {
  return make_uint4(first | window.x << 16, across(window.x, window.y), across(window.y, window.z),
                    across(window.z, window.w));
}

// Calls fn with the widest access at a multiple of 4, of 16, 8 and 4 bytes.
template <typename Fn>
__device__ __forceinline__ void with_access(const char* address, Fn fn) {
  const uint32_t low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) % kVectorBytes;
  if (low == 0) {
    fn(AccessBytes<16>{});
  } else if (low == 8) {
    fn(AccessBytes<8>{});
  } else {
    fn(AccessBytes<4>{});
  }
}

// kCount vectors of a row, from the thread's vector v on, which is at `address`, but for those that are reached by elements; what is
// not loaded is zero.
template <class T, class Tile, int kCount, class Reach>
__device__ __forceinline__ void load_uneven(RawVector* raw, const char* address, int v,
                                            const RowLanes& lanes, const Reach& reach) {
  constexpr int kStep = Tile::kStride * kVectorBytes;
  const bool windows = in_mid_word<T>(address);
  const char* const from = address + (windows ? 2 : 0);
#pragma unroll
  for (int i = 0; i < kCount; ++i) raw[i].words = make_uint4(0, 0, 0, 0);
  with_access(from, [&](auto bytes) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      load_words_if<decltype(bytes)::kValue>(raw[i].words, from + i * kStep,
                                             reach.at_once(v + i, windows));
    }
  });
  if (windows) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      raw[i].first = 0;
      ptx::ld_global_u16_if(raw[i].first, address + i * kStep,
                            lanes.first && reach.at_once(v + i, windows));
    }
  }
}

// `count` elements of a row's last vector, as load_uneven() would have left them.
template <class T>
__device__ __forceinline__ RawVector load_elements(const char* address, int count) {
  uint32_t e[T::kPerVector];
#pragma unroll
  for (int i = 0; i < T::kPerVector; ++i) {
    e[i] = 0;
    if constexpr (T::kBytes == 4) {
      ptx::ld_global_u32_if(e[i], address + i * T::kBytes, i < count);
    } else {
      ptx::ld_global_u16_if(e[i], address + i * T::kBytes, i < count);
    }
  }
  if constexpr (T::kBytes == 4) {
    return {make_uint4(e[0], e[1], e[2], e[3]), 0};
  } else {
    if (in_mid_word<T>(address))
      return {make_uint4(e[1] | e[2] << 16, e[3] | e[4] << 16, e[5] | e[6] << 16, e[7]), e[0]};
    return {make_uint4(e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] | e[7] << 16),
            0};
  }
}

// Makes vectors of windows: the first use of what was loaded. All lanes of a warp get here; where they have one row, whether they
// exchange anything is the same for all of them.
template <class T, class Tile, int kCount>
__device__ __forceinline__ void join_uneven(RawVector* raw, const char* address,
                                            const RowLanes& lanes) {
  if constexpr (T::kBytes == 2) {
    constexpr bool kOneRow = Tile::kThreads >= 32;
    uint32_t before[kCount];
    const auto exchange = [&](int i) { before[i] = __shfl_up_sync(~0u, raw[i].words.w, 1); };
#pragma unroll
    for (int i = 0; !kOneRow && i < kCount; ++i) exchange(i);
    if (in_mid_word<T>(address)) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (kOneRow) exchange(i);
        raw[i].words = joined(raw[i].words, lanes.first ? raw[i].first : before[i] >> 16);
      }
    }
  }
}

template <int kBytes>
__device__ __forceinline__ void store_words(char* address, const uint4& w) {
  if constexpr (kBytes == 16) {
    ptx::st_global_v4(address, w);
  } else if constexpr (kBytes == 8) {
    ptx::st_global_v2(address, make_uint2(w.x, w.y));
    ptx::st_global_v2(address + 8, make_uint2(w.z, w.w));
  } else {  // the middle is at a multiple of 8
    ptx::st_global_u32(address, w.x);
    ptx::st_global_v2(address + 4, make_uint2(w.y, w.z));
    ptx::st_global_u32(address + 12, w.w);
  }
}

// A thread's vectors of a row, the first of them at `address`. They are replaced by their windows where the row is stored so.
template <class T, class Tile, class Reach>
__device__ __forceinline__ void store_uneven(char* address, uint4 (&words)[Tile::kVectors],
                                             const RowLanes& lanes, const Reach& reach) {
  constexpr int kVectors = Tile::kVectors, kStep = Tile::kStride * kVectorBytes;
  const bool windows = in_mid_word<T>(address);
  if (reach.has_elements(windows)) {
    const int v = reach.last_register(), count = reach.last_count();
    uint4 last = words[0];
#pragma unroll
    for (int i = 1; i < kVectors; ++i) last = selected(i == v, words[i], last);
#pragma unroll
    for (int i = 0; i < T::kPerVector; ++i) {
      if (i < count) {
        store_element<T::kBytes>(address + v * kStep + i * T::kBytes,
                                 word_of(last, i / T::kPerWord) >> i % T::kPerWord * 16);
      }
    }
  }
  if constexpr (T::kBytes == 2) {
    constexpr bool kOneRow = Tile::kThreads >= 32;
    uint32_t behind[kVectors];
    const auto exchange = [&](int v) { behind[v] = __shfl_down_sync(~0u, words[v].x, 1); };
#pragma unroll
    for (int v = 0; !kOneRow && v < kVectors; ++v) exchange(v);
    if (windows) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kOneRow) exchange(v);
        char* const at = address + v * kStep;
        uint4& w = words[v];
        const bool stores = reach.at_once(v, windows);
        if (stores && lanes.first) ptx::st_global_u16(at, w.x);
        w = make_uint4(across(w.x, w.y), across(w.y, w.z), across(w.z, w.w),
                       across(w.w, behind[v]));
        if (stores && lanes.last) {
          ptx::st_global_u32(at + 2, w.x);
          ptx::st_global_u32(at + 6, w.y);
          ptx::st_global_u32(at + 10, w.z);
          ptx::st_global_u16(at + 14, w.w);
        }
      }
    }
  }
  char* const to = address + (windows ? 2 : 0);
  const bool all = !(windows && lanes.last);
  with_access(to, [&](auto bytes) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (reach.at_once(v, windows) && all)
        store_words<decltype(bytes)::kValue>(to + v * kStep, words[v]);
    }
  });
}

// Which vectors of the row a thread has, and how many of their elements count.
template <Access kAccess, class T, class Tile>
struct Reach;

// Whole vectors: the host picks the least tile that holds a row, so only what a thread loads last can be missing, a vector or a run of
// them. Threads of rows that do not exist read row 0 along with everybody and store nothing.
template <class T, class Tile>
struct Reach<Access::kVector, T, Tile> {
  static constexpr Access kAccess = Access::kVector;
  __device__ __forceinline__ Reach(const NormParams& p, const Place<Tile>& place)
      : live(Tile::kRows == 1 || place.row < p.rows),
        last(place.vector(Tile::kVectors - 1) < p.vectors) {}
  __device__ __forceinline__ bool has(int v) const {
    return v < Tile::kVectors - Tile::kRun || last;
  }
  __device__ __forceinline__ bool has_four(int v, int) const { return has(v); }
  __device__ __forceinline__ bool stores(int v) const { return live && has(v); }
  __device__ __forceinline__ int count(int v) const { return has(v) ? T::kPerVector : 0; }

  const bool live;  // the row exists
  const bool last;  // what the thread loads last is in the row
};

// Rows of any length: a vector is there, in part there, or not.
template <Access kAccess_, class T, class Tile>
requires(kAccess_ != Access::kVector) struct Reach<kAccess_, T, Tile> {
  static constexpr Access kAccess = kAccess_;
  static constexpr int kStep = Tile::kStride * T::kPerVector;  // a power of two

  __device__ __forceinline__ Reach(const NormParams& p, const Place<Tile>& place)
      : live(Tile::kRows == 1 || place.row < p.rows),
        left(live ? static_cast<int>(p.n) - place.first * T::kPerVector : 0) {}
  __device__ __forceinline__ int count(int v) const { return left - v * kStep; }
  __device__ __forceinline__ bool has(int v) const { return count(v) > 0; }
  // All of a vector's first or second four elements.
  __device__ __forceinline__ bool has_four(int v, int four) const {
    return left >= v * kStep + 4 * (four + 1);
  }
  __device__ __forceinline__ bool stores(int v) const { return has(v); }
  __device__ __forceinline__ bool whole(int v) const { return count(v) >= T::kPerVector; }
  // A window reaches one element further than its vector.
  __device__ __forceinline__ bool at_once(int v, bool windows) const {
    return left - (T::kPerVector + (windows ? 1 : 0)) >= v * kStep;
  }

  // The row's last vector, where it is one of this thread's.
  __device__ __forceinline__ bool has_last() const {
    return left > 0 && static_cast<uint32_t>(left - 1) % kStep < T::kPerVector;
  }
  __device__ __forceinline__ int last_register() const {
    return static_cast<int>(static_cast<uint32_t>(left - 1) / kStep);
  }
  __device__ __forceinline__ int last_count() const {
    return static_cast<int>(static_cast<uint32_t>(left - 1) % T::kPerVector) + 1;
  }
  __device__ __forceinline__ bool has_short() const {
    return has_last() && last_count() < T::kPerVector;
  }
  // It is reached by elements.
  __device__ __forceinline__ bool has_elements(bool windows) const {
    return has_last() && (windows || last_count() < T::kPerVector);
  }

  const bool live;
  const int left;  // elements from this thread's first one to the row's end
};

// One of a thread's vectors, by its number.
template <int kVectors, int kPerVector>
__device__ __forceinline__ void pick_vector(float (&f)[kPerVector],
                                            const float (&values)[kVectors][kPerVector],
                                            int number) {
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) {
    f[i] = values[0][i];
#pragma unroll
    for (int v = 1; v < kVectors; ++v) f[i] = v == number ? values[v][i] : f[i];
  }
}

template <int kVectors, int kPerVector>
__device__ __forceinline__ void put_vector(float (&values)[kVectors][kPerVector], int number,
                                           const float (&f)[kPerVector]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) values[v][i] = v == number ? f[i] : values[v][i];
  }
}

// A thread's share of a row, to any address: in turn, as the code of a vector is long.
template <class T, class Tile, class Reach>
__device__ __forceinline__ void store_row(const float (&values)[Tile::kVectors][T::kPerVector],
                                          const AnyRow<T, char>& row, const Place<Tile>& place,
                                          const Reach& reach) {
#pragma unroll 1
  for (int v = 0; v < Tile::kVectors && reach.has(v); ++v) {
    float f[T::kPerVector];
    pick_vector(f, values, v);
    store_part<Part::kCounted, T>(f, row, place.vector(v), reach.count(v));
  }
}

}  // namespace fastnorm::cuda
