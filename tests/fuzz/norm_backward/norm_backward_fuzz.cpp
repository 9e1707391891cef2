// Random backward calls. By dry runs, for a CPU and for GPUs: nothing crashes, the entry points
// agree, and a call in which nothing was spoiled is accepted. In real memory on the CPU, with
// tensors that may lie in each other: what is refused writes nothing, and what is accepted writes
// its outputs and nothing else.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "../bytes.h"
#include "fastnorm/fastnorm.h"

namespace fastnorm::fuzz {
namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "norm_backward_fuzz: %s (last error: %s)\n", what, fastnorm_last_error());
  std::abort();
}

void require(bool ok, const char* what) {
  if (!ok) fail(what);
}

fastnorm_context* make_context(int32_t device_type, int32_t capability, bool dry) {
  fastnorm_context_options options{};
  options.struct_size = sizeof options;
  options.flags = dry ? FASTNORM_CONTEXT_DRY_RUN : 0;
  options.dry_run_capability = capability;
  options.num_threads = dry ? 0 : 2;
  fastnorm_context* context = nullptr;
  require(fastnorm_context_create({device_type, 0}, &options, &context) == FASTNORM_OK,
          "no context");
  return context;
}

enum Role {
  kDy,
  kX,
  kWeight,
  kMean,
  kRstd,
  kDresidualIn,
  kDx,
  kDresidual,
  kDweight,
  kDbias,
  kGate,
  kBias,
  kDgate,
  kBranch,
  kBranchWeight,
  kBranchBias,
  kBranchMean,
  kBranchRstd,
  kResidualGate,
  kSumScale,
  kDbranch,
  kDbranchWeight,
  kDbranchBias,
  kDresidualGate,
  kRoles
};

struct Tensor {
  bool given = false;
  fastnorm_tensor view{};
  int64_t shape[8] = {}, strides[8] = {};
};

struct Call {
  Tensor t[kRoles];
  fastnorm_norm_backward_args args{};
  bool spoiled = false;  // it may be refused
};

constexpr fastnorm_dtype_id kRowDtypes[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16,
                                            FASTNORM_DTYPE_BF16};
constexpr fastnorm_dtype_id kAnyDtypes[] = {FASTNORM_DTYPE_F32,       FASTNORM_DTYPE_F16,
                                            FASTNORM_DTYPE_BF16,      FASTNORM_DTYPE_I8,
                                            FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_I64};

int64_t any_number(Bytes& bytes) {
  constexpr int64_t kNumbers[] = {0,
                                  1,
                                  2,
                                  3,
                                  -1,
                                  7,
                                  64,
                                  65,
                                  1 << 20,
                                  int64_t{1} << 31,
                                  INT64_MAX,
                                  INT64_MIN,
                                  INT64_MAX / 2,
                                  int64_t{1} << 33};
  return bytes.byte() % 4 == 0 ? bytes.take<int64_t>() : kNumbers[bytes.pick(std::size(kNumbers))];
}

int64_t bytes_of(fastnorm_dtype dtype) { return dtype.bits / 8; }

// Elements from the first to one past the last, of strides that are not negative.
int64_t span_of(const fastnorm_tensor& t) {
  int64_t span = 1;
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] == 0) return 0;
    span += (t.shape[i] - 1) * t.strides[i];
  }
  return span;
}

// Good calls of [batch, heads, n], which are then spoiled, rarely.
class Maker {
 public:
  Maker(Bytes& bytes, int32_t device_type, Call* call)
      : b_(bytes), device_type_(device_type), c_(*call) {}

