// Quantised rows of random calls: their words in a call's line, and what the model says of them.
#pragma once

#include <vector>

#include "ref/norm_spec.h"
#include "ref/quant.h"
#include "support/operands.h"

namespace fastnorm::support {

// The reference's options of a call's structs.
template <class Args>
ref::NormOptions norm_options(const Args& args, ref::Type type) {
  ref::NormOptions o;
  o.dtype = type;
  o.kind = static_cast<ref::Kind>(args.kind);
  o.rounding = static_cast<ref::Rounding>(args.rounding);
  o.eps = args.eps;
  o.weight_offset = args.weight_offset;
  return o;
}

// What a struct of quantised outputs asks for, with its memory. Without one there is nothing.
class QuantModel {
 public:
  // Rows of type T, whose y has this type. The codes may be those of a cache.
  QuantModel(const fastnorm_quant* args, const Operands& memory, ref::Type type, ref::Type y,
             bool every_step, Operand* codes = nullptr);

  // Says what is expected of row number `row`, with these indices. z is neither rounded nor
  // rotated. Returns what y is, before it is rounded.
  std::vector<float> expect(Index leading, int64_t row, const std::vector<float>& z);
  // The first scale of the row that was last expected.
  float scale() const { return last_scale_; }
  // Its swizzled scales stay. All others become 0 where there are none.
  void keep(int64_t row) const;

 private:
  void expect_seen(Index leading, int64_t row, const std::vector<float>& z);
  size_t place_of_scale(Index leading, int64_t row, int64_t i, int64_t scopes) const;

  bool is_swizzled() const { return given_.scale_layout == FASTNORM_SCALE_SWIZZLED_128X4; }

  fastnorm_quant given_ = {};  // its numbers
  ref::QuantOptions options_;
  ref::Type type_;
  Operand *codes_ = nullptr, *scale_ = nullptr, *amax_ = nullptr;
  std::vector<float> signs_;  // of the columns before a rotation; empty = 1
  int64_t scopes_ = 0;
  float tensor_scale_ = 1, global_ = 1, last_scale_ = 1;
};

// How codes are drawn.
struct DrawnQuant {
  ref::QuantOptions options;  // scheme, format and those that scales follow from
  fastnorm_dtype_id codes = FASTNORM_DTYPE_F8_E4M3FN;
  bool from_rounded = false;
};

// A rotation before scales of blocks of this many columns (0: none), if n is a multiple of one.
// Writes it.
void draw_rotation(ref::Random& random, LineWriter& line, const std::string& path, int64_t n,
                   int64_t scale_block, bool has_y);

inline constexpr fastnorm_dtype_id kCodeTypes[] = {FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2,
                                                   FASTNORM_DTYPE_I8};

enum class QuantKind : uint8_t {
  kAny,
  kPlain,    // PER_TENSOR without options
  kRotated,  // with a rotation
  kBare,     // the same, and nothing else that changes what is quantised
};

// A scheme and a format for rows of n columns. Writes all but the codes. `outer` x `inner` rows.
DrawnQuant draw_quant(ref::Random& random, LineWriter& line, const std::string& path, int64_t outer,
                      int64_t inner, int64_t n, QuantKind kind);

}  // namespace fastnorm::support
