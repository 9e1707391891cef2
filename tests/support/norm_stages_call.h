// Random calls of norm with stages and all their memory, and what the model says should be there
// afterwards, byte for byte: gaps between rows included.
#pragma once

#include <string>
#include <vector>

#include "fastnorm/norm.h"
#include "ref/norm_stages_ref.h"
#include "ref/quant.h"
#include "support/norm_heads_call.h"

namespace fastnorm::support {

// What calls are like.
enum class StagesKind : uint8_t {
  kAny,
  kAligned,    // inputs of x's dtype; groups are aligned
  kGated,      // aligned: a gate after RMS, and little else
  kSandwich,   // aligned: RMS, the residual, RMS
  kModulated,  // aligned: residual gate, scale and shift
  kScaled,     // aligned: scale and shift of RMS, without a sum before them
  kMixed,      // as kModulated, of x's dtype or f32, with tables or without
};
inline constexpr int kStagesKinds = 7;

class RandomStagesCall {
 public:
  RandomStagesCall(uint64_t seed, ref::Order order, StagesKind kind = StagesKind::kAny);

  // Works out what should be there afterwards. Before the call.
  void expect_results();

  // All memory; `elsewhere` and abi.device_type of each may be set.
  std::vector<CallTensor*> tensors() const;

  // For the call: read them after the tensors' places are known.
  const fastnorm_norm_args& args();

  // "" or what differs from the model, or of the model from the specification in double.
  std::string difference() const;
  std::string text() const;
  // Rows that were compared with the specification in double.
  int64_t bounded() const { return bounded_; }

  // A number of a modulator's row that is none of its `rows`.
  struct Outside {
    bool wide;  // i64
    int64_t number, rows;
  };
  // Those of the call. Of GPUs alone: on CPUs they are errors.
  const std::vector<Outside>& outside() const { return outside_; }

 private:
  struct Named {
    const char* name;
    const OwnedTensor& tensor;
  };
  // A modulator and its table.
  struct Modulator {
    OwnedTensor rows, table;
  };
  std::vector<Named> named() const;
  int64_t make_index(bool wide);
  Modulator make_modulator();
  // Its values for a row, as many as x has columns.
  std::vector<float> modulator_row(const Modulator& m, int64_t b, int64_t h) const;
  bool aligned() const { return kind_ >= StagesKind::kAligned; }
  bool plain() const { return kind_ >= StagesKind::kGated; }
  bool modulated() const { return kind_ >= StagesKind::kModulated; }
  bool scaled() const { return kind_ == StagesKind::kScaled; }
  bool mixed() const { return kind_ == StagesKind::kMixed; }
  // Plain calls seldom have what their forms do not.
  bool odd(int64_t others) { return random_.one_in(plain() ? 12 : others); }
  void make_shape();
  OwnedTensor make_rows(fastnorm_dtype_id dtype, int64_t columns);
  OwnedTensor make_statistic(int64_t values);
  OwnedTensor make_columns(int64_t columns);
  void fill(CallTensor& t, ref::Pattern pattern, ref::Type type, int64_t columns);
  ref::Type any_type();
  void make_gate();
  void make_branch();
  void make_sum();
  void make_modulation();
  void make_statistics();
  void make_codes();
  void make_outputs();
  std::vector<float> row_of(const OwnedTensor& t, int64_t b, int64_t h, int64_t columns) const;
  std::vector<float> column_of(const OwnedTensor& t, int64_t h, int64_t columns) const;
  void predict(int64_t b, int64_t h);
  void predict_codes(int64_t b, int64_t h, const std::vector<float>& z);
  void check_bounds(const ref::StagesRow& row, const std::vector<float>& z);

  ref::Random random_;
  const uint64_t seed_;
  const ref::Order order_;
  const StagesKind kind_;
  ref::Type type_ = ref::Type::kF32;
  ref::StagesOptions options_;
  ref::QuantOptions quant_;
  int64_t batch_ = 1, heads_ = 1, n_ = 1, groups_ = 1;
  bool weight_shared_ = false, bias_shared_ = false;
  bool y_over_x_ = false, y_over_gate_ = false, sum_over_residual_ = false;
  float tensor_scale_ = 0.5f, global_scale_ = 0.5f;
  fastnorm_norm_args args_ = {};
  OwnedTensor x_, residual_, weight_, bias_, y_, residual_out_, mean_, rstd_, gate_, sumsq_,
      mean_in_, rstd_in_, branch_weight_, branch_bias_, branch_rstd_, sum_scale_, codes_, scale_,
      global_, clamp_scale_, amax_, index_;
  Modulator residual_gate_, modulation_scale_, modulation_shift_;
  std::vector<int64_t> indices_;  // [batch, heads]
  int64_t index_rows_ = 0;
  std::vector<Outside> outside_;
  ref::ModelScratch scratch_;
  std::string finding_;
  int64_t bounded_ = 0;
};

}  // namespace fastnorm::support
