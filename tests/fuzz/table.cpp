#include "table.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <limits>

#include "core/common/quant_scheme.h"

namespace fastnorm::fuzz {

using schema::Kind;
using schema::Shape;

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int32_t kMostRank = 8;
constexpr Extent kAny = {0, kMost}, kSome = {1, kMost};

const CallStruct* find_type(const CallStruct& in, const char* name) {
  if (std::strcmp(in.name, name) == 0) return &in;
  for (const Field& field : in.fields) {
    if (field.kind != Kind::kStruct) continue;
    if (const CallStruct* found = find_type(*field.type, name)) return found;
  }
  return nullptr;
}

Extent exactly(int64_t extent) { return {extent, extent}; }

Pattern shaped(const std::vector<int64_t>& shape) {
  Pattern pattern;
  for (const int64_t extent : shape) pattern.push_back(exactly(extent));
  return pattern;
}

// x.shape[:-1], and more.
Pattern leading(const std::vector<int64_t>& x, std::initializer_list<int64_t> more) {
  Pattern pattern = shaped(x);
  pattern.pop_back();
  for (const int64_t extent : more) pattern.push_back(exactly(extent));
  return pattern;
}

// [.., last] of each rank, whose other extents are 1 or x's.
void broadcast(const std::vector<int64_t>& x, Extent last, std::vector<Pattern>* to) {
  Pattern pattern = {last};
  to->push_back(pattern);
  for (size_t i = x.size() - 1; i-- > 0;) {
    pattern.insert(pattern.begin(), {x[i], x[i], true});
    to->push_back(pattern);
  }
}

std::vector<Pattern> row(const std::vector<int64_t>& x) {
  return {leading(x, {}), leading(x, {1})};
}

std::vector<Pattern> groups(const Extents& e, bool pairs) {
  const int64_t n = e.x.back(), count = e.group > 0 ? n / e.group : 1;
  if (!pairs) return count > 1 ? std::vector<Pattern>{leading(e.x, {count})} : row(e.x);
  return {count > 1 ? leading(e.x, {count, 2}) : leading(e.x, {2})};
}

bool is_pair(uint32_t dtype) {
  return dtype == FASTNORM_DTYPE_F4_E2M1FN_X2 || dtype == FASTNORM_DTYPE_U8;
}

// A number without a name is no scheme.
const QuantScheme& scheme_of(const fastnorm_quant& q) {
  const uint32_t scheme = number(q.scheme);
  return kQuantSchemes[scheme < std::size(kQuantSchemes) ? scheme : 0];
}

std::vector<Pattern> codes(uint32_t dtype, const Extents& e) {
  const int64_t n = e.x.back();
  if (e.quant == nullptr || !scheme_of(*e.quant).is_fp4()) return {shaped(e.x)};
  if (n % 2 != 0) return {};
  return {leading(e.x, {is_pair(dtype) ? n / 2 : n})};
}

std::vector<Pattern> scales(const Extents& e) {
  if (e.quant == nullptr) return {};
  const fastnorm_quant& q = *e.quant;
  if (number(q.scheme) == FASTNORM_QUANT_PER_TENSOR) return {shaped({1})};
  const int64_t block = block_of(q), n = e.x.back();
  const int64_t count = block <= 0 ? 1 : n / block + (n % block != 0);
  if (!is_swizzled(q)) {
    if (number(q.scheme) == FASTNORM_QUANT_PER_ROW) return row(e.x);
    return {leading(e.x, {count})};
  }
  int64_t rows = 1, bytes = 0;
  for (size_t i = 0; i + 1 < e.x.size(); ++i) {
    if (__builtin_mul_overflow(rows, e.x[i], &rows)) rows = kMost;
  }
  if (std::find(e.x.begin(), e.x.end(), 0) != e.x.end()) rows = 0;
  const int64_t tiles = rows / 128 + (rows % 128 != 0);
  const int64_t fours = count / 4 + (count % 4 != 0);
  if (__builtin_mul_overflow(tiles, fours, &bytes) || __builtin_mul_overflow(bytes, 512, &bytes))
    return {};
  return {shaped({bytes})};
}

std::vector<Pattern> table_of(const std::vector<int64_t>& x, int64_t half) {
  std::vector<Pattern> all;
  for (const int64_t width : {half, 2 * half}) {
    all.push_back({kAny, exactly(width)});
    all.push_back({x.size() == 3 ? exactly(x[1]) : kAny, kAny, exactly(width)});
  }
  return all;
}

// [n], or [heads, d] with 1 for heads.
std::vector<Pattern> columns_of(const std::vector<int64_t>& x) {
  const int64_t heads = x.size() == 3 ? x[1] : 1;
  return {{exactly(x.back())}, {{heads, heads, true}, exactly(x.back())}};
}

bool is_cos(const Field& field) { return std::strcmp(field.name, "cos") == 0; }
bool is_second(const Field& field) { return std::strchr(field.name, '2') != nullptr; }

// [pages, page, columns] of the first cache, or of the one beside it.
std::vector<Pattern> pages_of(const Field& field, const Extents& e, int64_t columns) {
  const bool extra = std::strncmp(field.name, "extra_", 6) == 0;
  if (extra && field.shape == Shape::kKpe)
    return {{exactly(e.extra_pages), exactly(e.extra_page), exactly(columns)}};
  if (extra) return {{kAny, kSome, exactly(columns)}};
  return {{exactly(e.pages), exactly(e.page), exactly(columns)}};
}

}  // namespace

