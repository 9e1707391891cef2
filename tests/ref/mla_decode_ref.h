// MLA decode in double: the formula of fastnorm/mla_decode.h, one row at a time.
#pragma once

#include <cstdint>
#include <vector>

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

// q has 576 numbers, and so does each of the `allowed` latents.
MlaDecodeRow mla_decode_row(const float* q, const float* latents, int64_t allowed, double sm_scale);

}  // namespace fastnorm::ref
