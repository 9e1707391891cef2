// MLA decode in double: the formula of fastnorm/mla_decode.h, one row at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ref/dtype.h"

namespace fastnorm::ref {

inline constexpr int kMlaLatent = 512, kMlaWidth = 576;

// How many cached tokens the new token `token` of `s_q` attends to: the first ones of kv_len.
int64_t mla_decode_allowed(int64_t kv_len, int64_t s_q, int64_t token, bool causal);

struct MlaDecodeRow {
  std::vector<double> o;          // [512]; 0 for an empty row
  std::vector<double> magnitude;  // [512]: sum of p * |v|, the base of error bounds.
  // The sum of |v| over tokens whose probability is below 2^-14 of the largest one, divided by the
  // sum of exp(s - max). In f16 those probabilities are subnormal or 0.
  std::vector<double> faint;
  double lse = 0;              // natural; -inf for an empty row
  double score_magnitude = 0;  // largest |sm_scale| * sum of |q| * |k|, over all tokens
};

// q has 576 numbers, and so does each of the `allowed` latents. Heads of 512 columns have zeros in
// the others.
MlaDecodeRow mla_decode_row(const float* q, const float* latents, int64_t allowed, double sm_scale);

// Gives a sink its share of the sum. lse stays.
void add_mla_sink(double sink, MlaDecodeRow* row);

// --- rows of FP8 caches ---

// The values of fastnorm_mla_cache_format, without rows of T.
enum class MlaFormat : uint8_t { kNone, k656, k576, k584 };

constexpr int mla_row_bytes(MlaFormat format) {
  return format == MlaFormat::k656 ? 656 : format == MlaFormat::k576 ? 576 : 584;
}

// The 576 numbers of a row, rounded to single precision and then to `type`. Of k584, the 8 bytes
// of scales follow the 576 of the row, and the last 64 numbers are 0. tensor_scale: of k576.
std::vector<float> decode_mla_row(MlaFormat format, const std::byte* row, float tensor_scale,
                                  Type type);

}  // namespace fastnorm::ref
