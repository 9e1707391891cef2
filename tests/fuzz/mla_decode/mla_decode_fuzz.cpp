// Random descriptions through check and plan of MLA decode by dry runs, for a CPU and for GPUs:
// nothing crashes, the entry points agree, and a call is accepted exactly where the rules of the
// header, said once more below, allow it. Beside that, small calls in real memory with random
// lengths and lists on the CPU, and random profile buffers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "../bytes.h"
#include "fastnorm/fastnorm.h"

namespace fastnorm::fuzz {
namespace {

[[noreturn]] void fail(const char* what, const char* detail) {
  std::fprintf(stderr, "mla_decode_fuzz: %s: %s (last error: %s)\n", what, detail,
               fastnorm_last_error());
  std::abort();
}

void require(bool ok, const char* what, const char* detail = "") {
  if (!ok) fail(what, detail);
}

void require_text(fastnorm_status status) {
  require(status != FASTNORM_ERROR_INTERNAL, "internal error");
  if (status == FASTNORM_OK) return;
  require(std::strlen(fastnorm_last_error()) > 10, "a failure without a text");
  require(std::strchr(fastnorm_last_error(), '\n') == nullptr, "a text of more than one line");
}

struct Target {
  int32_t device_type;
  int32_t capability;
  fastnorm_context* context;
};

fastnorm_context* make_context(int32_t device_type, int32_t capability, bool dry) {
  fastnorm_context_options options{};
  options.struct_size = sizeof options;
  options.flags = dry ? FASTNORM_CONTEXT_DRY_RUN : 0;
  options.dry_run_capability = capability;
  options.num_threads = device_type == FASTNORM_DEVICE_CPU && !dry ? 2 : 0;
  fastnorm_context* context = nullptr;
  require(fastnorm_context_create({device_type, 0}, &options, &context) == FASTNORM_OK,
          "no context");
  return context;
}

const Target& target(Bytes& bytes) {
  static const Target targets[] = {
      {FASTNORM_DEVICE_CPU, 0, make_context(FASTNORM_DEVICE_CPU, 0, true)},
      {FASTNORM_DEVICE_CUDA, 90, make_context(FASTNORM_DEVICE_CUDA, 90, true)},
      {FASTNORM_DEVICE_CUDA, 90, make_context(FASTNORM_DEVICE_CUDA, 90, true)},
      {FASTNORM_DEVICE_CUDA, 100, make_context(FASTNORM_DEVICE_CUDA, 100, true)}};
  return targets[bytes.pick(std::size(targets))];
}

// --- descriptions ---

enum Role {
  kQNope,
  kQPe,
  kCkv,
  kKpe,
  kKvLen,
  kTable,
  kKvIndptr,
  kQoIndptr,
  kO,
  kLse,
  kProfile,
  kRoles
};

struct Tensor {
  bool given = false;
  fastnorm_tensor view{};
  int64_t shape[4] = {}, strides[4] = {};
};

struct Call {
  Tensor t[kRoles];
  fastnorm_mla_decode_args args{};
};

int64_t any_number(Bytes& bytes) {
  constexpr int64_t kNumbers[] = {0,
                                  1,
                                  2,
                                  3,
                                  -1,
                                  7,
                                  64,
                                  65,
                                  512,
                                  576,
                                  1 << 20,
                                  int64_t{1} << 31,
                                  int64_t{1} << 39,
                                  INT64_MAX,
                                  INT64_MIN,
                                  INT64_MAX / 2};
  return bytes.byte() % 4 == 0 ? bytes.take<int64_t>() : kNumbers[bytes.pick(std::size(kNumbers))];
}

constexpr uint32_t kDtypes[] = {
    FASTNORM_DTYPE_F32,       FASTNORM_DTYPE_F16,     FASTNORM_DTYPE_BF16,
    FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2, FASTNORM_DTYPE_I32,
    FASTNORM_DTYPE_I64,       FASTNORM_DTYPE_U8,      0x00011006};

void make_tensor(Bytes& bytes, Call* call, Role role, uint32_t dtype, int32_t device_type,
                 std::initializer_list<int64_t> shape) {
  Tensor& t = call->t[role];
  t.given = !bytes.rarely();
  std::copy(shape.begin(), shape.end(), t.shape);
  t.view.ndim = static_cast<int32_t>(shape.size());
  if (bytes.rarely()) t.shape[bytes.pick(4)] = any_number(bytes);
  if (bytes.rarely()) t.view.ndim = static_cast<int32_t>(bytes.pick(6));
  if (bytes.rarely()) dtype = kDtypes[bytes.pick(std::size(kDtypes))];
  t.view.dtype = fastnorm_dtype_of(static_cast<fastnorm_dtype_id>(dtype));
  t.view.device_type = bytes.rarely() ? static_cast<int32_t>(bytes.pick(15)) : device_type;
  t.view.device_id = bytes.rarely() ? static_cast<int32_t>(bytes.pick(3)) : 0;
  // 2^42 bytes for each; some lie in another's.
  uint64_t place = static_cast<uint64_t>(role) + 1;
  if (bytes.rarely()) place = bytes.pick(kRoles) + 1;
  uint64_t address = place << 42;
  if (bytes.rarely()) address += bytes.take<uint16_t>();
  t.view.data = bytes.rarely() ? nullptr : reinterpret_cast<void*>(address);
  t.view.byte_offset = bytes.rarely() ? bytes.take<uint16_t>() : 0;
  t.view.shape = bytes.rarely() ? nullptr : t.shape;
  const uint32_t strides = bytes.pick(8);
  if (strides >= 4) {
    int64_t stride = 1;
    for (int32_t i = std::min(t.view.ndim, 4) - 1; i >= 0; --i) {
      t.strides[i] = stride;
      uint64_t next =
          static_cast<uint64_t>(stride) * static_cast<uint64_t>(std::max<int64_t>(t.shape[i], 1));
      if (strides >= 6) next += 8;
      stride = static_cast<int64_t>(next);
    }
    if (strides == 7) t.strides[bytes.pick(3)] = bytes.byte() % 2 == 0 ? 0 : any_number(bytes);
    t.view.strides = t.strides;
  }
}

void make_call(Bytes& bytes, int32_t device_type, Call* call) {
  constexpr int64_t kPageSizes[] = {1, 2, 16, 64, 100, 128};
  constexpr uint32_t kRows[] = {FASTNORM_DTYPE_BF16, FASTNORM_DTYPE_F16, FASTNORM_DTYPE_BF16,
                                FASTNORM_DTYPE_F32};
  const int64_t batch = bytes.pick(5), s_q = bytes.pick(4), heads = 1 + bytes.pick(5);
  const int64_t pages = bytes.pick(7), page = kPageSizes[bytes.pick(6)], columns = bytes.pick(5);
  const uint32_t rows = kRows[bytes.pick(device_type == FASTNORM_DEVICE_CUDA ? 3 : 4)];
  const bool csr = (bytes.byte() & 1) != 0, ragged = (bytes.byte() & 1) != 0;
  const int64_t tokens = ragged ? bytes.pick(9) : batch * s_q;
  const auto make = [&](Role role, uint32_t dtype, std::initializer_list<int64_t> shape) {
    make_tensor(bytes, call, role, dtype, device_type, shape);
  };
  make(kQNope, rows, {tokens, heads, 512});
  make(kQPe, rows, {tokens, heads, 64});
  make(kCkv, rows, {pages, page, 512});
  make(kKpe, rows, {pages, page, 64});
  make(kKvLen, FASTNORM_DTYPE_I32, {batch});
  if (csr) {
    make(kTable, FASTNORM_DTYPE_I32, {columns});
    make(kKvIndptr, FASTNORM_DTYPE_I32, {batch + 1});
  } else {
    make(kTable, FASTNORM_DTYPE_I32, {batch, columns});
  }
  if (ragged) make(kQoIndptr, FASTNORM_DTYPE_I32, {batch + 1});
  make(kO, rows, {tokens, heads, 512});
  if ((bytes.byte() & 1) != 0) make(kLse, FASTNORM_DTYPE_F32, {tokens, heads});
  fastnorm_mla_decode_args& a = call->args;
  a.struct_size = sizeof a;
  a.sm_scale = bytes.rarely() ? bytes.take<double>() : 0.125;
  a.causal = bytes.rarely() ? bytes.take<int32_t>() : bytes.byte() & 1;
  const int32_t base = bytes.rarely() ? bytes.take<int32_t>() : bytes.byte() & 1;
  std::memcpy(&a.lse_base, &base, sizeof base);
  a.max_s_q = bytes.rarely() ? bytes.take<int32_t>()
              : ragged       ? 1 + static_cast<int32_t>(bytes.pick(4))
                             : 0;
  a.reuse_plan = bytes.rarely() ? bytes.take<int32_t>() : bytes.byte() & 1;
  a.split_tokens =
      bytes.rarely() ? bytes.take<int32_t>() : 64 * static_cast<int32_t>(bytes.pick(3));
  a.profile_events = bytes.rarely() ? bytes.take<int32_t>() : 0;
  a.total_kv_hint = bytes.rarely() ? bytes.take<int64_t>() : bytes.byte();
  if (bytes.rarely()) {
    if (a.profile_events == 0) a.profile_events = 1 + static_cast<int32_t>(bytes.byte());
    make(kProfile, FASTNORM_DTYPE_U8, {int64_t{1} << (10 + bytes.pick(16))});
  }
  const fastnorm_tensor** const to[kRoles] = {&a.q_nope, &a.q_pe,       &a.ckv,       &a.kpe,
                                              &a.kv_len, &a.page_table, &a.kv_indptr, &a.qo_indptr,
                                              &a.o,      &a.lse,        &a.profile};
  for (int i = 0; i < kRoles; ++i) {
    if (call->t[i].given) *to[i] = &call->t[i].view;
  }
}

// --- the rules once more ---

uint32_t id_of(const fastnorm_tensor& t) {
  return t.dtype.code | uint32_t{t.dtype.bits} << 8 | uint32_t{t.dtype.lanes} << 16;
}

__extension__ using Wide = __int128;

// Bytes that a tensor touches, first and last; of no elements first > last.
struct Span {
  Wide first = 1, last = 0;
  bool empty() const { return first > last; }
};

class Rules {
 public:
  Rules(const fastnorm_mla_decode_args& args, const Target& target) : a_(args), target_(target) {}

