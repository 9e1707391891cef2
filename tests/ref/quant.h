// Quantised outputs: the conversions, a scalar single-precision program that a backend must equal bit for bit, and what a result in
// single precision may be, given where z lies.
#pragma once

#include <cstdint>
#include <vector>

#include "ref/dtype.h"
#include "ref/norm_ref.h"
#include "ref/quant_spec.h"

namespace fastnorm::ref {

// The code of a value, and a code's value. A code of i8 is the two's complement; one of e2m1 is the low four bits.
// Nearest even; saturates, Inf too; NaN has one code: 0x7f, i8 0, e2m1 0x7.
uint8_t encode(Format format, double value);
double decode(Format format, uint8_t code);

// The same for scales of one byte that are powers of two: E + 127, 0xff = NaN.
float decode_e8m0(uint8_t byte);

// The least E with magnitude <= QMAX * 2^E, within [-127, 127]; 0 gives -127. E4M3 and E5M2.
int scale_exponent(Format format, double magnitude);

// The greater of two magnitudes; NaN is the greatest. So the amax output is combined with the value present, which is not negative.
float max_magnitude(float a, float b);

struct QuantResult {
  std::vector<uint8_t> codes;        // [n]; e2m1: a byte each, see pack_e2m1
  std::vector<float> scale;          // [scopes] as stored, in f32
  std::vector<uint8_t> scale_bytes;  // [scopes], where has_scale_bytes, else empty
  float amax = 0;                    // of the row as it is quantised; of y, where it is not
};

// Quantises a row. z [n] is not rounded to `dtype`; but for Rounding::kEveryStep that rounding belongs to z, so norm_model's z must
// get it first (or the source be kRounded). scale_in: PER_TENSOR; global_scale: NVFP4.
void quant_model(const QuantOptions& options, const float* z, int64_t n, Type dtype, float scale_in,
                 float global_scale, QuantResult* result);

// n (even) codes to n / 2 bytes: elements 2i and 2i + 1 are the low and the high half of byte i.
void pack_e2m1(const uint8_t* codes, int64_t n, uint8_t* bytes);

// A place in the order of values, -0 before +0: what <= means between codes. NaN codes lie outside all finite ones.
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
  bool valid = false;            // else the model alone says what the row gives
  Range amax;                    // also with Scheme::kNone
  std::vector<Range> scale;      // [scopes], see holds_scale
  std::vector<CodeRange> codes;  // [n], given the scales that were stored
};

// The stored scale is one that the options can give, within its bounds.
bool holds_scale(const QuantOptions& options, const Range& bounds, float scale);

// Bounds of a row whose z [n], not yet rounded, lies in the given ranges. `scale` [scopes] is what the library stored, in f32, or
// PER_TENSOR's input: the codes are judged by it. Where z is known, since it rounds one way, is clamped or has a range of one value,
// so are scales and codes.
void quant_bounds(const QuantOptions& options, const Range* z, int64_t n, Type dtype,
                  float global_scale, const float* scale, QuantBounds* bounds);

}  // namespace fastnorm::ref
