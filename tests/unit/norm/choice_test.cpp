// The lists of choices and the list of kernels agree. The compiler checks that the lists have no
// gaps and no overlaps.
#include "core/norm/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "cuda/arch.h"
#include "cuda/families.h"

namespace fastnorm::test {
namespace {

struct Listed {
  const ArchSpec* arch;
  const NormChoices* choices;
};

// Every list that calls on an architecture can use.
std::vector<Listed> all_lists() {
  std::vector<Listed> lists;
  for (const ArchSpec* arch : cuda::kArchs) {
    lists.push_back({arch, arch->choices});
    if (arch->choices != &kNormChoicesDefault) lists.push_back({arch, &kNormChoicesDefault});
  }
  return lists;
}

// Kinds with a list, each once.
template <class Fn>
void for_each_listed_kind(const NormChoices& choices, Fn fn) {
  NormKind all;
  all.width = 3, all.from = 3, all.of = 3, all.weights = 7, all.output = 15, all.reach = 15;
  all.ask = 15, all.index = 3;
  for_each_kind(all, [&](const NormKind& kind) {
    if (!choices.lines(kind).empty()) fn(kind);
  });
}

// Lengths at which a line's tile changes.
std::vector<int64_t> lengths_of(const NormChoice& line) {
  const int64_t step = int64_t{line.pick.threads} * line.pick.blocks;
  std::vector<int64_t> lengths;
  for (int64_t v = line.least_vectors; v <= line.most_vectors && lengths.size() < 16;
       v = (v + step - 1) / step * step + 1) {
    lengths.push_back(v);
  }
  return lengths;
}

std::vector<NormKey> with_dtypes(NormKey key) {
  std::vector<NormKey> keys = {key};
  if (key.dtype == Dtype::kBF16) {
    key.dtype = Dtype::kF16;
    keys.push_back(key);
  }
  return keys;
}

std::string text_of(const Listed& list, const NormKind& kind, const NormChoice& line) {
  return std::string(list.arch->name) + " " + list.choices->text(kind) + " " + line.text;
}

// Each line names kernels that support its rows, in both 16-bit dtypes.
TEST(NormChoices, EveryLineHasItsKernels) {
  size_t lines = 0;
  for (const Listed& list : all_lists()) {
    const auto table = cuda::table_of<cuda::NormFamily>(*list.arch);
    for_each_listed_kind(*list.choices, [&](const NormKind& kind) {
      for (const NormChoice& line : list.choices->lines(kind)) {
        ++lines;
        for (const int64_t vectors : lengths_of(line)) {
          const Tile tile = line.pick.tile(vectors);
          ASSERT_LE(tile.vectors, kMaxVectors) << text_of(list, kind, line);
          const NormKey key = key_of(kind);
          for (const NormKey wanted : with_dtypes(key)) {
            bool found = false;
            for_each_key(kind, line.pick.flavour, [&](NormKey lean) {
              lean.dtype = wanted.dtype;
              const int32_t index = find_entry(table, lean, tile);
              if (index < 0) return;
              const VectorRange held = vectors_held(table[static_cast<size_t>(index)]);
              found |= vectors >= held.least && vectors <= held.most;
            });
            EXPECT_TRUE(found) << text_of(list, kind, line) << ": " << vectors << " vectors";
          }
        }
      }
    });
  }
  EXPECT_GT(lines, 1000u);
}

// A kernel that no line names would be compiled without a use.
TEST(NormChoices, EveryKernelIsNamedByALine) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const auto table = cuda::table_of<cuda::NormFamily>(*arch);
    std::vector<bool> named(table.size());
    const auto name = [&](NormKey key, Tile tile) {
      for (const NormKey wanted : with_dtypes(key)) {
        const int32_t index = find_entry(table, wanted, tile);
        if (index >= 0) named[static_cast<size_t>(index)] = true;
      }
    };
    for (const NormChoices* choices : {arch->choices, &kNormChoicesDefault}) {
      for_each_listed_kind(*choices, [&](const NormKind& kind) {
        for (const NormChoice& line : choices->lines(kind)) {
          for (const int64_t vectors : lengths_of(line)) {
            const Tile tile = line.pick.tile(vectors);
            for_each_key(kind, line.pick.flavour, [&](NormKey key) { name(key, tile); });
          }
        }
      });
    }
    for (size_t i = 0; i < table.size(); ++i)
      EXPECT_TRUE(named[i]) << arch->name << " " << table[i].name;
  }
}

