#include "ref/mla_decode_ref.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ref/quant.h"

namespace fastnorm::ref {
namespace {

struct Dot {
  double value = 0, magnitude = 0;
};

// Eight sums, which compilers vectorise.
Dot dot(const float* a, const float* b) {
  constexpr int kSums = 8;
  double sum[kSums] = {}, magnitude[kSums] = {};
  for (int i = 0; i < kMlaWidth; i += kSums) {
    for (int k = 0; k < kSums; ++k) {
      const double product = double{a[i + k]} * double{b[i + k]};
      sum[k] += product;
      magnitude[k] += std::fabs(product);
    }
  }
  Dot total;
  for (int k = 0; k < kSums; ++k) {
    total.value += sum[k];
    total.magnitude += magnitude[k];
  }
  return total;
}

}  // namespace

int64_t mla_decode_allowed(int64_t kv_len, int64_t s_q, int64_t token, bool causal) {
  return causal ? std::max<int64_t>(0, kv_len - s_q + token + 1) : kv_len;
}

MlaDecodeRow mla_decode_row(const float* q, const float* latents, int64_t allowed,
                            double sm_scale) {
  MlaDecodeRow row;
  row.o.assign(kMlaLatent, 0.0);
  row.magnitude.assign(kMlaLatent, 0.0);
  row.faint.assign(kMlaLatent, 0.0);
  row.lse = -std::numeric_limits<double>::infinity();
  if (allowed == 0) return row;
  std::vector<double> score(static_cast<size_t>(allowed));
  for (int64_t j = 0; j < allowed; ++j) {
    const Dot d = dot(q, latents + j * kMlaWidth);
    score[static_cast<size_t>(j)] = sm_scale * d.value;
    row.score_magnitude = std::max(row.score_magnitude, std::fabs(sm_scale) * d.magnitude);
  }
  const double top = *std::max_element(score.begin(), score.end());
  double sum = 0;
  for (const double s : score) sum += std::exp(s - top);
  row.lse = top + std::log(sum);
  for (int64_t j = 0; j < allowed; ++j) {
    const double p = std::exp(score[static_cast<size_t>(j)] - row.lse);
    const float* v = latents + j * kMlaWidth;
    for (size_t i = 0; i < kMlaLatent; ++i) {
      row.o[i] += p * double{v[i]};
      row.magnitude[i] += p * std::fabs(double{v[i]});
    }
    if (score[static_cast<size_t>(j)] - top > std::log(0x1p-14)) continue;
    for (size_t i = 0; i < kMlaLatent; ++i) row.faint[i] += std::fabs(double{v[i]}) / sum;
  }
  return row;
}

void add_mla_sink(double sink, MlaDecodeRow* row) {
  if (std::isinf(row->lse)) return;  // no tokens: o is 0
  const double factor = 1 / (1 + std::exp(sink - row->lse));
  for (std::vector<double>* values : {&row->o, &row->magnitude, &row->faint}) {
    for (double& v : *values) v *= factor;
  }
}

std::vector<float> decode_mla_row(MlaFormat format, const std::byte* row, float tensor_scale,
                                  Type type) {
  const int codes = format == MlaFormat::k656 ? 512 : format == MlaFormat::k576 ? 576 : 448;
  std::vector<float> values(kMlaWidth, 0.0f);
  for (int i = 0; i < codes; ++i) {
    float scale = tensor_scale;
    if (format == MlaFormat::k656) {
      std::memcpy(&scale, row + codes + i / 128 * 4, sizeof scale);
    } else if (format == MlaFormat::k584) {
      scale = decode_e8m0(static_cast<uint8_t>(row[576 + i / 64]));
    }
    values[static_cast<size_t>(i)] =
        static_cast<float>(decode(Format::kE4M3, static_cast<uint8_t>(row[i])) * double{scale});
  }
  if (format != MlaFormat::k576) {
    const std::byte* const rope = row + (format == MlaFormat::k656 ? 528 : codes);
    decode_row(Type::kBF16, rope, values.data() + codes, kMlaWidth - kMlaLatent);
  }
  for (float& v : values) v = round_to(type, v);
  return values;
}

}  // namespace fastnorm::ref
