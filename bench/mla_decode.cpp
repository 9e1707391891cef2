#include "bench/mla_decode.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "bench/call.h"
#include "bench/families.h"

namespace bench {

FamilyBench mla_decode_bench() {
  return {"--mla-decode",
          "MLA decode in place of norms: lists (page1, long, heads, small) or "
          "LENGTHS:HEADS[:NEW][c][pPAGE][fBYTES][kTOPK[+EXTRA]], such as 128x4096:128:2cp64 "
          "or 64x8192:64f656k2048; c: causal; f: rows with FP8 codes, k: rows selected at "
          "random, of one cache or of two"};
}

namespace {

constexpr int64_t kMost = int64_t{1} << 24;

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument(
      "'" + text +
      "' is no shape of MLA decode; required: "
      "LENGTHS:HEADS[:NEW][c][pPAGE][fBYTES][kTOPK[+EXTRA]], such as 128x4096:128:2cp64, "
      "4641+1730:16 or 64x8192:64f656k2048, or one of page1, long, heads, small");
}

// Reads parts of a shape from left to right.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text), at_(text.c_str()) {}

  int64_t number() {
    char* end = nullptr;
    if (*at_ < '0' || *at_ > '9') refuse(text_);
    const long long value = std::strtoll(at_, &end, 10);
    if (value < 0 || value > kMost) refuse(text_);
    at_ = end;
    return value;
  }
  bool take(char c) {
    if (*at_ != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) refuse(text_);
  }
  bool at_end() const { return *at_ == '\0'; }

 private:
  const std::string& text_;
  const char* at_;
};

MlaDecodeCase parse(const std::string& text) {
  MlaDecodeCase c;
  c.text = text;
  Reader in(text);
  const int64_t first = in.number();
  if (in.take('x')) {
    const int64_t length = in.number();
    if (first == 0) refuse(text);
    c.lengths.assign(static_cast<size_t>(first), length);
  } else {
    c.lengths = {first};
    while (in.take('+')) c.lengths.push_back(in.number());
  }
  in.expect(':');
  c.heads = in.number();
  if (in.take(':')) c.new_tokens = in.number();
  c.causal = in.take('c');
  if (in.take('p')) c.page = in.number();
  if (in.take('f')) {
    c.format = in.number();
    if (c.format != 656 && c.format != 576 && c.format != 584) refuse(text);
  }
  if (in.take('k')) {
    c.topk = in.number();
    if (in.take('+')) c.extra_topk = in.number();
    if (c.topk == 0 || c.causal) refuse(text);
    if (*std::min_element(c.lengths.begin(), c.lengths.end()) == 0) refuse(text);
  }
  if (!in.at_end() || c.heads == 0 || c.new_tokens == 0 || c.page == 0) refuse(text);
  if (c.rows() > INT32_MAX || c.total() == 0) refuse(text);
  return c;
}

// Names stand for shapes that others publish figures of.
std::vector<std::string> list_of(const std::string& name) {
  std::vector<std::string> found;
  if (name == "page1") {
    for (const char* length : {"1024", "2048", "8192"}) {
      for (const char* batch : {"64", "128", "768"}) {
        for (const char* heads : {"64", "128"})
          found.push_back(std::string(batch) + "x" + length + ":" + heads + "p1");
      }
    }
  } else if (name == "long") {
    found = {"128x4096:128", "128x8192:128", "128x32768:128", "128x4096:128:2c", "128x8192:128:2c"};
  } else if (name == "heads") {
    found = {"128x4096:64", "128x8192:64",    "128x8192:32",
             "128x4096:16", "128x4096:16:2c", "768x8192:64"};
  } else if (name == "small") {
    found = {"1x4096:128", "1x131072:16", "32x4096:128", "4641+45118+1730+1696:16:4c",
             "64x1024:64"};
  }
  return found;
}

}  // namespace

int64_t MlaDecodeCase::pages() const {
  int64_t sum = 0;
  for (const int64_t length : lengths) sum += (length + page - 1) / page;
  return std::max<int64_t>(sum, 1);
}

int64_t MlaDecodeCase::pages_of_longest() const {
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  return std::max<int64_t>((longest + page - 1) / page, 1);
}

