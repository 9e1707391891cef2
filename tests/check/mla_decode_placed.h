// An MLA decode case with its place in one block of memory, and its call of the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "check/mla_decode_case.h"
#include "core/mla_decode/check.h"

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
  // Inputs as floats: 576 for a query row; [kv_len][576] for a request's cache, or for the rows
  // that one new token of a sparse call selects.
  std::vector<float> query(int64_t token, int64_t head) const;
  std::vector<float> latents(size_t request) const;
  std::vector<float> selected(size_t request, int32_t token, bool with_extra) const;
  // How many rows a new token attends to.
  int64_t allowed(size_t request, int32_t token, bool causal) const;
  double sink(int64_t head) const;

  const MlaPlace& o() const { return o_; }
  const MlaPlace& lse() const { return lse_; }
  int64_t rows() const { return first_token_.back() * int64_t{case_.heads}; }

 private:
  // A cache in the block: the first, or the one beside it.
  struct Cache {
    MlaPlace ckv, kpe;  // FP8: the bytes are ckv
    int32_t pages = 0, page = 1;
    uint64_t salt = 0;  // of its values
  };
  // The indices of one cache: [new tokens][topk], of which `lengths` count.
  struct Indices {
    std::vector<int32_t> rows, lengths;
    int64_t at = 0, lengths_at = 0;
  };

  int64_t element() const { return ref::bytes_of(case_.dtype); }
  int64_t q_columns() const { return case_.format == ref::MlaFormat::k584 ? 448 : 512; }
  void place_cache(Cache* cache, int64_t* at) const;
  void place_indices(const MlaSelection& s, Indices* indices, int64_t* at) const;
  void make_indices(const MlaSelection& s, uint64_t seed, Indices* indices) const;
  template <class Body>
  void for_each_selected(const MlaSelection& s, const Indices& indices, int64_t token,
                         const Body& body) const;
  std::vector<std::byte> row_bytes(const Cache& cache, int64_t page, int64_t row) const;
  std::vector<float> row_values(const Cache& cache, int64_t page, int64_t row) const;
  float tensor_scale() const;
  void put_row(const Cache& cache, int64_t page, int64_t row, std::vector<std::byte>* block) const;
  void put_indices(const MlaSelection& s, const Indices& indices, const Cache& cache,
                   std::vector<std::byte>* block) const;
  MlaPlace place_rows(int64_t outer, int64_t inner, int64_t columns, int64_t* at) const;
  void make_lists();
  const float* query_values(int64_t token, int64_t head) const;
  const float* latent_values(const Cache& cache, int64_t page, int64_t row) const;

  MlaCase case_;
  std::vector<int32_t> first_token_;
  std::vector<std::vector<int32_t>> lists_;  // pages of each request
  int32_t table_columns_ = 0, table_stride_ = 0;
  Cache cache_, extra_;
  Indices indices_, extra_indices_;
  MlaPlace q_nope_, q_pe_, o_, lse_;
  int64_t kv_len_at_ = 0, table_at_ = 0, kv_indptr_at_ = 0, qo_indptr_at_ = 0;
  int64_t scale_at_ = 0, sink_at_ = 0;
  size_t bytes_ = 0;
  std::vector<float> pool_;         // values of the case's dtype; rows are windows of it
  std::vector<std::byte> encoded_;  // the same, as stored
};

}  // namespace fastnorm::check
