#include "bench/norm_heads.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <stdexcept>

#include "bench/call.h"

namespace bench {
namespace {

constexpr int64_t kLatent = 512, kRotary = 64, kBlock = 128;
constexpr int64_t kScaleBytes = kLatent / kBlock * 4;  // behind the codes of a latent

NormHeadsCase parse_heads(const std::string& text) {
  const auto refuse = [&]() -> NormHeadsCase {
    throw std::invalid_argument(
        "'" + text +
        "' is no shape of heads; required: TOKENSxQUERY+KEYxHEAD[:CACHE] or TOKENSxmla[:CACHE], "
        "CACHE being none, own or fp8, such as 4096x32+8x128:fp8; or one of qwen3, qwen3-64, mla");
  };
  NormHeadsCase c;
  c.text = text;
  const size_t colon = text.find(':');
  c.cache = colon == std::string::npos ? "none" : text.substr(colon + 1);
  const std::string shape = text.substr(0, colon);
  long long tokens = 0, query = 0, key = 0, columns = 0;
  int end = -1;
  if (std::sscanf(shape.c_str(), "%lldxmla%n", &tokens, &end) == 1 &&
      end == static_cast<int>(shape.size())) {
    key = 1, columns = kLatent + kRotary;
  } else if (std::sscanf(shape.c_str(), "%lldx%lld+%lldx%lld%n", &tokens, &query, &key, &columns,
                         &end) != 4 ||
             end != static_cast<int>(shape.size()) || query < 1) {
    return refuse();
  }
  constexpr long long kMost = 1 << 24;
  const auto in_range = [](long long value) { return value >= 1 && value <= kMost; };
  if (!in_range(tokens) || !in_range(key) || !in_range(columns) || query > kMost) return refuse();
  if (c.cache != "none" && c.cache != "own" && c.cache != "fp8") return refuse();
  c.tokens = tokens, c.query = query, c.key = key, c.columns = columns;
  return c;
}

std::vector<std::string> heads_of(const std::string& name) {
  const std::string layer = name == "qwen3"      ? "32+8x128"
                            : name == "qwen3-64" ? "64+4x128"
                            : name == "mla"      ? "mla"
                                                 : "";
  std::vector<std::string> found;
  if (layer.empty()) return {name};
  for (const char* cache : {"none", "own", "fp8"}) {
    for (const char* tokens : {"1", "16", "64", "256", "1024", "4096", "16384"}) {
      found.push_back(std::string(tokens) + "x" + layer + ":" + cache);
    }
  }
  return found;
}

}  // namespace

int64_t NormHeadsCase::cached_bytes() const {
  if (in_place()) return 0;
  if (!mla()) return 2 * key * columns * (cache == "fp8" ? 1 : element_bytes());
  return cache == "fp8" ? kLatent + kScaleBytes + kRotary * element_bytes() : token_bytes();
}

std::vector<NormHeadsCase> make_norm_heads_cases(const std::vector<std::string>& shapes,
                                                 const std::vector<std::string>& dtypes) {
  std::vector<NormHeadsCase> cases;
  for (const std::string& dtype : dtypes) {
    for (const std::string& shape : shapes) {
      for (const std::string& text : heads_of(shape)) {
        cases.push_back(parse_heads(text));
        cases.back().dtype = dtype;
      }
    }
  }
  return cases;
}

NormHeadsTables::NormHeadsTables(const NormHeadsCase& c) : scale{1.0f / 32} {
  const int64_t pairs = c.rope_dim() / 2;
  for (int64_t i = 0; i < NormHeadsCase::kTableRows * pairs; ++i) {
    const double turns =
        std::pow(10000.0, -static_cast<double>(i % pairs) / static_cast<double>(pairs));
    cos.push_back(static_cast<float>(std::cos(static_cast<double>(i / pairs) * turns)));
    sin.push_back(static_cast<float>(std::sin(static_cast<double>(i / pairs) * turns)));
  }
  const uint32_t one = c.dtype == "f32" ? 0x3f800000u : c.dtype == "f16" ? 0x3c00u : 0x3f80u;
  const auto element = static_cast<size_t>(c.element_bytes());
  weight.resize(static_cast<size_t>(std::max(kLatent, c.columns)) * element);
  for (size_t at = 0; at < weight.size(); at += element) {
    std::copy_n(reinterpret_cast<const char*>(&one), element, &weight[at]);
  }
  // Few tokens are of many requests, many of few.
  constexpr int64_t kPrefill = 256, kPrime = 2654435761;
  std::vector<int32_t> pages(static_cast<size_t>(c.pages()));
  std::iota(pages.begin(), pages.end(), 0);
  uint64_t state = 1;
  for (size_t i = pages.size(); i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(pages[i - 1], pages[(state >> 33) % i]);
  }
  for (int64_t t = 0; t < c.tokens; ++t) {
    const int64_t position = c.tokens < kPrefill ? t * kPrime : t;
    positions.push_back(static_cast<int32_t>(position % NormHeadsCase::kTableRows));
    const int64_t page = pages[static_cast<size_t>(t / NormHeadsCase::kPage)];
    slots.push_back(static_cast<int32_t>(page * NormHeadsCase::kPage + t % NormHeadsCase::kPage));
  }
}

NormHeadsCall::NormHeadsCall(const NormHeadsCase& c, int32_t device_type, const NormHeadsBuffers& b)
    : device_type_(device_type),
      dtype_(fastnorm_dtype_of(c.dtype == "f32"   ? FASTNORM_DTYPE_F32
                               : c.dtype == "f16" ? FASTNORM_DTYPE_F16
                                                  : FASTNORM_DTYPE_BF16)) {
  const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32),
                       i32 = fastnorm_dtype_of(FASTNORM_DTYPE_I32);
  for (fastnorm_norm_heads_part& part : part_) part.struct_size = sizeof part;
  describe(&weight_, dtype_, {c.mla() ? kLatent : c.columns});
  describe(&scale_, f32, {1});
  c.mla() ? add_latents(c) : add_heads(c);
  args_.struct_size = sizeof args_;
  args_.rope_dim = static_cast<int32_t>(c.rope_dim());
  args_.cos = describe(&cos_, f32, {NormHeadsCase::kTableRows, c.rope_dim() / 2});
  args_.sin = describe(&sin_, f32, {NormHeadsCase::kTableRows, c.rope_dim() / 2});
  args_.positions = describe(&positions_, i32, {c.tokens});
  if (!c.in_place()) args_.slots = describe(&slots_, i32, {c.tokens});
  set(b);
}

