// Random calls of norm_heads_backward with all their memory, and what the model says should be
// there afterwards, byte for byte.
#pragma once

#include <string>
#include <vector>

#include "fastnorm/norm_heads_backward.h"
#include "ref/norm_backward_ref.h"
#include "ref/norm_heads_backward_ref.h"
#include "support/norm_heads_call.h"

namespace fastnorm::support {

enum class DxPlace { kNone, kOwn, kDy, kX };

// A part with its memory.
struct BackwardCallPart {
  fastnorm_norm_heads_backward_part args = {};
  ref::NormBackwardOptions norm;
  ref::RopeOptions turn;
  int64_t heads = 1, n = 1;
  bool dy_f32 = false;
  bool dy_is_scalar = false;  // a row of dy is one element
  bool weight_f32 = false, dweight_f32 = false;
  ref::Type dbias_type = ref::Type::kF32;
  DxPlace dx_place = DxPlace::kOwn;
  OwnedTensor dy, x, weight, mean, rstd, dx, dweight, dbias;
  // Of rows (token, head), given or computed again; ACROSS_HEADS: of the token.
  std::vector<float> means, rstds;

  bool has(uint32_t flag) const { return (args.flags & flag) != 0; }
  bool normalises() const { return has(FASTNORM_NORM_HEADS_NORM); }
  bool ropes() const { return has(FASTNORM_NORM_HEADS_ROPE); }
  bool across() const { return has(FASTNORM_NORM_HEADS_ACROSS_HEADS); }
  std::vector<CallTensor*> tensors() const;
  const fastnorm_norm_heads_backward_part* get();
};

enum class GradientCallKind {
  kAny,              // every option, any address
  kPlain,            // parts that norm_backward's kernels can do
  kMany,             // every option, several hundred tokens
  kAligned,          // what kernels that hold rows in registers can serve
  kAlignedMany,      // such, with more rows than the lanes of the row order
  kAlignedWide,      // such, of tokens with up to 8192 columns, whose heads share a statistic
  kAlignedWideMany,  // such, of two heads, with more tokens than the lanes of the row order
};

class RandomHeadsBackwardCall {
 public:
  RandomHeadsBackwardCall(uint64_t seed, ref::Order order,
                          GradientCallKind kind = GradientCallKind::kAny);

  // Works out what should be there afterwards. Before the call.
  void expect_results();

  std::vector<CallTensor*> tensors() const;
  const fastnorm_norm_heads_args& args();
  const std::vector<const fastnorm_norm_heads_backward_part*>& parts();

  // "" or what differs from the model.
  std::string difference() const;
  // "" or where the model leaves the bounds of the formula in double. After expect_results().
  const std::string& out_of_bounds() const { return out_of_bounds_; }
  std::string text() const;

 private:
  bool plain() const { return kind_ == GradientCallKind::kPlain; }
  bool many() const { return kind_ == GradientCallKind::kMany; }
  bool wide() const { return kind_ >= GradientCallKind::kAlignedWide; }
  bool aligned() const { return kind_ >= GradientCallKind::kAligned; }
  int64_t gap(int64_t most) { return random_.below(most); }
  int64_t shift() { return random_.one_in(4) ? random_.below(8) : 0; }
  OwnedTensor make_rows(const BackwardCallPart& p, ref::Type type);
  void fill(CallTensor& t, size_t at, int64_t n, ref::Pattern pattern, ref::Type type);
  void make_part();
  int64_t columns_of_part();
  void make_dy(BackwardCallPart& p);
  void make_norm(BackwardCallPart& p);
  void make_sums(BackwardCallPart& p);
  void give_statistics(BackwardCallPart& p);
  void make_rope(BackwardCallPart& p);
  OwnedTensor make_columns(int64_t heads, int64_t n, ref::Type type, ref::Pattern pattern);

  std::vector<float> values(const CallTensor& t, size_t at, int64_t n, ref::Type type) const;
  std::vector<float> row_of_dy(const BackwardCallPart& p, int64_t t, int64_t h) const;
  std::vector<float> row_of_x(const BackwardCallPart& p, int64_t t, int64_t h) const;
  std::vector<float> row_of_weight(const BackwardCallPart& p, int64_t h) const;
  void set_statistics(BackwardCallPart& p);
  void turn_rows(const BackwardCallPart& p);
  ref::NormBackwardRow row(const BackwardCallPart& p, int64_t i) const;
  void predict(BackwardCallPart& p, size_t number);
  void predict_dx(BackwardCallPart& p);
  void predict_token(BackwardCallPart& p, int64_t t);
  void predict_sums(BackwardCallPart& p, bool weights);
  void put_dx(BackwardCallPart& p, int64_t t, int64_t h, const float* values);
  void note(const std::string& text);

  ref::Random random_;
  const uint64_t seed_;
  const ref::Order order_;
  const GradientCallKind kind_;
  ref::Type type_ = ref::Type::kF32;
  int64_t tokens_ = 0, rope_dim_ = 0, table_heads_ = 0;
  int64_t width_ = 0;  // aligned(): the power of two that columns round up to
  std::vector<BackwardCallPart> parts_;
  std::vector<const fastnorm_norm_heads_backward_part*> pointers_;
  fastnorm_norm_heads_args args_ = {};
  CallTables tables_;
  ref::ModelScratch scratch_;
  // Of the part that is predicted, by rows (token, head).
  std::vector<std::vector<float>> dv_, x_, weight_;
  size_t number_ = 0;
  std::string out_of_bounds_;
};

}  // namespace fastnorm::support
