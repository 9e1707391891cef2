// Recorded plans of calls as models make them, in every family but norm and MLA decode: kernel,
// launches, thread blocks of all grids and bytes of workspace. A change of a plan shows here as a
// diff. Other architectures have general kernels, so the first call of each kind is recorded on
// every architecture, and the others on sm_90.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "fastnorm/fastnorm.h"
#include "unit/golden.h"

namespace fastnorm::test {
namespace {

using Extents = std::vector<int64_t>;

constexpr fastnorm_dtype_id kBf16 = FASTNORM_DTYPE_BF16, kF16 = FASTNORM_DTYPE_F16,
                            kF32 = FASTNORM_DTYPE_F32, kI32 = FASTNORM_DTYPE_I32,
                            kE4m3 = FASTNORM_DTYPE_F8_E4M3FN;

// Tensors of a call that is only planned. Each has an address of its own; nothing is read there.
class Tensors {
 public:
  const fastnorm_tensor* of(fastnorm_dtype_id dtype, Extents shape) {
    place_ += uintptr_t{1} << 42;
    return add(place_, dtype, std::move(shape), {}, 0);
  }
  // Columns and heads of another tensor.
  const fastnorm_tensor* view(const fastnorm_tensor* whole, Extents shape, Extents strides,
                              int64_t first_byte, fastnorm_dtype_id dtype = kBf16) {
    return add(reinterpret_cast<uintptr_t>(whole->data), dtype, std::move(shape),
               std::move(strides), first_byte);
  }
  // The call's quantisation, of which there is one.
  fastnorm_quant* quant() {
    quant_.struct_size = sizeof quant_;
    return &quant_;
  }

 private:
  struct One {
    Extents shape, strides;
    fastnorm_tensor tensor;
  };

  const fastnorm_tensor* add(uintptr_t at, fastnorm_dtype_id dtype, Extents shape, Extents strides,
                             int64_t first_byte) {
    One& one = all_.emplace_back(One{std::move(shape), std::move(strides), {}});
    one.tensor.data = reinterpret_cast<void*>(at);
    one.tensor.device_type = FASTNORM_DEVICE_CUDA;
    one.tensor.ndim = static_cast<int32_t>(one.shape.size());
    one.tensor.dtype = fastnorm_dtype_of(dtype);
    one.tensor.shape = one.shape.data();
    one.tensor.strides = one.strides.empty() ? nullptr : one.strides.data();
    one.tensor.byte_offset = static_cast<uint64_t>(first_byte);
    return &one.tensor;
  }

  std::deque<One> all_;
  fastnorm_quant quant_ = {};
  uintptr_t place_ = uintptr_t{1} << 44;
};

// The text of a file: a call with its plan on sm_90, or below it a line for each plan with the
// architectures that have it.
class Recorder {
 public:
  Recorder() {
    text_ =
        "# a call and its plan on sm_90, or below it those of all architectures. Written by "
        "unit_test --update.\n";
    for (const auto& [name, capability] : kArchs) {
      fastnorm_context_options options = {};
      options.struct_size = sizeof options;
      options.flags = FASTNORM_CONTEXT_DRY_RUN;
      options.dry_run_capability = capability;
      EXPECT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CUDA, 0}, &options,
                                        &contexts_.emplace_back(nullptr)),
                FASTNORM_OK)
          << fastnorm_last_error();
    }
  }
  ~Recorder() {
    for (fastnorm_context* context : contexts_) fastnorm_context_destroy(context);
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // From the next call on: whether all architectures are recorded, or sm_90 alone.
  void record_all(bool all) { all_ = all; }

  // query(context, info) is the call's.
  template <typename Query>
  void add(const std::string& call, Query query) {
    std::vector<std::pair<std::string, std::string>> plans;  // plan, architectures
    for (size_t i = 0; i < contexts_.size(); ++i) {
      if (!all_ && kArchs[i].capability != 90) continue;
      fastnorm_info info = {};
      info.struct_size = sizeof info;
      const fastnorm_status status = query(contexts_[i], &info);
      EXPECT_EQ(status, FASTNORM_OK) << call << ": " << fastnorm_last_error();
      const std::string plan = text_of(info);
      size_t same = 0;
      while (same < plans.size() && plans[same].first != plan) ++same;
      if (same == plans.size()) plans.emplace_back(plan, "");
      plans[same].second += std::string(plans[same].second.empty() ? "" : " ") + kArchs[i].name;
    }
    text_ += call + (all_ ? "\n" : ": " + plans[0].first + "\n");
    if (!all_) return;
    for (const auto& [plan, archs] : plans)
      text_ += "  " + (plans.size() == 1 ? std::string("all") : archs) + ": " + plan + "\n";
  }

  const std::string& text() const { return text_; }

 private:
  struct Arch {
    const char* name;
    int32_t capability;  // that it serves
  };
  static constexpr Arch kArchs[] = {
      {"sm_80", 80}, {"sm_90", 90}, {"sm_100f", 100}, {"sm_120f", 120}, {"ptx_90", 110}};

  static std::string text_of(const fastnorm_info& info) {
    std::string text = std::string(info.kernel) + ", grid " + std::to_string(info.blocks);
    if (info.launches != 1) text += ", launches " + std::to_string(info.launches);
    if (info.workspace_bytes != 0) text += ", workspace " + std::to_string(info.workspace_bytes);
    return text;
  }

  std::vector<fastnorm_context*> contexts_;
  std::string text_;
  bool all_ = true;
};

