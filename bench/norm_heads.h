// Query, key and value heads in the benchmark: cases, what a call moves, its arguments, its table.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/devices.h"
#include "bench/line_call.h"
#include "fastnorm/fastnorm.h"

namespace bench {

// A layer's heads: norm and rope of query and key in place, or of the query in place with key and
// value to a cache. Or the latents of MLA: norm of 512 columns and rope of 64 behind them, or of 64
// among them, as rows of 584 bytes. Or the heads of an indexer: LayerNorm of a key, rope, rotation
// and codes, and weights of 64 query heads.
struct NormHeadsCase {
  std::string text;   // as it was asked for: "4096x32+8x128:fp8:across", "4096xmla:own"
  std::string cache;  // "none", "own" (x's dtype) or "fp8"
  std::string dtype;
  bool across = false;  // one statistic for all heads of a token, and a weight for each head
  bool indexer = false;
  bool tail = false;  // of MLA's rows: the last columns have no codes
  int64_t tokens = 0, query = 0, key = 0, columns = 0;

  static constexpr int64_t kPage = 64, kTableRows = 8192;

  bool mla() const { return query == 0; }
  bool in_place() const { return cache == "none"; }
  int64_t element_bytes() const { return dtype == "f32" ? 4 : 2; }
  int64_t rope_dim() const { return mla() || indexer ? 64 : columns; }
  int64_t pages() const { return (tokens + kPage - 1) / kPage; }
  // Bytes of a token in the buffer, and of its row in the caches of all heads.
  int64_t token_bytes() const {
    if (indexer) return ((query + key) * columns + query) * element_bytes();
    return (tail ? 512 : mla() ? 576 : (query + 2 * key) * columns) * element_bytes();
  }
  int64_t cached_bytes() const;
  // Bytes of a token that a call reads, and that it writes.
  int64_t read_bytes() const {
    return mla() || !in_place() ? token_bytes() : (query + key) * columns * element_bytes();
  }
  int64_t written_bytes() const {
    if (in_place()) return read_bytes();
    if (indexer) return cached_bytes() + query_bytes();
    return cached_bytes() + (mla() ? 0 : query * columns * element_bytes());
  }
  int64_t buffer_bytes() const { return tokens * token_bytes(); }
  // An indexer's codes, scales and weights of a token, which lie behind the cache.
  int64_t query_bytes() const { return indexer ? query * (columns + 8) : 0; }
  int64_t key_bytes() const { return pages() * kPage * cached_bytes(); }
  int64_t cache_bytes() const { return key_bytes() + tokens * query_bytes(); }
  // Tables, positions, slots and weights are shared by all layers, and not counted.
  int64_t bytes_moved() const { return tokens * (read_bytes() + written_bytes()); }
  // What a stream that reads as much as it writes moves in each direction, rounded up to a vector.
  int64_t stream_bytes() const { return (bytes_moved() / 2 + 15) / 16 * 16; }
};

// "TOKENSxQUERY+KEYxHEAD[:CACHE][:across]" or "TOKENSxmla[:CACHE]", CACHE being none, own or fp8;
// "TOKENSxmla584" or "TOKENSxindexer"; or the name of a list. Throws std::invalid_argument.
std::vector<NormHeadsCase> make_norm_heads_cases(const std::vector<std::string>& shapes,
                                                 const std::vector<std::string>& dtypes);

// A model's layer: its heads, "mla", "mla584", "indexer", or "" if the name is none of a list.
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

class NormHeadsCall {
 public:
  NormHeadsCall(const NormHeadsCase& c, int32_t device_type, const NormHeadsBuffers& b);

  void set(const NormHeadsBuffers& b);
  fastnorm_info query(fastnorm_context* context) const;
  void prepare(fastnorm_context* context) const;
  // Neither this nor prepare has a workspace: query throws where one is needed.
  void run(fastnorm_context* context, void* stream) const;

 private:
  const fastnorm_norm_heads_args* args() const { return &call_.args<fastnorm_norm_heads_args>(); }
  const fastnorm_norm_heads_part* const* parts() const {
    return call_.parts<fastnorm_norm_heads_part>();
  }

  LineCall call_;
  std::vector<fastnorm_tensor*> x_, cache_, weight_;
  fastnorm_tensor *cos_ = call_.tensor("cos"), *sin_ = call_.tensor("sin"),
                  *positions_ = call_.tensor("positions"), *slots_ = call_.tensor("slots"),
                  *scale_ = call_.tensor("parts[1].cache_quant.scale"),
                  *scale_of_values_ = call_.tensor("parts[2].cache_quant.scale");
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

}  // namespace bench
