// Quantised outputs: the conversions, and a scalar single-precision program that a backend must
// equal bit for bit. Also the bounds of a single-precision result, from bounds of z.
#pragma once

#include <cstdint>
#include <vector>

#include "ref/dtype.h"
#include "ref/norm_ref.h"
#include "ref/quant_spec.h"

namespace fastnorm::ref {

// The code of a value, and the value of a code. i8 codes are two's complement; e2m1 codes are the
// low four bits. Rounds to nearest even. Saturates, also Inf. NaN has one code: 0x7f, i8 0, e2m1
// 0x7.
uint8_t encode(Format format, double value);
double decode(Format format, uint8_t code);

// The value of a one-byte scale that is a power of two: E + 127, 0xff = NaN.
float decode_e8m0(uint8_t byte);

// The least E with magnitude <= QMAX * 2^E, clamped to [-127, 127]; 0 gives -127. For E4M3 and
// E5M2.
int scale_exponent(Format format, double magnitude);

// The greater of two magnitudes, with NaN as the greatest. The amax output combines with the value
// present this way, which is not negative.
float max_magnitude(float a, float b);

struct QuantResult {
  std::vector<uint8_t> codes;        // [n]; e2m1: a byte each, see pack_e2m1
  std::vector<float> scale;          // [scopes] as stored, in f32
  std::vector<uint8_t> scale_bytes;  // [scopes] with has_scale_bytes, else empty
  float amax = 0;                    // of the quantised row, or of y without quantisation
};

// Quantises a row. z [n] is not rounded to `dtype`. With Rounding::kEveryStep that rounding belongs
// to z, so norm_model's z must get it first, or the source must be kRounded. scale_in: PER_TENSOR;
// global_scale: NVFP4.
void quant_model(const QuantOptions& options, const float* z, int64_t n, Type dtype, float scale_in,
                 float global_scale, QuantResult* result);

// The z of quant_model for options with a rotation: blocks of columns times a Hadamard matrix. If
// the source is kRounded, z is rounded before it, but not behind. `signs` are 1 or -1: [n], or
// [rotation] with `shared`; null = 1.
void rotate_model(const QuantOptions& options, const float* signs, bool shared, Type dtype,
                  int64_t n, float* z);

// The rotation in double, from exact z. `bound` [n]: how far single precision may be from it.
void rotate_ref(const QuantOptions& options, const float* signs, bool shared, Type dtype, int64_t n,
                double* z, double* bound);

// n codes (n even) to n / 2 bytes. Elements 2i and 2i + 1 are the low and high half of byte i.
void pack_e2m1(const uint8_t* codes, int64_t n, uint8_t* bytes);

// The position in the order of values, with -0 before +0: what <= means between codes. NaN codes
// are outside all finite ones.
int code_order(Format format, uint8_t code);

struct CodeRange {
  int low = 0, high = 0;  // in code order
  bool holds(Format format, uint8_t code) const {
    const int place = code_order(format, code);
    return place >= low && place <= high;
  }
  bool exact() const { return low == high; }
};

struct QuantBounds {
  bool valid = false;            // if false, only the model gives the result
  Range amax;                    // also with Scheme::kNone
  std::vector<Range> scale;      // [scopes], see holds_scale
  std::vector<CodeRange> codes;  // [n], given the stored scales
};

// True if the options can give the stored scale, and it is within its bounds.
bool holds_scale(const QuantOptions& options, const Range& bounds, float scale);

// Bounds of a row whose z [n], before rounding, is in the given ranges. `scale` [scopes]: what the
// library stored, in f32, or PER_TENSOR's input. The codes are judged by it. If z is known, scales
// and codes are too. It is known if it rounds one way, is clamped, or has a range of one value.
void quant_bounds(const QuantOptions& options, const Range* z, int64_t n, Type dtype,
                  float global_scale, const float* scale, QuantBounds* bounds);

}  // namespace fastnorm::ref
