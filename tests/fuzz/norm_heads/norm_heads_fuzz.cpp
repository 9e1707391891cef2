// Random calls of norm_heads in memory of exact size. Nothing crashes, and the entry points agree.
// What breaks a rule of the header is refused. A call that is accepted runs, unless a position or a
// slot is out of range. A dry run of a GPU answers as the CPU does.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "../heads_tensors.h"
#include "fastnorm/fastnorm.h"

namespace fastnorm::fuzz {
namespace {

void require(bool ok, const char* what, const char* detail = "") {
  if (ok) return;
  std::fprintf(stderr, "norm_heads_fuzz: %s%s (last error: %s)\n", what, detail,
               fastnorm_last_error());
  std::abort();
}

void require_text(fastnorm_status status) {
  require(status != FASTNORM_ERROR_INTERNAL, "internal error");
  if (status == FASTNORM_OK) return;
  require(std::strlen(fastnorm_last_error()) > 10, "a failure without a text");
  require(std::strchr(fastnorm_last_error(), '\n') == nullptr, "a text of more than one line");
}

fastnorm_context* make_context(int32_t device_type, bool dry) {
  fastnorm_context_options options{};
  options.struct_size = sizeof options;
  options.flags = dry ? FASTNORM_CONTEXT_DRY_RUN : 0;
  options.dry_run_capability = device_type == FASTNORM_DEVICE_CUDA ? 90 : 0;
  fastnorm_context* context = nullptr;
  require(fastnorm_context_create({device_type, 0}, &options, &context) == FASTNORM_OK,
          "no context");
  return context;
}

class Call {
 public:
  explicit Call(Bytes& bytes) : bytes_(bytes), tensors_(bytes) {
    tokens_ = bytes_.pick(5);
    dtype_ = kDtypes[bytes_.pick(3)];
    args.struct_size = sizeof args;
    args.rope_dim = static_cast<int32_t>(2 * bytes_.pick(9));
    const uint32_t count = 1 + bytes_.pick(3);
    for (uint32_t i = 0; i < count; ++i) part();
    shared();
    for (const auto& p : parts_) pointers.push_back(p.get());
  }

  // What the header forbids whatever else there is; nullptr: nothing.
  const char* broken_rule() const {
    for (const auto& p : parts_) {
      const bool norm = (p->flags & FASTNORM_NORM_HEADS_NORM) != 0;
      const bool rope = (p->flags & FASTNORM_NORM_HEADS_ROPE) != 0;
      const bool outputs = p->y || p->quantized || p->cache || p->sumsq || p->mean || p->rstd;
      if ((p->flags & ~63u) != 0 || p->reserved != 0 || p->reserved_2 != 0) return "unknown bits";
      if (!outputs || p->x == nullptr) return "x and an output are required";
      if (!(p->eps >= 0)) return "eps";
      if (!norm && (p->eps != 0 || p->weight || p->rstd_in)) return "fields of a norm";
      if (!rope && (p->flags & 28) != 0) return "flags of a rope";
      if (rope && (!args.cos || !args.sin || args.rope_dim % 2 != 0)) return "tables of a rope";
      if (rope && (args.rope_dim < 0 || args.rope_dim > p->x->shape[p->x->ndim - 1]))
        return "rope_dim";
      if (p->cache != nullptr && (args.slots == nullptr || p->cache->ndim != 4)) return "cache";
      if (p->x->ndim != 3 || p->x->shape[1] < 1 || p->x->shape[0] != tokens()) return "shape of x";
      if (p->rstd_in != nullptr && (p->rstd || p->mean || p->sumsq)) return "rstd_in";
      if (p->clamp_scale != nullptr && (p->quant_scheme == 0 || p->clamp != 0))
        return "clamp_scale";
      const uint32_t division = p->quant_division;
      if (division > 1 || (division != 0 && (p->quant_scheme == 0 || p->quant_scheme > 3) &&
                           p->cache_scheme == 0)) {
        return "quant_division";
      }
    }
    return nullptr;
  }

  void set_device(int32_t device_type) { tensors_.set_device(device_type); }

  // Of all parts, as the first has it: its x may have another extent than was drawn.
  int64_t tokens() const { return parts_.front()->x->shape[0]; }

  fastnorm_norm_heads_args args{};
  std::vector<const fastnorm_norm_heads_part*> pointers;

 private:
  const fastnorm_tensor* tensor(std::vector<int64_t> shape, fastnorm_dtype_id dtype) {
    return tensors_.tensor(std::move(shape), dtype);
  }

  bool one_in_two() { return (bytes_.byte() & 1) != 0; }