const CallStruct& type_of(const char* name) {
  for (const support::CallFamily& family : support::families()) {
    for (const CallStruct* in : {family.args, family.part}) {
      const CallStruct* const found = in == nullptr ? nullptr : find_type(*in, name);
      if (found != nullptr) return *found;
    }
  }
  std::abort();
}

bool is_row_dtype(uint32_t id) {
  return id == FASTNORM_DTYPE_F32 || id == FASTNORM_DTYPE_F16 || id == FASTNORM_DTYPE_BF16;
}

bool is_given(const void* args, const Field& field) {
  if (field.kind == Kind::kFloat) return load<float>(args, field) != 0;
  if (field.kind == Kind::kDouble) return load<double>(args, field) != 0;
  return field.size == 8 ? load<uint64_t>(args, field) != 0 : load<uint32_t>(args, field) != 0;
}

bool holds(const CallStruct& type, const void* args, const schema::Term& term) {
  const Field& field = type.fields[term.field];
  if (term.op == schema::Op::kGiven) return is_given(args, field);
  const auto value = load<uint32_t>(args, field);
  return term.op == schema::Op::kIs ? value == term.value : (value & term.value) != 0;
}

int64_t block_of(const fastnorm_quant& q) {
  const int32_t block = scheme_of(q).block;
  return block == kOwnBlock ? q.block_size : block;
}

bool is_swizzled(const fastnorm_quant& q) {
  return number(q.scale_layout) == FASTNORM_SCALE_SWIZZLED_128X4;
}

