// Query, key and value heads in the benchmark: cases, what a call moves, its arguments, its table.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/devices.h"
#include "fastnorm/fastnorm.h"

namespace bench {

// A layer's heads: norm and rope of query and key in place, or of the query in place with key and
// value to a cache. Or the latents of MLA: norm of 512 columns and rope of 64 behind them.
struct NormHeadsCase {
  std::string text;   // as it was asked for: "4096x32+8x128:fp8:across", "4096xmla:own"
  std::string cache;  // "none", "own" (x's dtype) or "fp8"
  std::string dtype;
  bool across = false;  // one statistic for all heads of a token, and a weight for each head
  int64_t tokens = 0, query = 0, key = 0, columns = 0;

  static constexpr int64_t kPage = 64, kTableRows = 8192;

  bool mla() const { return query == 0; }
  bool in_place() const { return cache == "none"; }
  int64_t element_bytes() const { return dtype == "f32" ? 4 : 2; }
  int64_t rope_dim() const { return mla() ? 64 : columns; }
  int64_t pages() const { return (tokens + kPage - 1) / kPage; }
  // Bytes of a token in the buffer, and of its row in the caches of all heads.
  int64_t token_bytes() const {
    return (mla() ? 576 : (query + 2 * key) * columns) * element_bytes();
  }
  int64_t cached_bytes() const;
  // Bytes of a token that a call reads, and that it writes.
  int64_t read_bytes() const {
    return mla() || !in_place() ? token_bytes() : (query + key) * columns * element_bytes();
  }
  int64_t written_bytes() const {
    if (in_place()) return read_bytes();
    return cached_bytes() + (mla() ? 0 : query * columns * element_bytes());
  }
  int64_t buffer_bytes() const { return tokens * token_bytes(); }
  int64_t cache_bytes() const { return pages() * kPage * cached_bytes(); }
  // Tables, positions, slots and weights are shared by all layers, and not counted.
  int64_t bytes_moved() const { return tokens * (read_bytes() + written_bytes()); }
  // What a stream that reads as much as it writes moves in each direction, rounded up to a vector.
  int64_t stream_bytes() const { return (bytes_moved() / 2 + 15) / 16 * 16; }
};

// "TOKENSxQUERY+KEYxHEAD[:CACHE][:across]" or "TOKENSxmla[:CACHE]", CACHE being none, own or fp8;
// or the name of a list. Throws std::invalid_argument.
std::vector<NormHeadsCase> make_norm_heads_cases(const std::vector<std::string>& shapes,
                                                 const std::vector<std::string>& dtypes);

// A model's layer: its heads, "mla", or "" if the name is none of a list.
struct HeadsOfList {
  const char* name;
  const char* heads;
  bool across;
};
HeadsOfList heads_of_list(const std::string& name);
inline constexpr const char* kHeadsTokens[] = {"1", "16", "64", "256", "1024", "4096", "16384"};

// TOKENSxQUERY+KEYxHEAD to its four numbers. False if it is none.
bool parse_heads_shape(const std::string& text, NormHeadsCase* c);

struct NormHeadsResult {
  double us = 0, spread = 0, ceiling_us = 0;
  double pdl_us = 0;  // with programmatic dependent launch between the calls; 0: not timed
  std::string ceiling, kernel;
  nlohmann::json more = nlohmann::json::object();
};

// What the calls of a case share, on the host.
struct NormHeadsTables {
  std::vector<float> cos, sin, scale;
  std::vector<int32_t> positions, slots;
  // Ones: calls in place would otherwise make their rows smaller from pass to pass, down to
  // denormal numbers.
  std::vector<char> weight;

  explicit NormHeadsTables(const NormHeadsCase& c);
};

// Addresses of a call's tensors.
struct NormHeadsBuffers {
  char *x, *cache, *weight;
  float *cos, *sin, *scale;
  int32_t *positions, *slots;
};

// A tensor of a call, with its arrays.
struct HeadsTensor {
  int64_t shape[4] = {}, strides[4] = {};
  fastnorm_tensor tensor = {};

  // Without strides it is compact.
  const fastnorm_tensor* describe(int32_t device_type, fastnorm_dtype dtype,
                                  std::vector<int64_t> extents, std::vector<int64_t> steps = {},
                                  int64_t offset = 0);
};

fastnorm_dtype dtype_of(const NormHeadsCase& c);

// Not copyable: the arguments point inside.
class NormHeadsCall {
 public:
  NormHeadsCall(const NormHeadsCase& c, int32_t device_type, const NormHeadsBuffers& b);
  NormHeadsCall(const NormHeadsCall&) = delete;
  NormHeadsCall& operator=(const NormHeadsCall&) = delete;

  void set(const NormHeadsBuffers& b);
  fastnorm_info query(fastnorm_context* context) const;
  void prepare(fastnorm_context* context) const;
  // Neither this nor prepare has a workspace: query throws where one is needed.
  void run(fastnorm_context* context, void* stream) const;

 private:
  enum Part { kFirst, kSecond, kThird, kParts };

  const fastnorm_tensor* describe(HeadsTensor* t, fastnorm_dtype dtype, std::vector<int64_t> shape,
                                  std::vector<int64_t> strides = {}, int64_t offset = 0) {
    return t->describe(device_type_, dtype, std::move(shape), std::move(strides), offset);
  }
  void add_heads(const NormHeadsCase& c);
  void add_latents(const NormHeadsCase& c);

  int32_t device_type_;
  fastnorm_dtype dtype_;
  HeadsTensor x_[kParts], cache_[kParts], weight_[kParts], cos_, sin_, scale_, positions_, slots_;
  fastnorm_norm_heads_part part_[kParts] = {};
  fastnorm_quant quant_ = {};  // of the caches
  const fastnorm_norm_heads_part* parts_[kParts] = {&part_[0], &part_[1], &part_[2]};
  int32_t count_ = 0;
  fastnorm_norm_heads_args args_ = {};
};

// Prints a row for each case, and saves the rows. Of norm_heads and its backward pass.
class HeadsTable {
 public:
  HeadsTable(std::function<void(const nlohmann::json&)> save, nlohmann::json* document);

  // `more`: what the row has beside what every row has.
  void add(const NormHeadsCase& c, int64_t bytes, nlohmann::json more,
           const std::function<NormHeadsResult()>& time);
  int failed() const { return failed_; }

 private:
  std::function<void(const nlohmann::json&)> save_;
  nlohmann::json* document_;
  int failed_ = 0;
};

inline const NormHeadsCase& heads_of_case(const NormHeadsCase& c) { return c; }
inline nlohmann::json columns_of_case(const NormHeadsCase& c) { return {{"cache", c.cache}}; }

// As time_all, for these cases or those of the backward pass.
template <class Case>
int time_all_heads(const std::vector<Case>& cases,
                   const std::function<NormHeadsResult(const Case&)>& time,
                   const std::function<void(const nlohmann::json&)>& save,
                   nlohmann::json* document) {
  HeadsTable table(save, document);
  for (const Case& c : cases)
    table.add(heads_of_case(c), c.bytes_moved(), columns_of_case(c), [&] { return time(c); });
  return table.failed();
}

int bench_norm_heads_cpu(const std::vector<NormHeadsCase>& cases, const Options& options);
int bench_norm_heads_cuda(int id, const std::vector<NormHeadsCase>& cases, const Options& options);

}  // namespace bench
