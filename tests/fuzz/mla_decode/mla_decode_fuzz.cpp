// Random descriptions through check and plan of MLA decode by dry runs, for a CPU and for GPUs.
// Nothing crashes, and the entry points agree. A call is accepted exactly where the table and the
// rules below allow it. Beside that, small calls in real memory with random lengths and lists on
// the CPU, and random profile buffers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "../judge.h"
#include "../memory.h"
#include "../target.h"

namespace fastnorm::fuzz {
namespace {

using Args = fastnorm_mla_decode_args;
using schema::Role;

const CallStruct& type() {
  static const CallStruct& args = type_of("fastnorm_mla_decode_args");
  return args;
}

struct Target {
  int32_t device_type;
  int32_t capability;
  fastnorm_context* context;
};

const Target& target(Bytes& bytes) {
  static const Target targets[] = {
      {FASTNORM_DEVICE_CPU, 0, make_context(FASTNORM_DEVICE_CPU, true)},
      {FASTNORM_DEVICE_CUDA, 90, make_context(FASTNORM_DEVICE_CUDA, true, 90)},
      {FASTNORM_DEVICE_CUDA, 90, make_context(FASTNORM_DEVICE_CUDA, true, 90)},
      {FASTNORM_DEVICE_CUDA, 100, make_context(FASTNORM_DEVICE_CUDA, true, 100)}};
  return targets[bytes.pick(std::size(targets))];
}

// --- descriptions ---

class DecodeFamily : public Family {
 public:
  void choose(Choice* choice, Bytes& bytes) const override {
    Choice& c = *choice;
    if (c.has<&Args::qo_indptr>()) c.want<&Args::max_s_q>();
    if (c.has<&Args::profile>() && !bytes.rarely()) c.drop<&Args::profile>();
    if (!c.has<&Args::profile>() && !bytes.rarely()) c.drop<&Args::profile_events>();
    if (!bytes.rarely()) choose_form(&c, bytes);
  }

  // The tensors of one format, and of a dense or a sparse call.
  static void choose_form(Choice* choice, Bytes& bytes) {
    Choice& c = *choice;
    if (c.has<&Args::cache>()) {
      c.want<&Args::cache_format>();
      c.value<&Args::cache_format>() = 1 + bytes.pick(3);
      c.drop<&Args::ckv>(), c.drop<&Args::kpe>();
      c.drop<&Args::extra_ckv>(), c.drop<&Args::extra_kpe>();
      if (c.value<&Args::cache_format>() != FASTNORM_MLA_CACHE_BYTES_576)
        c.drop<&Args::cache_scale>();
    } else {
      c.drop<&Args::cache_format>(), c.drop<&Args::cache_scale>(), c.drop<&Args::extra_cache>();
      c.want<&Args::ckv>(), c.want<&Args::kpe>();
    }
    if (c.has<&Args::indices>()) {
      c.drop<&Args::kv_len>(), c.drop<&Args::page_table>(), c.drop<&Args::causal>();
      c.drop<&Args::kv_indptr>(), c.drop<&Args::qo_indptr>();
      if (!c.has<&Args::extra_indices>()) {
        c.drop<&Args::extra_ckv>(), c.drop<&Args::extra_kpe>(), c.drop<&Args::extra_cache>();
        c.drop<&Args::extra_topk_length>();
      } else if (c.has<&Args::cache>()) {
        c.want<&Args::extra_cache>();
      } else {
        c.want<&Args::extra_ckv>(), c.want<&Args::extra_kpe>();
      }
    } else {
      c.want<&Args::kv_len>(), c.want<&Args::page_table>();
      c.drop<&Args::topk_length>(), c.drop<&Args::extra_ckv>(), c.drop<&Args::extra_kpe>();
      c.drop<&Args::extra_cache>(), c.drop<&Args::extra_indices>();
      c.drop<&Args::extra_topk_length>();
    }
  }

  // 0 also of a number that is no format.
  static int64_t row_bytes(const Args& a) {
    constexpr int64_t kBytes[] = {0, 656, 576, 584};
    const uint32_t format = number(a.cache_format);
    return format < std::size(kBytes) ? kBytes[format] : 0;
  }
  static int64_t q_columns(const Args& a) {
    return number(a.cache_format) == FASTNORM_MLA_CACHE_BYTES_584 ? 448 : 512;
  }