  void make() {
    groups_ = b_.pick(4) == 3 ? 1 + b_.pick(3) : 1;
    const int64_t n = groups_ * (1 + b_.pick(70)), heads = 1 + b_.pick(3);
    const int64_t batch = b_.pick(8) == 7 ? 0 : 1 + b_.pick(5);
    const fastnorm_dtype_id t = row_dtype(), x = row_dtype();
    const bool layer = b_.pick(2) == 1;
    give(kDy, b_.pick(2) == 0 ? t : FASTNORM_DTYPE_F32, {batch, heads, n});
    give(kX, x, {batch, heads, n});
    const bool dx = b_.pick(4) != 3;
    if (dx) give(kDx, t, {batch, heads, n});
    const uint32_t stage = b_.pick(4);
    gated_ = stage == 2, branched_ = stage == 3 && groups_ == 1;
    const bool before = gated_ && b_.pick(3) == 2;
    if (!before && b_.pick(2) == 1) give(kDresidualIn, row_dtype(), {batch, heads, n});
    const fastnorm_dtype_id dresidual = row_dtype();
    if (!before && dx && dresidual != t && b_.pick(2) == 1)
      give(kDresidual, dresidual, {batch, heads, n});
    const uint32_t share = b_.pick(3);
    const int64_t by_batch = share == 2 ? batch : 1, by_head = share == 1 ? heads : 1;
    const fastnorm_dtype_id weight = row_dtype();
    if (b_.pick(4) != 3) give(kWeight, weight, {by_batch, by_head, n});
    if (c_.t[kWeight].given && b_.pick(4) != 3)
      give(kDweight, b_.pick(2) == 0 ? FASTNORM_DTYPE_F32 : weight, {by_batch, by_head, n});
    if (!dx && !c_.t[kDweight].given) give(kDbias, row_dtype(), {1, 1, n});
    if (b_.pick(3) == 2) give(kDbias, row_dtype(), {1, 1, n});
    if (b_.pick(2) == 1) {
      give(kRstd, FASTNORM_DTYPE_F32, {batch, heads, groups_});
      if (layer) give(kMean, FASTNORM_DTYPE_F32, {batch, heads, groups_});
    }
    // T is known where there is dx.
    const fastnorm_dtype_id of_gate = dx && b_.pick(2) == 1 ? t : FASTNORM_DTYPE_F32;
    if (gated_) give(kGate, of_gate, {batch, heads, n});
    if (gated_ && b_.pick(2) == 1) give(kDgate, of_gate, {batch, heads, n});
    if (gated_ && b_.pick(2) == 1) give(kBias, row_dtype(), {1, 1, n});
    // T is known where there is dx or a branch.
    if (branched_) branch(dx ? t : row_dtype(), {batch, heads, n}, {by_batch, by_head, n});
    scalars(layer);
    gate_scalars(before, n);
  }

 private:
  using Shape = std::initializer_list<int64_t>;

  void branch(fastnorm_dtype_id t, Shape rows, Shape shared) {
    fastnorm_norm_backward_args& a = c_.args;
    const int64_t batch = rows.begin()[0], heads = rows.begin()[1], n = rows.begin()[2];
    const bool norm = b_.pick(3) != 2, sum = b_.pick(2) == 1;
    // dy is T or f32.
    if (c_.t[kDy].given) c_.t[kDy].view.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    give(kBranch, t, rows);
    if (b_.pick(4) != 3) give(kDbranch, t, rows);
    if (b_.pick(2) == 1) give(kSumScale, FASTNORM_DTYPE_F32, {1});
    const fastnorm_dtype_id of_gate = b_.pick(2) == 1 ? t : FASTNORM_DTYPE_F32;
    if (b_.pick(2) == 1) give(kResidualGate, of_gate, shared);
    if (c_.t[kResidualGate].given && sum) give(kDresidualGate, of_gate, shared);
    if (c_.t[kResidualGate].given) set_small(&a.residual_gate_act, 4);
    a.alpha = b_.pick(2) == 1 ? 0.5f : 0.0f;
    if (c_.t[kDresidualGate].given && b_.pick(2) == 1)
      a.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE;
    if (norm) branch_norm({batch, heads, 1}, shared, {1, 1, n});
    if (spoils()) set(&a.residual_gate_act);
    if (spoils()) set(&a.branch_kind);
    if (spoils()) set(&a.branch_rounding);
    if (spoils()) a.branch_norm = b_.take<int32_t>();
    if (spoils()) a.branch_rounded = b_.take<int32_t>();
    if (spoils()) a.branch_eps = b_.take<float>();
    if (spoils()) a.branch_weight_offset = b_.take<float>();
    if (spoils()) a.alpha = b_.take<float>();
  }