const fastnorm_tensor* NormHeadsCall::describe(Tensor* t, fastnorm_dtype dtype,
                                               std::vector<int64_t> shape,
                                               std::vector<int64_t> strides, int64_t offset) {
  std::copy(shape.begin(), shape.end(), t->shape);
  std::copy(strides.begin(), strides.end(), t->strides);
  t->tensor = {nullptr,
               device_type_,
               0,
               static_cast<int32_t>(shape.size()),
               dtype,
               t->shape,
               strides.empty() ? nullptr : t->strides,
               static_cast<uint64_t>(offset)};
  return &t->tensor;
}

// Query, key and value heads side by side in each token.
void NormHeadsCall::add_heads(const NormHeadsCase& c) {
  const int64_t heads[] = {c.query, c.key, c.key}, d = c.columns;
  const int64_t first[] = {0, c.query, c.query + c.key}, all = c.query + 2 * c.key;
  const bool codes = c.cache == "fp8";
  const fastnorm_dtype cached = codes ? fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN) : dtype_;
  count_ = c.in_place() ? 2 : 3;
  for (int32_t p = 0; p < count_; ++p) {
    fastnorm_norm_heads_part& part = part_[p];
    part.x = describe(&x_[p], dtype_, {c.tokens, heads[p], d}, {all * d, d, 1},
                      first[p] * d * c.element_bytes());
    if (p != kThird) {
      part.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
      part.eps = 1e-6f;
      part.weight = &weight_.tensor;
    }
    if (p == kFirst || c.in_place()) {
      part.y = part.x;
      continue;
    }
    const int64_t bytes = c.cache_bytes() / 2;  // of each cache
    part.cache = describe(&cache_[p], cached, {c.pages(), NormHeadsCase::kPage, c.key, d}, {},
                          p == kSecond ? 0 : bytes);
    if (codes) {
      part.cache_scheme = FASTNORM_QUANT_PER_TENSOR;
      part.cache_scale = &scale_.tensor;
    }
  }
}