  // True if the header allows the call. `maybe` is set where a rule is wider than what the library
  // can tell: tensors whose spans meet.
  bool allow(bool* maybe) {
    *maybe = false;
    if (!scalars() || !presence()) return false;
    const fastnorm_tensor& q = *a_.q_nope;
    const uint32_t rows = id_of(q);
    const bool sixteen = rows == FASTNORM_DTYPE_BF16 || rows == FASTNORM_DTYPE_F16;
    if (!sixteen && (rows != FASTNORM_DTYPE_F32 || cuda())) return false;
    const int64_t bytes = sixteen ? 2 : 4;
    if (!tensor(q, rows, bytes, 3, 3, true) || q.shape[2] != 512 || q.shape[1] < 1) return false;
    const int64_t tokens = q.shape[0], heads = q.shape[1];
    if (heads > 1 << 24 || Wide{tokens} * heads > INT32_MAX) return false;
    for (const auto& [t, columns] : {std::pair{a_.q_pe, 64}, std::pair{a_.o, 512}}) {
      if (!tensor(*t, rows, bytes, 3, 3, true) || t->shape[0] != tokens || t->shape[1] != heads ||
          t->shape[2] != columns)
        return false;
    }
    const fastnorm_tensor &ckv = *a_.ckv, &kpe = *a_.kpe;
    if (!tensor(ckv, rows, bytes, 3, 3, true) || !tensor(kpe, rows, bytes, 3, 3, true))
      return false;
    if (ckv.shape[2] != 512 || kpe.shape[2] != 64 || ckv.shape[0] != kpe.shape[0] ||
        ckv.shape[1] != kpe.shape[1])
      return false;
    if (ckv.shape[1] < 1 || ckv.shape[0] > INT32_MAX || ckv.shape[1] > INT32_MAX) return false;
    if (!list(*a_.kv_len, -1)) return false;
    const int64_t batch = a_.kv_len->shape[0];
    if (batch > INT32_MAX - 1 || !tables(batch)) return false;
    if (!new_tokens(tokens, heads, batch)) return false;
    if (a_.lse != nullptr) {
      if (!tensor(*a_.lse, FASTNORM_DTYPE_F32, 4, 2, 2, false) || a_.lse->shape[0] != tokens ||
          a_.lse->shape[1] != heads)
        return false;
    }
    if (a_.profile != nullptr) {
      if (!tensor(*a_.profile, FASTNORM_DTYPE_U8, 1, 1, 1, true) || address(*a_.profile) % 16 != 0)
        return false;
    }
    if (!cuda_rows(bytes)) return false;
    if (!spans()) return false;
    if (a_.profile_events != 0 && !cuda()) return false;
    const bool empty = tokens == 0 || batch == 0;
    if (empty) return true;
    if (cuda() && target_.capability != 90) return false;
    // What a plan finds: a profile that is too short, tables for more tiles than it counts.
    if (cuda() &&
        (a_.profile != nullptr || a_.page_table->shape[a_.page_table->ndim - 1] > 1 << 16))
      *maybe = true;
    if (meets()) *maybe = true;
    return true;
  }

