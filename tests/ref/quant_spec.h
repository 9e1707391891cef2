// How a normalised row is quantised, in the terms of the specification: the input of model and
// bounds.
#pragma once

#include <cstdint>

namespace fastnorm::ref {

enum class Scheme : uint8_t { kNone, kPerTensor, kPerRow, kPerBlock, kMxfp8, kNvfp4, kMxfp4 };
inline constexpr Scheme kSchemes[] = {Scheme::kNone,     Scheme::kPerTensor, Scheme::kPerRow,
                                      Scheme::kPerBlock, Scheme::kMxfp8,     Scheme::kNvfp4,
                                      Scheme::kMxfp4};
constexpr bool is_fp4(Scheme scheme) {
  return scheme == Scheme::kNvfp4 || scheme == Scheme::kMxfp4;
}
constexpr bool is_mx(Scheme scheme) { return scheme == Scheme::kMxfp8 || scheme == Scheme::kMxfp4; }

// The format of a code. NVFP4 and MXFP4 require E2M1, and E2M1 requires one of them. MXFP8 and
// powers of two need E4M3 or E5M2.
enum class Format : uint8_t { kE4M3, kE5M2, kI8, kE2M1 };
inline constexpr Format kFormats[] = {Format::kE4M3, Format::kE5M2, Format::kI8, Format::kE2M1};

// The input of the quantiser: z, or z rounded to x's dtype T.
enum class QuantSource : uint8_t { kF32, kRounded };

struct QuantOptions {
  Scheme scheme = Scheme::kNone;
  Format format = Format::kE4M3;
  int64_t block_size = 0;  // columns, of PER_BLOCK
  QuantSource source = QuantSource::kF32;
  bool pow2 = false;     // PER_ROW, PER_BLOCK: scales are rounded up to a power of two ..
  bool e8m0 = false;     // .. and stored as bytes
  float amax_floor = 0;  // 0 = 1e-10
  float clamp = 0;       // 0 = off
  int64_t rotation = 0;  // columns of a block that a Hadamard matrix multiplies; 0 = none
  bool divide =
      false;  // PER_TENSOR, PER_ROW, PER_BLOCK: codes of z / scale, not of z * (1 / scale)
};

constexpr const char* name_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::kNone:
      return "none";
    case Scheme::kPerTensor:
      return "tensor";
    case Scheme::kPerRow:
      return "row";
    case Scheme::kPerBlock:
      return "block";
    case Scheme::kMxfp8:
      return "mxfp8";
    case Scheme::kNvfp4:
      return "nvfp4";
    case Scheme::kMxfp4:
      return "mxfp4";
  }
  return "";
}
constexpr const char* name_of(Format format) {
  constexpr const char* kNames[] = {"e4m3", "e5m2", "i8", "e2m1"};
  return kNames[static_cast<int>(format)];
}

// The magnitude that a scale maps to: that of the greatest code. i8 does not use -128.
constexpr float qmax(Format format) {
  constexpr float kGreatest[] = {448, 57344, 127, 6};
  return kGreatest[static_cast<int>(format)];
}

// Columns that share a scale. The last scope of a row may be shorter.
constexpr int64_t scope_columns(const QuantOptions& options, int64_t n) {
  switch (options.scheme) {
    case Scheme::kPerBlock:
      return options.block_size;
    case Scheme::kMxfp8:
    case Scheme::kMxfp4:
      return 32;
    case Scheme::kNvfp4:
      return 16;
    case Scheme::kNone:
    case Scheme::kPerTensor:
    case Scheme::kPerRow:
      break;
  }
  return n;
}

// Scales of a row of n >= 1 elements. PER_TENSOR has one, which is an input.
constexpr int64_t scopes_of(const QuantOptions& options, int64_t n) {
  const int64_t columns = scope_columns(options, n);
  return options.scheme == Scheme::kNone ? 0 : (n + columns - 1) / columns;
}

// Whether scales are bytes: e4m3 for NVFP4, else e8m0.
constexpr bool has_scale_bytes(const QuantOptions& options) {
  return is_mx(options.scheme) || options.scheme == Scheme::kNvfp4 || options.e8m0;
}

// SWIZZLED_128X4: tiles of 128 rows x 4 scales, 512 bytes each. A row of tiles has all scales of
// 128 rows. Bytes without a scale are 0.
constexpr int64_t swizzled_bytes(int64_t rows, int64_t blocks) {
  return (rows + 127) / 128 * ((blocks + 3) / 4) * 512;
}
constexpr int64_t swizzled_index(int64_t row, int64_t block, int64_t blocks) {
  const int64_t tile = row / 128 * ((blocks + 3) / 4) + block / 4;
  return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

}  // namespace fastnorm::ref