  void numbers(const CallStruct&, void* args, Bytes& bytes) const override {
    Args& a = *static_cast<Args*>(args);
    a.sm_scale = 0.125;
    if (!bytes.rarely()) a.flags &= schema::kAllFlags<fastnorm_mla_decode_flags>;
    a.split_tokens *= 64;
    if (a.qo_indptr != nullptr) a.max_s_q = 1 + static_cast<int32_t>(bytes.pick(4));
    if (a.qo_indptr == nullptr && !bytes.rarely()) a.max_s_q = 0;
    if (a.profile != nullptr) a.profile_events = 1 + static_cast<int32_t>(bytes.byte());
  }

  Extents extents(const CallStruct&, const void* args, const Field*,
                  const Extents& in) const override {
    const Args& a = *static_cast<const Args*>(args);
    Extents e = in;
    e.x = shape_of(a.q_nope, in.x);
    if (e.x.size() != 3) e.x = {-1, -1, -1};
    if (a.q_nope != nullptr) e.dtype = id_of(a.q_nope->dtype);
    const auto pages_of = [](const fastnorm_tensor* ckv, const fastnorm_tensor* cache,
                             int64_t* pages, int64_t* page) {
      const std::vector<int64_t> shape =
          shape_of(ckv != nullptr ? ckv : cache, {*pages, *page, 512});
      *pages = shape.size() == 3 ? shape[0] : -1;
      *page = shape.size() == 3 ? shape[1] : -1;
    };
    pages_of(a.ckv, a.cache, &e.pages, &e.page);
    pages_of(a.extra_ckv, a.extra_cache, &e.extra_pages, &e.extra_page);
    e.row_bytes = row_bytes(a);
    e.batch = shape_of(a.kv_len != nullptr ? a.kv_len : a.indices, {in.batch})[0];
    e.one_list = a.kv_indptr != nullptr;
    return e;
  }

  const char* fault(const CallStruct&, const void* args, const Field*,
                    const Extents& e) const override {
    const Args& a = *static_cast<const Args*>(args);
    if (row_bytes(a) != 0 ? a.cache == nullptr : a.ckv == nullptr) return "no cache";
    if (a.indices == nullptr && a.kv_len == nullptr) return "no requests";
    if ((a.flags & ~schema::kAllFlags<fastnorm_mla_decode_flags>) != 0)
      return "flags that mean nothing yet";
    const double scale = std::fabs(a.sm_scale);
    if (!(scale >= 0x1p-100 && scale <= 0x1p60)) return "sm_scale out of range";
    if (a.split_tokens < 0 || a.split_tokens > 1 << 30 || a.split_tokens % 64 != 0)
      return "split_tokens out of range";
    if (a.max_s_q < 0 || a.total_kv_hint < 0 || a.total_kv_hint >= int64_t{1} << 48 ||
        a.profile_events < 0 || a.profile_events > 1 << 20)
      return "a count out of range";
    const int64_t tokens = e.x[0], heads = e.x[1];
    if (e.x[2] != q_columns(a) || heads < 1 || heads > 1 << 24 || Wide{tokens} * heads > INT32_MAX)
      return "a shape of q_nope that does not exist";
    if (e.page < 1 || e.pages > INT32_MAX || e.page > INT32_MAX || e.batch > INT32_MAX - 1)
      return "pages or requests out of range";
    for (const fastnorm_tensor* list : {a.page_table, a.indices, a.extra_indices}) {
      if (list != nullptr && list->shape[list->ndim - 1] > INT32_MAX)
        return "a list that is too long";
    }
    for (const fastnorm_tensor* list : {a.indices, a.extra_indices}) {
      if (list != nullptr && Wide{tokens} * list->shape[2] > int64_t{1} << 40)
        return "too many indices";
    }
    if (a.extra_indices != nullptr && (e.extra_pages > INT32_MAX || e.extra_page > INT32_MAX))
      return "pages of the second cache out of range";
    if (a.profile != nullptr && address(*a.profile) % 16 != 0) return "a profile's address";
    int64_t most = 0;
    if (a.qo_indptr != nullptr) {
      if (a.max_s_q < 1) return "no new tokens";
      most = std::min<int64_t>(a.max_s_q, tokens);
    } else {
      if (e.batch == 0 ? tokens != 0 : tokens % e.batch != 0) return "a part of a request";
      most = e.batch == 0 ? 0 : tokens / e.batch;
      if (a.max_s_q != 0 && a.max_s_q != most) return "another number of new tokens";
    }
    return most * heads <= 1 << 24 ? nullptr : "too many rows of a request";
  }