std::string number(int64_t value) { return std::to_string(value); }

// ---- norm_backward ----

struct BackwardKind {
  const char* name;
  fastnorm_norm_kind kind;
  bool add, f32_weights, computes, gated;  // computes: rstd again, from x
  fastnorm_dtype_id dtype;
  bool sandwich = false, modulated = false;  // a branch with a norm; times a residual gate
};

void record_norm_backward(Recorder* recorder, const BackwardKind& k, int64_t rows, int64_t n,
                          bool sums) {
  Tensors t;
  fastnorm_norm_backward_args a = {};
  const bool layer = k.kind == FASTNORM_NORM_LAYER;
  const fastnorm_dtype_id weights = k.f32_weights ? kF32 : k.dtype;
  a.struct_size = sizeof a;
  a.kind = k.kind;
  a.eps = 1e-6f;
  a.dy = t.of(k.dtype, {rows, n}), a.x = t.of(k.dtype, {rows, n});
  a.dx = t.of(k.dtype, {rows, n});
  a.weight = t.of(weights, {n});
  if (!k.computes) a.rstd = t.of(kF32, {rows});
  if (!k.computes && layer) a.mean = t.of(kF32, {rows});
  if (k.add) a.dresidual_in = t.of(k.dtype, {rows, n});
  if (sums) a.dweight = t.of(weights, {n});
  if (sums && layer) a.dbias = t.of(weights, {n});
  if (k.gated) {
    a.gate = t.of(k.dtype, {rows, n}), a.dgate = t.of(k.dtype, {rows, n});
    a.gate_act = FASTNORM_ACTIVATION_SILU;
  }
  if (k.sandwich || k.modulated)
    a.branch = t.of(k.dtype, {rows, n}), a.dbranch = t.of(k.dtype, {rows, n});
  if (k.sandwich) {
    a.branch_norm = 1, a.branch_eps = 1e-6f;
    a.branch_rstd = t.of(kF32, {rows});
    a.branch_weight = t.of(weights, {n}), a.dbranch_weight = t.of(weights, {n});
  }
  if (k.modulated) a.residual_gate = t.of(weights, {n}), a.dresidual_gate = t.of(weights, {n});
  recorder->add(
      std::string(k.name) + (sums ? " " : ", dx alone ") + number(rows) + "x" + number(n),
      [&](auto* context, auto* info) { return fastnorm_norm_backward_query(context, &a, info); });
}

TEST(PlanGoldens, NormBackward) {
  constexpr fastnorm_norm_kind kRms = FASTNORM_NORM_RMS, kLayer = FASTNORM_NORM_LAYER;
  constexpr BackwardKind kKinds[] = {
      {"bf16 rms", kRms, false, false, false, false, kBf16},
      {"bf16 rms add", kRms, true, false, false, false, kBf16},
      {"bf16 layer", kLayer, false, false, false, false, kBf16},
      {"bf16 layer add", kLayer, true, false, false, false, kBf16},
      {"f16 rms add", kRms, true, false, false, false, kF16},
      {"f32 layer", kLayer, false, false, false, false, kF32},
      {"bf16 rms, f32 weight", kRms, false, true, false, false, kBf16},
      {"bf16 rms, rstd computed again", kRms, false, false, true, false, kBf16},
      {"bf16 rms gated", kRms, false, false, false, true, kBf16},
      {"bf16 sandwich", kRms, true, false, false, false, kBf16, true},
      {"bf16 adaln", kLayer, true, false, false, false, kBf16, false, true},
  };
  constexpr int64_t kShapes[][2] = {{128, 4096},   {512, 4096},  {4096, 1024}, {4096, 4096},
                                    {4096, 4100},  {4096, 5120}, {4096, 8192}, {4096, 16384},
                                    {4096, 65536}, {65536, 128}, {65536, 1024}};
  Recorder recorder;
  for (const BackwardKind& kind : kKinds) {
    recorder.record_all(true);
    for (const auto& [rows, n] : kShapes) {
      record_norm_backward(&recorder, kind, rows, n, true);
      recorder.record_all(false);
    }
  }
  for (const auto& [rows, n] : kShapes) record_norm_backward(&recorder, kKinds[1], rows, n, false);
  expect_recorded("norm_backward/plans.txt", recorder.text(), 100);
}

// ---- norm_heads and norm_heads_backward ----

// Heads of one token, side by side in a buffer.
struct Heads {
  const char* name;
  int64_t query, key, columns, rope_dim;
  uint32_t flags;  // of query and key
  float weight_offset = 0;
  fastnorm_dtype_id dtype = kBf16;
  fastnorm_rounding rounding = FASTNORM_ROUND_ONCE;
};