int64_t MlaDecodeCase::total() const {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

double MlaDecodeCase::flops() const {
  double pairs = static_cast<double>(topk != 0 ? rows_read() : 0);
  for (const int64_t length : lengths) {
    for (int64_t i = 0; topk == 0 && i < new_tokens; ++i) {
      pairs +=
          static_cast<double>(causal ? std::max<int64_t>(0, length - new_tokens + i + 1) : length);
    }
  }
  return 2 * pairs * static_cast<double>(heads * (columns() + 512));
}

std::vector<MlaDecodeCase> make_mla_decode_cases(const std::vector<std::string>& shapes,
                                                 const std::vector<std::string>& dtypes) {
  std::vector<MlaDecodeCase> cases;
  for (const std::string& dtype : dtypes) {
    for (const std::string& shape : shapes) {
      std::vector<std::string> list = list_of(shape);
      if (list.empty()) list.push_back(shape);
      for (const std::string& text : list) {
        cases.push_back(parse(text));
        cases.back().dtype = dtype;
      }
    }
  }
  return cases;
}

namespace {

std::string line_of(const MlaDecodeCase& c) {
  std::string line = "mla_decode sm_scale=0.07216878364870322";  // 1 / sqrt(128 + 64)
  line += " total_kv_hint=" + std::to_string(c.rows_read());
  if (c.causal) line += " causal=1";
  const int64_t tokens = c.tokens();
  const auto fused = [&](const char* latent, const char* rotary, int64_t outer, int64_t inner,
                         int64_t columns) {
    const std::vector<int64_t> strides = {inner * columns, columns, 1};
    line += tensor_words(latent, c.dtype, {outer, inner, columns - 64}, strides) +
            tensor_words(rotary, c.dtype, {outer, inner, 64}, strides,
                         (columns - 64) * c.element_bytes());
  };
  const auto cache = [&](const char* latent, const char* rotary, const char* bytes) {
    if (c.format == 0) return fused(latent, rotary, c.pages(), c.page, 576);
    line += tensor_words(bytes, "u8", {c.pages(), c.page, c.format});
  };
  const auto indices = [&](const char* field, int64_t topk) {
    line += tensor_words(field, "i32", {c.requests(), c.new_tokens, topk});
  };
  fused("q_nope", "q_pe", tokens, c.heads, c.columns());
  if (c.format != 0) line += " cache_format=bytes_" + std::to_string(c.format);
  if (c.format == 576) line += tensor_words("cache_scale", "f32", {1});
  cache("ckv", "kpe", "cache");
  if (c.topk == 0) {
    line += tensor_words("kv_len", "i32", {c.requests()}) +
            tensor_words("page_table", "i32", {c.requests(), c.pages_of_longest()});
  } else {
    indices("indices", c.topk);
  }
  if (c.extra_topk != 0) {
    cache("extra_ckv", "extra_kpe", "extra_cache");
    indices("extra_indices", c.extra_topk);
  }
  return line + tensor_words("o", c.dtype, {tokens, c.heads, 512}) +
         tensor_words("lse", "f32", {tokens, c.heads});
}

}  // namespace

MlaDecodeCall::MlaDecodeCall(const MlaDecodeCase& c, int32_t device_type, const MlaDecodeBuffers& b)
    : call_(line_of(c), device_type) {
  set(b);
}

void MlaDecodeCall::set(const MlaDecodeBuffers& b) {
  q_nope_->data = q_pe_->data = b.query;
  ckv_->data = kpe_->data = bytes_->data = b.cache;
  extra_ckv_->data = extra_kpe_->data = extra_bytes_->data = b.extra;
  indices_->data = b.indices;
  extra_indices_->data = b.extra_indices;
  scale_->data = b.scale;
  lengths_->data = b.lengths;
  table_->data = b.table;
  o_->data = b.o;
  lse_->data = b.lse;
}

fastnorm_info MlaDecodeCall::query(fastnorm_context* context) const {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_mla_decode_query(context, args(), &info));
  return info;
}

void MlaDecodeCall::prepare(fastnorm_context* context) const {
  check(fastnorm_mla_decode_prepare(context, args()));
}

void MlaDecodeCall::run(fastnorm_context* context, void* workspace, size_t workspace_bytes,
                        void* stream) const {
  check(fastnorm_mla_decode(context, args(), workspace, workspace_bytes, stream));
}

std::vector<int32_t> mla_decode_table(const MlaDecodeCase& c) {
  std::vector<int32_t> order(static_cast<size_t>(c.pages()));
  std::iota(order.begin(), order.end(), 0);
  uint64_t state = 1;
  for (size_t i = order.size(); i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1], order[(state >> 33) % i]);
  }
  const auto width = static_cast<size_t>(c.pages_of_longest());
  std::vector<int32_t> table(width * c.lengths.size());
  size_t next = 0;
  for (size_t b = 0; b < c.lengths.size(); ++b) {
    for (int64_t i = 0; i * c.page < c.lengths[b]; ++i)
      table[b * width + static_cast<size_t>(i)] = order[next++];
  }
  return table;
}

std::vector<int32_t> mla_decode_indices(const MlaDecodeCase& c, int64_t topk, uint64_t seed) {
  const std::vector<int32_t> table = mla_decode_table(c);
  const auto width = static_cast<size_t>(c.pages_of_longest());
  std::vector<int32_t> indices;
  uint64_t state = seed;
  for (size_t b = 0; b < c.lengths.size(); ++b) {
    for (int64_t i = 0; i < c.new_tokens * topk; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto token = static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(c.lengths[b]));
      const int64_t page = table[b * width + static_cast<size_t>(token / c.page)];
      indices.push_back(static_cast<int32_t>(page * c.page + token % c.page));
    }
  }
  return indices;
}

