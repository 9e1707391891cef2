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

constexpr std::string_view kAcross = ":across";

NormHeadsCase parse_heads(const std::string& text) {
  NormHeadsCase c;
  c.text = text;
  c.across = text.ends_with(kAcross);
  const std::string own = text.substr(0, text.size() - (c.across ? kAcross.size() : 0));
  const size_t colon = own.find(':');
  c.cache = colon == std::string::npos ? "none" : own.substr(colon + 1);
  const std::string shape = own.substr(0, colon);
  const size_t latent = shape.find("xmla");
  bool right = c.cache == "none" || c.cache == "own" || c.cache == "fp8";
  if (latent != std::string::npos && latent + 4 == shape.size()) {
    // The heads of the shape are of no use: latents have their own.
    right = right && !c.across && parse_heads_shape(shape.substr(0, latent) + "x1+1x1", &c);
    c.query = 0, c.columns = kLatent + kRotary;
  } else {
    right = right && parse_heads_shape(shape, &c);
  }
  if (right) return c;
  throw std::invalid_argument(
      "'" + text +
      "' is no shape of heads; required: TOKENSxQUERY+KEYxHEAD[:CACHE][:across] or "
      "TOKENSxmla[:CACHE], CACHE being none, own or fp8, such as 4096x32+8x128:fp8; or one of "
      "qwen3, qwen3-64, olmo2, olmo2-32b, mla");
}

std::vector<std::string> heads_of(const std::string& name) {
  const HeadsOfList list = heads_of_list(name);
  std::vector<std::string> found;
  if (list.heads[0] == '\0') return {name};
  for (const char* cache : {"none", "own", "fp8"}) {
    for (const char* tokens : kHeadsTokens) {
      found.push_back(std::string(tokens) + "x" + list.heads + ":" + cache);
      if (list.across) found.back() += kAcross;
    }
  }
  return found;
}

constexpr HeadsOfList kLists[] = {{"qwen3", "32+8x128", false},
                                  {"qwen3-64", "64+4x128", false},
                                  {"olmo2", "32+32x128", true},
                                  {"olmo2-32b", "40+8x128", true},
                                  {"mla", "mla", false}};

}  // namespace

HeadsOfList heads_of_list(const std::string& name) {
  for (const HeadsOfList& list : kLists) {
    if (name == list.name) return list;
  }
  return {"", "", false};
}

bool parse_heads_shape(const std::string& text, NormHeadsCase* c) {
  constexpr long long kMost = 1 << 24;
  long long number[4] = {};
  int end = -1;
  if (std::sscanf(text.c_str(), "%lldx%lld+%lldx%lld%n", &number[0], &number[1], &number[2],
                  &number[3], &end) != 4 ||
      end != static_cast<int>(text.size())) {
    return false;
  }
  c->tokens = number[0], c->query = number[1], c->key = number[2], c->columns = number[3];
  return std::all_of(number, number + 4, [](long long n) { return n >= 1 && n <= kMost; });
}

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
  const int64_t rows = c.across ? std::max(c.query, c.key) : 1;
  weight.resize(static_cast<size_t>(std::max(kLatent, rows * c.columns)) * element);
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

const fastnorm_tensor* HeadsTensor::describe(int32_t device_type, fastnorm_dtype dtype,
                                             std::vector<int64_t> extents,
                                             std::vector<int64_t> steps, int64_t offset) {
  std::copy(extents.begin(), extents.end(), shape);
  std::copy(steps.begin(), steps.end(), strides);
  tensor = {nullptr,
            device_type,
            0,
            static_cast<int32_t>(extents.size()),
            dtype,
            shape,
            steps.empty() ? nullptr : strides,
            static_cast<uint64_t>(offset)};
  return &tensor;
}

fastnorm_dtype dtype_of(const NormHeadsCase& c) {
  return fastnorm_dtype_of(c.dtype == "f32"   ? FASTNORM_DTYPE_F32
                           : c.dtype == "f16" ? FASTNORM_DTYPE_F16
                                              : FASTNORM_DTYPE_BF16);
}