  void part() {
    constexpr int64_t kColumns[] = {1, 8, 17, 64, 96, 130, 576, 1030};
    parts_.push_back(std::make_unique<fastnorm_norm_heads_part>());
    fastnorm_norm_heads_part& p = *parts_.back();
    p.struct_size = sizeof p;
    heads_ = 1 + bytes_.pick(3);
    columns_ = kColumns[bytes_.pick(std::size(kColumns))];
    const std::vector<int64_t> rows = {tokens_, heads_, columns_};
    p.x = tensor(rows, dtype_);
    if (one_in_two()) norm(p);
    if (one_in_two()) rope(p);
    if (one_in_two()) codes(p);
    if (one_in_two()) cache(p);
    if (one_in_two()) p.y = one_in_two() ? p.x : tensor(rows, y_dtype());
    if (bytes_.rarely()) p.flags ^= 1u << bytes_.pick(8);
    if (bytes_.rarely()) p.reserved = bytes_.pick(2) != 0 ? 1 : 0;
    if (bytes_.rarely()) p.eps = bytes_.take<float>();
    if (bytes_.rarely()) p.clamp = bytes_.take<float>();
    if (bytes_.rarely()) p.amax_floor = bytes_.take<float>();
    if (bytes_.rarely()) p.amax = tensor({1}, FASTNORM_DTYPE_F32);
    if (bytes_.rarely()) p.reserved_2 = bytes_.pick(2) != 0 ? 1 : 0;
    if (bytes_.rarely()) p.clamp_scale = tensor({1}, FASTNORM_DTYPE_F32);
    if (bytes_.pick(4) == 0) p.quant_division = FASTNORM_QUANT_DIVIDE;
    if (bytes_.rarely()) p.quant_division = static_cast<fastnorm_quant_division>(bytes_.pick(8));
  }

  fastnorm_dtype_id y_dtype() { return bytes_.pick(4) == 0 ? FASTNORM_DTYPE_F32 : dtype_; }

  void norm(fastnorm_norm_heads_part& p) {
    p.flags |= FASTNORM_NORM_HEADS_NORM;
    p.kind = one_in_two() ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    const bool across = bytes_.pick(3) == 0, layer = p.kind == FASTNORM_NORM_LAYER;
    if (across) p.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
    std::vector<int64_t> rows = {tokens_};
    if (!across) rows.push_back(heads_);
    p.rounding = static_cast<fastnorm_rounding>(bytes_.pick(4));
    if (one_in_two()) p.weight = tensor({columns_}, dtype_);
    if (one_in_two()) p.bias = tensor({heads_, columns_}, FASTNORM_DTYPE_F32);
    if (bytes_.pick(4) == 0) {
      p.rstd_in = tensor(rows, FASTNORM_DTYPE_F32);
      if (layer) p.mean_in = tensor(rows, FASTNORM_DTYPE_F32);
      if (!bytes_.rarely()) return;
    }
    if (one_in_two()) p.rstd = tensor(rows, FASTNORM_DTYPE_F32);
    if (layer && one_in_two()) p.mean = tensor(rows, FASTNORM_DTYPE_F32);
    if (layer) rows.push_back(2);
    if (one_in_two()) p.sumsq = tensor(rows, FASTNORM_DTYPE_F32);
  }

  void rope(fastnorm_norm_heads_part& p) {
    p.flags |= FASTNORM_NORM_HEADS_ROPE | (bytes_.byte() & 28u);
    p.rope_rounding = one_in_two() ? FASTNORM_ROPE_EVERY_STEP : FASTNORM_ROPE_ONCE;
    p.rope_offset = static_cast<int32_t>(bytes_.pick(4)) - 1;
  }

  void codes(fastnorm_norm_heads_part& p) {
    const uint32_t scheme = bytes_.pick(7);
    const bool fp4 = scheme == FASTNORM_QUANT_NVFP4 || scheme == FASTNORM_QUANT_MXFP4;
    const int64_t block = scheme == FASTNORM_QUANT_NVFP4   ? 16
                          : scheme >= FASTNORM_QUANT_MXFP8 ? 32
                                                           : 64;
    p.quant_scheme = static_cast<fastnorm_quant_scheme>(scheme);
    if (scheme == FASTNORM_QUANT_NONE) return;
    if (scheme == FASTNORM_QUANT_PER_BLOCK) p.quant_block_size = 64;
    p.quant_source = one_in_two() ? FASTNORM_QUANT_FROM_ROUNDED : FASTNORM_QUANT_FROM_F32;
    p.quantized = fp4 ? tensor({tokens_, heads_, columns_ / 2}, FASTNORM_DTYPE_F4_E2M1FN_X2)
                      : tensor({tokens_, heads_, columns_}, FASTNORM_DTYPE_F8_E4M3FN);
    const int64_t scales = scheme == FASTNORM_QUANT_PER_ROW ? 1 : (columns_ + block - 1) / block;
    p.scale = scheme == FASTNORM_QUANT_PER_TENSOR
                  ? tensor({1}, FASTNORM_DTYPE_F32)
                  : tensor({tokens_, heads_, scales},
                           scheme <= 3 ? FASTNORM_DTYPE_F32 : FASTNORM_DTYPE_U8);
  }

