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

// The rows that a new token attends to, in one cache and then in the other.
std::vector<std::vector<double>> keys_of(const MlaDecodeOptions& options,
                                         const MlaDecodeShape& shape, const MlaDecodeInputs& data,
                                         int64_t b, int64_t token) {
  std::vector<std::vector<double>> keys;
  for (const int64_t row : data.allowed_rows(options, shape, b, token))
    keys.push_back(data.columns(options, shape, row));
  if (data.extra == nullptr) return keys;
  const MlaDecodeExtra& e = *data.extra;
  for (const int64_t row : e.data.allowed_rows(e.options, e.shape, b, token))
    keys.push_back(e.data.columns(e.options, e.shape, row));
  return keys;
}

Row attend(const MlaDecodeOptions& options, const MlaDecodeShape& shape,
           const MlaDecodeInputs& data, int64_t b, int64_t token, int64_t head) {
  const fastnorm_dtype dtype = find_dtype(options.dtype)->dtype;
  const int64_t width = options.nope() + kRotary;
  std::vector<double> query = decoded(
      dtype,
      &data.query[static_cast<size_t>((token * options.heads + head) * width * shape.element)],
      width);
  query.resize(static_cast<size_t>(kWide));
  Row row{std::vector<double>(kLatent), std::vector<double>(kLatent)};
  // The running maximum m: sums are relative to exp(m).
  double m = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const std::vector<double>& key : keys_of(options, shape, data, b, token)) {
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
  if (sum == 0) return row;
  const double lse = m + std::log(sum);
  const double sink = double{data.sinks[static_cast<size_t>(head)]};
  const double left = options.sink ? 1 / (1 + std::exp(sink - lse)) : 1.0;
  for (double& value : row.o) value *= left / sum;
  for (double& value : row.magnitude) value *= left / sum;
  row.lse = lse / (options.lse_base == "2" ? std::log(2.0) : 1.0);
  return row;
}

}  // namespace

void MlaDecodeOptions::expand() {
  expand_list("--lengths", batch, &lengths);
  expand_list("--new-tokens", batch, &new_tokens);
  const auto refuse = [](const char* what, const char* with) {
    throw CommandError(std::string(what) + " is given with " + with + "; required: one of them");
  };
  if (separate && is_bytes()) refuse("--separate", "a --cache of bytes");
  if (topk == 0) {
    const char* const given = extra_topk != 0 ? "--extra-topk" : "--topk-lengths";
    if (extra_topk != 0 || topk_lengths)
      throw CommandError(std::string(given) + " is given without --topk; required: both");
    return;
  }
  if (causal) refuse("--causal", "--topk");
  if (csr) refuse("--csr", "--topk");
  if (is_ragged())
    throw CommandError("--new-tokens differ and --topk is given; required: one number for all");
}

fastnorm_mla_cache_format MlaDecodeOptions::format() const {
  return cache == "656"   ? FASTNORM_MLA_CACHE_BYTES_656
         : cache == "576" ? FASTNORM_MLA_CACHE_BYTES_576
         : cache == "584" ? FASTNORM_MLA_CACHE_BYTES_584
                          : FASTNORM_MLA_CACHE_ROWS;
}

int64_t MlaDecodeOptions::nope() const {
  return format() == FASTNORM_MLA_CACHE_BYTES_584 ? kLatent - kRotary : kLatent;
}

bool MlaDecodeOptions::is_ragged() const {
  return std::any_of(new_tokens.begin(), new_tokens.end(),
                     [&](int64_t n) { return n != new_tokens.front(); });
}

MlaDecodeOptions MlaDecodeOptions::of_extra() const {
  MlaDecodeOptions o = *this;
  o.lengths.assign(lengths.size(), extra_length);
  o.page = extra_page;
  o.topk = extra_topk;
  o.extra_topk = 0;
  o.seed = seed + 1;
  return o;
}