 private:
  bool cuda() const { return target_.device_type == FASTNORM_DEVICE_CUDA; }
  static uintptr_t address(const fastnorm_tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
  }

  bool scalars() const {
    int32_t base = 0;
    std::memcpy(&base, &a_.lse_base, sizeof base);
    const double scale = std::fabs(a_.sm_scale);
    return scale >= 0x1p-100 && scale <= 0x1p60 && (!cuda() || a_.sm_scale > 0) &&
           (a_.causal | 1) == 1 && (base | 1) == 1 && (a_.reuse_plan | 1) == 1 &&
           a_.split_tokens >= 0 && a_.split_tokens <= 1 << 30 && a_.split_tokens % 64 == 0 &&
           a_.max_s_q >= 0 && a_.total_kv_hint >= 0 && a_.total_kv_hint < int64_t{1} << 48 &&
           a_.profile_events >= 0 && a_.profile_events <= 1 << 20 &&
           (a_.profile == nullptr || a_.profile_events > 0);
  }
  bool presence() const {
    return a_.q_nope != nullptr && a_.q_pe != nullptr && a_.ckv != nullptr && a_.kpe != nullptr &&
           a_.kv_len != nullptr && a_.page_table != nullptr && a_.o != nullptr;
  }

  bool tensor(const fastnorm_tensor& t, uint32_t dtype, int64_t bytes, int32_t least_rank,
              int32_t most_rank, bool last_contiguous) const {
    const bool here =
        cuda() ? (t.device_type == FASTNORM_DEVICE_CUDA ||
                  t.device_type == FASTNORM_DEVICE_CUDA_MANAGED) &&
                     t.device_id == 0
               : t.device_type == FASTNORM_DEVICE_CPU || t.device_type == FASTNORM_DEVICE_CUDA_HOST;
    if (!here || id_of(t) != dtype || t.ndim < least_rank || t.ndim > most_rank ||
        t.shape == nullptr)
      return false;
    Wide elements = 1;
    bool empty = false;
    for (int32_t i = 0; i < t.ndim; ++i) {
      if (t.shape[i] < 0) return false;
      empty |= t.shape[i] == 0;
      elements = std::min(elements * t.shape[i], Wide{1} << 100);
      if (elements == 0) elements = 1;
    }
    if (!empty && elements > INT64_MAX) return false;
    if (!empty && (t.data == nullptr || address(t) % static_cast<uintptr_t>(bytes) != 0))
      return false;
    // Strides of a tensor without elements, and of a dimension with one index, may be any number.
    if (t.strides == nullptr || empty) return true;
    if (last_contiguous && t.shape[t.ndim - 1] > 1 && t.strides[t.ndim - 1] != 1) return false;
    for (int32_t i = 0; i < t.ndim; ++i) {
      const Wide step = Wide{t.strides[i]} * bytes;
      if (t.shape[i] == 1) continue;
      if (step > INT64_MAX || step < INT64_MIN) return false;
    }
    return true;
  }
  bool list(const fastnorm_tensor& t, int64_t length) const {
    return tensor(t, FASTNORM_DTYPE_I32, 4, 1, 1, true) && (length < 0 || t.shape[0] == length);
  }
  bool tables(int64_t batch) const {
    const fastnorm_tensor& t = *a_.page_table;
    if (a_.kv_indptr != nullptr)
      return list(*a_.kv_indptr, batch + 1) && list(t, -1) && t.shape[0] <= INT32_MAX;
    return tensor(t, FASTNORM_DTYPE_I32, 4, 2, 2, true) && t.shape[0] == batch &&
           t.shape[1] <= INT32_MAX;
  }
  bool new_tokens(int64_t tokens, int64_t heads, int64_t batch) const {
    int64_t most = 0;
    if (a_.qo_indptr != nullptr) {
      if (!list(*a_.qo_indptr, batch + 1) || a_.max_s_q < 1) return false;
      most = std::min<int64_t>(a_.max_s_q, tokens);
    } else {
      if (batch == 0 ? tokens != 0 : tokens % batch != 0) return false;
      most = batch == 0 ? 0 : tokens / batch;
      if (a_.max_s_q != 0 && a_.max_s_q != most) return false;
    }
    return most * heads <= 1 << 24;
  }