  __extension__ using Wide = __int128;
  static uintptr_t address(const fastnorm_tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
  }
};

using Wide = DecodeFamily::Wide;

// Bytes that a tensor touches, first and last; of no elements first > last.
struct Span {
  Wide first = 1, last = 0;
  bool empty() const { return first > last; }
};

// The rules of layouts, and those of a device.
class Rules {
 public:
  Rules(const Args& args, const Target& target) : a_(args), target_(target) {
    for (const Field& field : type().fields) {
      if (is_tensor(field) && is_given(&a_, field))
        tensors_.push_back({&field, tensor_of(&a_, field), {}});
    }
  }

  // True if the header allows the call. `maybe` is set where a rule is wider than what the library
  // can tell: tensors whose spans meet.
  bool allow(bool* maybe) {
    static const DecodeFamily family;
    *maybe = false;
    if (!find_fault(family, type(), &a_, target_.device_type).empty()) return false;
    if (cuda() && a_.sm_scale < 0) return false;
    for (const Tensor& t : tensors_) {
      if (!strides(*t.view, t.field->role != Role::kStatOut)) return false;
    }
    if (!cuda_rows() || !spans() || !whole_pages()) return false;
    if (a_.profile_events != 0 && !cuda()) return false;
    const fastnorm_tensor& requests = a_.kv_len != nullptr ? *a_.kv_len : *a_.indices;
    if (a_.q_nope->shape[0] == 0 || requests.shape[0] == 0) return true;
    // A call that does nothing needs no kernel.
    if (cuda() && target_.capability != 90) return false;
    if (cuda() && a_.profile_events != 0 && (a_.cache != nullptr || a_.indices != nullptr))
      return false;
    if (cuda() && id_of(a_.q_nope->dtype) == FASTNORM_DTYPE_F32) return false;
    // What a plan finds: a profile that is too short, tables or indices for more tiles than it
    // counts.
    if (cuda() && (a_.profile != nullptr || most_entries() > 1 << 16)) *maybe = true;
    if (meets()) *maybe = true;
    return true;
  }

 private:
  struct Tensor {
    const Field* field;
    const fastnorm_tensor* view;
    Span span;
  };

  // Pages in the list of a request, or indices of a new token.
  int64_t most_entries() const {
    int64_t most = 0;
    for (const fastnorm_tensor* t : {a_.page_table, a_.indices, a_.extra_indices}) {
      if (t != nullptr) most = std::max(most, t->shape[t->ndim - 1]);
    }
    return most;
  }

  bool cuda() const { return target_.device_type == FASTNORM_DEVICE_CUDA; }
  static int64_t bytes_each(const fastnorm_tensor& t) {
    return std::max<int64_t>(t.dtype.bits / 8, 1);
  }

  // Strides of a tensor without elements, and of a dimension with one index, may be any number.
  static bool strides(const fastnorm_tensor& t, bool last_contiguous) {
    if (t.strides == nullptr || elements_of(t) == 0) return true;
    if (last_contiguous && t.shape[t.ndim - 1] > 1 && t.strides[t.ndim - 1] != 1) return false;
    for (int32_t i = 0; i < t.ndim; ++i) {
      const Wide step = Wide{t.strides[i]} * bytes_each(t);
      if (t.shape[i] != 1 && (step > INT64_MAX || step < INT64_MIN)) return false;
    }
    return true;
  }

  static int64_t stride(const fastnorm_tensor& t, int32_t dim) {
    if (t.strides != nullptr) return t.strides[dim];
    Wide stride = 1;
    for (int32_t i = t.ndim - 1; i > dim; --i)
      stride = std::min(stride * t.shape[i], Wide{INT64_MAX});
    return static_cast<int64_t>(stride);
  }

  // Scales lie behind the rows of a page.
  bool whole_pages() const {
    if (number(a_.cache_format) != FASTNORM_MLA_CACHE_BYTES_584) return true;
    for (const fastnorm_tensor* t : {a_.cache, a_.extra_cache}) {
      if (t != nullptr && t->shape[0] > 0 && t->shape[1] > 1 && stride(*t, 1) != 584) return false;
    }
    return true;
  }