constexpr uint32_t kNorm = FASTNORM_NORM_HEADS_NORM, kRope = FASTNORM_NORM_HEADS_ROPE,
                   kAcross = FASTNORM_NORM_HEADS_ACROSS_HEADS;

constexpr Heads kHeads[] = {
    {"Qwen3 32+8x128", 32, 8, 128, 128, kNorm | kRope},
    {"Qwen3-30B 32+4x128, as vLLM rounds", 32, 4, 128, 128, kNorm | kRope, 0, kBf16,
     FASTNORM_ROUND_ONCE_RW},
    {"Qwen3 32+8x128 f16", 32, 8, 128, 128, kNorm | kRope, 0, kF16},
    {"Qwen3 32+8x128 f32", 32, 8, 128, 128, kNorm | kRope, 0, kF32},
    {"Llama 3 32+8x128, no norm", 32, 8, 128, 128, kRope},
    {"Gemma 3 8+4x256", 8, 4, 256, 256, kNorm | kRope, 1},
    {"Qwen3-Next 16+2x256, 64 turned", 16, 2, 256, 64, kNorm | kRope, 1},
    {"GPT-J pairs 16+16x256, 64 turned", 16, 16, 256, 64,
     kRope | FASTNORM_NORM_HEADS_ROPE_INTERLEAVED},
    {"Wan 40+40x128 across heads", 40, 40, 128, 128,
     kNorm | kRope | kAcross | FASTNORM_NORM_HEADS_ROPE_INTERLEAVED},
    {"OLMo 2 32+32x128 across heads", 32, 32, 128, 128, kNorm | kRope | kAcross},
};

fastnorm_norm_heads_args shared_args(Tensors* t, int64_t tokens, int64_t rope_dim) {
  fastnorm_norm_heads_args a = {};
  a.struct_size = sizeof a;
  a.rope_dim = static_cast<int32_t>(rope_dim);
  a.cos = t->of(kF32, {8192, rope_dim / 2}), a.sin = t->of(kF32, {8192, rope_dim / 2});
  a.positions = t->of(kI32, {tokens});
  return a;
}

// Weights of heads that share a statistic are those of its whole row.
const fastnorm_tensor* weight_of(Tensors* t, const Heads& h, int64_t heads) {
  return t->of(h.dtype, (h.flags & kAcross) != 0 ? Extents{heads, h.columns} : Extents{h.columns});
}

int64_t bytes_of(const Heads& h) { return h.dtype == kF32 ? 4 : 2; }

// Query, key and value of a packed buffer.
const fastnorm_tensor* part_of(Tensors* t, const Heads& h, const fastnorm_tensor* qkv,
                               int64_t tokens, int part) {
  const int64_t all = (h.query + 2 * h.key) * h.columns, heads = part == 0 ? h.query : h.key;
  const int64_t first = part == 0 ? 0 : h.query + (part - 1) * h.key;
  return t->view(qkv, {tokens, heads, h.columns}, {all, h.columns, 1},
                 first * h.columns * bytes_of(h), h.dtype);
}

template <size_t kParts>
void query_heads(Recorder* recorder, const std::string& name, const fastnorm_norm_heads_args& a,
                 const fastnorm_norm_heads_part (&parts)[kParts], int32_t count) {
  const fastnorm_norm_heads_part* pointers[kParts];
  for (size_t i = 0; i < kParts; ++i) pointers[i] = &parts[i];
  recorder->add(name, [&](auto* context, auto* info) {
    return fastnorm_norm_heads_query(context, &a, pointers, count, info);
  });
}

using ChangeHeads = void (*)(Tensors*, int64_t tokens, fastnorm_norm_heads_args*,
                             fastnorm_norm_heads_part (&)[3], fastnorm_quant (&)[3]);

// Query and key in place, or key and value to a cache of `cached`, if it is a dtype.
void record_heads(Recorder* recorder, const Heads& h, int64_t tokens, fastnorm_dtype_id cached,
                  const char* suffix = "", ChangeHeads change = nullptr) {
  Tensors t;
  fastnorm_norm_heads_args a = shared_args(&t, tokens, h.rope_dim);
  const fastnorm_tensor* const qkv = t.of(h.dtype, {tokens, h.query + 2 * h.key, h.columns});
  fastnorm_norm_heads_part parts[3] = {};
  fastnorm_quant quants[3] = {};
  const bool caches = cached != 0;
  for (int i = 0; i < 3; ++i) {
    fastnorm_norm_heads_part& p = parts[i];
    p.struct_size = sizeof p;
    p.x = part_of(&t, h, qkv, tokens, i);
    if (i == 0 || !caches) p.y = p.x;
    if (i < 2) {
      p.flags = h.flags;
      if ((h.flags & kNorm) != 0) {
        p.eps = 1e-6f;
        p.weight_offset = h.weight_offset;
        p.rounding = h.rounding;
        p.weight = weight_of(&t, h, i == 0 ? h.query : h.key);
      }
    }
    if (i == 0 || !caches) continue;
    p.cache = t.of(cached, {(tokens + 63) / 64, 64, h.key, h.columns});
    if (cached == h.dtype) continue;
    fastnorm_quant& codes = quants[i];
    codes.struct_size = sizeof codes;
    codes.scheme = FASTNORM_QUANT_PER_TENSOR;
    codes.scale = t.of(kF32, {1});
    p.cache_quant = &codes;
  }
  if (caches) a.slots = t.of(kI32, {tokens});
  if (change != nullptr) change(&t, tokens, &a, parts, quants);
  const char* const where = !caches ? ", in place" : cached == h.dtype ? ", cache" : ", fp8 cache";
  query_heads(recorder, h.name + std::string(where) + suffix + ", " + number(tokens) + " tokens", a,
              parts, caches ? 3 : 2);
}