  static int64_t stride(const fastnorm_tensor& t, int32_t dim) {
    if (t.strides != nullptr) return t.strides[dim];
    Wide stride = 1;
    for (int32_t i = t.ndim - 1; i > dim; --i)
      stride = std::min(stride * t.shape[i], Wide{INT64_MAX});
    return static_cast<int64_t>(stride);
  }

  // CUDA: rows for tensor maps.
  bool cuda_rows(int64_t bytes) const {
    if (!cuda()) return true;
    for (const fastnorm_tensor* t : {a_.q_nope, a_.q_pe, a_.ckv, a_.kpe, a_.o}) {
      if (t->shape[0] == 0 || t->shape[1] == 0) continue;
      if (address(*t) % 16 != 0) return false;
      for (int32_t i = 0; i < 2; ++i) {
        const Wide step = Wide{stride(*t, i)} * bytes;
        if (t->shape[i] > 1 && (step <= 0 || step >= Wide{1} << 40 || step % 16 != 0)) return false;
      }
    }
    return true;
  }

  static Span span_of(const fastnorm_tensor& t) {
    Span span;
    Wide first = address(t), last = first + std::max<int64_t>(t.dtype.bits / 8, 1) - 1;
    for (int32_t i = 0; i < t.ndim; ++i) {
      if (t.shape[i] == 0) return span;
      const Wide reach =
          Wide{stride(t, i)} * (t.shape[i] - 1) * std::max<int64_t>(t.dtype.bits / 8, 1);
      (reach < 0 ? first : last) += reach;
    }
    span.first = first;
    span.last = last;
    return span;
  }
  // All tensors lie in the address space.
  bool spans() {
    const fastnorm_tensor* const all[] = {a_.q_nope,    a_.q_pe,       a_.ckv,    a_.kpe,
                                          a_.kv_len,    a_.page_table, a_.o,      a_.lse,
                                          a_.kv_indptr, a_.qo_indptr,  a_.profile};
    for (const fastnorm_tensor* t : all) {
      if (t == nullptr) continue;
      if (t->byte_offset + reinterpret_cast<uintptr_t>(t->data) < t->byte_offset) return false;
      const Span s = span_of(*t);
      if (!s.empty() &&
          (s.first < 0 || s.last >= (Wide{1} << 64) - 1 || s.last - s.first >= Wide{1} << 62))
        return false;
      spans_[count_] = s;
      output_[count_++] = t == a_.o || t == a_.lse || t == a_.profile;
    }
    return true;
  }
  // An output meets another tensor, or itself.
  bool meets() const {
    for (size_t i = 0; i < count_; ++i) {
      for (size_t j = 0; output_[i] && j < count_; ++j) {
        const Span &a = spans_[i], &b = spans_[j];
        if (i != j && !a.empty() && !b.empty() && a.first <= b.last && b.first <= a.last)
          return true;
      }
    }
    for (const fastnorm_tensor* t : {a_.o, a_.lse}) {
      if (t != nullptr && t->strides != nullptr) return true;
    }
    return false;
  }