  // CUDA: rows for tensor maps, and for loads of 16 bytes.
  bool cuda_rows() const {
    if (!cuda()) return true;
    for (const fastnorm_tensor* t : {a_.q_nope, a_.q_pe, a_.ckv, a_.kpe, a_.o, a_.extra_ckv,
                                     a_.extra_kpe, a_.cache, a_.extra_cache}) {
      if (t == nullptr) continue;
      if (t->shape[0] == 0 || t->shape[1] == 0) continue;
      if (DecodeFamily::address(*t) % 16 != 0) return false;
      // Rows of 584 bytes lie in pages, whose strides alone count.
      const bool paged =
          bytes_each(*t) == 1 && number(a_.cache_format) == FASTNORM_MLA_CACHE_BYTES_584;
      for (int32_t i = 0; i < (paged ? 1 : 2); ++i) {
        const Wide step = Wide{stride(*t, i)} * bytes_each(*t);
        if (t->shape[i] > 1 && (step <= 0 || step >= Wide{1} << 40 || step % 16 != 0)) return false;
      }
    }
    return true;
  }

  static Span span_of(const fastnorm_tensor& t) {
    Span span;
    Wide first = DecodeFamily::address(t), last = first + bytes_each(t) - 1;
    for (int32_t i = 0; i < t.ndim; ++i) {
      if (t.shape[i] == 0) return span;
      const Wide reach = Wide{stride(t, i)} * (t.shape[i] - 1) * bytes_each(t);
      (reach < 0 ? first : last) += reach;
    }
    span.first = first;
    span.last = last;
    return span;
  }
  // All tensors lie in the address space.
  bool spans() {
    for (Tensor& t : tensors_) {
      if (DecodeFamily::address(*t.view) < t.view->byte_offset) return false;
      const Span s = t.span = span_of(*t.view);
      if (!s.empty() &&
          (s.first < 0 || s.last >= (Wide{1} << 64) - 1 || s.last - s.first >= Wide{1} << 62))
        return false;
    }
    return true;
  }
  // An output meets another tensor, or itself.
  bool meets() const {
    for (const Tensor& out : tensors_) {
      if (!schema::is_output(out.field->role)) continue;
      if (out.view != a_.profile && out.view->strides != nullptr) return true;
      for (const Tensor& t : tensors_) {
        const Span &a = out.span, &b = t.span;
        if (&t != &out && !a.empty() && !b.empty() && a.first <= b.last && b.first <= a.last)
          return true;
      }
    }
    return false;
  }

