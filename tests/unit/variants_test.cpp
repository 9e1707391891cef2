// The list of kernels as data: every line makes kernels, no kernel occurs twice, and policies are
// compatible.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/arch.h"
#include "cuda/families.h"
#include "cuda/norm/list.h"

namespace fastnorm {
namespace {

using namespace cuda;

constexpr int kThreadsPerSm = 2048, kRegistersPerSm = 65536;
constexpr int kFewestRegisters = 32;  // of a thread, with which the smallest kernels were built

// The kernels of an architecture, in the order of its table.
template <const ArchSpec& kArch>
std::vector<Variant> variants_of() {
  std::vector<Variant> all;
  const auto append = [&](const auto& part) {
    for (const auto& numbered : part) all.push_back(NormFamily::variant_of(numbered.word));
  };
  [&]<int... kPart>(std::integer_sequence<int, kPart...>) {
    (append(kWords<NormFamily, kArch.column, kPart>), ...);
  }
  (std::make_integer_sequence<int, NormFamily::kParts>());
  return all;
}

const std::vector<std::vector<Variant>>& all_variants() {
  static const std::vector<std::vector<Variant>> kAll = {
      variants_of<kSm80>(), variants_of<kSm90>(), variants_of<kSm100>(), variants_of<kSm120>(),
      variants_of<kPtx>()};
  return kAll;
}

template <typename Fn>
void for_each(Fn fn) {
  for (size_t i = 0; i < all_variants().size(); ++i) {
    for (const Variant& v : all_variants()[i]) {
      SCOPED_TRACE(std::string(kArchs[i]->name) + ": " + make_entry(v.key, v.tile).name);
      fn(v);
    }
  }
}

TEST(Variants, TablesOfPlanningHaveThemInOrderAndOnce) {
  for (size_t i = 0; i < all_variants().size(); ++i) {
    const std::span<const NormEntry> table = table_of<NormFamily>(*kArchs[i]);
    const std::vector<Variant>& variants = all_variants()[i];
    ASSERT_EQ(table.size(), variants.size()) << kArchs[i]->name;
    for (size_t k = 0; k < table.size(); ++k) {
      ASSERT_EQ(table[k].packed(), packed(variants[k].key, variants[k].tile)) << table[k].name;
      if (k > 0) {
        ASSERT_LT(table[k - 1].packed(), table[k].packed()) << table[k].name;
      }
    }
  }
}

TEST(Variants, EveryLineMakesKernelsAndLinesAreSorted) {
  const auto order = [](const VariantLine& l) {
    const auto first = [](unsigned bits) { return std::countr_zero(bits); };
    return std::tuple(l.access >= Access::kUnaligned, l.sink == Sink::kStore, first(l.sources),
                      first(l.stats), l.affine, l.sink, l.access, first(l.blocks), first(l.threads),
                      first(l.vectors));
  };
  const auto file = [](const VariantLine& l) {
    return l.access >= Access::kUnaligned ? 2 : l.sink == Sink::kStore ? 1 : 0;
  };
  const VariantLine* before = nullptr;
  int number = 0;
  for (const VariantLine& line : NormFamily::kLines) {
    SCOPED_TRACE("line " + std::to_string(++number) + " of the list");
    for (const int set : {int{line.sources}, int{line.stats}, int{line.threads}, int{line.vectors},
                          int{line.blocks}, int{line.dtypes}, int{line.flavours}})
      EXPECT_NE(set, 0);
    EXPECT_TRUE(std::ranges::any_of(line.per_sm.of, [](uint8_t b) { return b > 0; }));
    if (before != nullptr && file(*before) == file(line) && file(line) < 2) {
      EXPECT_LE(order(*before), order(line));
    }
    if (before != nullptr) {
      EXPECT_LE(file(*before), file(line));
    }
    before = &line;
  }
}

TEST(Variants, WordsHoldAllOfAVariant) {
  std::set<uint64_t> words;
  for_each([&](const Variant& v) {
    EXPECT_EQ(variant_of(packed(v.key, v.tile), v.packed_policies()), v);
    words.insert(v.packed_policies());
  });
  EXPECT_GT(words.size(), 100u);
  Variant most = {.key = {}, .tile = {1024, 8, 16}};
  most.row = Row::kPacked, most.weights = Weights::kShared, most.loads = Loads::kStreaming;
  most.round = RoundRow::kPredicate, most.group = 8, most.fours_ahead = 15, most.fours_early = 15;
  most.blocks_per_sm = 32, most.pair_blocks_per_sm = 32, most.policies = 0x7ff;
  EXPECT_EQ(variant_of(packed(most.key, most.tile), most.packed_policies()), most);
}

TEST(Variants, BlocksFitAMultiprocessor) {
  for_each([](const Variant& v) {
    const int threads = v.tile.threads * rows_per_block(v.tile);
    EXPECT_GE(v.blocks_per_sm, 1);
    EXPECT_LE(v.blocks_per_sm * threads, kThreadsPerSm);
    EXPECT_LE(v.blocks_per_sm * threads * kFewestRegisters, kRegistersPerSm);
    EXPECT_LE(v.pair_blocks_per_sm, v.blocks_per_sm);
    EXPECT_EQ(v.pair_blocks_per_sm > 0, runs_pairs(v.key, v.tile));
  });
}

// The blocks that __launch_bounds__ names, in a family whose kernels have no policies.
template <class Family>
void expect_blocks_fit(const char* name) {
  for (const ArchSpec* arch : kArchs) {
    int seen = 0;
    for (int part = 0; part < Family::kParts; ++part) {
      for_each_kernel<Family>(arch->column, part, [&](const auto& v, uint16_t line) {
        SCOPED_TRACE(std::string(arch->name) + ": " + name + ", line " + std::to_string(line));
        EXPECT_GE(v.per_sm, 1);
        EXPECT_LE(v.per_sm * v.block_threads(), kThreadsPerSm);
        EXPECT_LE(v.per_sm * v.block_threads() * kFewestRegisters, kRegistersPerSm);
        ++seen;
      });
    }
    EXPECT_GT(seen, 0) << arch->name << ": " << name;
  }
}

TEST(Variants, BlocksOfOtherFamiliesFitAMultiprocessor) {
  expect_blocks_fit<NormBackwardFamily>("norm_backward");
  expect_blocks_fit<NormHeadsFamily>("norm_heads");
  expect_blocks_fit<NormHeadsBackwardFamily>("norm_heads_backward");
}

TEST(Variants, PoliciesFitTheSlots) {
  for_each([](const Variant& v) {
    const bool f32 = v.key.affine == Affine::kF32, early = v.weights == Weights::kEarly,
               rms = v.key.stat == Stat::kRms, streamed = v.tile.vectors == 0;
    EXPECT_EQ(v.weights == Weights::kShared, v.key.flavour == Flavour::kLeanShared);
    EXPECT_EQ(v.fours_ahead > 0, f32);
    EXPECT_LE(v.fours_early, early ? v.fours_ahead : 0);
    if (v.has(Variant::kCrossFours)) {
      EXPECT_TRUE(f32);
    }
    if (v.has(Variant::kReadyWeights)) {
      EXPECT_TRUE(early && !f32);
    }
    if (v.row == Row::kPacked) {
      EXPECT_TRUE(v.key.source == Source::kPlain);
    }
    if (v.has(Variant::kByFactors)) {
      EXPECT_TRUE(v.row == Row::kPacked);
    }
    if (v.has(Variant::kByFactors)) {
      EXPECT_EQ(v.key.dtype, Dtype::kBF16);
    }
    if (v.has(Variant::kPinsAddress)) {
      EXPECT_EQ(v.key.access, Access::kUnaligned);
    }
    if (v.has(Variant::kClampsTogether)) {
      EXPECT_EQ(v.key.sink, Sink::kQuant);
    }
    if (v.tile.is_cluster() && !streamed) {
      EXPECT_TRUE(v.has(Variant::kRowFirst));
    }
    if (v.loads != Loads::kCached) {
      EXPECT_TRUE(rms && v.key.access <= Access::kVector);
    }
    if (with_streaming_loads(v.key.flavour) == v.key.flavour &&
        v.key.flavour != Flavour::kGeneral && v.key.flavour != Flavour::kLeanShared) {
      EXPECT_EQ(v.loads, Loads::kStreaming);
    }
    if (!streamed) {
      EXPECT_GE(v.group, 1);
    }
    EXPECT_EQ(v.has(Variant::kEveryVector),
              v.key.access == Access::kVector && v.key.flavour == Flavour::kGeneral);
    if (v.has(Variant::kIdlePrefetch)) {
      EXPECT_TRUE(v.has(Variant::kPrefetches));
    }
  });
}

// --- the lists of the other families

template <class Variant>
int threads_of(const Variant& v) {
  if constexpr (requires { v.block_threads(); }) return v.block_threads();
  if constexpr (std::is_same_v<Variant, StagesVariant>)
    return v.threads * rows_per_block(Tile{v.threads, v.vectors, 1});
  return v.threads;
}

// Calls fn(variant, line) for each kernel of a family on an architecture.
template <class Family, typename Fn>
void for_each_of(const ArchSpec& arch, Fn fn) {
  for (int part = 0; part < Family::kParts; ++part) for_each_kernel<Family>(arch.column, part, fn);
}

template <class Family>
void expect_lists_fit() {
  std::vector<int> uses(std::size(Family::kLines));
  for (const ArchSpec* arch : kArchs) {
    size_t count = 0;
    for_each_of<Family>(*arch, [&](const auto& v, uint16_t line) {
      SCOPED_TRACE(std::string(arch->name) + ": line " + std::to_string(line + 1));
      ++uses[line], ++count;
      EXPECT_GE(v.per_sm, 1);
      EXPECT_LE(v.per_sm * threads_of(v), kThreadsPerSm);
      const auto word = Family::word_of(v);
      EXPECT_EQ(Family::word_of(Family::variant_of(word)), word);
    });
    EXPECT_EQ(count, table_of<Family>(*arch).size()) << arch->name;
  }
  for (size_t line = 0; line < uses.size(); ++line)
    EXPECT_GT(uses[line], 0) << "line " << line + 1 << " makes no kernel";
}

// A list whose second architecture has other numbers of blocks than the first, and whose third has
// those of the first.
struct MadeFamily : NormHeadsFamily {
  static constexpr FamilyLine<NormHeadsVariant> kLines[] = {
      {{Dtype::kF32, HeadsForm::kGeneral, 256, 0}, family_words::ALL, {{1, 1, 1, 1, 1}}},
      {{Dtype::kF32, HeadsForm::kAny, 16, 2}, family_words::HALF, {{4, 6, 4, 0, 0}}},
  };
};

// Plans read the blocks of a multiprocessor in the table of their architecture.
TEST(Lists, ArchitecturesShareTablesWithTheSameBlocks) {
  EXPECT_EQ(table_arch<MadeFamily>(0), 0);
  EXPECT_EQ(table_arch<MadeFamily>(1), 1);
  EXPECT_EQ(table_arch<MadeFamily>(2), 0);
  EXPECT_EQ(table_arch<MadeFamily>(3), 3);
  EXPECT_EQ(table_arch<MadeFamily>(4), 3);
  static constexpr auto kTable = make_table<MadeFamily, table_arch<MadeFamily>(1)>();
  for (const NormHeadsEntry& entry : kTable)
    EXPECT_EQ(entry.variant.per_sm, entry.variant.form == HeadsForm::kAny ? 6 : 1) << entry.name;
}

TEST(Lists, FitAMultiprocessorAndTheirWords) {
  // The tests of Variants have the norm's lists.
  Families::for_each([]<class Family>() {
    if constexpr (!std::is_same_v<Family, NormFamily>) expect_lists_fit<Family>();
  });
}

}  // namespace
}  // namespace fastnorm