  void cache(fastnorm_norm_heads_part& p) {
    const std::vector<int64_t> shape = {1 + bytes_.pick(3), 1 + bytes_.pick(3), heads_, columns_};
    const uint32_t scheme = bytes_.pick(3);
    p.cache = tensor(shape, scheme == 0 ? dtype_ : kDtypes[3 + bytes_.pick(3)]);
    if (scheme == 1) {
      p.cache_scheme = FASTNORM_QUANT_PER_TENSOR;
      p.cache_scale = tensor({1}, FASTNORM_DTYPE_F32);
    } else if (scheme == 2) {
      p.cache_scheme = FASTNORM_QUANT_PER_BLOCK;
      p.cache_block_size = one_in_two() ? 64 : 128;
      p.cache_pow2 = one_in_two() ? 1 : 0;
      const int64_t blocks = (columns_ + p.cache_block_size - 1) / p.cache_block_size;
      p.cache_scale =
          tensor({shape[0], shape[1], heads_, blocks},
                 p.cache_pow2 != 0 && one_in_two() ? FASTNORM_DTYPE_U8 : FASTNORM_DTYPE_F32);
    }
  }

  void shared() {
    bool rope = false, cache = false;
    for (const auto& p : parts_) {
      rope = rope || (p->flags & FASTNORM_NORM_HEADS_ROPE) != 0;
      cache = cache || p->cache != nullptr;
    }
    if (!rope) args.rope_dim = 0;
    if (rope != bytes_.rarely()) tensors_.tables(tokens_, heads_, dtype_, &args);
    if (cache != bytes_.rarely())
      args.slots =
          tensors_.numbers({static_cast<int64_t>(bytes_.pick(static_cast<uint32_t>(tokens_) + 1))});
    if (bytes_.rarely()) args.rope_dim = static_cast<int8_t>(bytes_.byte());
    if (bytes_.rarely()) args.flags ^= 1u << bytes_.pick(5);
    if (bytes_.rarely()) args.mrope_3 = static_cast<int8_t>(bytes_.byte());
  }

  Bytes& bytes_;
  int64_t tokens_ = 0, heads_ = 1, columns_ = 1;
  fastnorm_dtype_id dtype_ = FASTNORM_DTYPE_F32;
  std::vector<std::unique_ptr<fastnorm_norm_heads_part>> parts_;
  Tensors tensors_;
};

struct Asked {
  fastnorm_status status;
  fastnorm_info info;
};

Asked ask(fastnorm_context* context, const Call& call) {
  Asked asked{};
  asked.info.struct_size = sizeof asked.info;
  const auto count = static_cast<int32_t>(call.pointers.size());
  asked.status =
      fastnorm_norm_heads_query(context, &call.args, call.pointers.data(), count, &asked.info);
  require_text(asked.status);
  require(
      fastnorm_norm_heads_prepare(context, &call.args, call.pointers.data(), count) == asked.status,
      "query and prepare disagree");
  return asked;
}

fastnorm_status run(fastnorm_context* context, const Call& call) {
  const fastnorm_status status =
      fastnorm_norm_heads(context, &call.args, call.pointers.data(),
                          static_cast<int32_t>(call.pointers.size()), nullptr, 0, nullptr);
  require_text(status);
  return status;
}

void fuzz(Bytes& bytes) {
  static fastnorm_context* const cpu = make_context(FASTNORM_DEVICE_CPU, false);
  static fastnorm_context* const dry = make_context(FASTNORM_DEVICE_CPU, true);
  static fastnorm_context* const cuda = make_context(FASTNORM_DEVICE_CUDA, true);
  Call call(bytes);
  const Asked asked = ask(cpu, call);
  if (const char* const rule = call.broken_rule(); rule != nullptr)
    require(asked.status != FASTNORM_OK, "a bad call is accepted: ", rule);
  require(ask(dry, call).status == asked.status && run(dry, call) == asked.status,
          "a dry run differs");
  const fastnorm_status status = run(cpu, call);
  const bool values = asked.status == FASTNORM_OK && status == FASTNORM_ERROR_ARGUMENT &&
                      (std::strstr(fastnorm_last_error(), "the position of token") != nullptr ||
                       std::strstr(fastnorm_last_error(), "slots[") != nullptr);
  require(values || status == asked.status, "query and run disagree");
  if (asked.status == FASTNORM_OK)
    require((asked.info.launches == 0) == (call.tokens() == 0), "launches");
  call.set_device(FASTNORM_DEVICE_CUDA);
  require(ask(cuda, call).status == asked.status, "CUDA and the CPU disagree");
  require(run(cuda, call) == asked.status, "CUDA's query and dry run disagree");
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  fastnorm::fuzz::fuzz(bytes);
  return 0;
}
