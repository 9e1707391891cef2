#include "mla_decode_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dtype.h"
#include "random.h"

namespace fastnorm::tool {
namespace {

constexpr int64_t kLatent = 512, kRotary = 64, kWide = kLatent + kRotary;
constexpr int32_t kGarbage = 2147480000;  // no page: entries of the table that no call may use

// One value of magnitude 1/2 to 2, of either sign.
void put_random(fastnorm_dtype_id dtype, Random& random, std::byte* to) {
  const uint64_t h = random.next();
  const bool negative = (h & 1) != 0;
  if (dtype == FASTNORM_DTYPE_F32) {
    const uint32_t sign = negative ? 0x80000000u : 0;
    const uint32_t bits = sign | (0x3f000000u + static_cast<uint32_t>(h >> 8 & 0xffffff));
    std::copy_n(reinterpret_cast<const std::byte*>(&bits), sizeof bits, to);
    return;
  }
  const uint32_t magnitude = dtype == FASTNORM_DTYPE_F16
                                 ? 0x3800u + static_cast<uint32_t>(h >> 8 & 0x7ff)
                                 : 0x3f00u + static_cast<uint32_t>(h >> 8 & 0xff);
  const auto bits = static_cast<uint16_t>(magnitude | (negative ? 0x8000u : 0));
  std::copy_n(reinterpret_cast<const std::byte*>(&bits), sizeof bits, to);
}

fastnorm_dtype_id id_of(const std::string& name) {
  return name == "f32" ? FASTNORM_DTYPE_F32
                       : (name == "f16" ? FASTNORM_DTYPE_F16 : FASTNORM_DTYPE_BF16);
}

std::vector<double> decoded(fastnorm_dtype dtype, const std::byte* from, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) {
    value = decode(dtype, from);
    from += element_bytes(dtype);
  }
  return values;
}

void expand_list(const char* name, int64_t batch, std::vector<int64_t>* list) {
  if (list->size() == 1) list->resize(static_cast<size_t>(batch), list->front());
  if (static_cast<int64_t>(list->size()) != batch) {
    throw CommandError(std::string(name) + " has " + std::to_string(list->size()) +
                       " numbers; required: one, or one for each of the " + std::to_string(batch) +
                       " requests");
  }
}

// One row of the formula.
struct Row {
  std::vector<double> o, magnitude;  // the sum of p v, and that of p |v|
  double lse = -std::numeric_limits<double>::infinity();
};

Row attend(const MlaDecodeOptions& options, const MlaDecodeShape& shape, const MlaDecodeData& data,
           int64_t b, int64_t token, int64_t head) {
  const fastnorm_dtype dtype = find_dtype(options.dtype)->dtype;
  const auto at = static_cast<size_t>(b);
  const int64_t length = options.lengths[at], count = options.new_tokens[at];
  const int64_t allowed = options.causal
                              ? std::max<int64_t>(0, length - count + (token - shape.first[at]) + 1)
                              : length;
  const std::vector<double> query = decoded(
      dtype,
      &data.query[static_cast<size_t>((token * options.heads + head) * kWide * shape.element)],
      kWide);
  Row row{std::vector<double>(kLatent), std::vector<double>(kLatent)};
  // The running maximum m: sums are relative to exp(m).
  double m = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t j = 0; j < allowed; ++j) {
    const std::vector<double> key =
        decoded(dtype, &data.cache[data.at(options, shape, b, j)], kWide);
    const double score =
        options.scale * std::inner_product(key.begin(), key.end(), query.begin(), 0.0);
    const double now = std::max(m, score), old = sum == 0 ? 0 : std::exp(m - now),
                 p = std::exp(score - now);
    m = now;
    sum = sum * old + p;
    for (size_t i = 0; i < static_cast<size_t>(kLatent); ++i) {
      row.o[i] = row.o[i] * old + p * key[i];
      row.magnitude[i] = row.magnitude[i] * old + p * std::abs(key[i]);
    }
  }
  if (allowed == 0) return row;
  for (double& value : row.o) value /= sum;
  for (double& value : row.magnitude) value /= sum;
  row.lse = (m + std::log(sum)) / (options.lse_base == "2" ? std::log(2.0) : 1.0);
  return row;
}

}  // namespace

void MlaDecodeOptions::expand() {
  expand_list("--lengths", batch, &lengths);
  expand_list("--new-tokens", batch, &new_tokens);
}