MlaDecodeShape::MlaDecodeShape(const MlaDecodeOptions& options)
    : element(static_cast<int64_t>(element_bytes(find_dtype(options.dtype)->dtype))),
      first{0},
      indptr{0} {
  max_new = 1;
  row_bytes = options.is_bytes() ? std::stoll(options.cache) : kWide * element;
  for (size_t b = 0; b < options.lengths.size(); ++b) {
    const int64_t length = options.lengths[b], count = options.new_tokens[b];
    const int64_t own = (length + options.page - 1) / options.page;
    tokens += count;
    pages += own;
    max_pages = std::max(max_pages, own);
    max_new = std::max(max_new, count);
    total_kv += length;
    for (int64_t i = 0; i < count; ++i) {
      allowed_ +=
          static_cast<double>(options.topk != 0 ? options.topk + options.extra_topk
                              : options.causal  ? std::max<int64_t>(0, length - count + i + 1)
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
  nope_ = options.nope();
  selected = tokens * (options.topk + options.extra_topk);
}

size_t MlaDecodeShape::query_bytes() const {
  return static_cast<size_t>(rows * (nope_ + kRotary) * element);
}
size_t MlaDecodeShape::cache_bytes() const {
  return static_cast<size_t>(pages * page_ * row_bytes);
}
size_t MlaDecodeShape::output_bytes() const {
  return static_cast<size_t>(rows * kLatent * element);
}

double MlaDecodeShape::bytes_moved() const {
  const int64_t read = selected != 0 ? selected : total_kv;
  return static_cast<double>(read * row_bytes + rows * (nope_ + kRotary + kLatent) * element +
                             rows * 4);
}

double MlaDecodeShape::flops() const {
  return 2 * allowed_ * static_cast<double>(heads_ * (nope_ + kRotary + kLatent));
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
    for (int64_t j = 0; j < options.lengths[b]; ++j)
      put_row(options, shape, row_of(options, shape, static_cast<int64_t>(b), j), random);
  }
  for (int64_t h = 0; h < options.heads; ++h)
    sinks.push_back(static_cast<float>(random.uniform(-3, 6)));
  for (int64_t t = 0; options.topk_lengths && t < shape.tokens; ++t)
    topk_lengths.push_back(
        static_cast<int32_t>(random.next() % static_cast<uint64_t>(options.topk + 1)));
  for (size_t b = 0; b < batch; ++b) {
    const int64_t count = options.new_tokens[b] * options.topk;
    const auto length = static_cast<uint64_t>(options.lengths[b]);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t h = random.next();
      const bool none = length == 0 || h % 6 == 0;
      indices.push_back(none ? -1
                             : static_cast<int32_t>(row_of(options, shape, static_cast<int64_t>(b),
                                                           static_cast<int64_t>(h / 6 % length))));
    }
  }
}

// Codes of magnitude 1/2 to 2, of either sign, and scales of 1/2, 1 and 2.
void MlaDecodeData::put_row(const MlaDecodeOptions& options, const MlaDecodeShape& shape,
                            int64_t row, Random& random) {
  const fastnorm_dtype_id dtype = id_of(options.dtype);
  std::byte* const at = &cache[static_cast<size_t>(row * shape.row_bytes)];
  if (!options.is_bytes()) {
    for (int64_t i = 0; i < kWide; ++i) put_random(dtype, random, at + i * shape.element);
    return;
  }
  const bool pages = options.format() == FASTNORM_MLA_CACHE_BYTES_584;
  const int64_t of_page = row / options.page * options.page, in_page = row % options.page;
  std::byte* const page = &cache[static_cast<size_t>(of_page * shape.row_bytes)];
  std::byte* const bytes = pages ? page + in_page * 576 : at;
  const int64_t codes = options.format() == FASTNORM_MLA_CACHE_BYTES_576 ? kWide : options.nope();
  for (int64_t i = 0; i < codes; ++i) {
    const uint64_t h = random.next();
    bytes[i] = static_cast<std::byte>(0x30 + h % 16 + (h >> 20 & 128));
  }
  if (codes == kWide) return;
  for (int64_t i = 0; i < kRotary; ++i)
    put_random(FASTNORM_DTYPE_BF16, random, bytes + (pages ? codes : codes + 16) + 2 * i);
  for (int64_t b = 0; b < (pages ? 7 : 4); ++b) {
    const auto exponent = static_cast<int>(random.next() % 3) - 1;
    const float factor = std::ldexp(1.0f, exponent);
    if (pages) {
      page[options.page * 576 + in_page * 8 + b] = static_cast<std::byte>(127 + exponent);
    } else {
      std::copy_n(reinterpret_cast<const std::byte*>(&factor), sizeof factor,
                  bytes + codes + 4 * b);
    }
  }
}

int64_t MlaDecodeData::row_of(const MlaDecodeOptions& options, const MlaDecodeShape& shape,
                              int64_t b, int64_t j) const {
  const int64_t list = options.csr ? shape.indptr[static_cast<size_t>(b)] : b * shape.max_pages;
  return table[static_cast<size_t>(list + j / options.page)] * options.page + j % options.page;
}

std::vector<int64_t> MlaDecodeData::allowed_rows(const MlaDecodeOptions& options,
                                                 const MlaDecodeShape& shape, int64_t b,
                                                 int64_t token) const {
  std::vector<int64_t> rows;
  if (options.topk != 0) {
    const int64_t count =
        options.topk_lengths ? topk_lengths[static_cast<size_t>(token)] : options.topk;
    for (int64_t k = 0; k < count; ++k) {
      const int32_t index = indices[static_cast<size_t>(token * options.topk + k)];
      if (index >= 0) rows.push_back(index);
    }
    return rows;
  }
  const auto at = static_cast<size_t>(b);
  const int64_t length = options.lengths[at], count = options.new_tokens[at];
  const int64_t allowed = options.causal ? length - count + (token - shape.first[at]) + 1 : length;
  for (int64_t j = 0; j < allowed; ++j) rows.push_back(row_of(options, shape, b, j));
  return rows;
}

std::vector<double> MlaDecodeData::columns(const MlaDecodeOptions& options,
                                           const MlaDecodeShape& shape, int64_t row) const {
  const std::byte* const at = &cache[static_cast<size_t>(row * shape.row_bytes)];
  if (!options.is_bytes()) return decoded(find_dtype(options.dtype)->dtype, at, kWide);
  const bool pages = options.format() == FASTNORM_MLA_CACHE_BYTES_584;
  const int64_t of_page = row / options.page * options.page, in_page = row % options.page;
  const std::byte* const page = &cache[static_cast<size_t>(of_page * shape.row_bytes)];
  const std::byte* const bytes = pages ? page + in_page * 576 : at;
  const int64_t codes = options.format() == FASTNORM_MLA_CACHE_BYTES_576 ? kWide : options.nope();
  std::vector<double> values;
  for (int64_t i = 0; i < codes; ++i) {
    const auto code = static_cast<int>(bytes[i]);
    const int exponent = code >> 3 & 15;
    const double magnitude =
        exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(8 + (code & 7), exponent - 10);
    double factor = double{scale};
    if (pages) {
      const auto byte = static_cast<int>(page[options.page * 576 + in_page * 8 + i / 64]);
      factor = std::ldexp(1.0, byte - 127);
    } else if (codes == kLatent) {
      float stored = 0;
      std::copy_n(bytes + codes + i / 128 * 4, sizeof stored,
                  reinterpret_cast<std::byte*>(&stored));
      factor = double{stored};
    }
    values.push_back((code >= 128 ? -magnitude : magnitude) * factor);
  }
  if (codes != kWide) {
    const std::vector<double> rotary = decoded(fastnorm_dtype_of(FASTNORM_DTYPE_BF16),
                                               bytes + (pages ? codes : codes + 16), kRotary);
    values.insert(values.end(), rotary.begin(), rotary.end());
  }
  values.resize(static_cast<size_t>(kWide));
  return values;
}

namespace {

// Numbers of a call's views.
enum View {
  kQuery,
  kCache = kQuery + 2,
  kLengths = kCache + 2,
  kTable,
  kIndptr,
  kFirst,
  kO,
  kLse,
  kProfile,
  kScale,
  kSink,
  kIndices,
  kTopkLengths,
  kExtra,
  kExtraIndices = kExtra + 2,
  kExtraLengths
};

fastnorm_dtype of_id(fastnorm_dtype_id id) { return fastnorm_dtype_of(id); }

}  // namespace

MlaDecodeCall::MlaDecodeCall(const Machine& machine, const MlaDecodeOptions& options,
                             const MlaDecodeShape& shape, const MlaDecodeInputs& data)
    : machine_(machine), shape_(shape), cache_bytes_(shape.cache_bytes()) {
  query_ = put_rows(options, shape, data.query);
  cache_ = put_rows(options, shape, data.cache);
  lengths_ = put_numbers(data.lengths);
  table_ = put_numbers(data.table);
  indptr_ = put_numbers(shape.indptr);
  first_ = put_numbers(shape.first);
  args_.struct_size = sizeof args_;
  args_.sm_scale = options.scale;
  args_.causal = options.causal ? 1 : 0;
  args_.lse_base = options.lse_base == "2" ? FASTNORM_LSE_BASE_2 : FASTNORM_LSE_NATURAL;
  args_.split_tokens = static_cast<int32_t>(options.split_tokens);
  args_.total_kv_hint = options.topk != 0 ? shape.selected : shape.total_kv;
  args_.cache_format = options.format();
  give_query(options);
  const CacheFields first = {kCache, &args_.ckv, &args_.kpe, &args_.cache};
  give_cache(options, shape, cache_, first);
  if (options.format() == FASTNORM_MLA_CACHE_BYTES_576) {
    scale_ = put(&data.scale, sizeof data.scale);
    args_.cache_scale = view(kScale, scale_, of_id(FASTNORM_DTYPE_F32), {1});
  }
  if (options.sink) {
    sinks_ = put(data.sinks.data(), data.sinks.size() * sizeof(float));
    args_.attention_sink = view(kSink, sinks_, of_id(FASTNORM_DTYPE_F32), {options.heads});
  }
  options.topk != 0 ? give_selection(options, data) : give_lists(options);
  give_output(options);
}

// Rows of query or cache: with --separate the parts lie one behind the other, else each row of 576
// has both.
Block MlaDecodeCall::put_rows(const MlaDecodeOptions& options, const MlaDecodeShape& shape,
                              const std::vector<std::byte>& fused) {
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
}

const fastnorm_tensor* MlaDecodeCall::view(int which, const Block& memory, fastnorm_dtype dtype,
                                           std::vector<int64_t> extents,
                                           std::vector<int64_t> strides, int64_t offset) {
  views_[which] = TensorView(machine_.target(), memory.get() + offset, dtype, std::move(extents),
                             std::move(strides));
  return views_[which].get();
}

// Two views of rows of `latents` and 64 columns.
void MlaDecodeCall::give_parts(const MlaDecodeOptions& options, const Block& memory, int64_t outer,
                               int64_t inner, int64_t latents, const CacheFields& to) {
  const fastnorm_dtype dtype = find_dtype(options.dtype)->dtype;
  const int64_t all = latents + kRotary;
  const int64_t own = options.separate ? latents : all, other = options.separate ? kRotary : all;
  const int64_t behind = options.separate ? outer * inner * latents : latents;
  *to.latent = view(to.number, memory, dtype, {outer, inner, latents}, {inner * own, own, 1});
  *to.rotary = view(to.number + 1, memory, dtype, {outer, inner, kRotary},
                    {inner * other, other, 1}, behind * shape_.element);
}

void MlaDecodeCall::give_query(const MlaDecodeOptions& options) {
  give_parts(options, query_, shape_.tokens, options.heads, options.nope(),
             {kQuery, &args_.q_nope, &args_.q_pe, nullptr});
}

void MlaDecodeCall::give_cache(const MlaDecodeOptions& options, const MlaDecodeShape& shape,
                               const Block& memory, const CacheFields& to) {
  if (!options.is_bytes())
    return give_parts(options, memory, shape.pages, options.page, kLatent, to);
  *to.bytes = view(to.number, memory, of_id(FASTNORM_DTYPE_U8),
                   {shape.pages, options.page, shape.row_bytes});
}

// What new tokens select, in one or two caches.
void MlaDecodeCall::give_selection(const MlaDecodeOptions& options, const MlaDecodeInputs& data) {
  const fastnorm_dtype i32 = of_id(FASTNORM_DTYPE_I32);
  const auto batch = static_cast<int64_t>(options.lengths.size());
  const int64_t each = shape_.tokens / batch;
  indices_ = put_numbers(data.indices);
  args_.indices = view(kIndices, indices_, i32, {batch, each, options.topk});
  if (options.topk_lengths) {
    topk_lengths_ = put_numbers(data.topk_lengths);
    args_.topk_length = view(kTopkLengths, topk_lengths_, i32, {batch, each});
  }
  if (data.extra == nullptr) return;
  const MlaDecodeExtra& e = *data.extra;
  extra_ = put_rows(e.options, e.shape, e.data.cache);
  give_cache(e.options, e.shape, extra_,
             {kExtra, &args_.extra_ckv, &args_.extra_kpe, &args_.extra_cache});
  extra_indices_ = put_numbers(e.data.indices);
  args_.extra_indices = view(kExtraIndices, extra_indices_, i32, {batch, each, e.options.topk});
  if (!options.topk_lengths) return;
  extra_lengths_ = put_numbers(e.data.topk_lengths);
  args_.extra_topk_length = view(kExtraLengths, extra_lengths_, i32, {batch, each});
}

// The pages of each request, which new tokens attend to as a whole.
void MlaDecodeCall::give_lists(const MlaDecodeOptions& options) {
  const fastnorm_dtype i32 = of_id(FASTNORM_DTYPE_I32);
  const auto batch = static_cast<int64_t>(options.lengths.size());
  if (options.csr) {
    args_.page_table = view(kTable, table_, i32, {shape_.pages});
    args_.kv_indptr = view(kIndptr, indptr_, i32, {batch + 1});
  } else {
    args_.page_table = view(kTable, table_, i32, {batch, shape_.max_pages});
  }
  args_.kv_len = view(kLengths, lengths_, i32, {batch});
  if (!options.is_ragged()) return;
  args_.qo_indptr = view(kFirst, first_, i32, {batch + 1});
  args_.max_s_q = static_cast<int32_t>(shape_.max_new);
}

void MlaDecodeCall::give_output(const MlaDecodeOptions& options) {
  o_ = machine_.allocate(shape_.output_bytes());
  lse_ = machine_.allocate(static_cast<size_t>(shape_.rows) * 4);
  args_.o = view(kO, o_, find_dtype(options.dtype)->dtype, {shape_.tokens, options.heads, kLatent});
  args_.lse = view(kLse, lse_, of_id(FASTNORM_DTYPE_F32), {shape_.tokens, options.heads});
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
  args_.profile = view(kProfile, profile_, of_id(FASTNORM_DTYPE_U8), {static_cast<int64_t>(bytes)});
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
                                   const MlaDecodeInputs& data, const std::vector<std::byte>& o,
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
