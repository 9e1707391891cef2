#include "ref/peer_ref.h"

#include <bit>
#include <cmath>

#include "ref/norm_ref.h"

namespace fastnorm::ref {
namespace {

constexpr double kUnit = 0x1p-24;

}  // namespace

void peer_sum_model(Type dtype, bool rounded, const float* const* x, int ranks, int64_t n,
                    float* sum) {
  for (int64_t i = 0; i < n; ++i) {
    float s = x[0][i];
    for (int r = 1; r < ranks; ++r) s = s + x[r][i];
    if (std::isnan(s)) s = std::bit_cast<float>(0x7fc00000);
    sum[i] = rounded ? round_to(dtype, s) : s;
  }
}

void peer_sum_ref(const float* const* x, int ranks, int64_t n, double* sum, double* bound) {
  for (int64_t i = 0; i < n; ++i) {
    double magnitude = 0;
    sum[i] = 0;
    for (int r = 0; r < ranks; ++r) {
      sum[i] += static_cast<double>(x[r][i]);
      magnitude += std::fabs(static_cast<double>(x[r][i]));
    }
    // Each addition rounds a partial sum. Its magnitude is at most that of the values plus earlier
    // roundings.
    bound[i] = 1.001 * (ranks - 1) * kUnit * magnitude;
  }
}

PeerStatistic peer_merge_model(Kind kind, float eps, const PeerPart* parts, int ranks, int64_t n) {
  float mean = parts[0].mean, squares = parts[0].squares;
  for (int r = 1; r < ranks; ++r) {
    if (kind == Kind::kRms) {
      squares = squares + parts[r].squares;
      continue;
    }
    const float d = parts[r].mean - mean;
    const float step = d * static_cast<float>(1.0 / (r + 1));
    mean = mean + step;
    const float between = d * d;
    const float weight = static_cast<float>(static_cast<double>(n) * r / (r + 1));
    const float within = squares + parts[r].squares;
    squares = within + between * weight;
  }
  const float inverse = static_cast<float>(1.0 / static_cast<float>(n * ranks));
  const float variance = squares * inverse;
  return {mean, 1.0f / std::sqrt(variance + eps)};
}

PeerStatisticRef peer_statistic_ref(Kind kind, Type dtype, float eps, const float* const* x,
                                    int ranks, int64_t n) {
  const double columns = static_cast<double>(n) * ranks;
  const bool layer = kind == Kind::kLayer;
  double sum = 0, largest = 0;
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      sum += static_cast<double>(x[r][i]);
      largest = std::fmax(largest, std::fabs(static_cast<double>(x[r][i])));
    }
  }
  const double mean = layer ? sum / columns : 0;
  double squares = 0;
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      const double d = static_cast<double>(x[r][i]) - mean;
      squares += d * d;
    }
  }
  const double variance = squares / columns + static_cast<double>(eps);
  const double path = longest_path(Order::kCpu, dtype, n) + ranks;
  // For a mean: the roundings on the path of the row's values, and of the merged means.
  const double mean_bound = layer ? (path + 4) * 2 * kUnit * largest : 0;
  const double variance_bound = variance * 2 * (path + 4 * ranks + 4) * kUnit +
                                4 * std::sqrt(variance) * mean_bound + 4 * mean_bound * mean_bound;
  const double rstd = 1 / std::sqrt(variance);
  const double rstd_bound = rstd * (variance_bound / variance + 4 * kUnit);
  return {mean, rstd, mean_bound, rstd_bound};
}

}  // namespace fastnorm::ref
