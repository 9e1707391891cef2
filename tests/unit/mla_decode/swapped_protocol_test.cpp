// A model of the barriers in src/cuda/mla_decode/swapped*.cuh: of the warpgroup that computes, the
// thread that loads sub-tiles of the cache into a ring of slots, and the one that loads queries.
// The test tries all orders of steps and of loads that arrive. No order may deadlock, read what is
// not there, or write what is being read.
//
// A step stands for the code at the same place of the kernel. Change both together. A tile of the
// model has two sub-tiles: the left columns of a tile, and the right ones with those of RoPE. Two
// programs compute, as two warps or as two lanes of one. pair_protocol_test.cpp models two blocks
// that work on one request. Here the other block's outputs are there when their flag is waited for.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "unit/mla_decode/protocol.h"

namespace fastnorm::test {
namespace {

using protocol::Program;
using protocol::region;
using protocol::Regions;
using protocol::tag_of;
using protocol::Writer;

constexpr int kSubTiles = 2, kMostSlots = 5, kComputing = 2;

// What each program stores a part of has two. kQ is also the stage of outputs. kLeft and kOthers
// pass between the blocks of a pair.
enum Region { kQ, kProb = 2, kMaxima = 4, kSums = 6, kLeft = 8, kOthers = 10, kTaken, kSlot };
constexpr int kRegions = kSlot + kMostSlots;

enum Barrier { kFullQueries, kFreeQueries, kFull, kFree = kFull + kMostSlots };
constexpr int kBarriers = kFree + kMostSlots;
enum Named { kVote, kOneGroup, kLanes, kNamed };

// Two programs that compute, the loads of the cache, and those of queries.
using Machine = protocol::Machine<protocol::Shape<kComputing + 2, kRegions, kBarriers, kNamed>>;

enum Kind { kTile, kQuery, kProbability, kState, kStage };
// What the tensor cores and bulk copies see of stores before a fence.
constexpr int16_t kUnfenced = -1;

// Which tiles move the running maximum: the vote decides for all warps.
enum class Growth { kNever, kAlways, kFirst, kOdd };

// Where an item's outputs go: from the stage by a bulk copy or by rows, or not through the stage.
enum Out { kBox, kRows, kPiece, kLeaves, kJoins };

struct Case {
  std::vector<int> items;  // tiles of each
  std::vector<Out> outs;   // of the items, again and again
  Growth growth = Growth::kAlways;
  bool tail = false;   // the last tile of each item has rows that are zeroed
  bool lanes = false;  // of one warp; else two warps
  int slots = 3;

  int count() const { return static_cast<int>(items.size()); }
  int tiles(int item) const { return items[static_cast<size_t>(item)]; }
  Out out(int item) const { return outs[static_cast<size_t>(item) % outs.size()]; }
  bool grows(int tile) const {
    if (growth == Growth::kFirst) return tile == 0;
    if (growth == Growth::kOdd) return tile % 2 != 0;
    return growth == Growth::kAlways;
  }
};

// All parts of what the programs store.
Regions all(int first) { return region(first) | region(first + 1); }

struct RingPlace {
  int slots, slot = 0, phase = 0;
  void advance() {
    if (++slot == slots) slot = 0, phase ^= 1;
  }
};

Program cache_loads(const Case& c, const std::string& left_out) {
  Writer w(left_out);
  RingPlace ring = {c.slots};
  for (int item = 0; item < c.count(); ++item) {
    for (int i = 0; i < kSubTiles * c.tiles(item); ++i) {
      w.wait("loads wait for a slot", kFree + ring.slot, ring.phase ^ 1);
      w.expect(kFull + ring.slot, 1);
      w.load(region(kSlot + ring.slot), tag_of(kTile, item, i), kFull + ring.slot);
      ring.advance();
    }
  }
  return w.take();
}

Program query_loads(const Case& c, const std::string& left_out) {
  Writer w(left_out);
  int phase = 1;
  for (int item = 0; item < c.count(); ++item) {
    if (c.tiles(item) == 0) continue;
    w.wait("loads wait for free queries", kFreeQueries, phase);
    phase ^= 1;
    w.expect(kFullQueries, kComputing);
    for (int i = 0; i < kComputing; ++i) {
      w.load(region(kQ + i), tag_of(kQuery, item, 0), kFullQueries);
    }
  }
  return w.take();
}

// consume_swapped() of a warp, or of a lane.
class Consumer {
 public:
  Consumer(const Case& c, int number, const std::string& left_out)
      : case_(c), number_(number), ring_{c.slots}, w_(left_out) {}