// DeepSeek's latent and its rotary key, to rows of one cache; codes have their scales between.
void record_latents(Recorder* recorder, int64_t tokens, bool codes) {
  constexpr int64_t kLatent = 512, kRotary = 64, kPage = 64;
  Tensors t;
  fastnorm_norm_heads_args a = shared_args(&t, tokens, kRotary);
  a.slots = t.of(kI32, {tokens});
  const int64_t bytes = codes ? 656 : 1152, pages = (tokens + kPage - 1) / kPage;
  const fastnorm_tensor* const x = t.of(kBf16, {tokens, 1, kLatent + kRotary});
  const fastnorm_tensor* const cache = t.of(FASTNORM_DTYPE_U8, {pages, kPage, 1, bytes});
  const auto slice = [&](int64_t columns, int64_t first, fastnorm_dtype_id dtype, int64_t size) {
    return t.view(cache, {pages, kPage, 1, columns},
                  {kPage * bytes / size, bytes / size, bytes / size, 1}, first, dtype);
  };
  fastnorm_norm_heads_part parts[2] = {};
  for (fastnorm_norm_heads_part& p : parts) p.struct_size = sizeof p;
  parts[0].flags = kNorm;
  parts[0].eps = 1e-6f;
  parts[0].x = t.view(x, {tokens, 1, kLatent}, {576, 576, 1}, 0);
  parts[0].weight = t.of(kBf16, {kLatent});
  parts[0].cache = codes ? slice(kLatent, 0, kE4m3, 1) : slice(kLatent, 0, kBf16, 2);
  fastnorm_quant quant = {};
  quant.struct_size = sizeof quant;
  if (codes) {
    quant.scheme = FASTNORM_QUANT_PER_BLOCK;
    quant.block_size = 128;
    quant.scale = slice(4, 512, kF32, 4);
    parts[0].cache_quant = &quant;
  }
  parts[1].flags = kRope | FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
  parts[1].x = t.view(x, {tokens, 1, kRotary}, {576, 576, 1}, 1024);
  parts[1].cache = slice(kRotary, codes ? 528 : 1024, kBf16, 2);
  query_heads(recorder,
              std::string("DeepSeek latents, ") + (codes ? "fp8" : "bf16") + " cache, " +
                  number(tokens) + " tokens",
              a, parts, 2);
}

// Heads of 512 columns in rows of 584 bytes: codes, a tail, and scales behind the rows of a page.
void record_tails(Recorder* recorder, int64_t tokens) {
  constexpr int64_t kPage = 64, kPageBytes = kPage * 584;
  Tensors t;
  fastnorm_norm_heads_args a = shared_args(&t, tokens, 64);
  a.slots = t.of(kI32, {tokens});
  const int64_t pages = (tokens + kPage - 1) / kPage;
  const fastnorm_tensor* const cache = t.of(FASTNORM_DTYPE_U8, {pages, kPageBytes});
  fastnorm_norm_heads_part parts[1] = {};
  fastnorm_norm_heads_part& p = parts[0];
  p.struct_size = sizeof p;
  p.flags = kNorm | kRope | FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
  p.eps = 1e-6f;
  p.rope_offset = -1;
  p.x = t.of(kBf16, {tokens, 1, 512});
  p.weight = t.of(kBf16, {512});
  p.cache = t.view(cache, {pages, kPage, 1, 448}, {kPageBytes, 576, 576, 1}, 0, kE4m3);
  p.cache_tail = t.view(cache, {pages, kPage, 1, 64}, {kPageBytes / 2, 288, 288, 1}, 448, kBf16);
  fastnorm_quant quant = {};
  quant.struct_size = sizeof quant;
  quant.scheme = FASTNORM_QUANT_PER_BLOCK;
  quant.block_size = 64;
  quant.scale_pow2 = 1;
  quant.scale =
      t.view(cache, {pages, kPage, 1, 7}, {kPageBytes, 8, 8, 1}, kPage * 576, FASTNORM_DTYPE_U8);
  p.cache_quant = &quant;
  query_heads(recorder, "rows of 584 bytes, " + number(tokens) + " tokens", a, parts, 1);
}

