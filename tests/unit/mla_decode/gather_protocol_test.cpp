// A model of the barriers in src/cuda/mla_decode/gather*.cuh: of the warpgroups that fill two tiles
// of rows, and of the two that compute over them. The test tries all orders of steps and of loads
// that arrive. No order may deadlock, read what is not there, or write what is being read.
//
// A step stands for the code at the same place of the kernel. Change both together. Each of the
// model's writers fills a part of a tile's rows. A consumer is one warp or two. With two the model
// knows that barriers count threads of any warp, and that a warp reads rows of a tile, and stores
// rows of outputs, that another one has written.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "unit/mla_decode/protocol.h"

namespace fastnorm::test {
namespace {

using protocol::Program;
using protocol::region;
using protocol::Regions;
using protocol::tag_of;
using protocol::Writer;

constexpr int kTiles = 2, kMostWarps = 2;

// Numbers of regions; those of rows have one for each part of the rows.
constexpr int kQ = 0;
constexpr int kTileRows = 1;                          // [2 tiles][2 halves]
constexpr int kCounts = kTileRows + 4 * kMostWarps;   // [2 tiles] which rows count
constexpr int kProb = kCounts + kTiles * kMostWarps;  // P
constexpr int kFactors = kProb + kMostWarps;          // from the old to the new maxima
constexpr int kGrew = kFactors + kMostWarps;          // whether there are factors
constexpr int kSums = kGrew + kMostWarps;             // [2 items] and maxima
constexpr int kRegionCount = kSums + 2 * kMostWarps;

// kFull and kFree: [2 tiles][2 halves].
enum Barrier {
  kFullQ,
  kFreeQ,
  kFull,
  kFree = kFull + 2 * kTiles,
  kBarrierCount = kFree + 2 * kTiles
};
enum Named { kStoredP, kReadP, kBothGroups, kOneGroup, kNamedCount = kOneGroup + 2 };

// Two warps of the first consumer, two of the second, and two writers.
using Machine =
    protocol::Machine<protocol::Shape<3 * kMostWarps, kRegionCount, kBarrierCount, kNamedCount>>;

enum Kind { kTile, kQuery, kProbability, kState, kStage };

// Which tiles move the running maximum.
enum class Growth { kNever, kAlways, kFirst, kOther };

// How tiles and queries come: FP8 rows are converted when their tile is free, and so they are there
// when the writer arrives. Rows of T are copied, and their writer arrives later.
enum class Rows { kConverted, kCopied };
enum class Queries { kBox, kCopied };

enum class Mistake {
  kNone,
  kOneSum,         // one place for the sums of all items
  kReleasedEarly,  // an item's last tile is released before outputs are staged in it
  kGrewEarly,      // a tile's kGrew and factors are stored before those of the last one are read
};

struct Case {
  std::vector<int> items;  // tiles of each
  Growth growth = Growth::kAlways;
  Rows rows = Rows::kConverted;
  Queries queries = Queries::kBox;
  // Outputs that go to the workspace, not through the stage: bit 2 * item + 1 is the second
  // consumer's. Of a pair each consumer decides for itself.
  unsigned left = 0;
  int warps = 1, writers = 1;
  Mistake mistake = Mistake::kNone;