// Latent and rotary key side by side in each token, and in each row of the cache; codes have their
// scales between them.
void NormHeadsCall::add_latents(const NormHeadsCase& c) {
  const int64_t row = kLatent + kRotary, element = c.element_bytes(), wide = c.cached_bytes();
  const bool codes = c.cache == "fp8";
  const auto cache = [&](Tensor* t, fastnorm_dtype dtype, int64_t columns, int64_t offset) {
    const int64_t bytes = dtype.bits / 8, stride = wide / bytes;
    return describe(t, dtype, {c.pages(), NormHeadsCase::kPage, 1, columns},
                    {NormHeadsCase::kPage * stride, stride, stride, 1}, offset);
  };
  count_ = 2;
  part_[kFirst].flags = FASTNORM_NORM_HEADS_NORM;
  part_[kFirst].eps = 1e-6f;
  part_[kFirst].weight = &weight_.tensor;
  part_[kSecond].flags = FASTNORM_NORM_HEADS_ROPE | FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
  part_[kFirst].x = describe(&x_[0], dtype_, {c.tokens, 1, kLatent}, {row, row, 1});
  part_[kSecond].x =
      describe(&x_[1], dtype_, {c.tokens, 1, kRotary}, {row, row, 1}, kLatent * element);
  if (c.in_place()) {
    part_[kFirst].y = part_[kFirst].x;
    part_[kSecond].y = part_[kSecond].x;
    return;
  }
  const fastnorm_dtype f8 = fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN);
  part_[kFirst].cache = cache(&cache_[0], codes ? f8 : dtype_, kLatent, 0);
  part_[kSecond].cache =
      cache(&cache_[1], dtype_, kRotary, codes ? kLatent + kScaleBytes : kLatent * element);
  if (codes) {
    part_[kFirst].cache_scheme = FASTNORM_QUANT_PER_BLOCK;
    part_[kFirst].cache_block_size = kBlock;
    part_[kFirst].cache_scale =
        cache(&cache_[2], fastnorm_dtype_of(FASTNORM_DTYPE_F32), kLatent / kBlock, kLatent);
  }
}

void NormHeadsCall::set(const NormHeadsBuffers& b) {
  for (Tensor& t : x_) t.tensor.data = b.x;
  for (Tensor& t : cache_) t.tensor.data = b.cache;
  weight_.tensor.data = b.weight;
  cos_.tensor.data = b.cos;
  sin_.tensor.data = b.sin;
  scale_.tensor.data = b.scale;
  positions_.tensor.data = b.positions;
  slots_.tensor.data = b.slots;
}

fastnorm_info NormHeadsCall::query(fastnorm_context* context) const {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_heads_query(context, &args_, parts_, count_, &info));
  if (info.workspace_bytes != 0) throw std::runtime_error("a workspace is needed");
  return info;
}

void NormHeadsCall::prepare(fastnorm_context* context) const {
  check(fastnorm_norm_heads_prepare(context, &args_, parts_, count_));
}

void NormHeadsCall::run(fastnorm_context* context, void* stream) const {
  check(fastnorm_norm_heads(context, &args_, parts_, count_, nullptr, 0, stream));
}

int time_all_norm_heads(const std::vector<NormHeadsCase>& cases,
                        const std::function<NormHeadsResult(const NormHeadsCase&)>& time,
                        const std::function<void(const nlohmann::json&)>& save,
                        nlohmann::json* document) {
  std::printf("%-24s %-4s %10s %7s %10s %7s %8s %7s  %s\n", "heads", "type", "us", "GB/s",
              "ceiling us", "ratio", "excess", "spread", "kernel");
  int failed = 0;
  nlohmann::json& results = (*document)["results"] = nlohmann::json::array();
  for (const NormHeadsCase& c : cases) {
    try {
      const NormHeadsResult r = time(c);
      const double gb = static_cast<double>(c.bytes_moved()) / r.us / 1e3;
      std::printf("%-24s %-4s %10.3f %7.0f %10.3f %7.3f %8.3f %6.1f%%  %s\n", c.text.c_str(),
                  c.dtype.c_str(), r.us, gb, r.ceiling_us, r.us / r.ceiling_us, r.us - r.ceiling_us,
                  100 * r.spread, r.kernel.c_str());
      nlohmann::json j = {{"shape", c.text},
                          {"dtype", c.dtype},
                          {"tokens", c.tokens},
                          {"cache", c.cache},
                          {"bytes", c.bytes_moved()},
                          {"us", r.us},
                          {"spread", r.spread},
                          {"gb_per_s", gb},
                          {"ceiling_us", r.ceiling_us},
                          {"ceiling", r.ceiling},
                          {"ratio", r.us / r.ceiling_us},
                          {"kernel", r.kernel}};
      j.update(r.more);
      results.push_back(std::move(j));
    } catch (const std::exception& e) {
      ++failed;
      std::printf("%-24s %-4s failed: %s\n", c.text.c_str(), c.dtype.c_str(), e.what());
      results.push_back({{"shape", c.text}, {"dtype", c.dtype}, {"error", e.what()}});
    }
    std::fflush(stdout);
    save(*document);
  }
  return failed;
}

}  // namespace bench