// The key of DeepSeek's indexer: LayerNorm, rope of half the row, codes with a scale for each row.
void record_indexer(Recorder* recorder, int64_t tokens) {
  Tensors t;
  fastnorm_norm_heads_args a = shared_args(&t, tokens, 64);
  a.slots = t.of(kI32, {tokens});
  fastnorm_norm_heads_part parts[1] = {};
  fastnorm_norm_heads_part& p = parts[0];
  p.struct_size = sizeof p;
  p.flags = kNorm | kRope;
  p.kind = FASTNORM_NORM_LAYER;
  p.eps = 1e-6f;
  p.x = t.of(kBf16, {tokens, 1, 128});
  p.weight = t.of(kF32, {128}), p.bias = t.of(kF32, {128});
  p.cache = t.of(kE4m3, {(tokens + 63) / 64, 64, 1, 128});
  fastnorm_quant quant = {};
  quant.struct_size = sizeof quant;
  quant.scheme = FASTNORM_QUANT_PER_BLOCK;
  quant.block_size = 128;
  quant.scale = t.of(kF32, {(tokens + 63) / 64, 64, 1, 1});
  p.cache_quant = &quant;
  query_heads(recorder, "DeepSeek indexer, " + number(tokens) + " tokens", a, parts, 1);
}

struct HeadsChange {
  const char* name;
  fastnorm_dtype_id cached;  // 0: in place
  ChangeHeads change;
};

constexpr fastnorm_dtype_id kNoCache = static_cast<fastnorm_dtype_id>(0);

// What some models ask for beside the usual, of Qwen3's heads.
const HeadsChange kHeadsChanges[] = {
    {", codes by division", kE4m3,
     [](Tensors*, int64_t, fastnorm_norm_heads_args*, fastnorm_norm_heads_part (&)[3],
        fastnorm_quant (&q)[3]) { q[1].division = q[2].division = FASTNORM_QUANT_DIVIDE; }},
    {", query to e4m3", kE4m3,
     [](Tensors* t, int64_t tokens, fastnorm_norm_heads_args*, fastnorm_norm_heads_part (&p)[3],
        fastnorm_quant (&q)[3]) {
       p[0].y = nullptr;
       q[0].struct_size = sizeof q[0];
       q[0].scheme = FASTNORM_QUANT_PER_TENSOR;
       q[0].quantized = t->of(kE4m3, {tokens, 32, 128});
       q[0].scale = t->of(kF32, {1});
       p[0].quant = &q[0];
     }},
    {", sums of squares alone", kNoCache,
     [](Tensors* t, int64_t tokens, fastnorm_norm_heads_args* a, fastnorm_norm_heads_part (&p)[3],
        fastnorm_quant (&)[3]) {
       for (int i = 0; i < 2; ++i) {
         p[i].flags = kNorm;
         p[i].weight = p[i].y = nullptr;
         p[i].sumsq = t->of(kF32, {tokens, i == 0 ? 32 : 8});
       }
       *a = {};
       a->struct_size = sizeof *a;
     }},
    {", rstd given", kNoCache,
     [](Tensors* t, int64_t tokens, fastnorm_norm_heads_args*, fastnorm_norm_heads_part (&p)[3],
        fastnorm_quant (&)[3]) {
       for (int i = 0; i < 2; ++i) p[i].rstd_in = t->of(kF32, {tokens, i == 0 ? 32 : 8});
     }},
    {", rstd stored", kNoCache,
     [](Tensors* t, int64_t tokens, fastnorm_norm_heads_args*, fastnorm_norm_heads_part (&p)[3],
        fastnorm_quant (&)[3]) {
       for (int i = 0; i < 2; ++i) p[i].rstd = t->of(kF32, {tokens, i == 0 ? 32 : 8});
     }},
    {", three axes", kBf16,
     [](Tensors* t, int64_t tokens, fastnorm_norm_heads_args* a, fastnorm_norm_heads_part (&)[3],
        fastnorm_quant (&)[3]) {
       a->flags = FASTNORM_NORM_HEADS_MROPE_INTERLEAVED;
       a->mrope_0 = 24, a->mrope_1 = 20, a->mrope_2 = 20;
       a->positions = t->of(kI32, {3, tokens});
     }},
    {", tables in bf16", kBf16,
     [](Tensors* t, int64_t, fastnorm_norm_heads_args* a, fastnorm_norm_heads_part (&)[3],
        fastnorm_quant (&)[3]) {
       a->cos = t->of(kBf16, {8192, 64}), a->sin = t->of(kBf16, {8192, 64});
     }},
    {", f32 weights", kBf16,
     [](Tensors* t, int64_t, fastnorm_norm_heads_args*, fastnorm_norm_heads_part (&p)[3],
        fastnorm_quant (&)[3]) { p[0].weight = p[1].weight = t->of(kF32, {128}); }},
};

constexpr int64_t kTokens[] = {1, 64, 4096};