bool MlaDecodeOptions::is_ragged() const {
  return std::any_of(new_tokens.begin(), new_tokens.end(),
                     [&](int64_t n) { return n != new_tokens.front(); });
}

MlaDecodeShape::MlaDecodeShape(const MlaDecodeOptions& options)
    : element(static_cast<int64_t>(element_bytes(find_dtype(options.dtype)->dtype))),
      first{0},
      indptr{0} {
  max_new = 1;
  for (size_t b = 0; b < options.lengths.size(); ++b) {
    const int64_t length = options.lengths[b], count = options.new_tokens[b];
    const int64_t own = (length + options.page - 1) / options.page;
    tokens += count;
    pages += own;
    max_pages = std::max(max_pages, own);
    max_new = std::max(max_new, count);
    total_kv += length;
    for (int64_t i = 0; i < count; ++i) {
      allowed_ += static_cast<double>(options.causal ? std::max<int64_t>(0, length - count + i + 1)
                                                     : length);
    }
    if (tokens * options.heads > INT32_MAX || pages * options.page > INT32_MAX) {
      throw CommandError("the batch has more than 2^31 rows or cached tokens");
    }
    first.push_back(static_cast<int32_t>(tokens));
    indptr.push_back(static_cast<int32_t>(pages));
  }
  rows = tokens * options.heads;
  pages = std::max<int64_t>(pages, 1);
  max_pages = std::max<int64_t>(max_pages, 1);
  page_ = options.page;
  heads_ = options.heads;
}

size_t MlaDecodeShape::query_bytes() const { return static_cast<size_t>(rows * kWide * element); }
size_t MlaDecodeShape::cache_bytes() const {
  return static_cast<size_t>(pages * page_ * kWide * element);
}
size_t MlaDecodeShape::output_bytes() const {
  return static_cast<size_t>(rows * kLatent * element);
}

double MlaDecodeShape::bytes_moved() const {
  return static_cast<double>((total_kv * kWide + rows * (kWide + kLatent)) * element + rows * 4);
}

double MlaDecodeShape::flops() const {
  return 2 * allowed_ * static_cast<double>(heads_ * (kWide + kLatent));
}

MlaDecodeData::MlaDecodeData(const MlaDecodeOptions& options, const MlaDecodeShape& shape)
    : query(shape.query_bytes()), cache(shape.cache_bytes()) {
  Random random(static_cast<uint64_t>(options.seed));
  const fastnorm_dtype_id dtype = id_of(options.dtype);
  const auto element = static_cast<size_t>(shape.element);
  for (size_t i = 0; i < query.size(); i += element) put_random(dtype, random, &query[i]);
  std::fill(cache.begin(), cache.end(), std::byte{0xff});  // NaN in every dtype

  // Pages in random order.
  std::vector<int32_t> order(static_cast<size_t>(shape.pages));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
  const size_t batch = options.lengths.size();
  const auto width = static_cast<size_t>(shape.max_pages);
  table.assign(options.csr ? order.size() : batch * width, kGarbage);
  for (size_t b = 0; b < batch; ++b) {
    lengths.push_back(static_cast<int32_t>(options.lengths[b]));
    const auto begin = static_cast<size_t>(shape.indptr[b]),
               end = static_cast<size_t>(shape.indptr[b + 1]);
    std::copy(order.begin() + static_cast<ptrdiff_t>(begin),
              order.begin() + static_cast<ptrdiff_t>(end),
              table.begin() + static_cast<ptrdiff_t>(options.csr ? begin : b * width));
  }
  for (size_t b = 0; b < batch; ++b) {
    for (int64_t j = 0; j < options.lengths[b]; ++j) {
      std::byte* row = &cache[at(options, shape, static_cast<int64_t>(b), j)];
      for (size_t i = 0; i < static_cast<size_t>(kWide); ++i) {
        put_random(dtype, random, row + i * element);
      }
    }
  }
}

size_t MlaDecodeData::at(const MlaDecodeOptions& options, const MlaDecodeShape& shape, int64_t b,
                         int64_t j) const {
  const int64_t list = options.csr ? shape.indptr[static_cast<size_t>(b)] : b * shape.max_pages;
  const int64_t page = table[static_cast<size_t>(list + j / options.page)];
  return static_cast<size_t>((page * options.page + j % options.page) * kWide * shape.element);
}