  int count() const { return static_cast<int>(items.size()); }
  int tiles(int item) const { return items[static_cast<size_t>(item)]; }
  bool leaves(int item, int group) const { return ((left >> (2 * item + group)) & 1) != 0; }
  bool grows(int tile, int warp) const {
    switch (growth) {
      case Growth::kNever:
        return false;
      case Growth::kAlways:
        return true;
      case Growth::kFirst:
        return tile == 0;
      case Growth::kOther:
        break;
    }
    return (tile + warp) % 2 != 0;
  }
};

// The parts of rows that one of `of` warps has: all, or its own.
Regions parts(int first, int warp, int of) {
  if (of == kMostWarps) return region(first + warp);
  return region(first) | region(first + 1);
}
Regions half_of(int buffer, int half, int warp = 0, int of = 1) {
  return parts(kTileRows + kMostWarps * (2 * buffer + half), warp, of);
}
Regions tile_of(int buffer, int warp = 0, int of = 1) {
  return half_of(buffer, 0, warp, of) | half_of(buffer, 1, warp, of);
}
int full_half(int buffer, int half) { return kFull + 2 * buffer + half; }
int free_half(int buffer, int half) { return kFree + 2 * buffer + half; }
Regions counts_of(int buffer, int warp = 0, int of = 1) {
  return parts(kCounts + kMostWarps * buffer, warp, of);
}

// The tile that a program is at. All of them count the tiles of the block.
struct TileCount {
  int buffer = 0, phase = 0;
  void step() {
    buffer ^= 1;
    if (buffer == 0) phase ^= 1;
  }
};

// gather() of one writer. The first one also loads queries.
class Producer {
 public:
  Producer(const Case& c, int writer, const std::string& left_out)
      : case_(c), writer_(writer), w_(left_out) {}

  Program program() {
    for (int item = 0; item < case_.count(); ++item) {
      if (case_.tiles(item) == 0) continue;
      if (writer_ == 0) {
        wait_free("producer waits for Q", "copies are reported before the wait for Q", kFreeQ,
                  free_q_, [&] {
                    load_queries(item);
                    fill(item, 0);
                  });
      } else {
        fill(item, 0);
      }
      free_q_ ^= 1;
      for (int tile = 1; tile < case_.tiles(item); ++tile) fill(item, tile);
    }
    if (!w_.leaves_out("the last copies are reported")) report();
    return w_.take();
  }

 private:
  // Copies are reported if there is a wait. Whether some are left to report depends on it, so that
  // both branches have the steps up to the next copies.
  template <class Then>
  void wait_free(const char* label, const char* report_label, int barrier, int parity, Then then) {
    if (copying_ < 0) {
      w_.wait(label, barrier, parity);
      then();
      return;
    }
    const TileCount at = at_;
    const int copying = copying_;
    w_.test(barrier, parity, then, [&] {
      at_ = at;
      copying_ = copying;
      if (!w_.leaves_out(report_label)) report();
      w_.wait(label, barrier, parity);
      then();
    });
  }
  void report() {
    if (copying_ < 0) return;
    w_.landed("copies are waited for", tile_of(copying_, writer_, case_.writers));
    for (int half = 0; half < 2; ++half) w_.arrive("a tile is full", full_half(copying_, half));
    copying_ = -1;
  }
  void load_queries(int item) {
    if (case_.queries == Queries::kBox) {
      w_.expect(kFullQ, 1);
      w_.load(region(kQ), tag_of(kQuery, item, 0), kFullQ);
    } else {
      w_.copy(region(kQ), tag_of(kQuery, item, 0));
      w_.landed("copies of Q are waited for", region(kQ));
      w_.arrive("Q is full", kFullQ);
    }
  }
  // A phase of a barrier for free memory is over from the start: all is free.
  void fill(int item, int tile) {
    const int16_t tag = tag_of(kTile, item, tile);
    const int parity = at_.phase ^ 1;
    const auto write_counts = [this, tag] {
      w_.write(counts_of(at_.buffer, writer_, case_.writers), tag);
    };
    if (case_.rows == Rows::kConverted) {
      for (int half = 0; half < 2; ++half) {
        w_.wait("producer waits for a half", free_half(at_.buffer, half), parity);
        if (half == 0) write_counts();
        w_.write(half_of(at_.buffer, half, writer_, case_.writers), tag);
        w_.arrive("a half is full", full_half(at_.buffer, half));
      }
      at_.step();
      return;
    }
    const char* const report_label = "copies are reported before the wait for a tile";
    wait_free("producer waits for a left half", report_label, free_half(at_.buffer, 0), parity,
              [&] {
                wait_free("producer waits for a right half", report_label, free_half(at_.buffer, 1),
                          parity, [&] {
                            write_counts();
                            w_.copy(tile_of(at_.buffer, writer_, case_.writers), tag);
                            report();
                            copying_ = at_.buffer;
                            at_.step();
                          });
              });
  }

