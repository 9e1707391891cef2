// A model of the barriers in src/cuda/mla_decode/{producer,consumer}.cuh. Its three warpgroups are
// lists of steps. The test tries all orders of steps and of arriving loads. No order may deadlock,
// read what is not there, or write what is being read.
//
// A step stands for the code at the same place of the kernel. Change both together. Sub-tiles are
// combined to halves of a tile, and the warps of a warpgroup to one. pair_protocol_test.cpp models
// two blocks that work on one request.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

namespace fastnorm::test {
namespace {

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
constexpr uint8_t kArrivals[kBarriers] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2};

enum Named : uint8_t { kEvenScaled, kOddScaled, kEvenStored, kOddStored, kBothGroups, kNamed };

enum class Do : uint8_t {
  kWait,         // until the phase of an mbarrier with this parity is over
  kArrive,       // at an mbarrier
  kLoad,         // start of a load that arrives at an mbarrier by itself
  kExpect,       // arrival of a load's issuer
  kNamedArrive,  // at a barrier of both consumers
  kNamedSync,    // the same, and wait for the other
  kBeginRead,    // by the tensor cores, until ..
  kEndRead,
  kRead,
  kWrite,
  kTest,  // goes on if the phase is over, else jumps
  kJump,
};

struct Step {
  Do what;
  uint8_t object = 0;  // region, mbarrier or named barrier
  uint8_t parity = 0;
  int16_t tag = 0;         // what a region must hold, or holds from now on
  int16_t jump = 0;        // steps
  const char* label = "";  // of what may be left out
};

using Program = std::vector<Step>;

// Contents: of a piece's queries, of a tile, of its P, .. no two are equal.
int16_t tag_of(int kind, int item, int tile) {
  return static_cast<int16_t>(1 + kind + 8 * (tile + 16 * item));
}
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

class Writer {
 public:
  explicit Writer(const std::string& left_out) : left_out_(left_out) {}

  void wait(const char* label, Barrier barrier, int parity) {
    add({Do::kWait, barrier, static_cast<uint8_t>(parity), 0, 0, label});
  }
  void arrive(const char* label, Barrier barrier) { add({Do::kArrive, barrier, 0, 0, 0, label}); }
  void load(Region region, int16_t tag, Barrier full) { add({Do::kLoad, region, full, tag}); }
  void expect(Barrier full) { add({Do::kExpect, full}); }
  void named_arrive(const char* label, Named n) { add({Do::kNamedArrive, n, 0, 0, 0, label}); }
  void named_sync(const char* label, Named n) { add({Do::kNamedSync, n, 0, 0, 0, label}); }
  void begin(Region r, int16_t tag) { add({Do::kBeginRead, r, 0, tag}); }
  void end(Region r) { add({Do::kEndRead, r}); }
  void read(Region r, int16_t tag) { add({Do::kRead, r, 0, tag}); }
  void write(Region r, int16_t tag) { add({Do::kWrite, r, 0, tag}); }
  // Steps of `yes` where the phase is over, else of `no`.
  template <class Yes, class No>
  void test(Barrier barrier, int parity, Yes yes, No no) {
    const size_t at = program_.size();
    add({Do::kTest, barrier, static_cast<uint8_t>(parity)});
    yes();
    const size_t jump = program_.size();
    add({Do::kJump});
    no();
    program_[at].jump = static_cast<int16_t>(jump + 1 - at);
    program_[jump].jump = static_cast<int16_t>(program_.size() - jump);
  }

  Program take() { return std::move(program_); }

 private:
  void add(const Step& step) {
    if (!left_out_.empty() && left_out_ == step.label) return;
    program_.push_back(step);
  }