  const fastnorm_mla_decode_args& a_;
  const Target& target_;
  Span spans_[11];
  bool output_[11] = {};
  size_t count_ = 0;
};

void fuzz_description(Bytes& bytes) {
  const Target& t = target(bytes);
  Call call;
  make_call(bytes, t.device_type, &call);
  fastnorm_info info{}, again{};
  info.struct_size = again.struct_size = sizeof info;
  const fastnorm_status status = fastnorm_mla_decode_query(t.context, &call.args, &info);
  require_text(status);
  require(fastnorm_mla_decode_query(t.context, &call.args, &again) == status, "two queries differ");
  require(std::memcmp(&info, &again, sizeof info) == 0, "two queries differ in what they say");
  require(fastnorm_mla_decode_prepare(t.context, &call.args) == status,
          "query and prepare disagree");
  bool maybe = false;
  const bool allowed = Rules(call.args, t).allow(&maybe);
  if (status == FASTNORM_OK) {
    require(allowed, "accepted against the rules");
  } else {
    require(
        !allowed || (maybe && (status == FASTNORM_ERROR_LAYOUT || status == FASTNORM_ERROR_SHAPE ||
                               status == FASTNORM_ERROR_UNSUPPORTED)),
        "refused without a reason");
    return;
  }
  require((info.launches == 0) == (info.kernel[0] == '\0'),
          "a kernel without a launch, or none with");
  require(info.launches <= 3 && (info.launches == 0 || info.bytes_written > 0), "launches");
  require((info.profile_bytes != 0) == (call.args.profile_events != 0 && info.launches != 0),
          "profile_bytes");
  const bool no_profile = call.args.profile_events != 0 && call.args.profile == nullptr;
  const auto workspace_bytes = static_cast<size_t>(info.workspace_bytes);
  void* const workspace = reinterpret_cast<void*>(uintptr_t{1} << 41);
  const fastnorm_status run =
      fastnorm_mla_decode(t.context, &call.args, workspace, workspace_bytes, nullptr);
  require(run == (no_profile ? FASTNORM_ERROR_ARGUMENT : FASTNORM_OK), "query and call disagree");
  if (workspace_bytes > 0) {
    require(fastnorm_mla_decode(t.context, &call.args, workspace, workspace_bytes - 1, nullptr) ==
                FASTNORM_ERROR_ARGUMENT,
            "too small a workspace is accepted");
  }
}

// --- calls in real memory ---

struct Memory {
  std::vector<float> q, pe, ckv, kpe, o, lse;
  std::vector<int32_t> kv_len, table, kv_indptr, qo_indptr;
};

fastnorm_tensor view(void* data, uint32_t dtype, int32_t rank, const int64_t* shape) {
  fastnorm_tensor t{};
  t.data = data;
  t.device_type = FASTNORM_DEVICE_CPU;
  t.ndim = rank;
  t.dtype = fastnorm_dtype_of(static_cast<fastnorm_dtype_id>(dtype));
  t.shape = shape;
  return t;
}

void fuzz_values(Bytes& bytes) {
  static fastnorm_context* const context = make_context(FASTNORM_DEVICE_CPU, 0, false);
  const int64_t batch = 1 + bytes.pick(3), heads = 1 + bytes.pick(6), pages = 1 + bytes.pick(4),
                page = 1 + bytes.pick(20);
  const int64_t columns = bytes.pick(4), s_q = 1 + bytes.pick(3);
  const bool csr = (bytes.byte() & 1) != 0, ragged = (bytes.byte() & 1) != 0;
  const int64_t tokens = batch * s_q;
  Memory m;
  m.q.assign(static_cast<size_t>(tokens * heads * 512), 0.5f);
  m.pe.assign(static_cast<size_t>(tokens * heads * 64), 0.25f);
  m.ckv.assign(static_cast<size_t>(pages * page * 512), 1.5f);
  m.kpe.assign(static_cast<size_t>(pages * page * 64), -1.0f);
  m.o.assign(m.q.size(), NAN);
  m.lse.assign(static_cast<size_t>(tokens * heads), NAN);
  bool valid = true;
  int32_t entries = 0, first = 0;
  const int64_t total = batch * columns;
  for (int64_t b = 0; b < batch; ++b) {
    const int32_t list =
        csr && bytes.rarely() ? bytes.take<int32_t>() : static_cast<int32_t>(columns);
    int64_t length = bytes.pick(static_cast<uint32_t>(columns * page) + 1);
    if (bytes.rarely()) length = bytes.take<int32_t>();
    m.kv_len.push_back(static_cast<int32_t>(length));
    m.kv_indptr.push_back(entries);
    entries = static_cast<int32_t>(static_cast<uint32_t>(entries) + static_cast<uint32_t>(list));
    m.qo_indptr.push_back(first);
    first += ragged && bytes.rarely() ? static_cast<int32_t>(bytes.pick(6)) - 2
                                      : static_cast<int32_t>(s_q);
  }
  m.kv_indptr.push_back(entries);
  m.qo_indptr.push_back(first);
  for (int64_t i = 0; i < total; ++i)
    m.table.push_back(bytes.rarely()
                          ? bytes.take<int32_t>()
                          : static_cast<int32_t>(bytes.pick(static_cast<uint32_t>(pages))));
  // What is allowed.
  for (int64_t b = 0; b < batch; ++b) {
    const auto i = static_cast<size_t>(b);
    const int64_t begin = csr ? m.kv_indptr[i] : b * columns,
                  end = csr ? m.kv_indptr[i + 1] : begin + columns;
    if (begin < 0 || end < begin || end > total) valid = false;
    if (ragged && (m.qo_indptr[i + 1] < m.qo_indptr[i] || m.qo_indptr[i + 1] > tokens ||
                   m.qo_indptr[i + 1] - m.qo_indptr[i] > s_q))
      valid = false;
    if (!valid) break;
    const int64_t length = m.kv_len[i];
    if (length < 0 || length > (end - begin) * page) valid = false;
    for (int64_t k = 0; valid && k * page < length; ++k) {
      const int32_t number = m.table[static_cast<size_t>(begin + k)];
      if (number < 0 || number >= pages) valid = false;
    }
  }
  const int64_t q_shape[] = {tokens, heads, 512}, pe_shape[] = {tokens, heads, 64},
                ckv_shape[] = {pages, page, 512}, kpe_shape[] = {pages, page, 64},
                b_shape[] = {batch}, b1_shape[] = {batch + 1}, table_shape[] = {batch, columns},
                csr_shape[] = {total};
  const fastnorm_tensor q = view(m.q.data(), FASTNORM_DTYPE_F32, 3, q_shape),
                        pe = view(m.pe.data(), FASTNORM_DTYPE_F32, 3, pe_shape),
                        ckv = view(m.ckv.data(), FASTNORM_DTYPE_F32, 3, ckv_shape),
                        kpe = view(m.kpe.data(), FASTNORM_DTYPE_F32, 3, kpe_shape),
                        o = view(m.o.data(), FASTNORM_DTYPE_F32, 3, q_shape),
                        lse = view(m.lse.data(), FASTNORM_DTYPE_F32, 2, q_shape),
                        kv_len = view(m.kv_len.data(), FASTNORM_DTYPE_I32, 1, b_shape),
                        table = csr ? view(m.table.data(), FASTNORM_DTYPE_I32, 1, csr_shape)
                                    : view(m.table.data(), FASTNORM_DTYPE_I32, 2, table_shape),
                        kv_indptr = view(m.kv_indptr.data(), FASTNORM_DTYPE_I32, 1, b1_shape),
                        qo_indptr = view(m.qo_indptr.data(), FASTNORM_DTYPE_I32, 1, b1_shape);
  fastnorm_mla_decode_args a{};
  a.struct_size = sizeof a;
  a.sm_scale = 0.01;
  a.causal = bytes.byte() & 1;
  a.q_nope = &q, a.q_pe = &pe, a.ckv = &ckv, a.kpe = &kpe, a.o = &o, a.lse = &lse;
  a.kv_len = &kv_len, a.page_table = &table;
  if (csr) a.kv_indptr = &kv_indptr;
  if (ragged) a.qo_indptr = &qo_indptr, a.max_s_q = static_cast<int32_t>(s_q);
  const fastnorm_status status = fastnorm_mla_decode(context, &a, nullptr, 0, nullptr);
  require_text(status);
  require(status == (valid ? FASTNORM_OK : FASTNORM_ERROR_ARGUMENT),
          valid ? "valid values are refused" : "invalid values are accepted");
  const int64_t written = !valid ? 0 : (ragged ? m.qo_indptr.back() : tokens) * heads;
  for (int64_t row = 0; row < tokens * heads; ++row) {
    const float v = m.o[static_cast<size_t>(row * 512)];
    // All values are 1.5: so is their mean, but for empty rows.
    require(row < written ? std::fabs(v - 1.5f) < 1e-5f || v == 0 : std::isnan(v), "an output");
  }
}

// --- profiles ---

void fuzz_profile(Bytes& bytes) {
  const uint32_t blocks = bytes.pick(4), groups = bytes.pick(4), capacity = bytes.pick(6);
  std::vector<uint64_t> buffer(8 + size_t{blocks} * groups * (8 + capacity) + bytes.pick(2));
  for (uint64_t& word : buffer) word = bytes.take<uint64_t>();
  if (!bytes.rarely()) std::memcpy(buffer.data(), "NORMPROF", 8);
  if (!bytes.rarely()) buffer[1] = 1 | uint64_t{blocks} << 32;
  if (!bytes.rarely()) buffer[2] = groups | uint64_t{capacity} << 32;
  for (size_t w = 0; w < size_t{blocks} * groups && !bytes.rarely(); ++w) {
    uint64_t* writer = buffer.data() + 8 + 8 * w;
    writer[1] %= capacity + 1;
    writer[4] = writer[2] + writer[4] % (uint64_t{1} << 40);
    writer[5] = writer[3] + writer[5] % (uint64_t{1} << 40);
  }
  // Of exact size, so that a sanitizer sees a read behind it.
  const size_t size = buffer.size() * 8 - (bytes.rarely() ? bytes.byte() : 0) % (buffer.size() * 8);
  size_t count = 0;
  const fastnorm_status status = fastnorm_profile_decode(buffer.data(), size, nullptr, 0, &count);
  require_text(status);
  require(fastnorm_profile_write_trace(buffer.data(), size, "/dev/null",
                                       FASTNORM_TRACE_CHROME_JSON) == status,
          "decode and trace disagree");
  if (status != FASTNORM_OK) return;
  require(count <= size_t{blocks} * groups * capacity, "more events than room");
  std::vector<fastnorm_profile_event> events(count);
  require(
      fastnorm_profile_decode(buffer.data(), size, events.data(), count, &count) == FASTNORM_OK &&
          count == events.size(),
      "two decodes differ");
  for (const fastnorm_profile_event& e : events) {
    require(e.block >= 0 && e.block < static_cast<int32_t>(blocks) && e.group >= 0 &&
                e.group < static_cast<int32_t>(groups),
            "an event's place");
    require(fastnorm_profile_id_name(e.id) != nullptr, "a name");
  }
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  switch (bytes.byte() & 7) {
    case 0:
      fastnorm::fuzz::fuzz_values(bytes);
      break;
    case 1:
      fastnorm::fuzz::fuzz_profile(bytes);
      break;
    default:
      fastnorm::fuzz::fuzz_description(bytes);
      break;
  }
  return 0;
}
