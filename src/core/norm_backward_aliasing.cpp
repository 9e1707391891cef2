// Which tensors of a backward call, or of several, may share memory.
#include <cinttypes>

#include "core/norm_backward_check.h"
#include "core/row_map.h"

namespace fastnorm {
namespace {

// Inputs first, then outputs.
// kRow.. may be one view, and so may kBranch...
enum class Role { kInput, kRowInput, kBranchInput, kRowOutput, kBranchOutput, kOutput };

bool may_be_one(Role output, Role input) {
  return (output == Role::kRowOutput && input == Role::kRowInput) ||
         (output == Role::kBranchOutput && input == Role::kBranchInput);
}

// A tensor of a call as the aliasing rules see it.
struct View {
  bool output() const { return role >= Role::kRowOutput; }

  const char* name;
  Role role;
  Dtype dtype;
  RowBytes bytes;
  AddressRange range;
};

class Views {
 public:
  explicit Views(const NormBackwardDesc& d) : d_(d) {}

  // All tensors; where it gives false, the last view's bytes do not fit in the address space.
  bool collect() {
    const int64_t n = d_.n, dy_columns = d_.dy_element_bytes == 0 ? 1 : n;
    return rows("dy", Role::kRowInput, d_.dy, dy_columns) && rows("x", Role::kRowInput, d_.x, n) &&
           rows("dresidual_in", Role::kRowInput, d_.dresidual_in, n) &&
           rows("mean", Role::kInput, d_.mean, 1) && rows("rstd", Role::kInput, d_.rstd, 1) &&
           parameter("weight", Role::kInput, d_.weight) &&
           rows("gate", Role::kRowInput, d_.gate.gate, n) &&
           parameter("bias", Role::kInput, d_.gate.bias) && branch_inputs() &&
           rows("dx", Role::kRowOutput, d_.dx, n) &&
           rows("dresidual", Role::kRowOutput, d_.dresidual, n) &&
           rows("dgate", Role::kRowOutput, d_.gate.dgate, n) &&
           parameter("dweight", Role::kOutput, d_.dweight) &&
           parameter("dbias", Role::kOutput, d_.dbias) && branch_outputs();
  }

  std::span<const View> all() const { return {view_, count_}; }
  const NormBackwardDesc& of() const { return d_; }

 private:
  bool branch_inputs() {
    const NormBackwardBranch& b = d_.branch;
    return rows("branch", Role::kBranchInput, b.branch, d_.n) &&
           rows("branch_mean", Role::kInput, b.mean, 1) &&
           rows("branch_rstd", Role::kInput, b.rstd, 1) &&
           parameter("branch_weight", Role::kInput, b.weight) &&
           parameter("branch_bias", Role::kInput, b.bias) &&
           parameter("residual_gate", Role::kInput, b.residual_gate) &&
           scalar("sum_scale", b.sum_scale);
  }
  bool branch_outputs() {
    const NormBackwardBranch& b = d_.branch;
    return rows("dbranch", Role::kBranchOutput, b.dbranch, d_.n) &&
           parameter("dbranch_weight", Role::kOutput, b.dweight) &&
           parameter("dbranch_bias", Role::kOutput, b.dbias) &&
           parameter("dresidual_gate", Role::kOutput, b.dresidual_gate);
  }
  bool scalar(const char* name, const std::byte* data) {
    static constexpr int64_t kNoStrides[kMaxOuter] = {};
    return data == nullptr ||
           add({name, Role::kInput, Dtype::kF32, {data, kNoStrides, sizeof(float), 1, 0}, {}});
  }
  bool rows(const char* name, Role role, const RowTensor& t, int64_t columns) {
    return !t || add({name, role, t.dtype, bytes_of(t, columns), {}});
  }
  bool parameter(const char* name, Role role, const ParameterTensor& t) {
    return !t || add({name, role, t.dtype, bytes_of(t, d_.n), {}});
  }
  template <class Tensor>
  static RowBytes bytes_of(const Tensor& t, int64_t columns) {
    return {t.data, t.stride_bytes, columns * dtype_bytes(t.dtype), 1, 0};
  }
  bool add(const View& view) {
    View& v = view_[count_++];
    v = view;
    return address_range(v.bytes, d_.outer, &v.range);
  }