  Program program() {
    for (int item = 0; item < case_.count(); ++item) {
      if (case_.tiles(item) == 0) continue;
      const bool of_pair = case_.out(item) == kLeaves || case_.out(item) == kJoins;
      if (of_pair && number_ == 0) w_.write(region(kTaken), tag_of(kState, item, 0));
      w_.wait("a warp waits for queries", kFullQueries, phase_);
      phase_ ^= 1;
      for (int tile = 0; tile < case_.tiles(item); ++tile) compute(item, tile);
      write_outputs(item);
      release("lanes join before queries are released", "queries are released", kFreeQueries);
      end_late();
    }
    return w_.take();
  }

 private:
  void compute(int item, int tile) {
    const int16_t p = tag_of(kProbability, item, tile);
    int slot[kSubTiles];
    Regions sub_tile[kSubTiles];
    int16_t keys[kSubTiles];
    for (int i = 0; i < kSubTiles; ++i) {
      slot[i] = ring_.slot;
      sub_tile[i] = region(kSlot + slot[i]);
      keys[i] = tag_of(kTile, item, kSubTiles * tile + i);
      w_.wait("a warp waits for a slot", kFull + slot[i], ring_.phase);
      w_.begin(sub_tile[i], keys[i]);
      if (i == 0) w_.begin(all(kQ), tag_of(kQuery, item, 0));
      ring_.advance();
    }
    end("scores are waited for", sub_tile[0] | sub_tile[1] | all(kQ));
    w_.named_sync("the vote", kVote);
    if (case_.grows(tile)) join(kMaxima, p, "join behind the maxima");
    w_.write(region(kProb + number_), kUnfenced);
    if (case_.tail && tile + 1 == case_.tiles(item)) {
      for (int i = 0; i < kSubTiles; ++i) w_.write(sub_tile[i], keys[i]);  // rows behind the end
    }
    fence("fence behind P", region(kProb + number_), p);
    w_.named_sync("join behind P", kOneGroup);
    w_.begin(all(kProb), p);
    for (int i = 0; i < kSubTiles; ++i) w_.begin(sub_tile[i], keys[i]);
    end("the left product is waited for", sub_tile[0]);
    release("", "left slots are released", kFree + slot[0]);
    end("both products are waited for", sub_tile[1] | all(kProb));
    release("", "right slots are released", kFree + slot[1]);
    end_late();
  }

  void write_outputs(int item) {
    const Out out = case_.out(item);
    const int16_t state = tag_of(kState, item, 0), stage = tag_of(kStage, item, 0);
    join(kSums, state, "join behind the sums");
    if (out == kPiece) return;
    if (out == kLeaves || out == kJoins) w_.read(region(kTaken), state);
    if (out == kLeaves) {
      w_.write(region(kLeft + number_), state);
      w_.named_sync("join before the flag", kOneGroup);
      if (number_ == 0) w_.read(all(kLeft), state);  // as the other block, behind the flag
      return;
    }
    if (out == kJoins) {
      if (number_ == 0) w_.write(region(kOthers), state);  // the flag is seen
      w_.named_sync("join behind the flag", kOneGroup);
      w_.read(region(kOthers), state);
    }
    w_.write(region(kQ + number_), kUnfenced);
    fence("fence behind the stage", region(kQ + number_), stage);
    w_.named_sync("join behind the stage", kOneGroup);
    if (out == kRows) {
      w_.read(all(kQ), stage);
    } else if (number_ == 0) {
      w_.begin(all(kQ), stage);
      end("the copy of the stage is waited for", all(kQ));
    }
  }

  // over_warps()
  void join(int first, int16_t tag, const char* label) {
    w_.write(region(first + number_), tag);
    w_.named_sync(label, kOneGroup);
    w_.read(all(first), tag);
  }
  void fence(const char* label, Regions r, int16_t tag) {
    if (!w_.leaves_out(label)) w_.write(r, tag);
  }
  void end(const char* label, Regions r) {
    if (w_.leaves_out(label)) late_ |= r;
    if (!w_.leaves_out(label)) w_.end(r);
  }
  void end_late() {
    if (late_ != 0) w_.end(std::exchange(late_, 0));
  }
  // The first lane arrives for its warp. Lanes wait together for the tensor cores.
  void release(const char* lanes, const char* label, int barrier) {
    if (case_.lanes) {
      w_.named_sync(lanes, kLanes);
      if (number_ != 0) return;
    }
    w_.arrive(label, barrier);
  }

