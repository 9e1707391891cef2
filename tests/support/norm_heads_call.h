// Random calls of norm_heads with all their memory, and what the model says should be there
// afterwards, byte for byte: gaps between rows, heads and pages included.
#pragma once

#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fastnorm/norm_heads.h"
#include "ref/data.h"
#include "ref/norm_heads_ref.h"
#include "ref/norm_model.h"
#include "ref/quant.h"

namespace fastnorm::support {

inline constexpr fastnorm_dtype_id kRowDtypeIds[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16,
                                                     FASTNORM_DTYPE_BF16};
inline fastnorm_dtype_id id_of(ref::Type type) { return kRowDtypeIds[static_cast<int>(type)]; }

// Memory of a tensor, and what it should hold after a call. Strides are in elements.
struct CallTensor {
  std::vector<int64_t> shape, strides;
  int64_t bytes = 4;  // of an element
  size_t first = 0;   // byte of `now` that is the first element's
  std::vector<unsigned char> now, expected;
  void* elsewhere = nullptr;  // where `now` lies for the call, if not there
  bool compact = false;       // the call gets no strides
  // Of a call whose first dimension lies apart, from one index to the next; 0: as `strides` says.
  int64_t far_stride = 0;
  int64_t far_first = 0;  // indices of such a call ahead of those that `now` has
  fastnorm_tensor abi = {};

  // `gap` elements are left between the indices of each dimension but the last, `shift` ahead of
  // all.
  CallTensor(std::vector<int64_t> extents, fastnorm_dtype_id dtype, int64_t gap = 0,
             int64_t shift = 0)
      : shape(std::move(extents)), strides(shape.size()) {
    const fastnorm_dtype d = fastnorm_dtype_of(dtype);
    bytes = d.bits * d.lanes / 8;
    first = static_cast<size_t>(shift * bytes);
    int64_t step = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      strides[i] = step;
      step = step * shape[i] + gap;
    }
    now.assign(first + static_cast<size_t>((step + 1) * bytes), 0xa5);
    expected = now;
    abi.device_type = FASTNORM_DEVICE_CPU;
    abi.dtype = d;
  }

  const fastnorm_tensor* get() {
    abi.data = (elsewhere != nullptr ? static_cast<unsigned char*>(elsewhere) : now.data()) + first;
    abi.ndim = static_cast<int32_t>(shape.size());
    abi.shape = shape.data();
    abi.strides = compact ? nullptr : strides.data();
    if (far_stride != 0) {
      far_shape_ = shape;
      far_shape_[0] += far_first;
      far_strides_ = strides;
      far_strides_[0] = far_stride;
      abi.shape = far_shape_.data();
      abi.strides = far_strides_.data();
    }
    return &abi;
  }

  // Elements from the first of an index of the first dimension to behind its last.
  int64_t span() const {
    int64_t count = 1;
    for (size_t i = 1; i < shape.size(); ++i) count += (shape[i] - 1) * strides[i];
    return count;
  }

  // The byte of an element.
  size_t place(std::initializer_list<int64_t> index) const {
    int64_t at = 0;
    size_t i = 0;
    for (const int64_t k : index) at += k * strides[i++];
    return first + static_cast<size_t>(at * bytes);
  }

  void set(size_t at, ref::Type type, const float* values, int64_t n) {
    ref::encode_row(type, values, now.data() + at, n);
    std::memcpy(expected.data() + at, now.data() + at,
                static_cast<size_t>(n * ref::bytes_of(type)));
  }
  void expect(size_t at, ref::Type type, const float* values, int64_t n) {
    ref::encode_row(type, values, expected.data() + at, n);
  }
  void expect_bytes(size_t at, const void* from, size_t count) {
    std::memcpy(expected.data() + at, from, count);
  }
  template <class Value>
  void set_number(size_t at, Value value) {
    std::memcpy(now.data() + at, &value, sizeof value);
    std::memcpy(expected.data() + at, &value, sizeof value);
  }

 private:
  std::vector<int64_t> far_shape_, far_strides_;
};

using OwnedTensor = std::unique_ptr<CallTensor>;
template <class... Args>
OwnedTensor make_tensor(Args... args) {
  return std::make_unique<CallTensor>(args...);
}
inline const fastnorm_tensor* abi_of(const OwnedTensor& t) {
  return t == nullptr ? nullptr : t->get();
}

// Tables of cosines and sines with their positions, drawn at random.
class CallTables {
 public:
  static constexpr int64_t kPositions = 37;  // rows of the tables, fewer than many tokens

  ref::Type type = ref::Type::kF32;  // T
  int64_t tokens = 0, rope_dim = 0;
  int64_t heads = 0;  // with tables of their own; 0: one for all
  bool aligned = false, many = false;
  OwnedTensor cos, sin, positions;

  // Makes the tensors, and sets what belongs to them in `args`.
  void make(ref::Random& random, fastnorm_norm_heads_args* args);
  // Cosines or sines of a token.
  std::vector<float> angles(const CallTensor& table, const ref::RopeOptions& o, int64_t head,
                            int64_t token) const;
  void give(fastnorm_norm_heads_args* args);
  // Positions begin at `first`, and rows of the tables lie `stride` elements apart.
  void spread(int64_t first, int64_t stride);

