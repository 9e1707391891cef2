// A batch for MLA decode on random data: its tensors on a machine, and the formula in double
// precision.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "machine.h"

namespace fastnorm::tool {

struct MlaDecodeOptions {
  std::vector<int64_t> lengths = {1000};  // cached tokens of each request; one number for all
  std::vector<int64_t> new_tokens = {1};  // likewise
  int64_t batch = 4, heads = 16, page = 64, split_tokens = 0, profile_events = 0, seed = 0;
  int64_t topk = 0;  // rows that each new token selects; 0: all of its request
  // A second cache: tokens of each request, tokens of a page, rows that are selected; 0: none.
  int64_t extra_length = 1000, extra_page = 64, extra_topk = 0;
  std::string dtype = "bf16", lse_base = "natural", cache = "rows";
  double scale = 0.07216878364870322;  // 1 / sqrt(128 + 64)
  bool causal = false, csr = false, separate = false, sink = false;
  bool topk_lengths = false;  // a random number of each new token's indices counts

  // Throws CommandError where the numbers of requests differ, or where options exclude each other.
  // Then both lists have one number a request.
  void expand();
  bool is_ragged() const;
  // Those of a call with the second cache as its only one.
  MlaDecodeOptions of_extra() const;
  fastnorm_mla_cache_format format() const;
  bool is_bytes() const { return format() != FASTNORM_MLA_CACHE_ROWS; }
  // Columns of a query without its rotary part, and of a query.
  int64_t nope() const;
};

// Sizes of a batch.
class MlaDecodeShape {
 public:
  explicit MlaDecodeShape(const MlaDecodeOptions& options);

  int64_t tokens = 0, pages = 0, max_pages = 0, max_new = 0, total_kv = 0;
  int64_t rows = 0;             // new tokens times heads
  int64_t element = 0;          // bytes
  int64_t row_bytes = 0;        // of the cache
  int64_t selected = 0;         // rows of all caches that new tokens select; 0 without --topk
  std::vector<int32_t> first;   // [B + 1], where new tokens begin
  std::vector<int32_t> indptr;  // [B + 1], where pages begin

  size_t query_bytes() const;
  size_t cache_bytes() const;   // of all pages
  size_t output_bytes() const;  // of o
  // Query and the latents of each request read once, o and lse written once.
  double bytes_moved() const;
  // Multiply-adds of both products, times two. Causal: without the pairs that are not allowed.
  double flops() const;

 private:
  double allowed_ = 0;  // pairs of a new token and a cached one
  int64_t page_ = 0, heads_ = 0, nope_ = 0;
};

// What all sets of a batch share: random numbers on the host, lists of pages, lengths.
class MlaDecodeData {
 public:
  MlaDecodeData(const MlaDecodeOptions& options, const MlaDecodeShape& shape);

  std::vector<std::byte> query;  // [tokens, heads, columns]
  std::vector<std::byte> cache;  // [pages, page, row]; NaN behind the end of a request
  std::vector<int32_t> lengths, table;
  std::vector<int32_t> indices;       // [tokens, topk]; a sixth of them -1
  std::vector<int32_t> topk_lengths;  // [tokens], from 0 to topk
  std::vector<float> sinks;           // [heads]
  float scale = 0.5f;                 // of codes that have one scale

  // Number of the row of cached token j of request b.
  int64_t row_of(const MlaDecodeOptions& options, const MlaDecodeShape& shape, int64_t b,
                 int64_t j) const;
  // Rows of the cache that a new token of request b attends to.
  std::vector<int64_t> allowed_rows(const MlaDecodeOptions& options, const MlaDecodeShape& shape,
                                    int64_t b, int64_t token) const;
  // The 576 columns of a row. Heads of 512 have zeros behind them.
  std::vector<double> columns(const MlaDecodeOptions& options, const MlaDecodeShape& shape,
                              int64_t row) const;

 private:
  void put_row(const MlaDecodeOptions& options, const MlaDecodeShape& shape, int64_t row,
               class Random& random);
};

// A second cache beside the first one, where the call has one.
struct MlaDecodeExtra {
  explicit MlaDecodeExtra(const MlaDecodeOptions& call)
      : options(call.of_extra()), shape(options), data(options, shape) {}

