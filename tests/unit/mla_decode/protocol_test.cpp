// A model of the barriers in src/cuda/mla_decode/{producer,consumer}.cuh. Its three warpgroups are
// lists of steps. The test tries all orders of steps and of arriving loads. No order may deadlock,
// read what is not there, or write what is being read.
//
// A step stands for the code at the same place of the kernel. Change both together. Sub-tiles are
// combined to halves of a tile, and the warps of a warpgroup to one. pair_protocol_test.cpp models
// two blocks that work on one request, gather_protocol_test.cpp the kernel that gathers rows.
#include "unit/mla_decode/protocol.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fastnorm::test {
namespace {

using protocol::Program;
using protocol::region;
using protocol::tag_of;
using protocol::Writer;

enum Region : uint8_t {
  kQ,
  kQRope,
  kEvenL,
  kEvenR,
  kOddL,
  kOddR,
  kEvenP,
  kMaximum,
  kEvenScale,
  kOddScale,
  kEvenGrew,
  kOddGrew,
  kEvenSum,
  kOddSum,
  kRegions
};
constexpr Region kOddP = kQRope;  // P of the odd tile lies on the RoPE columns of Q

enum Barrier : uint8_t {
  kFullQ,
  kFullEvenL,
  kFullEvenR,
  kFullOddL,
  kFullOddR,
  kFreeQ,
  kFreeEvenL,
  kFreeEvenR,
  kFreeOddL,
  kFreeOddR,
  kFreeStage,
  kBarriers
};

enum Named : uint8_t { kEvenScaled, kOddScaled, kEvenStored, kOddStored, kBothGroups, kNamed };

// The producer, and the even and the odd consumer.
using Machine = protocol::Machine<protocol::Shape<3, kRegions, kBarriers, kNamed>>;
constexpr Machine::Arrivals kArrivals = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}, {2, 2, 2, 2, 2}};

// Contents: of a piece's queries, of a tile, of its P, ..
enum Kind { kTile, kQuery, kProbability, kScaled, kStage, kState };

// How a tile's maximum behaves: whether it grows decides what is exchanged.
enum class Growth { kNever, kAlways, kEven, kOdd };

struct Case {
  std::vector<int> items;  // tiles of each
  Growth growth = Growth::kAlways;
  // Outputs that go to the workspace, not through the stage: bit 2 * item + 1 is odd's. Of a pair
  // each consumer decides for itself.
  unsigned left = 0;

  bool leaves(int item, bool even) const {
    return ((left >> (2 * item + (even ? 0 : 1))) & 1) != 0;
  }
  bool even_grows() const { return growth == Growth::kAlways || growth == Growth::kEven; }
  bool odd_grows() const { return growth == Growth::kAlways || growth == Growth::kOdd; }
};

Program producer(const Case& c, const std::string& left_out) {
  Writer w(left_out);
  int free_even = 1, free_odd = 1, free_q = 1, free_stage = 1;
  for (int item = 0; item < static_cast<int>(c.items.size()); ++item) {
    const int end = c.items[static_cast<size_t>(item)];
    const auto load = [&](Region r, int tile, Barrier full) {
      w.expect(full, 1);
      w.load(region(r), tag_of(kTile, item, tile), full);
    };
    if (end > 0) {
      w.wait("producer waits for Q", kFreeQ, free_q);
      w.expect(kFullQ, 2);
      w.load(region(kQ), tag_of(kQuery, item, 0), kFullQ);
      w.load(region(kQRope), tag_of(kQuery, item, 0), kFullQ);
      free_q ^= 1;
      for (int tile = 0; tile < end; tile += 2) {
        const bool has_odd = tile + 1 < end, first = tile == 0;
        w.wait("producer waits for even left", kFreeEvenL, free_even);
        load(kEvenL, tile, kFullEvenL);
        if (first) {
          // An item of one tile ends when its even tile is there. A later wait could miss a phase.
          if (!has_odd) w.wait("producer waits for the stage", kFreeStage, free_stage);
          w.wait("producer waits for even right", kFreeEvenR, free_even);
          load(kEvenR, tile, kFullEvenR);
        }
        if (has_odd) {
          if (first) w.wait("producer waits for the stage", kFreeStage, free_stage);
          w.wait("producer waits for odd right", kFreeOddR, free_odd);
          load(kOddR, tile + 1, kFullOddR);
        }
        if (!first) {
          w.wait("producer waits for even right", kFreeEvenR, free_even);
          load(kEvenR, tile, kFullEvenR);
        }
        if (has_odd) {
          w.wait("producer waits for odd left", kFreeOddL, free_odd);
          load(kOddL, tile + 1, kFullOddL);
          free_odd ^= 1;
        }
        free_even ^= 1;
      }
      free_stage ^= 1;
    }
  }
  return w.take();
}

