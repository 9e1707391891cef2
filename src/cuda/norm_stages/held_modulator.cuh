// A modulator of T or f32 and its table of T or f32, for the vectors of a thread. All threads have
// the same dtypes.
#pragma once

#include "cuda/norm_stages/arithmetic.cuh"

namespace fastnorm::cuda {

// What was loaded for a vector, as words: of f32 both, of T the first.
struct ModulatorWords {
  uint4 row[2], table[2];
};

template <class T, class Tile>
class HeldModulator {
 public:
  static constexpr int kPerVector = T::kPerVector;

  // `row_begin`: nullptr if the modulator is absent.
  __device__ __forceinline__ HeldModulator(const StageModulator& m, const char* row_begin,
                                           const Place<Tile>& at)
      : modulator(m), row(row_begin), place(at) {}

  // Vector v, where `wanted`.
  __device__ __forceinline__ void load(ModulatorWords& raw, int v, bool wanted) const {
    load(raw.row, row, modulator.type, v, wanted && row != nullptr);
    load(raw.table, modulator.table, modulator.table_type, v, wanted && modulator.table != nullptr);
  }

  // The values of what load() left. `absent`: those of no modulator.
  __device__ __forceinline__ void take(float (&k)[kPerVector], const ModulatorWords& raw,
                                       float absent) const {
    if (row == nullptr) {
      fill_values(k, absent);
      return;
    }
    unpack(k, raw.row, modulator.type);
    if (modulator.table == nullptr) return;
    float summand[kPerVector];
    unpack(summand, raw.table, modulator.table_type);
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) k[i] = __fadd_rn(k[i], summand[i]);
  }

  // The value of the row's first column.
  __device__ __forceinline__ float first(float absent) const {
    if (row == nullptr) return absent;
    const float value = first_of(row, modulator.type);
    if (modulator.table == nullptr) return value;
    return __fadd_rn(value, first_of(modulator.table, modulator.table_type));
  }

 private:
  static __device__ __forceinline__ bool is_f32(OperandType type) {
    return type == OperandType::kF32;
  }
  __device__ __forceinline__ void load(uint4 (&raw)[2], const char* from, OperandType type, int v,
                                       bool wanted) const {
    ptx::fill_unless(raw, 0, true);
    const uint32_t bytes = is_f32(type) ? kPerVector * 4 : kVectorBytes;
    const char* const address = from + static_cast<uint32_t>(place.vector(v)) * bytes;
    ptx::ld_global_v4_if(raw[0], address, wanted);
    ptx::ld_global_v4_if(raw[1], address + kVectorBytes, wanted && is_f32(type));
  }
  static __device__ __forceinline__ void unpack(float (&k)[kPerVector], const uint4 (&raw)[2],
                                                OperandType type) {
    if (is_f32(type)) {
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) k[i] = __uint_as_float(word_of(raw[i / 4], i % 4));
    } else {
      T::unpack(raw[0], k);
    }
  }
  static __device__ __forceinline__ float first_of(const char* from, OperandType type) {
    if (is_f32(type)) return ptx::ld_global_f32(from);
    float pair[2];
    T::unpack_word(ptx::ld_global_u16(from), pair);
    return pair[0];
  }

  const StageModulator& modulator;
  const char* const row;
  const Place<Tile>& place;
};

}  // namespace fastnorm::cuda
