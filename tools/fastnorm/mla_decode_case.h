// A batch for MLA decode on random data: its tensors on a machine, and the formula in double
// precision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine.h"

namespace fastnorm::tool {

struct MlaDecodeOptions {
  std::vector<int64_t> lengths = {1000};  // cached tokens of each request; one number for all
  std::vector<int64_t> new_tokens = {1};  // likewise
  int64_t batch = 4, heads = 16, page = 64, split_tokens = 0, profile_events = 0, seed = 0;
  std::string dtype = "bf16", lse_base = "natural";
  double scale = 0.07216878364870322;  // 1 / sqrt(128 + 64)
  bool causal = false, csr = false, separate = false;

  // Throws CommandError where the numbers of requests differ; then both lists have one number a
  // request.
  void expand();
  bool is_ragged() const;
};

// Sizes of a batch.
class MlaDecodeShape {
 public:
  explicit MlaDecodeShape(const MlaDecodeOptions& options);

  int64_t tokens = 0, pages = 0, max_pages = 0, max_new = 0, total_kv = 0;
  int64_t rows = 0;             // new tokens times heads
  int64_t element = 0;          // bytes
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
  int64_t page_ = 0, heads_ = 0;
};

// What all sets of a batch share: random numbers on the host, lists of pages, lengths.
class MlaDecodeData {
 public:
  MlaDecodeData(const MlaDecodeOptions& options, const MlaDecodeShape& shape);

  std::vector<std::byte> query;  // [tokens, heads, 576]
  std::vector<std::byte> cache;  // [pages, page, 576]; NaN behind the end of a request
  std::vector<int32_t> lengths, table;

  // Byte of cached token j of request b.
  size_t at(const MlaDecodeOptions& options, const MlaDecodeShape& shape, int64_t b,
            int64_t j) const;
};

// The tensors of one call on a machine. Not movable: the arguments point inside.
class MlaDecodeCall {
 public:
  MlaDecodeCall(const Machine& machine, const MlaDecodeOptions& options,
                const MlaDecodeShape& shape, const MlaDecodeData& data);
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

  const Machine& machine_;
  const MlaDecodeShape& shape_;
  size_t cache_bytes_, profile_bytes_ = 0;
  Block query_, cache_, lengths_, table_, indptr_, first_, o_, lse_, profile_, spare_;
  TensorView views_[11];
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
                                   const MlaDecodeData& data, const std::vector<std::byte>& o,
                                   const std::vector<float>& lse, int64_t rows);

}  // namespace fastnorm::tool