void write_outputs(Writer& w, const Case& c, int item, bool even, bool has_tiles) {
  if (!has_tiles) return;  // zeros, stored directly
  w.write(region(even ? kEvenSum : kOddSum), tag_of(kState, item, 0));
  w.named_sync("join before the sums", kBothGroups);
  if (even) w.arrive("Q is released", kFreeQ);
  w.read(region(kEvenSum), tag_of(kState, item, 0));
  w.read(region(kOddSum), tag_of(kState, item, 0));
  w.named_sync("join behind the sums", kBothGroups);
  const bool leaves = c.leaves(item, even);
  if (!leaves) {
    const Region stage = even ? kOddL : kOddR;
    w.write(region(stage), tag_of(kStage, item, even));
    w.begin(region(stage), tag_of(kStage, item, even));
    w.end(region(stage));
  }
  w.arrive(leaves ? "the stage is released unused" : "the stage is released", kFreeStage);
}

Program even_consumer(const Case& c, const std::string& left_out) {
  Writer w(left_out);
  int phase = 0, phase_q = 0;
  for (int item = 0; item < static_cast<int>(c.items.size()); ++item) {
    const int end = c.items[static_cast<size_t>(item)];
    const auto tile_tag = [&](int tile) { return tag_of(kTile, item, tile); };
    if (end > 0) {
      w.wait("even waits for Q", kFullQ, phase_q);
      phase_q ^= 1;
      const int16_t q = tag_of(kQuery, item, 0);
      w.read(region(kQRope), q);
      w.wait("even waits for even left", kFullEvenL, phase);
      w.begin(region(kEvenL), tile_tag(0));
      w.begin(region(kQ), q);
      w.wait("even waits for even right", kFullEvenR, phase);
      w.begin(region(kEvenR), tile_tag(0));
      for (const Region r : {kEvenL, kEvenR, kQ}) w.end(region(r));
      for (int tile = 0;; tile += 2) {
        phase ^= 1;
        const bool has_odd = tile + 1 < end, has_next = tile + 2 < end;
        if (c.even_grows()) {
          w.write(region(kMaximum), tag_of(kState, item, tile));
          w.write(region(kEvenScale), tag_of(kState, item, tile));
        }
        w.write(region(kEvenGrew), tag_of(kState, item, tile));
        w.named_arrive("even has scaled", kEvenScaled);
        if (!has_odd) w.write(region(kEvenL), tile_tag(tile));  // rows behind the end
        w.begin(region(kEvenL), tile_tag(tile));
        w.write(region(kEvenP), tag_of(kProbability, item, tile));
        w.end(region(kEvenL));
        w.arrive("even left is released", kFreeEvenL);
        if (!has_odd) {
          w.named_arrive("even has stored", kEvenStored);
          break;
        }
        w.named_sync("even waits for odd's scale", kOddScaled);
        w.read(region(kOddGrew), tag_of(kState, item, tile + 1));
        if (c.odd_grows()) {
          w.read(region(kOddScale), tag_of(kState, item, tile + 1));
          w.read(region(kMaximum), tag_of(kState, item, tile + 1));
        }
        w.write(region(kEvenP), tag_of(kScaled, item, tile));
        w.named_arrive("even has stored", kEvenStored);
        w.named_sync("even waits for odd's P", kOddStored);
        if (!has_next) w.write(region(kOddL), tile_tag(tile + 1));  // rows behind the end
        const int16_t p = tag_of(kProbability, item, tile + 1);
        w.begin(region(kOddP), p);
        w.begin(region(kOddL), tile_tag(tile + 1));
        const auto release = [&] {
          w.end(region(kOddP));
          w.end(region(kOddL));
          w.arrive("odd left is released", kFreeOddL);
        };
        if (!has_next) {
          release();
          break;
        }
        w.test(
            kFullEvenL, phase,
            [&] {
              w.begin(region(kEvenL), tile_tag(tile + 2));
              release();
            },
            [&] {
              release();
              w.wait("even waits for even left", kFullEvenL, phase);
              w.begin(region(kEvenL), tile_tag(tile + 2));
            });
        w.wait("even waits for even right", kFullEvenR, phase);
        w.begin(region(kEvenR), tile_tag(tile + 2));
        w.begin(region(kQ), q);
        for (const Region r : {kEvenL, kEvenR, kQ}) w.end(region(r));
      }
    }
    write_outputs(w, c, item, true, end > 0);
  }
  return w.take();
}