TEST(PlanGoldens, NormHeads) {
  Recorder recorder;
  for (const Heads& heads : kHeads) {
    for (const fastnorm_dtype_id cached : {kNoCache, heads.dtype, kE4m3}) {
      for (const int64_t tokens : kTokens) {
        recorder.record_all(cached == kNoCache && tokens == kTokens[0]);
        record_heads(&recorder, heads, tokens, cached);
      }
    }
  }
  for (const HeadsChange& c : kHeadsChanges) {
    for (const int64_t tokens : kTokens)
      record_heads(&recorder, kHeads[0], tokens, c.cached, c.name, c.change);
  }
  for (const int64_t tokens : kTokens) {
    record_latents(&recorder, tokens, false);
    record_latents(&recorder, tokens, true);
    record_indexer(&recorder, tokens);
    record_tails(&recorder, tokens);
  }
  expect_recorded("norm_heads/plans.txt", recorder.text(), 120);
}

struct GradientsChange {
  const char* name;
  void (*change)(Tensors*, const Heads&, int64_t tokens, fastnorm_norm_heads_backward_part (&)[3]);
};

const GradientsChange kGradientsChanges[] = {
    {"", nullptr},
    {", dx alone",
     [](Tensors*, const Heads&, int64_t, fastnorm_norm_heads_backward_part (&p)[3]) {
       p[0].dweight = p[1].dweight = nullptr;
     }},
    {", rstd computed again",
     [](Tensors*, const Heads&, int64_t, fastnorm_norm_heads_backward_part (&p)[3]) {
       p[0].rstd = p[1].rstd = nullptr;
     }},
    {", LayerNorm",
     [](Tensors* t, const Heads& h, int64_t tokens, fastnorm_norm_heads_backward_part (&p)[3]) {
       for (int i = 0; i < 2; ++i) {
         if ((p[i].flags & kNorm) == 0) continue;
         const int64_t heads = i == 0 ? h.query : h.key;
         const bool across = (h.flags & kAcross) != 0;
         p[i].kind = FASTNORM_NORM_LAYER;
         p[i].mean = t->of(kF32, across ? Extents{tokens} : Extents{tokens, heads});
         p[i].dbias = weight_of(t, h, heads);
       }
     }},
    {", dy in f32",
     [](Tensors* t, const Heads& h, int64_t tokens, fastnorm_norm_heads_backward_part (&p)[3]) {
       for (int i = 0; i < 3; ++i)
         p[i].dy = t->of(kF32, {tokens, i == 0 ? h.query : h.key, h.columns});
     }},
};

// Gradients of query, key and value, into one packed gradient.
void record_gradients(Recorder* recorder, const Heads& h, const GradientsChange& c,
                      int64_t tokens) {
  Tensors t;
  const fastnorm_norm_heads_args a = shared_args(&t, tokens, h.rope_dim);
  const Extents packed = {tokens, h.query + 2 * h.key, h.columns};
  const fastnorm_tensor *const qkv = t.of(h.dtype, packed), *const dqkv = t.of(h.dtype, packed);
  fastnorm_norm_heads_backward_part parts[3] = {};
  const fastnorm_norm_heads_backward_part* pointers[] = {&parts[0], &parts[1], &parts[2]};
  for (int i = 0; i < 3; ++i) {
    fastnorm_norm_heads_backward_part& p = parts[i];
    const int64_t heads = i == 0 ? h.query : h.key;
    p.struct_size = sizeof p;
    p.dy = t.of(h.dtype, {tokens, heads, h.columns});
    p.dx = part_of(&t, h, dqkv, tokens, i);
    if (i == 2) continue;
    p.flags = h.flags;
    if ((h.flags & kNorm) == 0) continue;
    p.eps = 1e-6f;
    p.weight_offset = h.weight_offset;
    p.rounding = h.rounding;
    p.x = part_of(&t, h, qkv, tokens, i);
    p.weight = weight_of(&t, h, heads);
    p.dweight = weight_of(&t, h, heads);
    p.rstd = t.of(kF32, (h.flags & kAcross) != 0 ? Extents{tokens} : Extents{tokens, heads});
  }
  if (c.change != nullptr) c.change(&t, h, tokens, parts);
  recorder->add(h.name + std::string(c.name) + ", " + number(tokens) + " tokens",
                [&](auto* context, auto* info) {
                  return fastnorm_norm_heads_backward_query(context, &a, pointers, 3, info);
                });
}

TEST(PlanGoldens, NormHeadsBackward) {
  Recorder recorder;
  for (const Heads& heads : kHeads) {
    const bool first_of_its_kind = &heads == &kHeads[0] || &heads == &kHeads[std::size(kHeads) - 1];
    for (const GradientsChange& change : kGradientsChanges) {
      if (change.change != nullptr && !first_of_its_kind) continue;
      for (const int64_t tokens : kTokens) {
        recorder.record_all(change.change == nullptr && tokens == kTokens[0]);
        record_gradients(&recorder, heads, change, tokens);
      }
    }
  }
  expect_recorded("norm_heads_backward/plans.txt", recorder.text(), 50);
}