  const Case& case_;
  const int number_;
  RingPlace ring_;
  int phase_ = 0;
  Regions late_ = 0;  // reads that nobody waits for
  Writer w_;
};

Machine machine(const Case& c, const std::string& left_out = "") {
  Machine::Programs programs;
  for (int i = 0; i < kComputing; ++i) {
    programs[static_cast<size_t>(i)] = Consumer(c, i, left_out).program();
  }
  programs[kComputing] = cache_loads(c, left_out);
  programs[kComputing + 1] = query_loads(c, left_out);
  const uint8_t warps = c.lanes ? 1 : kComputing;
  Machine::Arrivals arrivals = {{1, warps}, {kComputing, kComputing, kComputing}};
  for (size_t slot = 0; slot < kMostSlots; ++slot) {
    arrivals.barriers[kFull + slot] = 1;
    arrivals.barriers[kFree + slot] = warps;
  }
  return Machine(programs, arrivals);
}

std::vector<Case> cases() {
  const std::vector<std::vector<int>> items = {{0},    {1},    {2},    {3},       {1, 1},
                                               {2, 1}, {0, 2}, {1, 3}, {1, 0, 2}, {1, 2, 1}};
  const std::vector<std::vector<Out>> outs = {
      {kBox},         {kRows},           {kPiece},         {kLeaves},
      {kJoins},       {kBox, kRows},     {kRows, kPiece},  {kPiece, kJoins},
      {kJoins, kBox}, {kLeaves, kJoins}, {kJoins, kLeaves}};
  std::vector<Case> list;
  for (const auto& i : items) {
    for (const auto& o : outs) {
      list.push_back({i, o, Growth::kNever, true, true});
      for (const int slots : {2, 3, 5}) list.push_back({i, o, Growth::kNever, true, false, slots});
      list.push_back({i, o, Growth::kAlways, false});
      list.push_back({i, o, Growth::kFirst, true});
      list.push_back({i, o, Growth::kOdd, false});
    }
  }
  return list;
}

TEST(MlaDecodeSwappedProtocol, NoOrderGoesWrong) {
  size_t states = 0;
  for (const Case& c : cases()) {
    Machine model = machine(c);
    std::string text = "tiles of items: ";
    for (const int n : c.items) text += std::to_string(n) + " ";
    text += "outputs: ";
    for (const Out out : c.outs) text += std::to_string(out) + " ";
    EXPECT_EQ(model.run(), "") << text << "growth: " << static_cast<int>(c.growth)
                               << ", tail: " << c.tail << ", lanes: " << c.lanes
                               << ", slots: " << c.slots;
    states += model.states();
  }
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 100000u) << "orders were looked at";
}

// Each wait, arrival and fence is needed: without it some order fails.
TEST(MlaDecodeSwappedProtocol, EveryBarrierIsNeeded) {
  const Case of_all = {{1, 1, 1}, {kBox, kLeaves, kJoins}, Growth::kAlways, false, true};
  std::set<std::string> labels = machine(of_all).labels();
  EXPECT_EQ(labels.size(), 15u);
  labels.insert({"fence behind P", "fence behind the stage", "scores are waited for",
                 "the left product is waited for", "both products are waited for",
                 "the copy of the stage is waited for"});
  for (const std::string& label : labels) {
    std::string finding;
    for (const Case& c : cases()) {
      finding = machine(c, label).run();
      if (!finding.empty()) break;
    }
    EXPECT_NE(finding, "") << label;
  }
}

// A tile's scores need all of its sub-tiles before the first one is free.
TEST(MlaDecodeSwappedProtocol, TheRingHoldsATile) {
  const Case c = {{1}, {kBox}, Growth::kNever, false, false, kSubTiles - 1};
  EXPECT_EQ(machine(c).run().rfind("deadlock", 0), 0u);
}

}  // namespace
}  // namespace fastnorm::test
