#include "cpu/peer/arithmetic.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "core/common/reciprocal.h"

namespace fastnorm::cpu {
namespace {

struct F32 {
  using Bits = uint32_t;
  static float decode(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits encode(float value) { return std::bit_cast<Bits>(value); }
};

struct Bf16 {
  using Bits = uint16_t;
  static float decode(Bits bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
  // Rounds to nearest even. `value` is no NaN but the quiet one.
  static Bits encode(float value) {
    const auto u = std::bit_cast<uint32_t>(value);
    if (u == 0x7fc00000) return 0x7fc0;
    return static_cast<Bits>((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
};

struct F16 {
  using Bits = uint16_t;
  static float decode(Bits bits) {
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | magnitude << 13);
    // As an f32 the same bits are 2^-112 times the value, subnormals included.
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
  }
  static Bits encode(float value) {
    const auto u = std::bit_cast<uint32_t>(value);
    const uint32_t sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<Bits>(sign | 0x7e00);
    if (magnitude >= 0x47800000) return static_cast<Bits>(sign | 0x7c00);  // 65536 and more
    if (magnitude < 0x38800000) {
      // Below 2^-14 the unit is 2^-24: adding 0.5, whose unit that is, rounds to it.
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return static_cast<Bits>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
    }
    return static_cast<Bits>(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
  }
};

template <typename Use>
void with_dtype(Dtype dtype, Use use) {
  switch (dtype) {
    case Dtype::kF16:
      return use(F16{});
    case Dtype::kBF16:
      return use(Bf16{});
    default:
      return use(F32{});
  }
}

float quiet(float value) { return value == value ? value : std::bit_cast<float>(0x7fc00000); }

template <class T>
float element(const uint32_t* row, int64_t i) {
  typename T::Bits bits;
  std::memcpy(&bits, reinterpret_cast<const char*>(row) + i * static_cast<int64_t>(sizeof bits),
              sizeof bits);
  return T::decode(bits);
}

template <class T>
float sum_of(const uint32_t* const* rows, int32_t ranks, int64_t i) {
  float sum = element<T>(rows[0], i);
  for (int32_t r = 1; r < ranks; ++r) sum += element<T>(rows[r], i);
  return quiet(sum);
}

float float_of(uint32_t word) { return std::bit_cast<float>(word); }

float rstd_of(float squares, float inverse, float eps) {
  return 1.0f / std::sqrt(squares * inverse + eps);
}

}  // namespace

[[gnu::noinline]] void peer_sum_rounded(Dtype dtype, const uint32_t* const* rows, int32_t ranks,
                                        int64_t n, void* to) {
  with_dtype(dtype, [=]<class T>(T) {
    for (int64_t i = 0; i < n; ++i) {
      const typename T::Bits bits = T::encode(sum_of<T>(rows, ranks, i));
      std::memcpy(static_cast<char*>(to) + i * static_cast<int64_t>(sizeof bits), &bits,
                  sizeof bits);
    }
  });
}

[[gnu::noinline]] void peer_sum_exact(Dtype dtype, const uint32_t* const* rows, int32_t ranks,
                                      int64_t n, float* to) {
  with_dtype(dtype, [=]<class T>(T) {
    for (int64_t i = 0; i < n; ++i) to[i] = sum_of<T>(rows, ranks, i);
  });
}

[[gnu::noinline]] void peer_add(Dtype dtype, const void* residual, int64_t n, float* to) {
  with_dtype(dtype, [=]<class T>(T) {
    for (int64_t i = 0; i < n; ++i) {
      typename T::Bits bits;
      std::memcpy(&bits, static_cast<const char*>(residual) + i * static_cast<int64_t>(sizeof bits),
                  sizeof bits);
      to[i] = to[i] + T::decode(bits);
    }
  });
}

[[gnu::noinline]] void peer_merge(const PeerStatistics& call, const uint32_t* const* by_rank,
                                  int32_t ranks, int64_t token) {
  for (int32_t p = 0; p < call.parts; ++p) {
    const auto n = static_cast<double>(call.columns[p]);
    const float inverse = reciprocal_of(call.columns[p] * ranks);
    if (!call.layer) {
      float squares = float_of(by_rank[0][p]);
      for (int32_t r = 1; r < ranks; ++r) squares += float_of(by_rank[r][p]);
      call.rstd[p][token] = rstd_of(squares, inverse, call.eps);
      continue;
    }
    float mean = float_of(by_rank[0][2 * p]), squares = float_of(by_rank[0][2 * p + 1]);
    for (int32_t r = 1; r < ranks; ++r) {
      const float d = float_of(by_rank[r][2 * p]) - mean;
      mean += d * reciprocal_of(r + 1);
      squares = (squares + float_of(by_rank[r][2 * p + 1])) +
                (d * d) * static_cast<float>(n * r / (r + 1));
    }
    call.mean[p][token] = mean;
    call.rstd[p][token] = rstd_of(squares, inverse, call.eps);
  }
}

}  // namespace fastnorm::cpu
