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

// Bits of one element as the low end of a word, from memory.
template <int kBytes>
__device__ __forceinline__ uint32_t load_element(const char* address) {
  if constexpr (kBytes == 4) return ptx::ld_global_u32(address);
  return ptx::ld_global_u16(address);
}

template <int kBytes>
__device__ __forceinline__ void store_element(char* address, uint32_t bits) {
  if constexpr (kBytes == 4) {
    ptx::st_global_u32(address, bits);
  } else {
    ptx::st_global_u16(address, bits);
  }
}

// Of 16, 8, 4 and 2 bytes, the widest access at an address.
__device__ __forceinline__ int access_bytes(const void* address) {
  const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) | kVectorBytes;
  return static_cast<int>(bits & (~bits + 1));
}

// A whole vector by accesses of `bytes`; of 2, its first and last element are read by themselves.
__device__ __forceinline__ uint4 load_whole(const char* address, int bytes) {
  if (bytes == 16) return ptx::ld_global_v4(address);
  if (bytes == 8) {
    const uint2 low = ptx::ld_global_v2(address), high = ptx::ld_global_v2(address + 8);
    return make_uint4(low.x, low.y, high.x, high.y);
  }
  if (bytes == 4) {
    return make_uint4(ptx::ld_global_u32(address), ptx::ld_global_u32(address + 4),
                      ptx::ld_global_u32(address + 8), ptx::ld_global_u32(address + 12));
  }
  const uint32_t first = ptx::ld_global_u16(address), a = ptx::ld_global_u32(address + 2),
                 b = ptx::ld_global_u32(address + 6), c = ptx::ld_global_u32(address + 10),
                 last = ptx::ld_global_u16(address + 14);
  return make_uint4(first | a << 16, a >> 16 | b << 16, b >> 16 | c << 16, c >> 16 | last << 16);
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

// `count` elements from an address that allows accesses of `least` bytes; the rest is zero. `least` is the same for all rows, so that
// the branch on it costs little; where it is 2, most rows of 16-bit elements allow more.
template <int kBytes>
__device__ __forceinline__ uint4 load_any(const char* address, int count, int least) {
  constexpr int kElements = kVectorBytes / kBytes;
  if (count >= kElements) {
    if (kBytes == 4 || least > 2) return load_whole(address, least);
    return load_whole(address, access_bytes(address));
  }
  uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (i < count)
      words[i * kBytes / 4] |= load_element<kBytes>(address + i * kBytes) << (i * kBytes % 4 * 8);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

template <int kBytes>
__device__ __forceinline__ void store_any(char* address, uint4 v, int count, int least) {
  constexpr int kElements = kVectorBytes / kBytes;
  if (count >= kElements) {
    if (kBytes == 4 || least > 2) {
      store_whole(address, v, least);
    } else {
      store_whole(address, v, access_bytes(address));
    }
    return;
  }
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (i < count)
      store_element<kBytes>(address + i * kBytes, words[i * kBytes / 4] >> (i * kBytes % 4 * 8));
  }
}

// kCount values of f32 or of T's dtype, at vector `vector` of a row, as f32; zero past `count`.
template <class T>
__device__ __forceinline__ void load_any_values(float (&f)[T::kPerVector], const char* row,
                                                int64_t vector, int count, int least, bool f32) {
  constexpr int kPerVector = T::kPerVector;
  if constexpr (T::kBytes == 2) {
    if (f32) {
      const char* address = row + vector * (kPerVector * 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 v = load_any<4>(address + half * 16, count - half * 4, least);
        f[half * 4] = __uint_as_float(v.x), f[half * 4 + 1] = __uint_as_float(v.y);
        f[half * 4 + 2] = __uint_as_float(v.z), f[half * 4 + 3] = __uint_as_float(v.w);
      }
      return;
    }
  }
  T::unpack(load_any<T::kBytes>(row + vector * kVectorBytes, count, least), f);
}

template <class T>
__device__ __forceinline__ void store_any_values(const float (&f)[T::kPerVector], char* row,
                                                 int64_t vector, int count, int least, bool f32) {
  constexpr int kPerVector = T::kPerVector;
  if constexpr (T::kBytes == 2) {
    if (f32) {
      char* address = row + vector * (kPerVector * 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 v =
            make_uint4(__float_as_uint(f[half * 4]), __float_as_uint(f[half * 4 + 1]),
                       __float_as_uint(f[half * 4 + 2]), __float_as_uint(f[half * 4 + 3]));
        store_any<4>(address + half * 16, v, count - half * 4, least);
      }
      return;
    }
  }
  store_any<T::kBytes>(row + vector * kVectorBytes, T::pack(f), count, least);
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

template <int kBytes>
struct AccessBytes {
  static constexpr int kValue = kBytes;
};

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

// Whole vectors: the host picks the least tile that holds a row, so only a thread's last vector can be missing. Threads of rows that
// do not exist read row 0 along with everybody and store nothing.
template <class T, class Tile>
struct Reach<Access::kVector, T, Tile> {
  static constexpr Access kAccess = Access::kVector;
  __device__ __forceinline__ Reach(const NormParams& p, const Place<Tile>& place)
      : live(Tile::kRows == 1 || place.row < p.rows),
        last(place.vector(Tile::kVectors - 1) < p.vectors) {}
  __device__ __forceinline__ bool has(int v) const { return v < Tile::kVectors - 1 || last; }
  __device__ __forceinline__ bool stores(int v) const { return live && has(v); }
  __device__ __forceinline__ int count(int v) const { return has(v) ? T::kPerVector : 0; }

  const bool live;  // the row exists
  const bool last;  // the thread's last vector is in the row
};

template <class T, class Tile>
struct Reach<Access::kUneven, T, Tile> {
  static constexpr Access kAccess = Access::kUneven;
  static constexpr int kStep = Tile::kStride * T::kPerVector;  // a power of two

  __device__ __forceinline__ Reach(const NormParams& p, const Place<Tile>& place)
      : live(Tile::kRows == 1 || place.row < p.rows),
        left(live ? static_cast<int>(p.n) - place.first * T::kPerVector : 0) {}
  __device__ __forceinline__ int count(int v) const { return left - v * kStep; }
  __device__ __forceinline__ bool has(int v) const { return count(v) > 0; }
  __device__ __forceinline__ bool stores(int v) const { return has(v); }
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

template <class T, class Tile>
struct Reach<Access::kAny, T, Tile> {
  static constexpr Access kAccess = Access::kAny;
  __device__ __forceinline__ Reach(const NormParams& p, const Place<Tile>& place)
      : live(Tile::kRows == 1 || place.row < p.rows),
        left(live ? static_cast<int>(p.n) - place.first * T::kPerVector : 0) {}
  __device__ __forceinline__ bool has(int v) const { return count(v) > 0; }
  __device__ __forceinline__ bool stores(int v) const { return has(v); }
  __device__ __forceinline__ int count(int v) const {
    return left - v * (Tile::kStride * T::kPerVector);
  }

  const bool live;
  const int left;  // elements from this thread's first one to the row's end
};

}  // namespace fastnorm::cuda