// Every search gives the line that a scan of all lines gives.
TEST(NormChoices, TheSearchFindsWhatAScanFinds) {
  NormKind kind;
  for (const uint8_t ask : {NormKind::kLean, NormKind::kFull}) {
    kind.ask = ask;
    const std::span<const NormChoice> lines = kNormChoicesSm90.lines(kind);
    ASSERT_FALSE(lines.empty());
    for (int64_t vectors = 1; vectors < 5000; vectors += 7) {
      for (const int64_t rows : {1, 33, 128, 129, 640, 641, 4096, 1 << 20}) {
        const NormChoice* scanned = nullptr;
        for (const NormChoice& line : lines) {
          if (vectors >= line.least_vectors && vectors <= line.most_vectors &&
              rows >= line.least_rows && rows <= line.most_rows) {
            EXPECT_EQ(scanned, nullptr);
            scanned = &line;
          }
        }
        EXPECT_EQ(find_choice(lines, vectors, rows, [](const NormChoice&) { return int64_t{1}; }),
                  scanned);
      }
    }
  }
}

TEST(NormChoices, LinesOfText) {
  ParsedChoice parsed;
  ASSERT_TRUE(
      parse_choice("KIND(b16, plain | add, rms, own_dtype, y, aligned, lean, rows)", &parsed));
  EXPECT_TRUE(parsed.is_kind);
  int kinds = 0;
  for_each_kind(parsed.kinds, [&](const NormKind& kind) {
    ++kinds;
    EXPECT_EQ(kind.of, NormKind::kRms);
  });
  EXPECT_EQ(kinds, 2);
  ASSERT_TRUE(parse_choice(" ROWS(4097, 6144, 1, kAll, 128, kFit, 4, cached) ", &parsed));
  EXPECT_FALSE(parsed.is_kind);
  EXPECT_EQ(parsed.choice.least_vectors, 513);
  EXPECT_EQ(parsed.choice.most_vectors, 768);
  EXPECT_EQ(parsed.choice.most_rows, kNoLimit);
  EXPECT_EQ(parsed.choice.pick.tile(768), (Tile{128, 2, 4}));
  EXPECT_EQ(parsed.choice.pick.flavour, PickedFlavour::kCached);
  for (const char* wrong :
       {"", "KIND", "KIND(b16)", "KIND(b17, plain, rms, own_dtype, y, aligned, lean, rows)",
        "ROWS(1, 2, 3, 4, 5, kFit, 1)", "ROWS(2, 1, 1, 1, 128, kFit, 1, lean)",
        "ROWS(1, 2, 2, 1, 128, kFit, 1, lean)", "ROWS(0, 2, 1, 1, 128, kFit, 1, lean)",
        "ROWS(1, 2, 1, 1, 2048, kFit, 1, lean)", "ROWS(1, 2, 1, 1, 128, 9, 1, lean)",
        "ROWS(1, 2, 1, 1, 128, kFit, 1, quick)", "ROWS(1, 99999999999, 1, 1, 128, kFit, 1, lean)",
        "ROWS(1, 2, 1, 1, 128, kFit, 1, lean), ROWS"}) {
    EXPECT_FALSE(parse_choice(wrong, &parsed)) << wrong;
  }
}

}  // namespace
}  // namespace fastnorm::test