  void branch_norm(Shape values, Shape shared, Shape columns) {
    fastnorm_norm_backward_args& a = c_.args;
    const bool layer = b_.pick(2) == 1;
    const fastnorm_dtype_id weight = row_dtype();
    a.branch_norm = 1;
    a.branch_kind = layer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    a.branch_eps = 1e-6f;
    set_small(&a.branch_rounding, 3);
    a.branch_rounded = static_cast<int32_t>(b_.pick(2));
    if (b_.pick(4) != 3) give(kBranchWeight, weight, columns);
    if (c_.t[kBranchWeight].given) {
      a.branch_weight_offset = static_cast<float>(b_.pick(2));
      if (b_.pick(2) == 1) give(kDbranchWeight, weight, columns);
    }
    if (b_.pick(2) == 1) give(kBranchBias, row_dtype(), shared);
    if (b_.pick(2) == 1) give(kDbranchBias, row_dtype(), shared);
    if (b_.pick(2) == 1) {
      give(kBranchRstd, FASTNORM_DTYPE_F32, values);
      if (layer) give(kBranchMean, FASTNORM_DTYPE_F32, values);
    }
    if (c_.t[kDbranchWeight].given && b_.pick(2) == 1)
      a.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT;
    if (c_.t[kDbranchBias].given && b_.pick(2) == 1)
      a.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS;
  }

  template <class Enum>
  void set_small(Enum* field, uint32_t count) {
    *field = static_cast<Enum>(b_.pick(count));
  }

  fastnorm_dtype_id row_dtype() { return kRowDtypes[b_.pick(3)]; }

  void scalars(bool layer) {
    fastnorm_norm_backward_args& a = c_.args;
    a.struct_size = sizeof a;
    a.kind = layer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    a.eps = 1e-5f;
    a.weight_offset = c_.t[kWeight].given ? static_cast<float>(b_.pick(2)) : 0.0f;
    a.rounding = static_cast<fastnorm_rounding>(b_.pick(4));
    a.flags |= b_.pick(4);
    if (c_.t[kDweight].given && b_.pick(2) == 1)
      a.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT;
    if (c_.t[kDbias].given && b_.pick(2) == 1) a.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS;
    if (spoils()) a.flags = b_.take<uint32_t>();
    if (spoils()) a.reserved = b_.take<int32_t>();
    if (spoils()) a.eps = b_.take<float>();
    if (spoils()) a.weight_offset = b_.take<float>();
    if (spoils()) a.struct_size = b_.pick(320);
    if (spoils()) set(&a.kind);
    if (spoils()) set(&a.rounding);
  }

  void gate_scalars(bool before, int64_t n) {
    fastnorm_norm_backward_args& a = c_.args;
    if (groups_ > 1 || (!branched_ && b_.pick(2) == 1)) a.group_size = n / groups_;
    if (c_.t[kGate].given) {
      a.gate_act = static_cast<fastnorm_activation>(b_.pick(4));
      a.gate_position = before ? FASTNORM_GATE_BEFORE_NORM : FASTNORM_GATE_AFTER_NORM;
      if (!before) a.gate_source = static_cast<fastnorm_gate_source>(b_.pick(2));
    }
    if (spoils()) set(&a.gate_act);
    if (spoils()) set(&a.gate_position);
    if (spoils()) set(&a.gate_source);
    if (spoils()) a.stage_reserved = b_.take<int32_t>();
    if (spoils()) a.group_size = any_number(b_);
  }

  template <class Enum>
  void set(Enum* field) {
    const auto value = b_.take<int32_t>();
    std::memcpy(static_cast<void*>(field), &value, sizeof value);
  }

  bool spoils() {
    const bool spoils = b_.rarely();
    c_.spoiled |= spoils;
    return spoils;
  }

