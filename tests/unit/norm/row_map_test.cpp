// Folding of leading dimensions and the tests for overlap, against plain enumeration.
#include "core/norm/row_map.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "ref/data.h"

namespace fastnorm::test {
namespace {

using ref::Random;

struct Shape {
  int64_t outer[kMaxOuter] = {1, 1, 1};
  int32_t rank = 1;
};

std::byte* at(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

// Address of every row in order.
std::vector<uintptr_t> rows_of(const RowTensor& t, const Shape& s) {
  std::vector<uintptr_t> rows;
  for (int64_t k = 0; k < s.outer[2]; ++k) {
    for (int64_t j = 0; j < s.outer[1]; ++j) {
      for (int64_t i = 0; i < s.outer[0]; ++i) {
        const int64_t offset =
            i * t.stride_bytes[0] + j * t.stride_bytes[1] + k * t.stride_bytes[2];
        rows.push_back(reinterpret_cast<uintptr_t>(t.data) + static_cast<uintptr_t>(offset));
      }
    }
  }
  return rows;
}

TEST(FoldRows, RowsStayWhereTheyAre) {
  Random random(1);
  int folded = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    Shape s;
    s.rank = 1 + static_cast<int32_t>(random.below(3));
    for (int d = 0; d < s.rank; ++d) s.outer[d] = 1 + random.below(4);
    RowTensor tensors[3];
    for (RowTensor& t : tensors) {
      if (random.one_in(5)) continue;  // absent
      t.data = at(0x100000);
      int64_t step = 16 * (1 + random.below(2));
      for (int d = 0; d < s.rank; ++d) {
        t.stride_bytes[d] = random.one_in(6) ? 0 : step;
        step = step * s.outer[d] + (random.one_in(3) ? 16 : 0);
      }
    }
    RowTensor* list[] = {&tensors[0], &tensors[1], &tensors[2]};
    std::array<std::vector<uintptr_t>, 3> before;
    for (int i = 0; i < 3; ++i) before[static_cast<size_t>(i)] = rows_of(tensors[i], s);
    const bool keep = random.one_in(2);
    const Shape was = s;
    const bool may = !tensors[0] || may_fold(s.outer, s.rank, tensors[0]);
    fold_rows(s.outer, &s.rank, list, keep);
    ASSERT_TRUE(may || s.rank == was.rank) << "trial " << trial;
    ASSERT_TRUE(s.rank >= 1 && s.rank <= was.rank);
    if (keep) {
      ASSERT_EQ(s.outer[0], was.outer[0]) << "heads";
    }
    for (int d = s.rank; d < kMaxOuter; ++d) ASSERT_EQ(s.outer[d], 1);
    for (int i = 0; i < 3; ++i) {
      if (!tensors[i]) continue;
      ASSERT_EQ(before[static_cast<size_t>(i)], rows_of(tensors[i], s)) << "trial " << trial;
    }
    folded += s.rank < was.rank;
  }
  EXPECT_GT(folded, 5000) << "hardly anything was folded";
}

TEST(FoldRows, CompactTensorsAreOneDimension) {
  Shape s{{3, 4, 5}, 3};
  RowTensor x{at(4096), {64, 192, 768}, Dtype::kF32}, y{at(8192), {32, 96, 384}, Dtype::kBF16};
  RowTensor absent;
  RowTensor* list[] = {&x, &y, &absent};
  fold_rows(s.outer, &s.rank, list, false);
  EXPECT_EQ(s.rank, 1);
  EXPECT_EQ(s.outer[0], 60);
  EXPECT_EQ(x.stride_bytes[0], 64);
  EXPECT_EQ(y.stride_bytes[0], 32);
}

TEST(FoldRows, OneTensorsGapKeepsTheDimension) {
  Shape s{{3, 4, 1}, 2};
  RowTensor x{at(4096), {64, 192, 0}, Dtype::kF32}, y{at(8192), {64, 256, 0}, Dtype::kF32};
  RowTensor* list[] = {&x, &y};
  fold_rows(s.outer, &s.rank, list, false);
  EXPECT_EQ(s.rank, 2);
  EXPECT_EQ(s.outer[1], 4);
}

// --- overlap ---

std::set<uintptr_t> bytes_of_rows(const RowTensor& t, const Shape& s, int64_t row_bytes,
                                  bool* repeats) {
  std::set<uintptr_t> bytes;
  for (const uintptr_t row : rows_of(t, s)) {
    for (int64_t i = 0; i < row_bytes; ++i) {
      *repeats |= !bytes.insert(row + static_cast<uintptr_t>(i)).second;
    }
  }
  return bytes;
}

RowTensor random_tensor(Random& random, const Shape& s, int64_t row_bytes) {
  RowTensor t{at(0x10000 + static_cast<uintptr_t>(random.below(120))), {}, Dtype::kF32};
  int64_t step = row_bytes;
  for (int d = 0; d < s.rank; ++d) {
    t.stride_bytes[d] = random.one_in(10) ? random.below(40) : step + random.below(3) * row_bytes;
    step = t.stride_bytes[d] * s.outer[d];
    if (random.one_in(5)) t.stride_bytes[d] = -t.stride_bytes[d];
  }
  return t;
}

// If "disjoint" were wrong, a kernel could destroy its input. The opposite error only refuses a
// call.
TEST(Footprint, DisjointMeansThatNoByteIsShared) {
  Random random(2);
  int disjoint_found = 0, shared_found = 0, refused = 0, turns_found = 0;
  for (int trial = 0; trial < 30000; ++trial) {
    Shape s;
    s.rank = 1 + static_cast<int32_t>(random.below(3));
    for (int d = 0; d < s.rank; ++d) s.outer[d] = 1 + random.below(4);
    const int64_t bytes_a = 4 * (1 + random.below(3)), bytes_b = 4 * (1 + random.below(3));
    const RowTensor a = random_tensor(random, s, bytes_a);
    RowTensor b = random_tensor(random, s, bytes_b);
    if (random.one_in(2)) std::copy(a.stride_bytes, a.stride_bytes + kMaxOuter, b.stride_bytes);
    Footprint fa, fb;
    ASSERT_TRUE(footprint(a, s.outer, bytes_a, &fa));
    ASSERT_TRUE(footprint(b, s.outer, bytes_b, &fb));
    bool repeats_a = false, repeats_b = false;
    const std::set<uintptr_t> set_a = bytes_of_rows(a, s, bytes_a, &repeats_a);
    const std::set<uintptr_t> set_b = bytes_of_rows(b, s, bytes_b, &repeats_b);
    ASSERT_EQ(fa.begin, *set_a.begin());
    ASSERT_EQ(fa.end, *set_a.rbegin() + 1);
    ASSERT_TRUE(rows_disjoint(fa) || !rows_follow(a, s.outer, s.rank, bytes_a));
    if (rows_disjoint(fa)) {
      ASSERT_FALSE(repeats_a) << "trial " << trial;
    }
    bool shared = false;
    for (const uintptr_t byte : set_a) shared = shared || set_b.count(byte) != 0;
    const bool said = disjoint(fa, fb);
    if (separate(fa, fb)) {
      ASSERT_TRUE(said) << "trial " << trial;
    }
    ASSERT_EQ(said, disjoint(fb, fa)) << "trial " << trial;
    const RowBytes of_a = {a.data, a.stride_bytes, bytes_a, 1, 0},
                   of_b = {b.data, b.stride_bytes, bytes_b, 1, 0};
    const bool turns = take_turns(of_a, s.outer, of_b, s.outer);
    ASSERT_EQ(turns, take_turns(of_b, s.outer, of_a, s.outer)) << "trial " << trial;
    ASSERT_TRUE(said || !turns) << "trial " << trial;
    turns_found += turns && !separate(fa, fb);
    if (said) {
      ASSERT_FALSE(shared) << "trial " << trial;
    }
    (shared ? shared_found : said ? disjoint_found : refused) += 1;
  }
  EXPECT_GT(disjoint_found, 3000);
  EXPECT_GT(shared_found, 3000);
  EXPECT_GT(turns_found, 100);
  EXPECT_LT(refused, 8000) << "too many harmless pairs are refused";
}

// Lengths and distances of tensors of up to 2^62 bytes fit in 64 bits with their sign. Longer
// tensors have no range.
TEST(Footprint, SpansOfUpTo2To62Bytes) {
  constexpr int64_t kMost = int64_t{1} << 62;
  const int64_t two[kMaxOuter] = {2, 2, 1};
  const auto range_of = [&](int64_t above, int64_t below, AddressRange* range) {
    const int64_t strides[kMaxOuter] = {above, below, 0};
    return address_range({at(uintptr_t{1} << 62), strides, 16, 1, 0}, two, range);
  };
  AddressRange range;
  ASSERT_TRUE(range_of(kMost / 2 - 16, -kMost / 2, &range));
  EXPECT_EQ(range.begin, uintptr_t{1} << 61);
  EXPECT_EQ(range.end - range.begin, kMostSpan);
  EXPECT_FALSE(range_of(kMost / 2 - 15, -kMost / 2, &range));
  EXPECT_FALSE(range_of(kMost / 2, -kMost, &range));
  EXPECT_FALSE(range_of(INT64_MAX - 16, 0, &range));
  EXPECT_FALSE(range_of(INT64_MAX - 16, INT64_MIN + 1, &range));
}

// Views on both sides of the address where the sign changes, and with the longest spans.
TEST(Footprint, DisjointAtAnyAddress) {
  constexpr int64_t kFar = (int64_t{1} << 62) - 64;
  const int64_t two[kMaxOuter] = {2, 1, 1};
  for (const uintptr_t base : {(uintptr_t{1} << 63) - 32, uintptr_t{1} << 62, uintptr_t{64}}) {
    for (const int64_t stride : {int64_t{64}, kFar}) {
      const RowTensor a{at(base), {stride, 0, 0}, Dtype::kF32};
      const auto apart = [&](int64_t distance, int64_t row_bytes) {
        const RowTensor b{at(base + static_cast<uintptr_t>(distance)), {stride, 0, 0}, Dtype::kF32};
        Footprint fa, fb;
        EXPECT_TRUE(footprint(a, two, 32, &fa) && footprint(b, two, row_bytes, &fb));
        EXPECT_EQ(disjoint(fa, fb), disjoint(fb, fa));
        return disjoint(fa, fb);
      };
      EXPECT_TRUE(apart(32, 32) && apart(32, 16) && apart(-16, 16)) << base << ", " << stride;
      EXPECT_FALSE(apart(16, 32) || apart(31, 1) || apart(-16, 32)) << base << ", " << stride;
      EXPECT_FALSE(apart(stride, 32)) << base << ", " << stride;
    }
  }
}

// Rows of several pieces, like column-major scales.
TEST(Footprint, PiecesOfRows) {
  Random random(3);
  int apart = 0;
  for (int trial = 0; trial < 10000; ++trial) {
    Shape s;
    s.rank = 1 + static_cast<int32_t>(random.below(3));
    for (int d = 0; d < s.rank; ++d) s.outer[d] = 1 + random.below(3);
    const int64_t pieces = 1 + random.below(4), piece_bytes = 1 + random.below(4);
    const RowTensor t = random_tensor(random, s, 4);
    int64_t step =
        random.one_in(3) ? t.stride_bytes[s.rank - 1] * s.outer[s.rank - 1] : random.below(9);
    if (random.one_in(4)) step = -step;
    const RowBytes bytes{t.data, t.stride_bytes, piece_bytes, pieces, step};
    bool repeats = false;
    std::set<uintptr_t> set;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      RowTensor shifted = t;
      shifted.data += piece * step;
      for (const uintptr_t byte : bytes_of_rows(shifted, s, piece_bytes, &repeats)) {
        repeats |= !set.insert(byte).second;
      }
    }
    AddressRange range;
    ASSERT_TRUE(address_range(bytes, s.outer, &range));
    ASSERT_EQ(range.begin, *set.begin()) << "trial " << trial;
    ASSERT_EQ(range.end, *set.rbegin() + 1) << "trial " << trial;
    Footprint whole, rest;
    ASSERT_TRUE(footprint(bytes, s.outer, &whole));
    footprint(bytes, s.outer, range, &rest);
    ASSERT_TRUE(whole.begin == range.begin && whole.end == range.end);
    ASSERT_TRUE(rest.begin == range.begin && rest.end == range.end && rest.rank == whole.rank);
    for (int d = 0; d < whole.rank; ++d) {
      ASSERT_TRUE(d == 0 || whole.stride[d - 1] <= whole.stride[d]) << "ascending";
      ASSERT_TRUE(rest.stride[d] == whole.stride[d] && rest.extent[d] == whole.extent[d]);
    }
    if (!rows_disjoint(whole)) continue;
    ASSERT_FALSE(repeats) << "trial " << trial;
    ++apart;
  }
  EXPECT_GT(apart, 1000);
}

Footprint footprint_of(uintptr_t data, std::array<int64_t, 3> strides, Shape s, int64_t row_bytes) {
  RowTensor t{at(data), {strides[0], strides[1], strides[2]}, Dtype::kF32};
  Footprint f;
  EXPECT_TRUE(footprint(t, s.outer, row_bytes, &f));
  return f;
}

// Views of one buffer at distances of some strides. Rows are at 0 and 100 after each multiple of
// 1000.
TEST(Footprint, ViewsAWholeStrideApart) {
  const Shape s{{2, 3, 1}, 2};
  const Footprint a = footprint_of(0x10000, {100, 1000, 0}, s, 50);
  for (const int distance : {50, 1050, 1250, 2050, -950, -1050, -150}) {
    const Footprint b =
        footprint_of(0x10000 + static_cast<uintptr_t>(distance), {100, 1000, 0}, s, 50);
    EXPECT_TRUE(disjoint(a, b) && disjoint(b, a)) << distance;
  }
  for (const int distance : {0, 49, 100, 1000, 1049, 2100, -1000, -1049, -2100}) {
    const Footprint b =
        footprint_of(0x10000 + static_cast<uintptr_t>(distance), {100, 1000, 0}, s, 50);
    EXPECT_FALSE(disjoint(a, b) || disjoint(b, a)) << distance;
  }
}

TEST(Footprint, HeadsOfOneFusedBuffer) {
  const Shape tokens_of_heads{{4, 100, 1}, 2};
  const Footprint query = footprint_of(0x1000, {64, 1024, 0}, tokens_of_heads, 64);
  const Footprint key = footprint_of(0x1000 + 256, {64, 1024, 0}, tokens_of_heads, 64);
  const Footprint near = footprint_of(0x1000 + 192, {64, 1024, 0}, tokens_of_heads, 64);
  EXPECT_TRUE(disjoint(query, key));
  EXPECT_FALSE(disjoint(query, near));
  EXPECT_FALSE(disjoint(query, query));
  EXPECT_TRUE(rows_disjoint(query));
  const int64_t strides[kMaxOuter] = {64, 1024, 0}, other[kMaxOuter] = {64, 1025, 0},
                three[kMaxOuter] = {4, 100, 2}, (&two)[kMaxOuter] = tokens_of_heads.outer;
  const auto heads = [&](uintptr_t address, const int64_t* steps = nullptr, int64_t pieces = 1) {
    return RowBytes{at(address), steps != nullptr ? steps : strides, 64, pieces, 4};
  };
  const RowBytes first = heads(0x1000);
  for (uintptr_t ahead = 0; ahead <= 1024; ++ahead) {  // in the gaps of 256 and 1024 bytes
    EXPECT_EQ(take_turns(first, two, heads(0x1000 + ahead), two), ahead >= 256 && ahead <= 768);
    EXPECT_EQ(take_turns(heads(0x1000 + ahead), two, first, two), ahead >= 256 && ahead <= 768);
  }
  EXPECT_FALSE(take_turns(first, two, heads(0x1100, other), two)) << "another period";
  EXPECT_FALSE(take_turns(first, two, heads(0x1100), three)) << "a third index";
  EXPECT_FALSE(take_turns(first, two, heads(0x1100, nullptr, 2), two)) << "rows in pieces";
}

TEST(Footprint, HalvesOfRows) {
  const Shape rows{{100, 1, 1}, 1};
  EXPECT_TRUE(disjoint(footprint_of(0x1000, {256, 0, 0}, rows, 128),
                       footprint_of(0x1080, {256, 0, 0}, rows, 128)));
  EXPECT_FALSE(disjoint(footprint_of(0x1000, {256, 0, 0}, rows, 130),
                        footprint_of(0x1080, {256, 0, 0}, rows, 128)));
}

TEST(Footprint, RangesThatTouchAreSeparate) {
  const AddressRange low{100, 200}, next{200, 300}, across{199, 201};
  EXPECT_TRUE(separate(low, next) && separate(next, low));
  EXPECT_FALSE(separate(low, across) || separate(across, next) || separate(low, low));
}

TEST(Footprint, OutOfTheAddressSpace) {
  const int64_t outer[kMaxOuter] = {4, 1, 1};
  Footprint f;
  const RowTensor up{at(UINTPTR_MAX - 100), {64, 0, 0}, Dtype::kF32};
  EXPECT_FALSE(footprint(up, outer, 64, &f) || rows_follow(up, outer, 1, 64));
  const RowTensor down{at(100), {-64, 0, 0}, Dtype::kF32};
  EXPECT_FALSE(footprint(down, outer, 64, &f));
  const RowTensor overflow{at(4096), {INT64_MAX / 2, 0, 0}, Dtype::kF32};
  EXPECT_FALSE(footprint(overflow, outer, 64, &f) || rows_follow(overflow, outer, 1, 64));
  const RowTensor least{at(UINTPTR_MAX / 2), {INT64_MIN, 0, 0}, Dtype::kF32};
  EXPECT_FALSE(footprint(least, {2, 1, 1}, 64, &f)) << "has no magnitude";
  AddressRange range;
  const int64_t one[kMaxOuter] = {1, 1, 1};
  EXPECT_FALSE(
      address_range({at(4096), overflow.stride_bytes, 4, 3, INT64_MAX / 2 + 1}, one, &range));
  EXPECT_TRUE(address_range({at(4096), overflow.stride_bytes, 4, 1, INT64_MAX}, one, &range))
      << "a single piece has no step";
}

}  // namespace
}  // namespace fastnorm::test