NormHeadsCall::NormHeadsCall(const NormHeadsCase& c, int32_t device_type, const NormHeadsBuffers& b)
    : device_type_(device_type), dtype_(dtype_of(c)) {
  const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32),
                       i32 = fastnorm_dtype_of(FASTNORM_DTYPE_I32);
  for (fastnorm_norm_heads_part& part : part_) part.struct_size = sizeof part;
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
      if (c.across) part.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
      part.weight = c.across ? describe(&weight_[p], dtype_, {heads[p], d})
                             : describe(&weight_[p], dtype_, {d});
    }
    if (p == kFirst || c.in_place()) {
      part.y = part.x;
      continue;
    }
    const int64_t bytes = c.cache_bytes() / 2;  // of each cache
    part.cache = describe(&cache_[p], cached, {c.pages(), NormHeadsCase::kPage, c.key, d}, {},
                          p == kSecond ? 0 : bytes);
    if (codes) {
      quant_.struct_size = sizeof quant_;
      quant_.scheme = FASTNORM_QUANT_PER_TENSOR;
      quant_.scale = &scale_.tensor;
      part.cache_quant = &quant_;
    }
  }
}

// Latent and rotary key side by side in each token, and in each row of the cache; codes have their
// scales between them.
void NormHeadsCall::add_latents(const NormHeadsCase& c) {
  const int64_t row = kLatent + kRotary, element = c.element_bytes(), wide = c.cached_bytes();
  const bool codes = c.cache == "fp8";
  const auto cache = [&](HeadsTensor* t, fastnorm_dtype dtype, int64_t columns, int64_t offset) {
    const int64_t bytes = dtype.bits / 8, stride = wide / bytes;
    return describe(t, dtype, {c.pages(), NormHeadsCase::kPage, 1, columns},
                    {NormHeadsCase::kPage * stride, stride, stride, 1}, offset);
  };
  count_ = 2;
  part_[kFirst].flags = FASTNORM_NORM_HEADS_NORM;
  part_[kFirst].eps = 1e-6f;
  part_[kFirst].weight = describe(&weight_[kFirst], dtype_, {kLatent});
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
    quant_.struct_size = sizeof quant_;
    quant_.scheme = FASTNORM_QUANT_PER_BLOCK;
    quant_.block_size = kBlock;
    part_[kFirst].cache_quant = &quant_;
    quant_.scale =
        cache(&cache_[2], fastnorm_dtype_of(FASTNORM_DTYPE_F32), kLatent / kBlock, kLatent);
  }
}

void NormHeadsCall::set(const NormHeadsBuffers& b) {
  for (HeadsTensor& t : x_) t.tensor.data = b.x;
  for (HeadsTensor& t : cache_) t.tensor.data = b.cache;
  for (HeadsTensor& t : weight_) t.tensor.data = b.weight;
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

HeadsTable::HeadsTable(std::function<void(const nlohmann::json&)> save, nlohmann::json* document)
    : save_(std::move(save)), document_(document) {
  std::printf("%-24s %-4s %10s %7s %10s %7s %8s %7s  %s\n", "heads", "type", "us", "GB/s",
              "ceiling us", "ratio", "excess", "spread", "kernel");
  (*document_)["results"] = nlohmann::json::array();
}

void HeadsTable::add(const NormHeadsCase& c, int64_t bytes, nlohmann::json more,
                     const std::function<NormHeadsResult()>& time) {
  nlohmann::json& results = (*document_)["results"];
  try {
    const NormHeadsResult r = time();
    const double gb = static_cast<double>(bytes) / r.us / 1e3;
    std::printf("%-24s %-4s %10.3f %7.0f %10.3f %7.3f %8.3f %6.1f%%  ", c.text.c_str(),
                c.dtype.c_str(), r.us, gb, r.ceiling_us, r.us / r.ceiling_us, r.us - r.ceiling_us,
                100 * r.spread);
    if (r.pdl_us != 0) std::printf("%.3f with PDL  ", r.pdl_us);
    std::printf("%s\n", r.kernel.c_str());
    if (r.pdl_us != 0) more["pdl_us"] = r.pdl_us;
    more.update({{"shape", c.text},
                 {"dtype", c.dtype},
                 {"tokens", c.tokens},
                 {"bytes", bytes},
                 {"us", r.us},
                 {"spread", r.spread},
                 {"gb_per_s", gb},
                 {"ceiling_us", r.ceiling_us},
                 {"ceiling", r.ceiling},
                 {"ratio", r.us / r.ceiling_us},
                 {"kernel", r.kernel}});
    more.update(r.more);
    results.push_back(std::move(more));
  } catch (const std::exception& e) {
    ++failed_;
    std::printf("%-24s %-4s failed: %s\n", c.text.c_str(), c.dtype.c_str(), e.what());
    results.push_back({{"shape", c.text}, {"dtype", c.dtype}, {"error", e.what()}});
  }
  std::fflush(stdout);
  save_(*document_);
}

}  // namespace bench