Program odd_consumer(const Case& c, const std::string& left_out) {
  Writer w(left_out);
  int phase = 0, phase_q = 0;
  for (int item = 0; item < static_cast<int>(c.items.size()); ++item) {
    const int end = c.items[static_cast<size_t>(item)];
    const auto tile_tag = [&](int tile) { return tag_of(kTile, item, tile); };
    if (end > 0) {
      const int16_t q = tag_of(kQuery, item, 0);
      w.wait("odd waits for Q", kFullQ, phase_q);
      phase_q ^= 1;
      w.read(region(kQRope), q);
      const auto scores = [&](int tile) {
        w.wait("odd waits for odd right", kFullOddR, phase);
        w.begin(region(kOddR), tile_tag(tile));
        w.begin(region(kQ), q);
        w.wait("odd waits for odd left", kFullOddL, phase);
        w.begin(region(kOddL), tile_tag(tile));
        for (const Region r : {kOddL, kOddR, kQ}) w.end(region(r));
      };
      if (end > 1) scores(1);
      for (int tile = 0;; tile += 2) {
        const bool has_odd = tile + 1 < end, has_next = tile + 2 < end;
        if (!has_odd) {
          w.named_sync("odd waits for even's scale", kEvenScaled);
          w.read(region(kEvenGrew), tag_of(kState, item, tile));
          if (c.even_grows()) {
            w.read(region(kMaximum), tag_of(kState, item, tile));
            w.read(region(kEvenScale), tag_of(kState, item, tile));
          }
          w.write(region(kEvenR), tile_tag(tile));  // rows behind the end
          w.named_sync("odd waits for even's P", kEvenStored);
          w.begin(region(kEvenP), tag_of(kProbability, item, tile));
          w.begin(region(kEvenR), tile_tag(tile));
          w.end(region(kEvenP));
          w.end(region(kEvenR));
          w.arrive("even right is released", kFreeEvenR);
          break;
        }
        phase ^= 1;
        w.named_sync("odd waits for even's scale", kEvenScaled);
        w.read(region(kEvenGrew), tag_of(kState, item, tile));
        if (c.even_grows()) {
          w.read(region(kMaximum), tag_of(kState, item, tile));
          w.read(region(kEvenScale), tag_of(kState, item, tile));
        }
        if (c.odd_grows()) {
          w.write(region(kMaximum), tag_of(kState, item, tile + 1));
          w.write(region(kOddScale), tag_of(kState, item, tile + 1));
        }
        w.write(region(kOddGrew), tag_of(kState, item, tile + 1));
        w.named_arrive("odd has scaled", kOddScaled);
        if (!has_next) w.write(region(kOddR), tile_tag(tile + 1));  // rows behind the end
        w.begin(region(kOddR), tile_tag(tile + 1));
        w.write(region(kOddP), tag_of(kProbability, item, tile + 1));
        w.named_sync("odd waits for even's P", kEvenStored);
        w.begin(region(kEvenP), tag_of(kScaled, item, tile));
        w.begin(region(kEvenR), tile_tag(tile));
        w.named_arrive("odd has stored", kOddStored);
        w.end(region(kOddR));
        w.arrive("odd right is released", kFreeOddR);
        w.end(region(kEvenP));
        w.end(region(kEvenR));
        w.arrive("even right is released", kFreeEvenR);
        if (!has_next) break;
        if (tile + 3 < end) scores(tile + 3);
      }
    }
    write_outputs(w, c, item, false, end > 0);
  }
  return w.take();
}

Machine machine(const Case& c, const std::string& left_out = "") {
  return Machine({producer(c, left_out), even_consumer(c, left_out), odd_consumer(c, left_out)},
                 kArrivals);
}

constexpr Growth kGrowths[] = {Growth::kNever, Growth::kAlways, Growth::kEven, Growth::kOdd};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const Growth growth : kGrowths) {
    for (int n = 0; n <= 6; ++n) list.push_back({{n}, growth});
    for (int a = 0; a <= 3; ++a) {
      for (int b = 0; b <= 3; ++b) list.push_back({{a, b}, growth});
    }
    list.push_back({{1, 0, 2, 1}, growth});
    list.push_back({{2, 3, 2}, growth});
    list.push_back({{4, 5}, growth});
    for (unsigned left = 1; left < 64; ++left) list.push_back({{2, 1, 3}, growth, left});
  }
  return list;
}

TEST(MlaDecodeProtocol, NoOrderGoesWrong) {
  size_t states = 0;
  for (const Case& c : cases()) {
    Machine model = machine(c);
    const std::string finding = model.run();
    std::string text;
    for (const int n : c.items) text += std::to_string(n) + " ";
    EXPECT_EQ(finding, "") << "items of tiles: " << text << "left: " << c.left;
    states += model.states();
  }
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 10000u) << "orders were looked at";
}

// Each barrier is needed: without it some order fails. There is one exception. The sums are read
// before the stage is released, and nobody writes them again before that.
TEST(MlaDecodeProtocol, EveryBarrierIsNeeded) {
  const auto labels = machine({{2, 3, 2}, Growth::kAlways, 3}).labels();
  EXPECT_EQ(labels.size(), 29u);
  for (const std::string& label : labels) {
    std::string finding;
    for (const Case& c : cases()) {
      finding = machine(c, label).run();
      if (!finding.empty()) break;
    }
    EXPECT_EQ(finding.empty(), label == "join behind the sums") << label << ": " << finding;
  }
}

}  // namespace
}  // namespace fastnorm::test