// ---- norm with stages ----

struct Stages {
  const char* name;
  int64_t n;
  void (*change)(Tensors*, int64_t rows, int64_t n, fastnorm_norm_args*);
};

void add_gate(Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a, int64_t group,
              fastnorm_gate_position position) {
  a->gate = t->of(kBf16, {rows, n});
  a->gate_act = FASTNORM_ACTIVATION_SILU;
  a->gate_position = position;
  a->group_size = group;
  if (group != 0) a->weight = t->of(kBf16, {group});
}

void modulate(Tensors* t, int64_t n, fastnorm_norm_args* a) {
  a->kind = FASTNORM_NORM_LAYER;
  a->weight = nullptr;
  a->modulation_scale = t->of(kBf16, {1, n}), a->modulation_shift = t->of(kBf16, {1, n});
}

void add_residual(Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a) {
  a->residual = t->of(kBf16, {rows, n}), a->residual_out = t->of(kBf16, {rows, n});
}

void add_branch(Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a) {
  add_residual(t, rows, n, a);
  a->branch_norm = a->branch_rounded = 1;
  a->branch_eps = 1e-6f;
  a->branch_weight = t->of(kBf16, {n});
}

const Stages kStages[] = {
    {"Qwen3-Next gated, 32 groups of 128", 4096,
     [](Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a) {
       add_gate(t, rows, n, a, 128, FASTNORM_GATE_AFTER_NORM);
     }},
    {"Mamba 2 gated before the norm, 8 groups of 1024", 8192,
     [](Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a) {
       add_gate(t, rows, n, a, 1024, FASTNORM_GATE_BEFORE_NORM);
     }},
    {"gated", 4096,
     [](Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a) {
       add_gate(t, rows, n, a, 0, FASTNORM_GATE_AFTER_NORM);
     }},
    {"gated to e4m3 per 128", 4096,
     [](Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a) {
       add_gate(t, rows, n, a, 128, FASTNORM_GATE_AFTER_NORM);
       a->y = nullptr;
       fastnorm_quant* const q = t->quant();
       q->scheme = FASTNORM_QUANT_PER_BLOCK;
       q->block_size = 128;
       q->quantized = t->of(kE4m3, {rows, n}), q->scale = t->of(kF32, {rows, n / 128});
       a->quant = q;
     }},
    {"Gemma 2 sandwich", 3584, add_branch},
    {"Gemma 3 27B sandwich", 5376, add_branch},
    {"Gemma 4 sandwich, sum scaled", 3584,
     [](Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a) {
       add_branch(t, rows, n, a);
       a->sum_scale = t->of(kF32, {1});
     }},
    {"FLUX modulated", 3072,
     [](Tensors* t, int64_t, int64_t n, fastnorm_norm_args* a) { modulate(t, n, a); }},
    {"FLUX gated residual, modulated", 3072,
     [](Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a) {
       add_residual(t, rows, n, a);
       modulate(t, n, a);
       a->residual_gate = t->of(kBf16, {1, n});
     }},
    {"Wan gated residual, modulated, f32 with tables", 5120,
     [](Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a) {
       add_residual(t, rows, n, a);
       a->kind = FASTNORM_NORM_LAYER;
       a->weight = nullptr;
       a->residual_gate = t->of(kF32, {1, n}), a->residual_gate_table = t->of(kF32, {n});
       a->modulation_scale = t->of(kF32, {1, n}), a->scale_table = t->of(kF32, {n});
       a->modulation_shift = t->of(kF32, {1, n}), a->shift_table = t->of(kF32, {n});
     }},
    {"Lumina modulated by a scale", 2304,
     [](Tensors* t, int64_t, int64_t n, fastnorm_norm_args* a) {
       a->modulation_scale = t->of(kBf16, {1, n});
     }},
    {"Granite scaled residual", 4096,
     [](Tensors* t, int64_t rows, int64_t n, fastnorm_norm_args* a) {
       add_residual(t, rows, n, a);
       a->flags |= FASTNORM_NORM_ALPHA;
       a->alpha = 0.25f;
     }},
    {"SiLU of the norm", 1024,
     [](Tensors*, int64_t, int64_t, fastnorm_norm_args* a) {
       a->activation = FASTNORM_ACTIVATION_SILU;
     }},
    {"sums of squares alone", 6144,
     [](Tensors* t, int64_t rows, int64_t, fastnorm_norm_args* a) {
       a->y = a->weight = nullptr;
       a->sumsq = t->of(kF32, {rows});
     }},
    {"rstd given", 6144,
     [](Tensors* t, int64_t rows, int64_t, fastnorm_norm_args* a) {
       a->rstd_in = t->of(kF32, {rows});
     }},
};