MlaDecodeCall::MlaDecodeCall(const Machine& machine, const MlaDecodeOptions& options,
                             const MlaDecodeShape& shape, const MlaDecodeData& data)
    : machine_(machine), shape_(shape), cache_bytes_(shape.cache_bytes()) {
  const fastnorm_dtype dtype = find_dtype(options.dtype)->dtype,
                       i32 = fastnorm_dtype_of(FASTNORM_DTYPE_I32);
  const auto batch = static_cast<int64_t>(options.lengths.size());
  // With --separate the parts lie one behind the other; else each row of 576 has both.
  const auto split = [&](const std::vector<std::byte>& fused) {
    if (!options.separate) return put(fused.data(), fused.size());
    const auto wide = static_cast<size_t>(kWide * shape.element),
               latent = static_cast<size_t>(kLatent * shape.element);
    std::vector<std::byte> parts(fused.size());
    const size_t rows = fused.size() / wide;
    for (size_t r = 0; r < rows; ++r) {
      std::copy_n(&fused[r * wide], latent, &parts[r * latent]);
      std::copy_n(&fused[r * wide + latent], wide - latent,
                  &parts[rows * latent + r * (wide - latent)]);
    }
    return put(parts.data(), parts.size());
  };
  query_ = split(data.query);
  cache_ = split(data.cache);
  lengths_ = put(data.lengths.data(), data.lengths.size() * 4);
  table_ = put(data.table.data(), data.table.size() * 4);
  indptr_ = put(shape.indptr.data(), shape.indptr.size() * 4);
  first_ = put(shape.first.data(), shape.first.size() * 4);
  o_ = machine.allocate(shape.output_bytes());
  lse_ = machine.allocate(static_cast<size_t>(shape.rows) * 4);

  const auto view = [&](int which, std::byte* memory, fastnorm_dtype type,
                        std::vector<int64_t> extents, std::vector<int64_t> strides = {}) {
    views_[which] =
        TensorView(machine.target(), memory, type, std::move(extents), std::move(strides));
    return views_[which].get();
  };
  const auto parts = [&](int which, const Block& memory, int64_t outer, int64_t inner,
                         const fastnorm_tensor** latent, const fastnorm_tensor** rotary) {
    const int64_t width = options.separate ? kLatent : kWide,
                  other = options.separate ? kRotary : kWide;
    const int64_t behind = options.separate ? outer * inner * kLatent : kLatent;
    *latent = view(which, memory.get(), dtype, {outer, inner, kLatent}, {inner * width, width, 1});
    *rotary = view(which + 1, memory.get() + behind * shape.element, dtype, {outer, inner, kRotary},
                   {inner * other, other, 1});
  };
  args_.struct_size = sizeof args_;
  args_.sm_scale = options.scale;
  args_.causal = options.causal ? 1 : 0;
  args_.lse_base = options.lse_base == "2" ? FASTNORM_LSE_BASE_2 : FASTNORM_LSE_NATURAL;
  args_.split_tokens = static_cast<int32_t>(options.split_tokens);
  args_.total_kv_hint = shape.total_kv;
  parts(0, query_, shape.tokens, options.heads, &args_.q_nope, &args_.q_pe);
  parts(2, cache_, shape.pages, options.page, &args_.ckv, &args_.kpe);
  args_.kv_len = view(4, lengths_.get(), i32, {batch});
  if (options.csr) {
    args_.page_table = view(5, table_.get(), i32, {shape.pages});
    args_.kv_indptr = view(6, indptr_.get(), i32, {batch + 1});
  } else {
    args_.page_table = view(5, table_.get(), i32, {batch, shape.max_pages});
  }
  if (options.is_ragged()) {
    args_.qo_indptr = view(7, first_.get(), i32, {batch + 1});
    args_.max_s_q = static_cast<int32_t>(shape.max_new);
  }
  args_.o = view(8, o_.get(), dtype, {shape.tokens, options.heads, kLatent});
  args_.lse =
      view(9, lse_.get(), fastnorm_dtype_of(FASTNORM_DTYPE_F32), {shape.tokens, options.heads});
}

Block MlaDecodeCall::put(const void* data, size_t bytes) {
  Block block = machine_.allocate(std::max<size_t>(bytes, 1));
  machine_.upload(block.get(), data, bytes);
  return block;
}

