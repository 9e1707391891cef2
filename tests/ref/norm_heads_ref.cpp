#include "ref/norm_heads_ref.h"

#include <cmath>

#include "ref/norm_model.h"

namespace fastnorm::ref {

RopePair rope_pair(const RopeOptions& options, int64_t j) {
  if (options.interleaved) return {options.offset + 2 * j, options.offset + 2 * j + 1};
  return {options.offset + j, options.offset + options.half + j};
}

int rope_axis(int axes, const int32_t* sections, bool interleaved, int64_t j) {
  if (interleaved) {
    const auto a = static_cast<int>(j % 3);
    return a != 0 && j < int64_t{3} * sections[a] ? a : 0;
  }
  int64_t behind = 0;
  for (int a = 0; a < axes; ++a) {
    behind += sections[a];
    if (j < behind) return a;
  }
  return 0;
}

int64_t rope_entry(const RopeOptions& options, int64_t width, int64_t j) {
  return width == 2 * options.half && options.interleaved ? 2 * j : j;
}

void head_model(const HeadOptions& options, const NormRow& row, float mean, float rstd,
                const float* c, const float* s, float* o) {
  const Type type = options.norm.dtype;
  const auto r = [&](float v) { return round_to(type, v); };
  if (options.normalise) {
    norm_tail(options.norm, row, mean, rstd, o);
  } else {
    for (int64_t i = 0; i < row.n; ++i) o[i] = row.x[i];
  }
  if (options.round_before_rope ||
      (options.normalise && options.norm.rounding == Rounding::kEveryStep)) {
    for (int64_t i = 0; i < row.n; ++i) o[i] = r(o[i]);
  }
  for (int64_t j = 0; options.rope && j < options.turn.half; ++j) {
    const RopePair pair = rope_pair(options.turn, j);
    const float v1 = o[pair.first], v2 = o[pair.second];
    const float sine = options.turn.inverse ? -s[j] : s[j];
    if (options.turn.every_step) {
      const float a = r(v1 * c[j]), b = r(v2 * sine), d = r(v2 * c[j]), e = r(v1 * sine);
      o[pair.first] = a - b;
      o[pair.second] = d + e;
    } else {
      const float b = v2 * sine, e = v1 * sine;
      o[pair.first] = std::fma(v1, c[j], -b);
      o[pair.second] = std::fma(v2, c[j], e);
    }
  }
}

void head_ref(const HeadOptions& options, const NormRow& row, double mean, double rstd,
              const float* c, const float* s, double* o, double* bound) {
  constexpr double kU = 0x1p-24;
  for (int64_t i = 0; i < row.n; ++i) {
    o[i] = static_cast<double>(row.x[i]);
    bound[i] = 0;
    if (!options.normalise) continue;
    const double t = (o[i] - mean) * rstd;
    const double g = row.weight == nullptr ? 1
                                           : static_cast<double>(row.weight[i]) +
                                                 static_cast<double>(options.norm.weight_offset);
    const double bias = row.bias == nullptr ? 0 : static_cast<double>(row.bias[i]);
    o[i] = t * g + bias;
    bound[i] = 3 * kU * std::fabs(t * g) + 2 * kU * (std::fabs(t * g) + std::fabs(bias));
  }
  for (int64_t j = 0; options.rope && j < options.turn.half; ++j) {
    const RopePair pair = rope_pair(options.turn, j);
    const double v1 = o[pair.first], v2 = o[pair.second];
    const double d1 = bound[pair.first], d2 = bound[pair.second];
    const auto cosine = static_cast<double>(c[j]);
    const double sine = static_cast<double>(s[j]) * (options.turn.inverse ? -1 : 1);
    const double ac = std::fabs(cosine), as = std::fabs(sine);
    o[pair.first] = v1 * cosine - v2 * sine;
    o[pair.second] = v2 * cosine + v1 * sine;
    bound[pair.first] = 4 * kU * (std::fabs(v1) * ac + std::fabs(v2) * as) + ac * d1 + as * d2;
    bound[pair.second] = 4 * kU * (std::fabs(v2) * ac + std::fabs(v1) * as) + ac * d2 + as * d1;
  }
}

float head_weight_model(float weight, float scale, float factor) {
  const float scaled = weight * scale;
  return scaled * factor;
}

double head_weight_ref(double weight, double scale, double factor, double* bound) {
  constexpr double kU = 0x1p-24, kLeast = 0x1p-149;
  const double scaled = weight * scale;
  *bound = 2.01 * kU * std::fabs(scaled * factor) + kLeast * (std::fabs(factor) + 1);
  return scaled * factor;
}

}  // namespace fastnorm::ref