  MlaDecodeOptions options;
  MlaDecodeShape shape;
  MlaDecodeData data;
};

// The random numbers of a call.
struct MlaDecodeInputs : MlaDecodeData {
  MlaDecodeInputs(const MlaDecodeOptions& options, const MlaDecodeShape& shape)
      : MlaDecodeData(options, shape) {
    if (options.extra_topk != 0) extra = std::make_unique<MlaDecodeExtra>(options);
  }
  std::unique_ptr<MlaDecodeExtra> extra;
};

// The tensors of one call on a machine. Not movable: the arguments point inside.
class MlaDecodeCall {
 public:
  MlaDecodeCall(const Machine& machine, const MlaDecodeOptions& options,
                const MlaDecodeShape& shape, const MlaDecodeInputs& data);
  MlaDecodeCall(const MlaDecodeCall&) = delete;
  MlaDecodeCall& operator=(const MlaDecodeCall&) = delete;

  fastnorm_mla_decode_args& args() { return args_; }
  fastnorm_info query() const;
  void add_profile(uint64_t bytes, int32_t events);
  // Outputs to NaN, so that what is not written is found.
  void poison();
  void run(const Block& workspace, size_t workspace_bytes) const;

  std::vector<std::byte> read_o() const;
  std::vector<float> read_lse() const;
  std::vector<std::byte> read_profile() const;
  std::byte* cache_memory() const { return cache_.get(); }
  std::byte* spare_memory() const { return spare_.get(); }
  // Memory of as many bytes as the cache, to copy it to.
  void add_spare();

 private:
  Block put(const void* data, size_t bytes);
  Block put_numbers(const std::vector<int32_t>& numbers) {
    return put(numbers.data(), numbers.size() * 4);
  }
  Block put_rows(const MlaDecodeOptions& options, const MlaDecodeShape& shape,
                 const std::vector<std::byte>& fused);
  const fastnorm_tensor* view(int which, const Block& memory, fastnorm_dtype dtype,
                              std::vector<int64_t> extents, std::vector<int64_t> strides = {},
                              int64_t offset = 0);
  // Where a cache goes: the number of its first view, and the fields of the args.
  struct CacheFields {
    int number;
    const fastnorm_tensor **latent, **rotary, **bytes;
  };
  void give_parts(const MlaDecodeOptions& options, const Block& memory, int64_t outer,
                  int64_t inner, int64_t latents, const CacheFields& to);
  void give_cache(const MlaDecodeOptions& options, const MlaDecodeShape& shape, const Block& memory,
                  const CacheFields& to);
  void give_query(const MlaDecodeOptions& options);
  void give_output(const MlaDecodeOptions& options);
  void give_selection(const MlaDecodeOptions& options, const MlaDecodeInputs& data);
  void give_lists(const MlaDecodeOptions& options);

  const Machine& machine_;
  const MlaDecodeShape& shape_;
  size_t cache_bytes_, profile_bytes_ = 0;
  Block query_, cache_, lengths_, table_, indptr_, first_, o_, lse_, profile_, spare_;
  Block indices_, topk_lengths_, sinks_, scale_;
  Block extra_, extra_indices_, extra_lengths_;
  TensorView views_[19];
  fastnorm_mla_decode_args args_ = {};
};

// How far a result is from the formula. `worst_o` and `worst_lse` are errors as shares of what is
// allowed: at most 1 is right.
struct MlaDecodeErrors {
  int64_t rows = 0, empty_rows = 0, wrong_rows = 0;
  double max_o = 0, max_lse = 0, worst_o = 0, worst_lse = 0;
};

// Compares `rows` rows of o and lse, spread over the batch, with the formula. Allowed is, for an
// element of o, (|o| + sum of p|v|) times 2^-8 for bf16, 2^-10 for f16 and 2^-16 for f32; for lse
// 2^-13 times its magnitude, at least 1. Empty rows must be exact.
MlaDecodeErrors compare_mla_decode(const MlaDecodeOptions& options, const MlaDecodeShape& shape,
                                   const MlaDecodeInputs& data, const std::vector<std::byte>& o,
                                   const std::vector<float>& lse, int64_t rows);

}  // namespace fastnorm::tool
