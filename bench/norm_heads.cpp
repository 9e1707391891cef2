#include "bench/norm_heads.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <stdexcept>

#include "bench/call.h"
#include "bench/families.h"

namespace bench {

FamilyBench norm_heads_bench() {
  return {"--norm-heads",
          "heads with rope and cache in place of norms: lists (qwen3, qwen3-64, olmo2, "
          "olmo2-32b, mla, mla584, indexer), TOKENSxQUERY+KEYxHEAD[:CACHE][:across], "
          "TOKENSxmla[:CACHE], TOKENSxmla584 (rows of 584 bytes) or TOKENSxindexer, such as "
          "4096x32+8x128:fp8; CACHE: none (in place), own, fp8; across: of one statistic "
          "for all heads of a token"};
}

namespace {

constexpr int64_t kLatent = 512, kRotary = 64, kBlock = 128;
constexpr int64_t kScaleBytes = kLatent / kBlock * 4;  // behind the codes of a latent
constexpr int64_t kIndexerRow = kBlock + 4;            // codes and scale of a key
// Rows with a tail: codes, of which blocks have scales of a byte behind the rows of a page.
constexpr int64_t kTail = 64, kCodes = kLatent - kTail, kTailBlock = 64, kTailScales = 8;

constexpr std::string_view kAcross = ":across", kIndexer = "xindexer", kTailed = "xmla584";

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
  if (text.ends_with(kIndexer)) {
    c.indexer = true, c.cache = "fp8";
    right = parse_heads_shape(text.substr(0, text.size() - kIndexer.size()) + "x64+1x128", &c);
  } else if (text.ends_with(kTailed)) {
    c.tail = true, c.cache = "fp8";
    right = parse_heads_shape(text.substr(0, text.size() - kTailed.size()) + "x1+1x1", &c);
    c.query = 0, c.columns = kLatent;
  } else if (latent != std::string::npos && latent + 4 == shape.size()) {
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
      "TOKENSxmla[:CACHE], CACHE being none, own or fp8, such as 4096x32+8x128:fp8; or "
      "TOKENSxmla584 or TOKENSxindexer; or one of qwen3, qwen3-64, olmo2, olmo2-32b, mla, mla584, "
      "indexer");
}

std::vector<std::string> heads_of(const std::string& name) {
  const HeadsOfList list = heads_of_list(name);
  std::vector<std::string> found;
  if (list.heads[0] == '\0') return {name};
  const bool codes = name == "indexer" || name == "mla584";
  for (const char* cache : {"none", "own", "fp8"}) {
    if (codes && std::string_view(cache) != "fp8") continue;
    for (const char* tokens : kHeadsTokens) {
      found.push_back(std::string(tokens) + "x" + list.heads);
      if (!codes) found.back() += std::string(":") + cache;
      if (list.across) found.back() += kAcross;
    }
  }
  return found;
}

constexpr HeadsOfList kLists[] = {{"qwen3", "32+8x128", false}, {"qwen3-64", "64+4x128", false},
                                  {"olmo2", "32+32x128", true}, {"olmo2-32b", "40+8x128", true},
                                  {"mla", "mla", false},        {"mla584", "mla584", false},
                                  {"indexer", "indexer", false}};

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
  if (indexer) return kIndexerRow;
  if (tail) return kCodes + kTail * element_bytes() + kTailScales;
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

namespace {

std::string word(int p, const char* field, const std::string& value) {
  return " " + part_of(p, field) + "=" + value;
}

// Query, key and value heads side by side in each token.
std::string heads_line(const NormHeadsCase& c) {
  const int64_t heads[] = {c.query, c.key, c.key}, d = c.columns;
  const int64_t first[] = {0, c.query, c.query + c.key}, all = c.query + 2 * c.key;
  const bool codes = c.cache == "fp8";
  std::string line;
  for (int p = 0; p < (c.in_place() ? 2 : 3); ++p) {
    const auto rows = [&](const char* field) {
      line += tensor_words(part_of(p, field), c.dtype, {c.tokens, heads[p], d}, {all * d, d, 1},
                           first[p] * d * c.element_bytes());
    };
    rows("x");
    if (p != 2) {
      std::vector<int64_t> weight = {d};
      if (c.across) weight.insert(weight.begin(), heads[p]);
      const int flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE |
                        (c.across ? FASTNORM_NORM_HEADS_ACROSS_HEADS : 0);
      line += word(p, "flags", std::to_string(flags)) + word(p, "eps", "1e-06") +
              tensor_words(part_of(p, "weight"), c.dtype, weight);
    }
    if (p == 0 || c.in_place()) {
      rows("y");
      continue;
    }
    line += tensor_words(part_of(p, "cache"), codes ? "f8_e4m3fn" : c.dtype,
                         {c.pages(), NormHeadsCase::kPage, c.key, d}, {},
                         p == 1 ? 0 : c.cache_bytes() / 2);
    if (codes)
      line += word(p, "cache_quant.scheme", "per_tensor") +
              tensor_words(part_of(p, "cache_quant.scale"), "f32", {1});
  }
  return line;
}

// Latent and rotary key side by side in each token, and in each row of the cache; codes have their
// scales between them.
std::string latents_line(const NormHeadsCase& c) {
  const int64_t row = kLatent + kRotary, element = c.element_bytes(), wide = c.cached_bytes();
  const bool codes = c.cache == "fp8";
  std::string line =
      word(0, "flags", std::to_string(int{FASTNORM_NORM_HEADS_NORM})) + word(0, "eps", "1e-06") +
      tensor_words(part_of(0, "weight"), c.dtype, {kLatent}) +
      word(1, "flags",
           std::to_string(FASTNORM_NORM_HEADS_ROPE | FASTNORM_NORM_HEADS_ROPE_INTERLEAVED));
  const auto cache = [&](int p, const char* field, const std::string& dtype, int64_t bytes,
                         int64_t columns, int64_t offset) {
    const int64_t stride = wide / bytes;
    line += tensor_words(part_of(p, field), dtype, {c.pages(), NormHeadsCase::kPage, 1, columns},
                         {NormHeadsCase::kPage * stride, stride, stride, 1}, offset);
  };
  for (const char* field : {"x", "y"}) {
    if (*field == 'y' && !c.in_place()) break;
    line += tensor_words(part_of(0, field), c.dtype, {c.tokens, 1, kLatent}, {row, row, 1});
    line += tensor_words(part_of(1, field), c.dtype, {c.tokens, 1, kRotary}, {row, row, 1},
                         kLatent * element);
  }
  if (c.in_place()) return line;
  cache(0, "cache", codes ? "f8_e4m3fn" : c.dtype, codes ? 1 : element, kLatent, 0);
  cache(1, "cache", c.dtype, element, kRotary, codes ? kLatent + kScaleBytes : kLatent * element);
  if (!codes) return line;
  line += word(0, "cache_quant.scheme", "per_block") +
          word(0, "cache_quant.block_size", std::to_string(kBlock));
  cache(0, "cache_quant.scale", "f32", 4, kLatent / kBlock, kLatent);
  return line;
}

// A head of 512 columns in a row of its page: codes, and the tail behind them. The scales are
// behind all rows of the page.
std::string tails_line(const NormHeadsCase& c) {
  constexpr int64_t kPage = NormHeadsCase::kPage;
  const int64_t element = c.element_bytes(), row = kCodes + kTail * element,
                page = kPage * c.cached_bytes();
  const int flags =
      FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE | FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
  return word(0, "flags", std::to_string(flags)) + word(0, "eps", "1e-06") +
         word(0, "rope_offset", "-1") + tensor_words(part_of(0, "weight"), c.dtype, {kLatent}) +
         tensor_words(part_of(0, "x"), c.dtype, {c.tokens, 1, kLatent}) +
         word(0, "cache_quant.scheme", "per_block") +
         word(0, "cache_quant.block_size", std::to_string(kTailBlock)) +
         word(0, "cache_quant.scale_pow2", "1") +
         tensor_words(part_of(0, "cache"), "f8_e4m3fn", {c.pages(), kPage, 1, kCodes},
                      {page, row, row, 1}) +
         tensor_words(part_of(0, "cache_tail"), c.dtype, {c.pages(), kPage, 1, kTail},
                      {page / element, row / element, row / element, 1}, kCodes) +
         tensor_words(part_of(0, "cache_quant.scale"), "f8_e8m0fnu",
                      {c.pages(), kPage, 1, kCodes / kTailBlock},
                      {page, kTailScales, kTailScales, 1}, kPage * row);
}

// Key, query and head weights side by side in each token. The pages of the cache have the codes of
// their keys first, then the scales.
std::string indexer_line(const NormHeadsCase& c) {
  constexpr int64_t kPage = NormHeadsCase::kPage;
  const int64_t element = c.element_bytes(), row = c.token_bytes() / element, d = c.columns,
                n = c.query;
  const std::string rope = std::to_string(int{FASTNORM_NORM_HEADS_ROPE}),
                    both = std::to_string(FASTNORM_NORM_HEADS_ROPE | FASTNORM_NORM_HEADS_NORM);
  std::string line = word(0, "flags", both) + word(0, "kind", "layer") + word(0, "eps", "1e-06") +
                     tensor_words(part_of(0, "weight"), c.dtype, {d}) +
                     tensor_words(part_of(0, "bias"), c.dtype, {d}) +
                     tensor_words(part_of(0, "x"), c.dtype, {c.tokens, 1, d}, {row, d, 1}) +
                     word(0, "cache_quant.scheme", "per_block") +
                     word(0, "cache_quant.block_size", std::to_string(kBlock)) +
                     word(0, "cache_quant.rotation", std::to_string(d)) +
                     tensor_words(part_of(0, "cache"), "f8_e4m3fn", {c.pages(), kPage, 1, d},
                                  {kPage * kIndexerRow, d, d, 1}) +
                     tensor_words(part_of(0, "cache_quant.scale"), "f32", {c.pages(), kPage, 1, 1},
                                  {kPage * kIndexerRow / 4, 1, 1, 1}, kPage * d);
  const int64_t codes = c.key_bytes(), scales = codes + c.tokens * n * d;
  return line + word(1, "flags", rope) +
         tensor_words(part_of(1, "x"), c.dtype, {c.tokens, n, d}, {row, d, 1}, d * element) +
         word(1, "quant.scheme", "per_row") + word(1, "quant.rotation", std::to_string(d)) +
         tensor_words(part_of(1, "quant.quantized"), "f8_e4m3fn", {c.tokens, n, d}, {}, codes) +
         tensor_words(part_of(1, "quant.scale"), "f32", {c.tokens, n}, {}, scales) +
         tensor_words(part_of(1, "head_weights"), c.dtype, {c.tokens, n}, {row, 1},
                      (1 + n) * d * element) +
         tensor_words(part_of(1, "head_weights_out"), "f32", {c.tokens, n}, {},
                      scales + c.tokens * n * 4) +
         word(1, "head_weights_factor", "0.011048543");
}

std::string line_of(const NormHeadsCase& c) {
  const std::vector<int64_t> table = {NormHeadsCase::kTableRows, c.rope_dim() / 2};
  std::string line = "norm_heads rope_dim=" + std::to_string(c.rope_dim()) +
                     tensor_words("cos", "f32", table) + tensor_words("sin", "f32", table) +
                     tensor_words("positions", "i32", {c.tokens});
  if (!c.in_place()) line += tensor_words("slots", "i32", {c.tokens});
  return line + (c.indexer ? indexer_line(c)
                 : c.tail  ? tails_line(c)
                 : c.mla() ? latents_line(c)
                           : heads_line(c));
}

}  // namespace

NormHeadsCall::NormHeadsCall(const NormHeadsCase& c, int32_t device_type, const NormHeadsBuffers& b)
    : call_(line_of(c), device_type) {
  for (int p = 0; p < call_.count(); ++p) {
    x_.push_back(call_.tensor(part_of(p, "x")));
    x_.push_back(call_.tensor(part_of(p, "y")));
    for (const char* field : {"cache", "cache_tail"})
      cache_.push_back(call_.tensor(part_of(p, field)));
    weight_.push_back(call_.tensor(part_of(p, "weight")));
    weight_.push_back(call_.tensor(part_of(p, "bias")));
    x_.push_back(call_.tensor(part_of(p, "head_weights")));
    for (const char* field : {"quant.quantized", "quant.scale", "head_weights_out"})
      cache_.push_back(call_.tensor(part_of(p, field)));
  }
  // The scales of latents and of an indexer's keys lie in the cache.
  if (c.mla() || c.indexer) cache_.push_back(call_.tensor(part_of(0, "cache_quant.scale")));
  set(b);
}

void NormHeadsCall::set(const NormHeadsBuffers& b) {
  for (fastnorm_tensor* t : x_) t->data = b.x;
  for (fastnorm_tensor* t : cache_) t->data = b.cache;
  for (fastnorm_tensor* t : weight_) t->data = b.weight;
  cos_->data = b.cos;
  sin_->data = b.sin;
  scale_->data = scale_of_values_->data = b.scale;
  positions_->data = b.positions;
  slots_->data = b.slots;
}

fastnorm_info NormHeadsCall::query(fastnorm_context* context) const {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_heads_query(context, args(), parts(), call_.count(), &info));
  if (info.workspace_bytes != 0) throw std::runtime_error("a workspace is needed");
  return info;
}

void NormHeadsCall::prepare(fastnorm_context* context) const {
  check(fastnorm_norm_heads_prepare(context, args(), parts(), call_.count()));
}

void NormHeadsCall::run(fastnorm_context* context, void* stream) const {
  check(fastnorm_norm_heads(context, args(), parts(), call_.count(), nullptr, 0, stream));
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