TEST(PlanGoldens, NormStages) {
  Recorder recorder;
  for (const Stages& stages : kStages) {
    for (const int64_t rows : kTokens) {
      Tensors t;
      fastnorm_norm_args a = {};
      a.struct_size = sizeof a;
      a.eps = 1e-6f;
      a.x = t.of(kBf16, {rows, stages.n}), a.y = t.of(kBf16, {rows, stages.n});
      a.weight = t.of(kBf16, {stages.n});
      stages.change(&t, rows, stages.n, &a);
      recorder.record_all(rows == kTokens[0]);
      recorder.add(
          std::string(stages.name) + ", " + number(rows) + "x" + number(stages.n),
          [&](auto* context, auto* info) { return fastnorm_norm_query(context, &a, info); });
    }
  }
  expect_recorded("norm_stages/plans.txt", recorder.text(), 45);
}

// ---- peers ----

// Makes rank 0's end, which need not be connected, asks, and destroys it.
template <typename Args, typename Query>
auto with_peer(int32_t ranks, int64_t columns, Args* a, Query query,
               fastnorm_peer_algorithm algorithm = FASTNORM_PEER_AUTO) {
  return [=](fastnorm_context* context, fastnorm_info* info) {
    fastnorm_peer_options options = {};
    options.struct_size = sizeof options;
    options.ranks = ranks;
    options.dtype = kBf16;
    options.max_columns = columns;
    options.algorithm = algorithm;
    fastnorm_status status = fastnorm_peer_create(context, &options, &a->peer);
    if (status != FASTNORM_OK) return status;
    status = query(context, a, info);
    fastnorm_peer_destroy(a->peer);
    return status;
  };
}

void record_allreduce(Recorder* recorder, int32_t ranks, int64_t rows, int64_t n, bool codes,
                      fastnorm_norm_kind kind, bool two_shot = false) {
  Tensors t;
  fastnorm_norm_args a = {};
  a.struct_size = sizeof a;
  a.kind = kind;
  a.eps = 1e-6f;
  a.x = t.of(kBf16, {rows, n});
  a.residual = a.residual_out = t.of(kBf16, {rows, n});
  a.weight = t.of(kBf16, {n});
  if (kind == FASTNORM_NORM_LAYER) a.bias = t.of(kBf16, {n});
  if (codes) {
    fastnorm_quant* const q = t.quant();
    q->scheme = FASTNORM_QUANT_PER_TENSOR;
    q->quantized = t.of(kE4m3, {rows, n}), q->scale = t.of(kF32, {1});
    a.quant = q;
  } else {
    a.y = t.of(kBf16, {rows, n});
  }
  fastnorm_peer_allreduce_norm_args call = {};
  call.struct_size = sizeof call;
  call.norm = &a;
  recorder->add(std::string("all-reduce of ") + number(ranks) +
                    (two_shot ? ", two-shot, add " : ", add ") +
                    (kind == FASTNORM_NORM_LAYER ? "layer" : "rms") + (codes ? " to e4m3 " : " ") +
                    number(rows) + "x" + number(n),
                with_peer(ranks, n, &call, fastnorm_peer_allreduce_norm_query,
                          two_shot ? FASTNORM_PEER_TWO_SHOT : FASTNORM_PEER_AUTO));
}

void record_sharded(Recorder* recorder, const char* name, int32_t ranks, int64_t tokens,
                    int64_t query, int64_t key) {
  constexpr int64_t kColumns = 128;
  Tensors t;
  fastnorm_peer_sharded_norm_args a = {};
  a.struct_size = sizeof a;
  a.eps = 1e-6f;
  a.x = a.y = t.of(kBf16, {tokens, query, kColumns});
  a.weight = t.of(kBf16, {query, kColumns});
  a.x2 = a.y2 = t.of(kBf16, {tokens, key, kColumns});
  a.weight2 = t.of(kBf16, {key, kColumns});
  recorder->add(std::string(name) + " over " + number(ranks) + ", " + number(tokens) + " tokens",
                with_peer(ranks, query * kColumns, &a, fastnorm_peer_sharded_norm_query));
}

TEST(PlanGoldens, Peers) {
  Recorder recorder;
  for (const int32_t ranks : {2, 8}) {
    for (const int64_t n : {4096, 7168, 8200}) {
      for (const int64_t rows : {1, 64, 1024})
        record_allreduce(&recorder, ranks, rows, n, false, FASTNORM_NORM_RMS);
      recorder.record_all(false);  // all architectures have the same plans
    }
    record_allreduce(&recorder, ranks, 64, 4096, false, FASTNORM_NORM_RMS, true);
    for (const int64_t rows : {1, 1024}) {
      record_allreduce(&recorder, ranks, rows, 8192, true, FASTNORM_NORM_RMS);
      record_allreduce(&recorder, ranks, rows, 8192, false, FASTNORM_NORM_LAYER);
    }
    for (const int64_t tokens : {1, 64, 256, 4096}) {
      record_sharded(&recorder, "MiniMax M2 48+8x128", ranks, tokens, 48 / ranks, 8 / ranks);
      record_sharded(&recorder, "Wan 40+40x128", ranks, tokens, 40 / ranks, 40 / ranks);
    }
  }
  expect_recorded("peer/plans.txt", recorder.text(), 40);
}

}  // namespace
}  // namespace fastnorm::test