  const Case& case_;
  const int writer_;
  Writer w_;
  TileCount at_;
  int free_q_ = 1;
  int copying_ = -1;  // the tile whose copies are not reported
};

// share_sums() and write_outputs() of a consumer's warp.
void write_outputs(Writer& w, const Case& c, int item, int group, int warp, int number,
                   int buffer) {
  const int parity = c.mistake == Mistake::kOneSum ? 0 : number % 2;
  const Regions sums = region(kSums + kMostWarps * parity + warp);
  if (group == 0) w.write(sums, tag_of(kState, item, 0));
  w.named_sync("join before the sums", kBothGroups);
  if (group == 1) w.read(sums, tag_of(kState, item, 0));
  const auto release = [&] {
    w.arrive(group == 0 ? "first releases its stage" : "second releases its stage",
             free_half(buffer, group));
  };
  if (c.mistake == Mistake::kReleasedEarly) release();
  if (!c.leaves(item, group)) {
    w.write(half_of(buffer, group, warp, c.warps), tag_of(kStage, item, group));
    w.named_sync("join before outputs are stored", kOneGroup + group);
    if (warp == 0) {
      w.begin(half_of(buffer, group), tag_of(kStage, item, group));
      w.end(half_of(buffer, group));
    }
  }
  if (c.mistake != Mistake::kReleasedEarly) release();
}

Program first_consumer(const Case& c, int warp, const std::string& left_out) {
  Writer w(left_out);
  TileCount at;
  int number = 0;
  bool stored = false;
  for (int item = 0; item < c.count(); ++item) {
    if (c.tiles(item) == 0) continue;
    w.wait("first waits for Q", kFullQ, number % 2);
    for (int tile = 0;;) {
      const int16_t rows = tag_of(kTile, item, tile), state = tag_of(kState, item, tile);
      const bool is_last = tile + 1 >= c.tiles(item);
      w.wait("first waits for a left half", full_half(at.buffer, 0), at.phase);
      w.begin(half_of(at.buffer, 0), rows);
      w.begin(region(kQ), tag_of(kQuery, item, 0));
      w.wait("first waits for a right half", full_half(at.buffer, 1), at.phase);
      w.begin(half_of(at.buffer, 1), rows);
      w.end(tile_of(at.buffer) | region(kQ));
      if (tile != 0) w.named_arrive("first has the next scores", kStoredP);
      if (is_last) w.arrive("Q is released", kFreeQ);
      w.read(counts_of(at.buffer), rows);
      const auto store_factors = [&] {
        if (c.grows(tile, warp)) w.write(region(kFactors + warp), state);
        w.write(region(kGrew + warp), state);
      };
      if (c.mistake == Mistake::kGrewEarly) store_factors();
      w.begin(half_of(at.buffer, 0), rows);
      if (stored) w.named_sync("first waits until P is read", kReadP);
      stored = true;
      if (c.mistake != Mistake::kGrewEarly) store_factors();
      w.write(region(kProb + warp), tag_of(kProbability, item, tile));
      if (is_last) w.named_arrive("first has stored the last P", kStoredP);
      w.end(half_of(at.buffer, 0));
      if (is_last) break;
      ++tile;
      w.arrive("first releases a half", free_half(at.buffer, 0));
      at.step();
    }
    write_outputs(w, c, item, 0, warp, number++, at.buffer);
    at.step();
  }
  if (stored) w.named_sync("the end waits until P is read", kReadP);
  return w.take();
}

Program second_consumer(const Case& c, int warp, const std::string& left_out) {
  Writer w(left_out);
  TileCount at;
  int number = 0;
  for (int item = 0; item < c.count(); ++item) {
    if (c.tiles(item) == 0) continue;
    for (int tile = 0;;) {
      const int16_t state = tag_of(kState, item, tile);
      w.wait("second waits for a half", full_half(at.buffer, 1), at.phase);
      w.named_sync("second waits for P", kStoredP);
      w.read(region(kGrew + warp), state);
      if (c.grows(tile, warp)) w.read(region(kFactors + warp), state);
      w.begin(half_of(at.buffer, 1), tag_of(kTile, item, tile));
      w.begin(region(kProb + warp), tag_of(kProbability, item, tile));
      w.end(half_of(at.buffer, 1) | region(kProb + warp));
      w.named_arrive("second has read P", kReadP);
      if (++tile >= c.tiles(item)) break;
      w.arrive("second releases a half", free_half(at.buffer, 1));
      at.step();
    }
    write_outputs(w, c, item, 1, warp, number++, at.buffer);
    at.step();
  }
  return w.take();
}

Machine machine(const Case& c, const std::string& left_out = "") {
  Machine::Programs programs;
  for (int warp = 0; warp < c.warps; ++warp) {
    programs[static_cast<size_t>(warp)] = first_consumer(c, warp, left_out);
    programs[static_cast<size_t>(kMostWarps + warp)] = second_consumer(c, warp, left_out);
  }
  for (int writer = 0; writer < c.writers; ++writer) {
    programs[static_cast<size_t>(2 * kMostWarps + writer)] =
        Producer(c, writer, left_out).program();
  }
  const auto warps = static_cast<uint8_t>(c.warps), both = static_cast<uint8_t>(2 * c.warps);
  const auto writers = static_cast<uint8_t>(c.writers);
  Machine::Arrivals arrivals = {{}, {both, both, both, warps, warps}};
  arrivals.barriers[kFullQ] = 1;
  arrivals.barriers[kFreeQ] = warps;
  for (size_t half = 0; half < 2 * kTiles; ++half) {
    arrivals.barriers[kFull + half] = writers;
    arrivals.barriers[kFree + half] = warps;
  }
  return Machine(programs, arrivals);
}

constexpr Growth kGrowths[] = {Growth::kNever, Growth::kAlways, Growth::kFirst, Growth::kOther};

// With one warp for a consumer and one writer.
std::vector<Case> narrow_cases() {
  std::vector<Case> list;
  const auto add = [&](const std::vector<int>& items, Rows rows) {
    list.push_back({items, Growth::kNever, rows, Queries::kBox});
    list.push_back({items, Growth::kAlways, rows, Queries::kCopied});
  };
  for (const Rows rows : {Rows::kConverted, Rows::kCopied}) {
    for (int n = 0; n <= 5; ++n) add({n}, rows);
    for (int a = 0; a <= 3; ++a) {
      for (int b = 0; b <= 3; ++b) add({a, b}, rows);
    }
    add({1, 0, 2, 1}, rows);
    add({1, 1, 1, 1}, rows);
    add({2, 3, 2}, rows);
    for (const Growth growth : {Growth::kFirst, Growth::kOther}) {
      list.push_back({{3}, growth, rows, Queries::kBox});
      list.push_back({{2, 1}, growth, rows, Queries::kBox});
    }
  }
  for (unsigned left = 1; left < 64; ++left) {
    list.push_back({{2, 1, 3}, Growth::kAlways, Rows::kConverted, Queries::kBox, left});
    list.push_back({{1, 1, 2}, Growth::kFirst, Rows::kCopied, Queries::kCopied, left});
  }
  return list;
}

// With two warps for each consumer, or two writers, or both.
std::vector<Case> wide_cases() {
  std::vector<Case> list;
  const std::vector<std::vector<int>> items = {{1}, {2}, {3}, {1, 1}, {2, 1}, {1, 1, 1}};
  for (const auto& i : items) {
    for (const unsigned left : {0u, 2u}) {
      const Growth growth = left == 0 ? Growth::kNever : Growth::kOther;
      list.push_back({i, growth, Rows::kConverted, Queries::kBox, left, 2, 1});
      list.push_back({i, growth, Rows::kConverted, Queries::kBox, left, 1, 2});
    }
    list.push_back({i, Growth::kAlways, Rows::kCopied, Queries::kCopied, 0, 1, 2});
  }
  for (const auto& i : {std::vector<int>{3}, {1, 1}}) {
    list.push_back({i, Growth::kOther, Rows::kConverted, Queries::kBox, 0, 2, 2});
  }
  list.push_back({{1, 1}, Growth::kAlways, Rows::kCopied, Queries::kBox, 0, 2, 1});
  return list;
}

std::string text_of(const Case& c) {
  std::string text = "items of tiles: ";
  for (const int n : c.items) text += std::to_string(n) + " ";
  text += "growth: " + std::to_string(static_cast<int>(c.growth));
  text += c.rows == Rows::kCopied ? ", copied rows" : ", converted rows";
  text += c.queries == Queries::kCopied ? ", copied queries" : ", boxes of queries";
  text += ", left: " + std::to_string(c.left) + ", warps: " + std::to_string(c.warps);
  return text + ", writers: " + std::to_string(c.writers);
}

// What goes wrong in the first case in which something does, or "".
std::string first_finding(Mistake mistake, const std::string& left_out) {
  for (const auto& list : {wide_cases(), narrow_cases()}) {
    for (Case c : list) {
      c.mistake = mistake;
      const std::string finding = machine(c, left_out).run();
      if (!finding.empty()) return finding;
    }
  }
  return "";
}

size_t states_of(const std::vector<Case>& cases) {
  size_t states = 0;
  for (const Case& c : cases) {
    Machine model = machine(c);
    EXPECT_EQ(model.run(), "") << text_of(c);
    states += model.states();
  }
  return states;
}

TEST(MlaDecodeGatherProtocol, NoOrderGoesWrong) {
  const size_t states = states_of(narrow_cases());
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 100000u) << "orders were looked at";
}

TEST(MlaDecodeGatherProtocol, NoOrderOfWarpsGoesWrong) {
  const size_t states = states_of(wide_cases());
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 100000u) << "orders were looked at";
}