  const Args& a_;
  const Target& target_;
  std::vector<Tensor> tensors_;
};

void fuzz_description(Bytes& bytes) {
  constexpr int64_t kPageSizes[] = {1, 2, 16, 64, 100, 128};
  static const DecodeFamily family;
  const Target& t = target(bytes);
  Drawer drawer(bytes, family, t.device_type);
  const auto drawn = drawer.begin(type());
  const Args& drawn_args = *reinterpret_cast<const Args*>(drawn->value.data());
  const bool ragged = drawn_args.qo_indptr != nullptr;
  Extents e;
  e.dtype = row_dtype(bytes);
  const bool cuda = t.device_type == FASTNORM_DEVICE_CUDA;
  if (cuda && e.dtype == FASTNORM_DTYPE_F32 && !bytes.rarely()) e.dtype = FASTNORM_DTYPE_BF16;
  e.batch = bytes.pick(5);
  e.pages = bytes.pick(7);
  e.page = kPageSizes[bytes.pick(6)];
  const int64_t s_q = bytes.pick(4);
  e.x = {ragged ? bytes.pick(9) : e.batch * s_q, 1 + bytes.pick(5),
         DecodeFamily::q_columns(drawn_args)};
  drawer.finish(drawn.get(), e);
  const Args* const args = drawn->args<Args>();
  const Args& known = drawn->as_known<Args>();
  const CurrentCall now([&] { return call_text("mla_decode", &known); });
  fastnorm_info info = new_info(), again = new_info();
  const fastnorm_status status = fastnorm_mla_decode_query(t.context, args, &info);
  require_text(status);
  require(fastnorm_mla_decode_query(t.context, args, &again) == status, "two queries differ");
  require(std::memcmp(&info, &again, sizeof info) == 0, "two queries differ in what they say");
  require(fastnorm_mla_decode_prepare(t.context, args) == status, "query and prepare disagree");
  bool maybe = false;
  // A newer caller's fields.
  const bool newer = known.struct_size > sizeof known;
  const bool allowed = Rules(known, t).allow(&maybe);
  if (status == FASTNORM_OK) {
    require(allowed, "accepted against the rules");
  } else {
    require(!allowed || newer ||
                (maybe && (status == FASTNORM_ERROR_LAYOUT || status == FASTNORM_ERROR_SHAPE ||
                           status == FASTNORM_ERROR_UNSUPPORTED)),
            "refused without a reason");
    return;
  }
  require((info.launches == 0) == (info.kernel[0] == '\0'),
          "a kernel without a launch, or none with");
  require(info.launches <= 3 && (info.launches == 0 || info.bytes_written > 0), "launches");
  require((info.profile_bytes != 0) == (known.profile_events != 0 && info.launches != 0),
          "profile_bytes");
  const bool no_profile = info.profile_bytes != 0 && known.profile == nullptr;
  const auto workspace_bytes = static_cast<size_t>(info.workspace_bytes);
  void* const workspace = reinterpret_cast<void*>(uintptr_t{1} << 41);
  const fastnorm_status run =
      fastnorm_mla_decode(t.context, args, workspace, workspace_bytes, nullptr);
  require(run == (no_profile ? FASTNORM_ERROR_ARGUMENT : FASTNORM_OK), "query and call disagree");
  if (workspace_bytes > 0) {
    require(fastnorm_mla_decode(t.context, args, workspace, workspace_bytes - 1, nullptr) ==
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
  static fastnorm_context* const context = make_context(FASTNORM_DEVICE_CPU, false);
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

// Rows of the cache that a small call selects, in bytes. What is not selected is NaN.
struct SelectedRows {
  std::vector<int32_t> indices, lengths;
  std::vector<uint8_t> cache;
  int64_t pages, page, topk;
  bool valid = true;

  // A page of a format, with 1.5 in all columns of the rows that are selected.
  SelectedRows(Bytes& bytes, int64_t batch, int64_t s_q, int64_t row_bytes)
      : pages(1 + bytes.pick(3)), page(1 + bytes.pick(20)), topk(bytes.pick(40)) {
    cache.assign(static_cast<size_t>(pages * page * row_bytes), 0xff);
    for (int64_t t = 0; t < batch * s_q; ++t) {
      int32_t length = static_cast<int32_t>(bytes.pick(static_cast<uint32_t>(topk) + 1));
      if (bytes.rarely()) length = bytes.take<int32_t>();
      lengths.push_back(length);
      if (length < 0 || length > topk) valid = false;
      for (int64_t k = 0; k < topk; ++k) {
        int32_t index = static_cast<int32_t>(bytes.pick(static_cast<uint32_t>(pages * page) + 1));
        index = bytes.rarely() ? bytes.take<int32_t>() : index - 1;
        indices.push_back(index);
        if (k >= length) continue;
        if (index < -1 || index >= pages * page) valid = false;
        if (index >= 0 && index < pages * page) put_row(index, row_bytes);
      }
    }
  }

  void put_row(int64_t index, int64_t row_bytes) {
    constexpr uint8_t kCode = 0x3c, kRope[] = {0xc0, 0x3f};  // 1.5
    uint8_t* const of_page = cache.data() + index / page * page * row_bytes;
    const int64_t row = index % page;
    const bool behind = row_bytes == 584;  // scales
    uint8_t* const at = of_page + row * (behind ? 576 : row_bytes);
    const int64_t codes = row_bytes == 656 ? 512 : behind ? 448 : 576;
    std::memset(at, kCode, static_cast<size_t>(codes));
    const float one = 1;
    for (int64_t b = 0; row_bytes == 656 && b < 4; ++b) std::memcpy(at + 512 + 4 * b, &one, 4);
    if (behind) std::memset(of_page + page * 576 + row * 8, 127, 7);
    uint8_t* const rope = at + (behind ? 448 : 528);
    for (int64_t i = 0; codes != 576 && i < 64; ++i) std::memcpy(rope + 2 * i, kRope, 2);
  }
};

void fuzz_sparse_values(Bytes& bytes) {
  static fastnorm_context* const context = make_context(FASTNORM_DEVICE_CPU, false);
  constexpr int64_t kRowBytes[] = {656, 576, 584};
  const uint32_t format = bytes.pick(3);
  const int64_t row_bytes = kRowBytes[format], batch = 1 + bytes.pick(2), s_q = 1 + bytes.pick(2),
                heads = 1 + bytes.pick(6), tokens = batch * s_q, nope = format == 2 ? 448 : 512;
  SelectedRows rows(bytes, batch, s_q, row_bytes), extra(bytes, batch, s_q, row_bytes);
  const bool two = (bytes.byte() & 1) != 0, sinks = (bytes.byte() & 1) != 0;
  std::vector<float> q(static_cast<size_t>(tokens * heads * nope), 0.5f),
      pe(static_cast<size_t>(tokens * heads * 64), 0.25f),
      o(static_cast<size_t>(tokens * heads * 512), NAN), sink;
  for (int64_t h = 0; h < heads; ++h) sink.push_back(bytes.take<float>());
  const int64_t q_shape[] = {tokens, heads, nope}, pe_shape[] = {tokens, heads, 64},
                o_shape[] = {tokens, heads, 512}, h_shape[] = {heads}, l_shape[] = {batch, s_q},
                cache_shape[] = {rows.pages, rows.page, row_bytes},
                extra_shape[] = {extra.pages, extra.page, row_bytes},
                i_shape[] = {batch, s_q, rows.topk}, x_shape[] = {batch, s_q, extra.topk};
  const fastnorm_tensor q_nope = view(q.data(), FASTNORM_DTYPE_F32, 3, q_shape),
                        q_pe = view(pe.data(), FASTNORM_DTYPE_F32, 3, pe_shape),
                        to = view(o.data(), FASTNORM_DTYPE_F32, 3, o_shape),
                        sink_of = view(sink.data(), FASTNORM_DTYPE_F32, 1, h_shape),
                        cache = view(rows.cache.data(), FASTNORM_DTYPE_U8, 3, cache_shape),
                        indices = view(rows.indices.data(), FASTNORM_DTYPE_I32, 3, i_shape),
                        lengths = view(rows.lengths.data(), FASTNORM_DTYPE_I32, 2, l_shape),
                        extra_cache = view(extra.cache.data(), FASTNORM_DTYPE_U8, 3, extra_shape),
                        extra_indices = view(extra.indices.data(), FASTNORM_DTYPE_I32, 3, x_shape),
                        extra_lengths = view(extra.lengths.data(), FASTNORM_DTYPE_I32, 2, l_shape);
  fastnorm_mla_decode_args a{};
  a.struct_size = sizeof a;
  a.sm_scale = 0.01;
  a.cache_format = static_cast<fastnorm_mla_cache_format>(1 + format);
  a.q_nope = &q_nope, a.q_pe = &q_pe, a.o = &to, a.cache = &cache;
  a.indices = &indices, a.topk_length = &lengths;
  if (two) a.extra_cache = &extra_cache, a.extra_indices = &extra_indices;
  if (two) a.extra_topk_length = &extra_lengths;
  if (sinks) a.attention_sink = &sink_of;
  const bool valid = rows.valid && (!two || extra.valid);
  const fastnorm_status status = fastnorm_mla_decode(context, &a, nullptr, 0, nullptr);
  require_text(status);
  require(status == (valid ? FASTNORM_OK : FASTNORM_ERROR_ARGUMENT),
          valid ? "valid indices are refused" : "invalid indices are accepted");
  for (int64_t row = 0; row < tokens * heads; ++row) {
    const float v = o[static_cast<size_t>(row * 512)];
    const bool any = sinks && std::isnan(sink[static_cast<size_t>(row % heads)]);
    if (!valid) {
      require(std::isnan(v), "an output of a refused call");
    } else if (!any) {
      // All values are 1.5, of which a sink leaves a part.
      require(std::fabs(v - 1.5f) < 1e-5f || v == 0 || (sinks && v > 0 && v < 1.5f), "an output");
    }
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
  // The exact size of the profile, so that a sanitizer sees a read behind it.
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
    case 2:
      fastnorm::fuzz::fuzz_sparse_values(bytes);
      break;
    default:
      fastnorm::fuzz::fuzz_description(bytes);
      break;
  }
  return 0;
}