  const std::string left_out_;
  Program program_;
};

Program producer(const Case& c, const std::string& left_out) {
  Writer w(left_out);
  int free_even = 1, free_odd = 1, free_q = 1, free_stage = 1;
  for (int item = 0; item < static_cast<int>(c.items.size()); ++item) {
    const int end = c.items[static_cast<size_t>(item)];
    const auto load = [&](Region region, int tile, Barrier full) {
      w.expect(full);
      w.load(region, tag_of(kTile, item, tile), full);
    };
    if (end > 0) {
      w.wait("producer waits for Q", kFreeQ, free_q);
      w.expect(kFullQ);
      w.load(kQ, tag_of(kQuery, item, 0), kFullQ);
      w.load(kQRope, tag_of(kQuery, item, 0), kFullQ);
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
  w.write(even ? kEvenSum : kOddSum, tag_of(kState, item, 0));
  w.named_sync("join before the sums", kBothGroups);
  if (even) w.arrive("Q is released", kFreeQ);
  w.read(kEvenSum, tag_of(kState, item, 0));
  w.read(kOddSum, tag_of(kState, item, 0));
  w.named_sync("join behind the sums", kBothGroups);
  const bool leaves = c.leaves(item, even);
  if (!leaves) {
    const Region stage = even ? kOddL : kOddR;
    w.write(stage, tag_of(kStage, item, even));
    w.begin(stage, tag_of(kStage, item, even));
    w.end(stage);
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
      w.read(kQRope, q);
      w.wait("even waits for even left", kFullEvenL, phase);
      w.begin(kEvenL, tile_tag(0));
      w.begin(kQ, q);
      w.wait("even waits for even right", kFullEvenR, phase);
      w.begin(kEvenR, tile_tag(0));
      for (const Region r : {kEvenL, kEvenR, kQ}) w.end(r);
      for (int tile = 0;; tile += 2) {
        phase ^= 1;
        const bool has_odd = tile + 1 < end, has_next = tile + 2 < end;
        if (c.even_grows()) {
          w.write(kMaximum, tag_of(kState, item, tile));
          w.write(kEvenScale, tag_of(kState, item, tile));
        }
        w.write(kEvenGrew, tag_of(kState, item, tile));
        w.named_arrive("even has scaled", kEvenScaled);
        if (!has_odd) w.write(kEvenL, tile_tag(tile));  // rows behind the end
        w.begin(kEvenL, tile_tag(tile));
        w.write(kEvenP, tag_of(kProbability, item, tile));
        w.end(kEvenL);
        w.arrive("even left is released", kFreeEvenL);
        if (!has_odd) {
          w.named_arrive("even has stored", kEvenStored);
          break;
        }
        w.named_sync("even waits for odd's scale", kOddScaled);
        w.read(kOddGrew, tag_of(kState, item, tile + 1));
        if (c.odd_grows()) {
          w.read(kOddScale, tag_of(kState, item, tile + 1));
          w.read(kMaximum, tag_of(kState, item, tile + 1));
        }
        w.write(kEvenP, tag_of(kScaled, item, tile));
        w.named_arrive("even has stored", kEvenStored);
        w.named_sync("even waits for odd's P", kOddStored);
        if (!has_next) w.write(kOddL, tile_tag(tile + 1));  // rows behind the end
        const int16_t p = tag_of(kProbability, item, tile + 1);
        w.begin(kOddP, p);
        w.begin(kOddL, tile_tag(tile + 1));
        const auto release = [&] {
          w.end(kOddP);
          w.end(kOddL);
          w.arrive("odd left is released", kFreeOddL);
        };
        if (!has_next) {
          release();
          break;
        }
        w.test(
            kFullEvenL, phase,
            [&] {
              w.begin(kEvenL, tile_tag(tile + 2));
              release();
            },
            [&] {
              release();
              w.wait("even waits for even left", kFullEvenL, phase);
              w.begin(kEvenL, tile_tag(tile + 2));
            });
        w.wait("even waits for even right", kFullEvenR, phase);
        w.begin(kEvenR, tile_tag(tile + 2));
        w.begin(kQ, q);
        for (const Region r : {kEvenL, kEvenR, kQ}) w.end(r);
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
      w.read(kQRope, q);
      const auto scores = [&](int tile) {
        w.wait("odd waits for odd right", kFullOddR, phase);
        w.begin(kOddR, tile_tag(tile));
        w.begin(kQ, q);
        w.wait("odd waits for odd left", kFullOddL, phase);
        w.begin(kOddL, tile_tag(tile));
        for (const Region r : {kOddL, kOddR, kQ}) w.end(r);
      };
      if (end > 1) scores(1);
      for (int tile = 0;; tile += 2) {
        const bool has_odd = tile + 1 < end, has_next = tile + 2 < end;
        if (!has_odd) {
          w.named_sync("odd waits for even's scale", kEvenScaled);
          w.read(kEvenGrew, tag_of(kState, item, tile));
          if (c.even_grows()) {
            w.read(kMaximum, tag_of(kState, item, tile));
            w.read(kEvenScale, tag_of(kState, item, tile));
          }
          w.write(kEvenR, tile_tag(tile));  // rows behind the end
          w.named_sync("odd waits for even's P", kEvenStored);
          w.begin(kEvenP, tag_of(kProbability, item, tile));
          w.begin(kEvenR, tile_tag(tile));
          w.end(kEvenP);
          w.end(kEvenR);
          w.arrive("even right is released", kFreeEvenR);
          break;
        }
        phase ^= 1;
        w.named_sync("odd waits for even's scale", kEvenScaled);
        w.read(kEvenGrew, tag_of(kState, item, tile));
        if (c.even_grows()) {
          w.read(kMaximum, tag_of(kState, item, tile));
          w.read(kEvenScale, tag_of(kState, item, tile));
        }
        if (c.odd_grows()) {
          w.write(kMaximum, tag_of(kState, item, tile + 1));
          w.write(kOddScale, tag_of(kState, item, tile + 1));
        }
        w.write(kOddGrew, tag_of(kState, item, tile + 1));
        w.named_arrive("odd has scaled", kOddScaled);
        if (!has_next) w.write(kOddR, tile_tag(tile + 1));  // rows behind the end
        w.begin(kOddR, tile_tag(tile + 1));
        w.write(kOddP, tag_of(kProbability, item, tile + 1));
        w.named_sync("odd waits for even's P", kEvenStored);
        w.begin(kEvenP, tag_of(kScaled, item, tile));
        w.begin(kEvenR, tile_tag(tile));
        w.named_arrive("odd has stored", kOddStored);
        w.end(kOddR);
        w.arrive("odd right is released", kFreeOddR);
        w.end(kEvenP);
        w.end(kEvenR);
        w.arrive("even right is released", kFreeEvenR);
        if (!has_next) break;
        if (tile + 3 < end) scores(tile + 3);
      }
    }
    write_outputs(w, c, item, false, end > 0);
  }
  return w.take();
}

// Everything on which the next step depends. Compared and hashed by its bytes.
struct State {
  std::array<int16_t, 3> pc;
  std::array<uint8_t, 3> inside;  // generation + 1 of the named barrier at which a warpgroup waits
  uint8_t unused = 0;
  std::array<int16_t, kRegions> holds;
  std::array<int16_t, kRegions> coming;   // by a load under way; 0 = none
  std::array<uint8_t, kRegions> arrives;  // its mbarrier
  std::array<uint8_t, kRegions> readers;
  std::array<uint8_t, kBarriers> phase, arrived, loads;
  std::array<uint8_t, kNamed> generation, count;

  std::string key() const { return std::string(reinterpret_cast<const char*>(this), sizeof *this); }
};

class Model {
 public:
  explicit Model(const Case& c, const std::string& left_out = "")
      : programs_{producer(c, left_out), even_consumer(c, left_out), odd_consumer(c, left_out)} {}

  // Tries all orders. Returns "", or what goes wrong in one of them.
  std::string run() {
    State first;
    std::memset(static_cast<void*>(&first), 0, sizeof first);
    std::vector<State> open = {first};
    seen_.insert(first.key());
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      bool moved = false;
      for (int actor = 0; actor < 3; ++actor) {
        State next = state;
        const Outcome outcome = step(actor, &next);
        if (outcome == Outcome::kWrong) return finding_;
        if (outcome == Outcome::kBlocked) continue;
        moved = true;
        if (seen_.insert(next.key()).second) open.push_back(next);
      }
      for (uint8_t r = 0; r < kRegions; ++r) {
        if (state.coming[r] == 0) continue;
        State next = state;
        land(r, &next);
        moved = true;
        if (seen_.insert(next.key()).second) open.push_back(next);
      }
      if (!moved && !finished(state)) return "deadlock" + places(state);
    }
    return "";
  }

  size_t states() const { return seen_.size(); }

 private:
  enum class Outcome { kMoved, kBlocked, kWrong };

  bool finished(const State& s) const {
    for (size_t a = 0; a < 3; ++a) {
      if (static_cast<size_t>(s.pc[a]) != programs_[a].size()) return false;
    }
    return true;
  }

  std::string places(const State& s) const {
    std::string text;
    for (size_t a = 0; a < 3; ++a) {
      const auto pc = static_cast<size_t>(s.pc[a]);
      text += std::string(a == 0 ? ": " : ", ") +
              (pc == programs_[a].size() ? "end" : programs_[a][pc].label);
    }
    return text;
  }

  Outcome wrong(const char* what, const State& s) {
    finding_ = what + places(s);
    return Outcome::kWrong;
  }

  static void arrive(uint8_t barrier, State* s) {
    ++s->arrived[barrier];
    close(barrier, s);
  }
  static void close(uint8_t barrier, State* s) {
    if (s->arrived[barrier] < kArrivals[barrier] || s->loads[barrier] != 0) return;
    s->arrived[barrier] = 0;
    ++s->phase[barrier];
  }
  static bool over(uint8_t barrier, uint8_t parity, const State& s) {
    return (s.phase[barrier] & 1) != parity;
  }
  static void named_arrive(uint8_t n, State* s) {
    if (++s->count[n] < 2) return;
    s->count[n] = 0;
    ++s->generation[n];
  }
  static void land(uint8_t region, State* s) {
    s->holds[region] = s->coming[region];
    s->coming[region] = 0;
    const uint8_t barrier = s->arrives[region];
    --s->loads[barrier];
    close(barrier, s);
  }

  Outcome step(int actor, State* s) {
    const auto a = static_cast<size_t>(actor);
    const Program& program = programs_[a];
    if (static_cast<size_t>(s->pc[a]) == program.size()) return Outcome::kBlocked;
    const Step& step = program[static_cast<size_t>(s->pc[a])];
    const uint8_t object = step.object;
    switch (step.what) {
      case Do::kWait:
        if (!over(object, step.parity, *s)) return Outcome::kBlocked;
        break;
      case Do::kArrive:
        arrive(object, s);
        break;
      case Do::kExpect:
        // The loads that follow belong to it. Their bytes are expected from here on.
        s->loads[object] = object == kFullQ ? 2 : 1;
        ++s->arrived[object];
        break;
      case Do::kLoad:
        if (s->readers[object] != 0 || s->coming[object] != 0)
          return wrong("load into what is read", *s);
        s->holds[object] = 0;
        s->coming[object] = step.tag;
        s->arrives[object] = step.parity;
        break;
      case Do::kNamedArrive:
        named_arrive(object, s);
        break;
      case Do::kNamedSync:
        if (s->inside[a] == 0) {
          s->inside[a] = static_cast<uint8_t>(s->generation[object] + 1);
          named_arrive(object, s);
          return Outcome::kMoved;
        }
        if (static_cast<uint8_t>(s->generation[object] + 1) == s->inside[a])
          return Outcome::kBlocked;
        s->inside[a] = 0;
        break;
      case Do::kRead:
      case Do::kBeginRead:
        if (s->holds[object] != step.tag) return wrong("read of what is not there", *s);
        if (step.what == Do::kBeginRead) ++s->readers[object];
        break;
      case Do::kEndRead:
        --s->readers[object];
        break;
      case Do::kWrite:
        if (s->readers[object] != 0) return wrong("write of what is read", *s);
        if (s->coming[object] != 0) return wrong("write of what is loaded", *s);
        s->holds[object] = step.tag;
        break;
      case Do::kTest:
        if (!over(object, step.parity, *s)) {
          s->pc[a] = static_cast<int16_t>(s->pc[a] + step.jump);
          return Outcome::kMoved;
        }
        break;
      case Do::kJump:
        s->pc[a] = static_cast<int16_t>(s->pc[a] + step.jump);
        return Outcome::kMoved;
    }
    ++s->pc[a];
    return Outcome::kMoved;
  }

  const std::array<Program, 3> programs_;
  std::unordered_set<std::string> seen_;
  std::string finding_;
};

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
    Model model(c);
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
  std::set<std::string> labels;
  const Case some = {{2, 3, 2}, Growth::kAlways, 3};
  for (const Program& p : {producer(some, ""), even_consumer(some, ""), odd_consumer(some, "")}) {
    for (const Step& step : p) {
      if (step.label[0] != '\0') labels.insert(step.label);
    }
  }
  EXPECT_EQ(labels.size(), 29u);
  for (const std::string& label : labels) {
    std::string finding;
    for (const Case& c : cases()) {
      finding = Model(c, label).run();
      if (!finding.empty()) break;
    }
    EXPECT_EQ(finding.empty(), label == "join behind the sums") << label << ": " << finding;
  }
}

}  // namespace
}  // namespace fastnorm::test