// Each wait and each arrival is needed: without it some order fails. There is one exception: when P
// of a tile is stored the first consumer has waited for the tile already.
TEST(MlaDecodeGatherProtocol, EveryBarrierIsNeeded) {
  std::set<std::string> labels;
  for (const Rows rows : {Rows::kConverted, Rows::kCopied}) {
    const Case some = {{2, 3, 2}, Growth::kAlways, rows, Queries::kCopied};
    labels.merge(machine(some).labels());
  }
  labels.insert({"copies are reported before the wait for Q",
                 "copies are reported before the wait for a tile", "the last copies are reported"});
  EXPECT_EQ(labels.size(), 29u);
  for (const std::string& label : labels) {
    const std::string finding = first_finding(Mistake::kNone, label);
    EXPECT_EQ(finding.empty(), label == "second waits for a half") << label << ": " << finding;
  }
}

// The order on which kGrew depends: a read of the second consumer, its arrival at kReadP, the first
// one's wait there, and the store of the next tile. A store before the wait is seen as one.
TEST(MlaDecodeGatherProtocol, FactorsAreStoredBehindTheReadOfTheLastOnes) {
  for (const Growth growth : kGrowths) {
    Case c = {{2}, growth};
    EXPECT_EQ(machine(c).run(), "");
    c.mistake = Mistake::kGrewEarly;
    EXPECT_EQ(machine(c).run().rfind("read of what is not there", 0), 0u);
  }
}

TEST(MlaDecodeGatherProtocol, SumsNeedAPlaceForTwoItems) {
  EXPECT_NE(first_finding(Mistake::kOneSum, ""), "");
}

TEST(MlaDecodeGatherProtocol, TheStageIsReleasedBehindItsUse) {
  EXPECT_NE(first_finding(Mistake::kReleasedEarly, ""), "");
}

}  // namespace
}  // namespace fastnorm::test
