// An MLA decode case with its place in one block of memory, and its call of the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "check/mla_decode_case.h"
#include "core/mla_decode_check.h"

namespace fastnorm::check {

// Rows with two leading dimensions, as bytes from the block's start.
struct MlaPlace {
  int64_t base = 0, outer = 0, inner = 0;

  int64_t at(int64_t i, int64_t j) const { return base + i * outer + j * inner; }
};

class MlaPlaced {
 public:
  // `unaligned` follows the case's `odd`.
  explicit MlaPlaced(const MlaCase& what);

  const MlaCase& what() const { return case_; }
  size_t bytes() const { return bytes_; }  // of the block, without the workspace

  // The block before run number `pass`: inputs, and bytes that must not be read or written. If a
  // kernel reads those, results are NaN or differ between passes.
  std::vector<std::byte> fill(int pass) const;

  // The library's description of the call, for a block at `block`.
  fastnorm_status describe(std::byte* block, CheckedDevice device, bool reuse_plan,
                           MlaDecodeDesc* desc, Error& error) const;

  // The first new token of each request, then the number of all.
  const std::vector<int32_t>& first_token() const { return first_token_; }
  // Inputs as floats: 576 for a query row; [kv_len][576] for a request's cache.
  std::vector<float> query(int64_t token, int64_t head) const;
  std::vector<float> latents(size_t request) const;

  const MlaPlace& o() const { return o_; }
  const MlaPlace& lse() const { return lse_; }
  int64_t rows() const { return first_token_.back() * int64_t{case_.heads}; }

 private:
  int64_t element() const { return ref::bytes_of(case_.dtype); }
  MlaPlace place_rows(int64_t outer, int64_t inner, int64_t columns, int64_t* at) const;
  void make_lists();
  const float* query_values(int64_t token, int64_t head) const;
  const float* latent_values(int64_t page, int64_t row) const;

  MlaCase case_;
  std::vector<int32_t> first_token_;
  std::vector<std::vector<int32_t>> lists_;  // pages of each request
  int32_t pages_ = 0, table_columns_ = 0, table_stride_ = 0;
  MlaPlace q_nope_, q_pe_, ckv_, kpe_, o_, lse_;
  int64_t kv_len_at_ = 0, table_at_ = 0, kv_indptr_at_ = 0, qo_indptr_at_ = 0;
  size_t bytes_ = 0;
  std::vector<float> pool_;  // values of the case's dtype; rows are windows of it
};

}  // namespace fastnorm::check