fastnorm_info MlaDecodeCall::query() const {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_mla_decode_query(machine_.context(), &args_, &info));
  return info;
}

void MlaDecodeCall::add_profile(uint64_t bytes, int32_t events) {
  const std::vector<std::byte> zeros(bytes);
  profile_bytes_ = bytes;
  profile_ = put(zeros.data(), bytes);
  views_[10] = TensorView(machine_.target(), profile_.get(), fastnorm_dtype_of(FASTNORM_DTYPE_U8),
                          {static_cast<int64_t>(bytes)});
  args_.profile = views_[10].get();
  args_.profile_events = events;
}

void MlaDecodeCall::add_spare() { spare_ = machine_.allocate(cache_bytes_); }

void MlaDecodeCall::poison() {
  const std::vector<std::byte> nan(shape_.output_bytes() + static_cast<size_t>(shape_.rows) * 4,
                                   std::byte{0xff});
  machine_.upload(o_.get(), nan.data(), shape_.output_bytes());
  machine_.upload(lse_.get(), nan.data(), static_cast<size_t>(shape_.rows) * 4);
}

void MlaDecodeCall::run(const Block& workspace, size_t workspace_bytes) const {
  check(fastnorm_mla_decode(machine_.context(), &args_, workspace.get(), workspace_bytes,
                            machine_.stream()));
}

std::vector<std::byte> MlaDecodeCall::read_o() const {
  std::vector<std::byte> o(shape_.output_bytes());
  machine_.download(o.data(), o_.get(), o.size());
  return o;
}

std::vector<float> MlaDecodeCall::read_lse() const {
  std::vector<float> lse(static_cast<size_t>(shape_.rows));
  machine_.download(lse.data(), lse_.get(), lse.size() * 4);
  return lse;
}

std::vector<std::byte> MlaDecodeCall::read_profile() const {
  std::vector<std::byte> bytes(profile_bytes_);
  machine_.download(bytes.data(), profile_.get(), bytes.size());
  return bytes;
}

MlaDecodeErrors compare_mla_decode(const MlaDecodeOptions& options, const MlaDecodeShape& shape,
                                   const MlaDecodeData& data, const std::vector<std::byte>& o,
                                   const std::vector<float>& lse, int64_t rows) {
  const fastnorm_dtype dtype = find_dtype(options.dtype)->dtype;
  const double tolerance = options.dtype == "f32"   ? 0x1p-16
                           : options.dtype == "f16" ? 0x1p-10
                                                    : 0x1p-8;
  MlaDecodeErrors errors;
  errors.rows = std::min(rows, shape.rows);
  int64_t b = 0;
  for (int64_t i = 0; i < errors.rows; ++i) {
    const int64_t r = i * shape.rows / errors.rows, token = r / options.heads;
    while (shape.first[static_cast<size_t>(b) + 1] <= token) ++b;
    const Row row = attend(options, shape, data, b, token, r % options.heads);
    const std::vector<double> found =
        decoded(dtype, &o[static_cast<size_t>(r * kLatent * shape.element)], kLatent);
    const double found_lse = lse[static_cast<size_t>(r)];
    double worst = 0;
    if (std::isinf(row.lse)) {
      ++errors.empty_rows;
      const bool exact = found_lse == row.lse &&
                         std::all_of(found.begin(), found.end(), [](double v) { return v == 0; });
      worst = exact ? 0 : std::numeric_limits<double>::infinity();
      errors.worst_o = std::max(errors.worst_o, worst);
    } else {
      const auto larger = [](double a, double x) {  // NaN is the largest
        return x <= a || std::isnan(a) ? a : x;
      };
      for (size_t k = 0; k < found.size(); ++k) {
        const double error = std::abs(found[k] - row.o[k]);
        errors.max_o = larger(errors.max_o, error);
        worst = larger(worst, error / (tolerance * (std::abs(row.o[k]) + row.magnitude[k])));
      }
      errors.worst_o = larger(errors.worst_o, worst);
      const double error = std::abs(found_lse - row.lse),
                   share = error / (0x1p-13 * std::max(1.0, std::abs(row.lse)));
      errors.max_lse = larger(errors.max_lse, error);
      errors.worst_lse = larger(errors.worst_lse, share);
      worst = larger(worst, share);
    }
    if (!(worst <= 1)) ++errors.wrong_rows;
  }
  return errors;
}

}  // namespace fastnorm::tool