void make_fp8_rows(char* cache, const MlaDecodeCase& c, int64_t pages) {
  const int64_t codes = c.format == 656 ? 512 : c.format == 576 ? 576 : 448;
  const bool behind = c.format == 584;
  constexpr float kOne = 1.0f;
  for (int64_t row = 0; row < pages * c.page; ++row) {
    char* const page = cache + row / c.page * c.page * c.format;
    char* const at = page + row % c.page * (behind ? 576 : c.format);
    for (int64_t i = 0; i < codes; ++i) at[i] = static_cast<char>(0x30 + (at[i] & 0x8f));
    for (int64_t b = 0; c.format == 656 && b < 4; ++b)
      std::memcpy(at + 512 + 4 * b, &kOne, sizeof kOne);
    if (behind) std::memset(page + c.page * 576 + row % c.page * 8, 127, 8);
  }
}

namespace {

nlohmann::json or_null(double rate) { return rate > 0 ? nlohmann::json(rate) : nlohmann::json(); }

nlohmann::json share_of(double rate, double ceiling) {
  return ceiling > 0 ? nlohmann::json(rate / ceiling) : nlohmann::json();
}

nlohmann::json row_of(const MlaDecodeCase& c, const MlaDecodeCeilings& ceilings,
                      const MlaDecodeResult& r) {
  const double gb = static_cast<double>(c.bytes_moved()) / r.us / 1e3,
               tflop = c.flops() / r.us / 1e6;
  nlohmann::json j = {{"shape", c.text},
                      {"dtype", c.dtype},
                      {"requests", c.requests()},
                      {"cached_tokens", c.total()},
                      {"heads", c.heads},
                      {"new_tokens", c.new_tokens},
                      {"page", c.page},
                      {"causal", c.causal},
                      {"row_bytes", c.row_bytes()},
                      {"topk", c.topk},
                      {"extra_topk", c.extra_topk},
                      {"bytes", c.bytes_moved()},
                      {"flops", c.flops()},
                      {"us", r.us},
                      {"spread", r.spread},
                      {"plan_us", r.plan_us < 0 ? nlohmann::json() : nlohmann::json(r.plan_us)},
                      {"gb_per_s", gb},
                      {"tflop_per_s", tflop},
                      {"share_of_read", share_of(gb, ceilings.read_gb_per_s)},
                      {"share_of_copy", share_of(gb, ceilings.copy_gb_per_s)},
                      {"share_of_matmul", share_of(tflop, ceilings.matmul_tflop_per_s)},
                      {"kernel", r.kernel},
                      {"workspace_bytes", r.workspace_bytes}};
  j.update(r.more);
  return j;
}

void print(const nlohmann::json& j) {
  const auto share = [&](const char* key) {
    return j[key].is_null()
               ? std::string("-")
               : std::to_string(static_cast<int>(100 * j[key].get<double>() + 0.5)) + "%";
  };
  std::printf("%-28s %-4s %11.2f %7.1f%% %9.1f %8.2f %6s %6s %7s  %s\n",
              j["shape"].get<std::string>().c_str(), j["dtype"].get<std::string>().c_str(),
              j["us"].get<double>(), 100 * j["spread"].get<double>(), j["gb_per_s"].get<double>(),
              j["tflop_per_s"].get<double>(), share("share_of_read").c_str(),
              share("share_of_copy").c_str(), share("share_of_matmul").c_str(),
              j["kernel"].get<std::string>().c_str());
  std::fflush(stdout);
}

}  // namespace

int time_all_mla_decode(const std::vector<MlaDecodeCase>& cases, const MlaDecodeCeilings& ceilings,
                        const std::function<MlaDecodeResult(const MlaDecodeCase&)>& time,
                        const std::function<void(const nlohmann::json&)>& save,
                        nlohmann::json* document) {
  (*document)["ceilings"] = {{"read_gb_per_s", or_null(ceilings.read_gb_per_s)},
                             {"copy_gb_per_s", or_null(ceilings.copy_gb_per_s)},
                             {"matmul_tflop_per_s", or_null(ceilings.matmul_tflop_per_s)}};
  std::printf("ceilings of this run: read %.1f GB/s, copy %.1f GB/s, bf16 matmul ",
              ceilings.read_gb_per_s, ceilings.copy_gb_per_s);
  if (ceilings.matmul_tflop_per_s > 0) {
    std::printf("%.1f TFLOP/s\n", ceilings.matmul_tflop_per_s);
  } else {
    std::printf("not measured\n");
  }
  std::printf("%-28s %-4s %11s %8s %9s %8s %6s %6s %7s  %s\n", "shape", "type", "us", "spread",
              "GB/s", "TFLOP/s", "read", "copy", "matmul", "kernel");
  int failed = 0;
  nlohmann::json& results = (*document)["results"] = nlohmann::json::array();
  for (const MlaDecodeCase& c : cases) {
    try {
      results.push_back(row_of(c, ceilings, time(c)));
      print(results.back());
    } catch (const std::exception& e) {
      std::printf("%-28s %-4s failed: %s\n", c.text.c_str(), c.dtype.c_str(), e.what());
      results.push_back({{"shape", c.text}, {"dtype", c.dtype}, {"error", e.what()}});
      ++failed;
    }
    save(*document);
  }
  return failed;
}

}  // namespace bench