 private:
  void fill(ref::Random& random, CallTensor& t, int64_t head, int64_t row) const;
  size_t place(const CallTensor& t, int64_t head, int64_t row) const;
  void make_positions(ref::Random& random, fastnorm_norm_heads_args* args);

  int64_t width_ = 0;
  bool f32_ = true, interleaved_ = false;
  int axes_ = 1;
  int32_t section_[4] = {};
  std::vector<int64_t> position_;
};

// Sets element i of a tensor of integers.
void set_index(CallTensor& t, int64_t i, int64_t value);

// A part with its memory.
struct CallPart {
  fastnorm_norm_heads_part args = {};
  ref::HeadOptions options;
  ref::QuantOptions quant, cache_quant;
  int64_t heads = 1, n = 1;
  float tensor_scale = 0.5f;
  bool in_place = false, y_f32 = false;
  OwnedTensor x, weight, bias, y, mean, rstd, sumsq, mean_in, rstd_in, codes, scale, amax, global,
      clamp, cache, cache_scale, cache_tensor_scale;

  bool across() const { return (args.flags & FASTNORM_NORM_HEADS_ACROSS_HEADS) != 0; }
  std::vector<CallTensor*> tensors() const;
  const fastnorm_norm_heads_part* get();
};

// What calls are drawn from.
enum class CallKind {
  kAny,      // every option, any address
  kAligned,  // what kernels that hold rows in registers can serve
  kMany,     // such, of several hundred tokens
  kMore,     // aligned, with sums of squares, and with codes of y by a static scale
  kAcross,   // aligned, of 16 bits, with statistics across the heads of up to 8192 columns
  kLatents,  // aligned, of 16 bits: latents of MLA, and short rows
  kLarge,    // aligned: more than 10240 rows of a part, more than 32 heads, rope of some columns
  kFew,      // aligned, of 16 bits: one part of 3 tokens and 3 slots, to be spread
};

class RandomHeadsCall {
 public:
  RandomHeadsCall(uint64_t seed, ref::Order order, CallKind kind = CallKind::kAny);

  // Works out what should be there afterwards. Before the call.
  void expect_results();

  // Before `expect_results`: what lies `stride` elements apart, the rows of a token or page.
  void spread_rows(int64_t stride);
  // Or those of the tables, of which the positions are `first` and up.
  void spread_tables(int64_t first, int64_t stride) { tables_.spread(first, stride); }

  // All memory; `elsewhere` and abi.device_type of each may be set.
  std::vector<CallTensor*> tensors() const;

  // For the call: read them after the tensors' places are known.
  const fastnorm_norm_heads_args& args();
  const std::vector<const fastnorm_norm_heads_part*>& parts();

  // "" or what differs from the model.
  std::string difference() const;
  std::string text() const;

 private:
  void fill(CallTensor& t, size_t at, int64_t n, ref::Pattern pattern = ref::Pattern::kNormal,
            bool as_f32 = false);
  void make_slots();
  int64_t gap(int64_t most);
  int64_t shift();
  void make_part();
  void make_y(CallPart& p);
  OwnedTensor make_scalar(float value) const;
  void make_norm(CallPart& p);
  void make_statistics(CallPart& p);
  void give_statistics(CallPart& p);
  OwnedTensor make_columns(const CallPart& p);
  void make_rope(CallPart& p);
  static bool rounds_steps(const CallPart& p);
  static bool rounds_codes(const CallPart& p);
  void make_codes(CallPart& p);
  static void divide(CallPart& p, ref::QuantOptions& q);
  void make_cache(CallPart& p);
  std::vector<float> values(const CallTensor& t, size_t at, int64_t n, bool f32 = false) const;
  std::vector<float> column_values(const OwnedTensor& t, const CallPart& p, int64_t head) const;
  void predict(CallPart& p);
  void predict_statistic(CallPart& p, const std::vector<float>& x, int64_t t, int64_t h,
                         ref::NormResult* result);
  void predict_head(CallPart& p, int64_t t, int64_t h, const ref::NormResult& across);
  void predict_codes(CallPart& p, int64_t t, int64_t h, const std::vector<float>& o) const;
  void predict_cache(CallPart& p, int64_t t, int64_t h, const std::vector<float>& o) const;

  ref::Random random_;
  const uint64_t seed_;
  const ref::Order order_;
  const bool aligned_, many_, more_, across_, latents_, large_, few_;
  ref::Type type_ = ref::Type::kF32;
  int64_t tokens_ = 0, rope_dim_ = 0, table_heads_ = 0, page_size_ = 1, pages_ = 1;
  bool wide_ = false;
  std::vector<int64_t> slot_;
  std::vector<CallPart> parts_;
  std::vector<const fastnorm_norm_heads_part*> pointers_;
  fastnorm_norm_heads_args args_ = {};
  CallTables tables_;
  OwnedTensor slots_;
  ref::ModelScratch scratch_;
};

}  // namespace fastnorm::support