std::vector<uint32_t> dtypes_of(const Field& field, const Extents& e, const fastnorm_tensor* own) {
  using namespace schema;
  std::vector<uint32_t> all;
  const auto add = [&](std::initializer_list<uint32_t> dtypes) {
    all.insert(all.end(), dtypes.begin(), dtypes.end());
  };
  const uint32_t bits = field.dtypes | (std::strcmp(field.name, e.any) == 0 ? kAnyBit : 0u);
  const QuantScheme& scheme = e.quant == nullptr ? kQuantSchemes[0] : scheme_of(*e.quant);
  const bool codes = scheme.scheme != FASTNORM_QUANT_NONE && (bits & kCodesBit) != 0;
  if (field.shape == Shape::kRope && e.cos_dtype != 0 && !is_cos(field)) return {e.cos_dtype};
  const bool mx = scheme.is_mx();
  const bool pow2 = e.quant != nullptr && e.quant->scale_pow2 != 0;
  if ((bits & kTBit) != 0 && !codes && is_row_dtype(e.dtype)) add({e.dtype});
  if ((bits & kOwnBit) != 0 && own != nullptr) add({id_of(own->dtype)});
  if ((bits & (kF32Bit | kAnyBit)) != 0) add({FASTNORM_DTYPE_F32});
  if ((bits & (kF16Bit | kAnyBit)) != 0) add({FASTNORM_DTYPE_F16});
  if ((bits & (kBf16Bit | kAnyBit)) != 0) add({FASTNORM_DTYPE_BF16});
  if ((bits & kI32Bit) != 0) add({FASTNORM_DTYPE_I32});
  if ((bits & kI64Bit) != 0) add({FASTNORM_DTYPE_I64});
  if ((bits & kU8Bit) != 0) add({FASTNORM_DTYPE_U8});
  if (codes && scheme.is_fp4()) {
    add({FASTNORM_DTYPE_F4_E2M1FN, FASTNORM_DTYPE_F4_E2M1FN_X2, FASTNORM_DTYPE_U8});
  } else if (codes) {
    add({FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2});
    if (!mx && !pow2) add({FASTNORM_DTYPE_I8});
  }
  if ((bits & kScalesBit) == 0) return all;
  const bool nvfp4 = scheme.scale == SchemeScale::kE4M3;
  const bool swizzled = e.quant != nullptr && is_swizzled(*e.quant);
  if (nvfp4) add({FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_U8});
  if (!nvfp4 && (mx || pow2)) add({FASTNORM_DTYPE_F8_E8M0FNU, FASTNORM_DTYPE_U8});
  if (!nvfp4 && !mx && !swizzled) add({FASTNORM_DTYPE_F32});
  return all;
}