  void give(Role role, fastnorm_dtype_id dtype, Shape shape) {
    Tensor& t = c_.t[role];
    t.given = !spoils();
    t.view.dtype = fastnorm_dtype_of(spoils() ? kAnyDtypes[b_.pick(std::size(kAnyDtypes))] : dtype);
    t.view.ndim = spoils() ? static_cast<int32_t>(b_.pick(9)) : static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape);
    if (spoils()) t.shape[b_.pick(8)] = any_number(b_);
    const int64_t padding = b_.pick(4) == 3 ? b_.pick(5) : 0;
    t.strides[2] = 1;
    t.strides[1] =
        static_cast<int64_t>(static_cast<uint64_t>(t.shape[2]) + static_cast<uint64_t>(padding));
    t.strides[0] = static_cast<int64_t>(static_cast<uint64_t>(t.strides[1]) *
                                        static_cast<uint64_t>(t.shape[1]));
    if (role == kDy && b_.pick(4) == 3) std::fill_n(t.strides, 3, 0);
    if (spoils()) t.strides[b_.pick(8)] = any_number(b_);
    t.view.device_type = spoils() ? static_cast<int32_t>(b_.pick(15)) : device_type_;
    t.view.device_id = 0;
    t.view.shape = t.shape;
    t.view.strides = t.strides;
  }

  Bytes& b_;
  const int32_t device_type_;
  Call& c_;
  bool gated_ = false, branched_ = false;
  int64_t groups_ = 1;  // of columns
};

void point_args(Call* c) {
  fastnorm_norm_backward_args& a = c->args;
  const fastnorm_tensor** const to[] = {&a.dy,
                                        &a.x,
                                        &a.weight,
                                        &a.mean,
                                        &a.rstd,
                                        &a.dresidual_in,
                                        &a.dx,
                                        &a.dresidual,
                                        &a.dweight,
                                        &a.dbias,
                                        &a.gate,
                                        &a.bias,
                                        &a.dgate,
                                        &a.branch,
                                        &a.branch_weight,
                                        &a.branch_bias,
                                        &a.branch_mean,
                                        &a.branch_rstd,
                                        &a.residual_gate,
                                        &a.sum_scale,
                                        &a.dbranch,
                                        &a.dbranch_weight,
                                        &a.dbranch_bias,
                                        &a.dresidual_gate};
  static_assert(std::size(to) == kRoles);
  for (size_t i = 0; i < std::size(to); ++i) *to[i] = c->t[i].given ? &c->t[i].view : nullptr;
}

void require_text(fastnorm_status status) {
  require(status != FASTNORM_ERROR_INTERNAL, "internal error");
  if (status == FASTNORM_OK) return;
  require(std::strlen(fastnorm_last_error()) > 10, "a failure without a text");
  require(std::strchr(fastnorm_last_error(), '\n') == nullptr, "a text of more than one line");
}

// Dry runs: addresses far apart, rarely in each other or NULL.
void describe(Bytes& bytes) {
  static const struct {
    int32_t device_type;
    fastnorm_context* context;
  } kTargets[] = {{FASTNORM_DEVICE_CPU, make_context(FASTNORM_DEVICE_CPU, 0, true)},
                  {FASTNORM_DEVICE_CUDA, make_context(FASTNORM_DEVICE_CUDA, 90, true)},
                  {FASTNORM_DEVICE_CUDA, make_context(FASTNORM_DEVICE_CUDA, 100, true)}};
  const auto& target = kTargets[bytes.pick(std::size(kTargets))];
  Call call;
  Maker(bytes, target.device_type, &call).make();
  for (size_t i = 0; i < kRoles; ++i) {
    uint64_t address = (i + 1) << 42;
    if (bytes.rarely()) {
      address = bytes.byte() % 2 == 0 ? 0 : (bytes.pick(kRoles) + uint64_t{1}) << 42;
      call.spoiled = true;
    }
    call.t[i].view.data = reinterpret_cast<void*>(address);
    call.t[i].view.byte_offset = bytes.rarely() ? bytes.pick(64) : 0;
    call.spoiled |= call.t[i].view.byte_offset != 0;
  }
  point_args(&call);
  fastnorm_info info{};
  info.struct_size = sizeof info;
  const fastnorm_status status = fastnorm_norm_backward_query(target.context, &call.args, &info);
  require_text(status);
  if (target.device_type == FASTNORM_DEVICE_CPU)
    require(status == FASTNORM_OK || call.spoiled, "a good call was refused");
  require(fastnorm_norm_backward_prepare(target.context, &call.args) == status,
          "query and prepare differ");
  const fastnorm_norm_backward_args* list[] = {&call.args};
  require(fastnorm_norm_backward_many_prepare(target.context, list, 1) == status,
          "one call and a list of one differ");
  void* const workspace = reinterpret_cast<void*>(uintptr_t{1} << 50);
  require(
      fastnorm_norm_backward(target.context, &call.args, workspace, SIZE_MAX, nullptr) == status,
      "query and the call differ");
}

