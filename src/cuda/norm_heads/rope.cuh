// Where a token's cosines and sines are, and how they rotate a pair.
#pragma once

#include "cuda/common/element.cuh"
#include "cuda/common/follow.cuh"
#include "cuda/common/ptx/memory.cuh"
#include "cuda/norm_heads/rows.cuh"

namespace fastnorm::cuda {

__device__ __forceinline__ int64_t load_number(const HeadsNumbers& numbers, int axis,
                                               uint32_t token) {
  const char* const address =
      numbers.data + axis * numbers.axis_stride + int64_t{token} * numbers.stride;
  if (numbers.wide != 0) {
    const uint2 words = ptx::ld_global_v2(address);
    return static_cast<int64_t>(uint64_t{words.y} << 32 | words.x);
  }
  return static_cast<int32_t>(ptx::ld_global_u32(address));
}

// The row of the tables for an axis of positions. Padding has the first row. Its position is loaded
// all the same, so that no load waits for the slot.
__device__ __forceinline__ int64_t table_row(const HeadsShared& s, int axis, uint32_t token,
                                             bool padding = false) {
  const int64_t row = s.positions.data == nullptr ? token : load_number(s.positions, axis, token);
  return padding ? 0 : row;
}

// The axis whose position pair j has.
__device__ __forceinline__ int axis_of(const HeadsShared& s, int j) {
  if (s.mrope_interleaved) {
    const int axis = j % 3;
    return axis == 1 && j < s.section_end[1] ? 1 : axis == 2 && j < s.section_end[2] ? 2 : 0;
  }
  int axis = 0;
#pragma unroll
  for (int a = 0; a + 1 < kMaxRopeAxes; ++a)
    axis += a + 1 < s.axes && j >= s.section_end[a] ? 1 : 0;
  return axis;
}

template <class T>
__device__ __forceinline__ float load_element(const char* address) {
  if constexpr (T::kBytes == 4) {
    return ptx::ld_global_f32(address);
  } else {
    float two[2];
    T::unpack_word(ptx::ld_global_u16(address), two);
    return two[0];
  }
}

// Entry j of a table's row.
template <class T>
__device__ __forceinline__ float load_entry(const HeadsShared& s, const char* row, int entry) {
  return s.table_f32 ? ptx::ld_global_f32(row + int64_t{entry} * 4)
                     : load_element<T>(row + int64_t{entry} * T::kBytes);
}

__device__ __forceinline__ const char* table_address(const HeadsTable& table, int64_t row,
                                                     uint32_t head) {
  return table.data + row * table.row_stride + int64_t{head} * table.head_stride;
}

// Entry of pair j: each, or the first of each two.
__device__ __forceinline__ int entry_of(const HeadsShared& s, uint32_t bits, int j) {
  return s.table_repeats && (bits & kHeadsInterleaved) != 0 ? 2 * j : j;
}

// One pair. For the inverse the sine is negative.
template <class T>
__device__ __forceinline__ void rotate_pair(float& v1, float& v2, float c, float s,
                                            bool every_step) {
  const float a = v1, b = v2;
  if (every_step) {
    v1 = __fsub_rn(T::round(__fmul_rn(a, c)), T::round(__fmul_rn(b, s)));
    v2 = __fadd_rn(T::round(__fmul_rn(b, c)), T::round(__fmul_rn(a, s)));
  } else {
    v1 = __fmaf_rn(a, c, -__fmul_rn(b, s));
    v2 = __fmaf_rn(b, c, __fmul_rn(a, s));
  }
}

// A token's place in the caches: negative for padding, and 0 in a call without slots.
__device__ __forceinline__ int64_t slot_of(const HeadsShared& s, uint32_t token) {
  if (token >= s.slot_count) return -1;
  return s.slots.data == nullptr ? 0 : load_number(s.slots, 0, token);
}

}  // namespace fastnorm::cuda
