#include "bench/mla_decode.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <stdexcept>

#include "bench/call.h"

namespace bench {
namespace {

constexpr int64_t kMost = int64_t{1} << 24;

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument(
      "'" + text +
      "' is no shape of MLA decode; required: LENGTHS:HEADS[:NEW][c][pPAGE], such as "
      "128x4096:128:2cp64 or 4641+1730:16, or one of page1, long, heads, small");
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
  double pairs = 0;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < new_tokens; ++i) {
      pairs +=
          static_cast<double>(causal ? std::max<int64_t>(0, length - new_tokens + i + 1) : length);
    }
  }
  return 2 * pairs * static_cast<double>(heads) * (576 + 512);
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

MlaDecodeCall::MlaDecodeCall(const MlaDecodeCase& c, int32_t device_type,
                             const MlaDecodeBuffers& b) {
  const fastnorm_dtype dtype = fastnorm_dtype_of(c.dtype == "f32"   ? FASTNORM_DTYPE_F32
                                                 : c.dtype == "f16" ? FASTNORM_DTYPE_F16
                                                                    : FASTNORM_DTYPE_BF16);
  const int64_t tokens = c.requests() * c.new_tokens;
  const auto tensor = [&](fastnorm_tensor* t, fastnorm_dtype type, int32_t rank, int64_t* shape,
                          int64_t* strides = nullptr, int64_t offset = 0) {
    *t = {nullptr, device_type, 0, rank, type, shape, strides, static_cast<uint64_t>(offset)};
    return t;
  };
  const auto fused = [&](int64_t(&shapes)[2][3], int64_t(&strides)[3], int64_t outer, int64_t inner,
                         fastnorm_tensor* latent, fastnorm_tensor* rotary) {
    for (int part = 0; part < 2; ++part) {
      shapes[part][0] = outer;
      shapes[part][1] = inner;
      shapes[part][2] = part == 0 ? 512 : 64;
    }
    strides[0] = inner * 576;
    strides[1] = 576;
    strides[2] = 1;
    tensor(latent, dtype, 3, shapes[0], strides);
    tensor(rotary, dtype, 3, shapes[1], strides, 512 * c.element_bytes());
  };
  fused(query_shape_, query_strides_, tokens, c.heads, &q_nope_, &q_pe_);
  fused(cache_shape_, cache_strides_, c.pages(), c.page, &ckv_, &kpe_);
  batch_ = c.requests();
  table_shape_[0] = batch_;
  table_shape_[1] = c.pages_of_longest();
  o_shape_[0] = tokens;
  o_shape_[1] = c.heads;
  o_shape_[2] = 512;
  const fastnorm_dtype i32 = fastnorm_dtype_of(FASTNORM_DTYPE_I32);
  args_.struct_size = sizeof args_;
  args_.sm_scale = 0.07216878364870322;  // 1 / sqrt(128 + 64)
  args_.causal = c.causal ? 1 : 0;
  args_.total_kv_hint = c.total();
  args_.q_nope = &q_nope_;
  args_.q_pe = &q_pe_;
  args_.ckv = &ckv_;
  args_.kpe = &kpe_;
  args_.kv_len = tensor(&lengths_, i32, 1, &batch_);
  args_.page_table = tensor(&table_, i32, 2, table_shape_);
  args_.o = tensor(&o_, dtype, 3, o_shape_);
  args_.lse = tensor(&lse_, fastnorm_dtype_of(FASTNORM_DTYPE_F32), 2, o_shape_);
  set(b);
}

void MlaDecodeCall::set(const MlaDecodeBuffers& b) {
  q_nope_.data = q_pe_.data = b.query;
  ckv_.data = kpe_.data = b.cache;
  lengths_.data = b.lengths;
  table_.data = b.table;
  o_.data = b.o;
  lse_.data = b.lse;
}

fastnorm_info MlaDecodeCall::query(fastnorm_context* context) const {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_mla_decode_query(context, &args_, &info));
  return info;
}

void MlaDecodeCall::prepare(fastnorm_context* context) const {
  check(fastnorm_mla_decode_prepare(context, &args_));
}

void MlaDecodeCall::run(fastnorm_context* context, void* workspace, size_t workspace_bytes,
                        void* stream) const {
  check(fastnorm_mla_decode(context, &args_, workspace, workspace_bytes, stream));
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