  const NormBackwardDesc& d_;
  size_t count_ = 0;
  View view_[24];
};

bool same_view(const View& a, const View& b, const NormBackwardDesc& d) {
  if (a.bytes.data != b.bytes.data || a.dtype != b.dtype ||
      a.bytes.piece_bytes != b.bytes.piece_bytes) {
    return false;
  }
  for (int i = 0; i < d.outer_rank; ++i) {
    if (d.outer[i] != 1 && a.bytes.strides[i] != b.bytes.strides[i]) return false;
  }
  return true;
}

// Two tensors whose address ranges meet.
bool interleaved(const View& a, const NormBackwardDesc& of_a, const View& b,
                 const NormBackwardDesc& of_b) {
  Footprint fa, fb;
  footprint(a.bytes, of_a.outer, a.range, &fa);
  footprint(b.bytes, of_b.outer, b.range, &fb);
  return disjoint(fa, fb);
}

bool shares_bytes(const View& a, const NormBackwardDesc& of_a, const View& b,
                  const NormBackwardDesc& of_b) {
  return !separate(a.range, b.range) && !interleaved(a, of_a, b, of_b);
}

// An output's rows must not share bytes among themselves. Those of a parameter are as many as it
// has strides.
fastnorm_status check_output_rows(const View& v, const NormBackwardDesc& d, Error& error) {
  int64_t outer[kMaxOuter];
  for (int i = 0; i < kMaxOuter; ++i)
    outer[i] = v.role == Role::kOutput && v.bytes.strides[i] == 0 ? 1 : d.outer[i];
  Footprint f;
  FASTNORM_REQUIRE(footprint(v.bytes, outer, &f) && rows_disjoint(f), FASTNORM_ERROR_LAYOUT,
                   "%s overlaps itself: its strides are %s bytes for rows of %" PRId64
                   " bytes, innermost first; required: rows of an output that share no byte",
                   v.name, shape_text(v.bytes.strides, d.outer_rank).c, v.bytes.piece_bytes);
  return FASTNORM_OK;
}

fastnorm_status check_overlap(const View& out, const View& other, NormBackwardDesc* d,
                              Error& error) {
  const bool pair = may_be_one(out.role, other.role);
  if (pair && same_view(out, other, *d)) {
    d->in_place = true;
    return FASTNORM_OK;
  }
  FASTNORM_REQUIRE(!shares_bytes(out, *d, other, *d), FASTNORM_ERROR_LAYOUT,
                   "%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps %s [0x%" PRIxPTR ", 0x%" PRIxPTR
                   "); required: %s, separate memory, or interleaved views that share no element",
                   out.name, out.range.begin, out.range.end, other.name, other.range.begin,
                   other.range.end,
                   pair ? "the same view (address, dtype, strides)" : "two tensors");
  return FASTNORM_OK;
}

}  // namespace

fastnorm_status check_norm_backward_aliasing(NormBackwardDesc* whole, Error& error) {
  Views views(*whole);
  FASTNORM_REQUIRE(views.collect(), FASTNORM_ERROR_LAYOUT,
                   "%s's strides reach past the ends of the address space, or over more than 2^62 "
                   "bytes; required: strides in elements of memory that exists",
                   views.all().back().name);
  for (const View& out : views.all()) {
    if (!out.output()) continue;
    FASTNORM_TRY(check_output_rows(out, *whole, error));
    for (const View& other : views.all()) {
      if (&other >= &out) break;
      FASTNORM_TRY(check_overlap(out, other, whole, error));
    }
  }
  return FASTNORM_OK;
}

fastnorm_status check_norm_backward_many(std::span<const NormBackwardDesc> wholes, const char* word,
                                         Error& error) {
  for (size_t i = 0; i < wholes.size(); ++i) {
    Views a(wholes[i]);
    a.collect();  // checked alone before, so its bytes exist
    for (size_t j = i + 1; j < wholes.size(); ++j) {
      Views b(wholes[j]);
      b.collect();
      for (const View& va : a.all()) {
        for (const View& vb : b.all()) {
          FASTNORM_REQUIRE((!va.output() && !vb.output()) || !shares_bytes(va, a.of(), vb, b.of()),
                           FASTNORM_ERROR_LAYOUT,
                           "%s[%zu].%s [0x%" PRIxPTR ", 0x%" PRIxPTR
                           ") overlaps %s[%zu].%s [0x%" PRIxPTR ", 0x%" PRIxPTR
                           "); required: no part touches what another one writes",
                           word, i, va.name, va.range.begin, va.range.end, word, j, vb.name,
                           vb.range.begin, vb.range.end);
        }
      }
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