// Real memory: an arena, in which tensors follow each other or, rarely, lie where another one does.
class Arena {
 public:
  static constexpr size_t kBytes = size_t{1} << 18;

  Arena() : memory_(kBytes), before_(kBytes) {}

  // False if a tensor does not fit, or could not be told from others.
  bool place(Bytes& bytes, Call* call) {
    size_t at = 64;
    for (Tensor& t : call->t) {
      if (!t.given) continue;
      if (t.view.ndim < 1 || t.view.ndim > 8) return false;
      for (int32_t i = 0; i < t.view.ndim; ++i) {
        if (t.shape[i] < 0 || t.shape[i] > 128 || t.strides[i] < 0 || t.strides[i] > 1 << 14)
          return false;
      }
      const auto size = static_cast<size_t>(span_of(t.view) * bytes_of(t.view.dtype));
      if (size > kBytes / 16) return false;
      size_t here = at;
      if (bytes.rarely()) here = 64 + bytes.take<uint16_t>() % at;
      if (here + size + 64 > kBytes) return false;
      t.view.data = memory_.data() + here;
      at = std::max(at, (here + size + 64 + 15) / 16 * 16);
    }
    for (size_t i = 0; i < at; ++i) memory_[i] = bytes.empty() ? 0x3c : bytes.byte();
    std::fill(memory_.begin() + static_cast<std::ptrdiff_t>(at), memory_.end(), uint8_t{0x3c});
    before_ = memory_;
    return true;
  }

  // Takes the bytes of an accepted output for written.
  void forget(const fastnorm_tensor& t) {
    int64_t index[8] = {};
    for (;;) {
      int64_t element = 0;
      for (int32_t d = 0; d < t.ndim; ++d) {
        if (t.shape[d] == 0) return;
        element += index[d] * t.strides[d];
      }
      const auto at = static_cast<size_t>(static_cast<uint8_t*>(t.data) - memory_.data() +
                                          element * bytes_of(t.dtype));
      std::memcpy(&before_[at], &memory_[at], static_cast<size_t>(bytes_of(t.dtype)));
      int32_t d = t.ndim - 1;
      for (; d >= 0 && ++index[d] == t.shape[d]; --d) index[d] = 0;
      if (d < 0) return;
    }
  }

  bool unchanged() const { return memory_ == before_; }

 private:
  std::vector<uint8_t> memory_, before_;
};

void run(Bytes& bytes) {
  static fastnorm_context* const context = make_context(FASTNORM_DEVICE_CPU, 0, false);
  static Arena arena;
  static void* const workspace = std::aligned_alloc(256, 1 << 20);
  Call call;
  Maker(bytes, FASTNORM_DEVICE_CPU, &call).make();
  if (!arena.place(bytes, &call)) return;
  point_args(&call);
  fastnorm_info info{};
  info.struct_size = sizeof info;
  const fastnorm_status status = fastnorm_norm_backward_query(context, &call.args, &info);
  require(status != FASTNORM_OK || info.workspace_bytes <= 1 << 20, "a large workspace");
  require_text(status);
  require(fastnorm_norm_backward(context, &call.args, workspace, 1 << 20, nullptr) == status,
          "query and the call differ");
  if (status == FASTNORM_OK) {
    for (const Role role : {kDx, kDresidual, kDweight, kDbias, kDgate, kDbranch, kDbranchWeight,
                            kDbranchBias, kDresidualGate}) {
      if (call.t[role].given) arena.forget(call.t[role].view);
    }
  }
  require(arena.unchanged(), "bytes beside the outputs have changed");
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  if (bytes.pick(2) == 0) {
    fastnorm::fuzz::describe(bytes);
  } else {
    fastnorm::fuzz::run(bytes);
  }
  return 0;
}