std::vector<Pattern> patterns_of(const Field& field, uint32_t dtype, const Extents& e,
                                 const fastnorm_tensor* own) {
  const std::vector<int64_t>& x = e.x;
  const int64_t n = x.empty() ? 0 : x.back();
  std::vector<Pattern> all;
  switch (field.shape) {
    case Shape::kNone:
      return {};
    case Shape::kX:
    case Shape::kHeads:
    case Shape::kNope:
      return {shaped(x)};
    case Shape::kLatent:
      return {{exactly(x[0]), exactly(x[1]), exactly(512)}};
    case Shape::kX2:
      return {shaped(e.x2)};
    case Shape::kOwn:
      if (own == nullptr) return {};
      return {shaped(shape_of(own, {}))};
    case Shape::kOne:
      return {shaped({1})};
    case Shape::kCodes:
      return codes(dtype, e);
    case Shape::kScales:
      return scales(e);
    case Shape::kRow:
      return row(x);
    case Shape::kGroups:
      return groups(e, false);
    case Shape::kSums:
      return groups(e, e.pairs);
    case Shape::kGroupWeight:
      if (e.group > 0 && e.group != n) broadcast(x, exactly(e.group), &all);
      [[fallthrough]];
    case Shape::kWeight:
      broadcast(x, exactly(n), &all);
      return all;
    case Shape::kSpread:
      if (e.indexed) return {{kSome, {n, n, true}}};
      broadcast(x, {n, n, true}, &all);
      return all;
    case Shape::kAdd:
      for (int32_t rank = 1; rank <= kMostRank; ++rank) {
        all.emplace_back(static_cast<size_t>(rank), exactly(1));
        all.back().back() = exactly(n);
      }
      return all;
    case Shape::kSigns:
      return {{exactly(n)}, {exactly(e.quant == nullptr ? n : e.quant->rotation)}};
    case Shape::kHeadsWeight:
    case Shape::kColumnsWeight:
      return columns_of(is_second(field) ? e.x2 : x);
    case Shape::kHeadsStat:
    case Shape::kHeadsSums: {
      Pattern pattern = {exactly(x[0])};
      if (!e.across_heads) pattern.push_back(exactly(x[1]));
      if (field.shape == Shape::kHeadsSums && e.pairs) pattern.push_back(exactly(2));
      return {pattern};
    }
    case Shape::kCache:
      return {{kSome, kSome, exactly(x[1]), exactly(n - e.tail)},
              {exactly(0), kAny, exactly(x[1]), exactly(n - e.tail)}};
    case Shape::kCacheTail:
      if (e.cache.size() != 4) return {{kSome, kSome, exactly(x[1]), exactly(e.tail)}};
      return {{exactly(e.cache[0]), exactly(e.cache[1]), exactly(x[1]), exactly(e.tail)}};
    case Shape::kRope:
      if (!e.cos.empty() && !is_cos(field)) return {shaped(e.cos)};
      return table_of(x, e.rope_dim / 2);
    case Shape::kPositions:
      if (e.axes > 1) return {{exactly(e.axes), exactly(x[0])}};
      if (e.axes == 1) return {{exactly(x[0])}};
      return {{exactly(x[0])}, {{1, 4}, exactly(x[0])}};
    case Shape::kSlots:
      return {{{0, x[0]}}};
    case Shape::kColumns:
      if (!is_second(field)) return {shaped(x)};
      return {{exactly(x[0]), kSome}, {exactly(x[0]), kSome, kSome}};
    case Shape::kPe:
      return {{exactly(x[0]), exactly(x[1]), exactly(64)}};
    case Shape::kCkv:
      return pages_of(field, e, 512);
    case Shape::kKpe:
      return pages_of(field, e, 64);
    case Shape::kMlaCache:
      return pages_of(field, e, e.row_bytes);
    case Shape::kTopk:
    case Shape::kTopkLength: {
      Pattern pattern = {exactly(e.batch), e.batch <= 0 ? kAny : exactly(x[0] / e.batch)};
      if (field.shape == Shape::kTopkLength) return {{exactly(e.batch)}, pattern};
      pattern.push_back(kAny);
      return {pattern};
    }
    case Shape::kEachHead:
      return {{exactly(x[1])}};
    case Shape::kRequests:
      return {{exactly(e.batch)}};
    case Shape::kOffsets:
      // Unsigned: of the most requests that a number holds there are no offsets.
      return {{exactly(static_cast<int64_t>(static_cast<uint64_t>(e.batch) + 1))}};
    case Shape::kPageTable:
      if (e.one_list) return {{kAny}};
      return {{exactly(e.batch), kAny}};
    case Shape::kHeadsEach:
    case Shape::kHeadsRow:
      return {{exactly(x[0]), exactly(x[1])}};
    case Shape::kBytes:
      return {{kAny}};
  }
  return {};
}

bool fits(const fastnorm_tensor& t, const std::vector<Pattern>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const Pattern& p) {
    if (static_cast<size_t>(t.ndim) != p.size()) return false;
    return std::equal(p.begin(), p.end(), t.shape, [](const Extent& e, int64_t extent) {
      return (extent >= e.least && extent <= e.most) || (e.or_one && extent == 1);
    });
  });
}

const fastnorm_tensor* own_of(const CallStruct& type, const void* args, const Field& field) {
  if (field.name[0] != 'd') return nullptr;
  for (const Field& other : type.fields) {
    if (std::strcmp(other.name, field.name + 1) == 0)
      return is_tensor(other) ? tensor_of(args, other) : nullptr;
  }
  return nullptr;
}

std::vector<int64_t> shape_of(const fastnorm_tensor* t, const std::vector<int64_t>& instead) {
  if (t == nullptr || t->shape == nullptr || t->ndim < 1 || t->ndim > kMostRank) return instead;
  return {t->shape, t->shape + t->ndim};
}

}  // namespace fastnorm::fuzz
