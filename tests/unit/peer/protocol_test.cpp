// A model of the ring in core/peer/layout.h on memory that is weaker than a CPU's: a store lands
// some time after it was issued, and stores of one thread to different words land in any order.
// Ranks are lists of steps; all orders of steps and landings are tried. No order may take a wrong
// row, wait for ever, or leave a word behind.
//
// A load of a word waits for this thread's own stores to it, as on a GPU, where both meet in the
// same cache. So a thread that has read back a word that it emptied knows that the word is empty
// for all. Without that, or a fence, the emptying may land after the next message of the other
// rank, which is lost: the race that slots alone do not cure.
//
// The steps stand for those of src/cpu/peer/link.cpp and of a GPU's kernel: who changes one changes
// the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/peer/layout.h"
#include "ref/data.h"
#include "support/share.h"

namespace fastnorm::test {
namespace {

// How a rank makes sure that its emptied words are empty before others store to them again.
enum class Safe : uint8_t {
  kBare,      // not at all
  kReadBack,  // reads the words of the message before, while it polls
  kFence,     // waits for all of its stores before it sends
  kRelease,   // its stores land in order: the CPU's release and acquire
};

enum class Mistake : uint8_t {
  kNone,
  kSentinelSent,   // words that look empty travel as they are
  kRingsRestart,   // message numbers begin with 0 in every launch
  kNothingEmptied  // the reader leaves the words as they are
};

struct Protocol {
  int ranks = 2;
  int slots = kPeerSlots;
  int ahead = 1;  // rows sent before the first is taken: D
  Safe safe = Safe::kReadBack;
  bool two_shot = false;
  std::vector<int> launches = {3};  // rows (two-shot: groups of rows) of each
  Mistake mistake = Mistake::kNone;
};

constexpr int kWords = 2;  // of a message
constexpr uint8_t kEmptyByte = 0xff;

struct Step {
  enum Kind : uint8_t { kSend, kTake, kEnd } kind;
  uint8_t rank;     // to or from
  uint8_t channel;  // 0 one-shot and shares, 1 totals
  uint8_t number;   // of the message
  uint8_t value;    // of its words
  bool reads_back;  // kTake: the message before was taken in the same launch
};

// A byte stands for a word. What row `number` of `rank` holds: one row in three is nothing but
// words that look empty.
uint8_t value_of(const Protocol& p, int channel, int rank, int number) {
  const bool looks_empty = (rank + number) % 3 == 1;
  const auto plain = static_cast<uint8_t>(1 + channel * 64 + rank * 16 + number);
  if (!looks_empty) return plain;
  return p.mistake == Mistake::kSentinelSent ? kEmptyByte : uint8_t{0xfe};
}

std::vector<Step> program(const Protocol& p, int rank) {
  std::vector<Step> steps;
  int first = 0;  // number of the launch's first message
  const auto send = [&](int channel, int of, int number) {
    for (int q = 0; q < p.ranks; ++q) {
      if (q == rank) continue;
      steps.push_back({Step::kSend, static_cast<uint8_t>(q), static_cast<uint8_t>(channel),
                       static_cast<uint8_t>(number), value_of(p, channel, of, number), false});
    }
  };
  const auto take = [&](int channel, int number) {
    for (int q = 0; q < p.ranks; ++q) {
      if (q == rank) continue;
      steps.push_back({Step::kTake, static_cast<uint8_t>(q), static_cast<uint8_t>(channel),
                       static_cast<uint8_t>(number), value_of(p, channel, q, number),
                       number > first});
    }
  };
  for (const int rows : p.launches) {
    for (int k = 0; k < std::min(p.ahead, rows); ++k) send(0, rank, first + k);
    for (int k = 0; k < rows; ++k) {
      take(0, first + k);
      if (p.two_shot) {
        send(1, rank, first + k);
        take(1, first + k);
      }
      if (k + p.ahead < rows) send(0, rank, first + k + p.ahead);
    }
    steps.push_back({Step::kEnd, 0, 0, 0, 0, false});
    if (p.mistake != Mistake::kRingsRestart) first += rows;
  }
  return steps;
}

struct Store {
  uint8_t rank;     // whose
  uint8_t address;  // in memory
  uint8_t value;
};

struct State {
  std::vector<uint8_t> at;      // [ranks] next step
  std::vector<uint8_t> memory;  // [owner][channel][source][slot][word]
  std::vector<Store> flying;    // in the order of their issue

  std::string key() const {
    std::string k(at.begin(), at.end());
    k.append(memory.begin(), memory.end());
    for (const Store& s : flying) {
      k += static_cast<char>(s.rank), k += static_cast<char>(s.address),
          k += static_cast<char>(s.value);
    }
    return k;
  }
};

enum Outcome : uint8_t { kRight = 1, kWrongRow = 2, kStuck = 4, kLeftBehind = 8, kTooMany = 16 };

class Model {
 public:
  explicit Model(const Protocol& protocol) : p_(protocol) {
    for (int r = 0; r < p_.ranks; ++r) programs_.push_back(program(p_, r));
    start_.at.assign(static_cast<size_t>(p_.ranks), 0);
    const int words = p_.ranks * 2 * p_.ranks * p_.slots * kWords;
    EXPECT_LE(words, 256);
    start_.memory.assign(static_cast<size_t>(words), kEmptyByte);
  }

  // All orders: the outcomes that some order has, or the first one of `enough`. States are many
  // times fewer than orders.
  uint8_t explore(uint8_t enough) {
    constexpr size_t kMostStates = 3000000;
    std::unordered_set<std::string> seen;
    std::vector<State> open = {start_};
    seen.insert(start_.key());
    uint8_t outcomes = 0;
    std::vector<State> next;
    while (!open.empty()) {
      const State state = std::move(open.back());
      open.pop_back();
      next.clear();
      outcomes |= successors(state, &next);
      if ((outcomes & enough) != 0) return outcomes;
      for (State& s : next) {
        if (seen.insert(s.key()).second) open.push_back(std::move(s));
      }
      if (seen.size() > kMostStates) return outcomes | kTooMany;
    }
    return outcomes;
  }

  // One order, at random.
  uint8_t walk(uint64_t seed) {
    ref::Random random(seed);
    State state = start_;
    std::vector<State> next;
    for (;;) {
      next.clear();
      if (const uint8_t outcome = successors(state, &next)) return outcome;
      const int64_t chosen = random.below(static_cast<int64_t>(next.size()));
      State following = std::move(next[static_cast<size_t>(chosen)]);
      state = std::move(following);
    }
  }

 private:
  int address(int owner, int channel, int source, int number, int word) const {
    return (((owner * 2 + channel) * p_.ranks + source) * p_.slots + number % p_.slots) * kWords +
           word;
  }
  bool is_done(const State& s, int rank) const {
    return s.at[static_cast<size_t>(rank)] == programs_[static_cast<size_t>(rank)].size();
  }

  static void land(State* s, size_t index) {
    s->memory[s->flying[index].address] = s->flying[index].value;
    s->flying.erase(s->flying.begin() + static_cast<std::ptrdiff_t>(index));
  }
  // A store lands behind this rank's earlier ones to the same word; with kRelease behind all
  // earlier ones.
  bool may_land(const State& s, size_t index) const {
    for (size_t i = 0; i < index; ++i) {
      if (s.flying[i].rank != s.flying[index].rank) continue;
      if (p_.safe == Safe::kRelease || s.flying[i].address == s.flying[index].address) return false;
    }
    return true;
  }
  // What a load of this word does to the thread's own stores to it, and with kRelease to those
  // before them.
  void settle(State* s, int rank, int word) const {
    for (size_t i = 0; i < s->flying.size(); ++i) {
      if (s->flying[i].rank != rank || s->flying[i].address != word) continue;
      for (size_t j = 0; p_.safe == Safe::kRelease && j < i;) {
        if (s->flying[j].rank == rank) {
          land(s, j);
          --i;
        } else {
          ++j;
        }
      }
      land(s, i);
      --i;
    }
  }

  bool has_flying(const State& s, int rank) const {
    return std::any_of(s.flying.begin(), s.flying.end(),
                       [&](const Store& f) { return f.rank == rank; });
  }

  // The states that follow, or an outcome that ends here.
  uint8_t successors(const State& state, std::vector<State>* next) const {
    uint8_t found = 0;
    bool done = true;
    for (int r = 0; r < p_.ranks; ++r) {
      if (is_done(state, r)) continue;
      done = false;
      const Step& step = programs_[static_cast<size_t>(r)][state.at[static_cast<size_t>(r)]];
      State s = state;
      if (step.kind == Step::kTake) {
        found |= take(&s, r, step);
        if (s.at != state.at || s.flying.size() != state.flying.size())
          next->push_back(std::move(s));
        continue;
      }
      // The end of a launch waits for its stores; so does a fence.
      const bool waits = step.kind == Step::kEnd || p_.safe == Safe::kFence;
      if (waits && has_flying(state, r)) continue;
      ++s.at[static_cast<size_t>(r)];
      if (step.kind == Step::kSend) {
        for (int w = 0; w < kWords; ++w) {
          const int to = address(step.rank, step.channel, r, step.number, w);
          s.flying.push_back({static_cast<uint8_t>(r), static_cast<uint8_t>(to), step.value});
        }
      }
      // Nothing that others do changes this step, nor does it change what they see: it need not
      // wait for another turn.
      next->assign(1, std::move(s));
      return 0;
    }
    for (size_t i = 0; i < state.flying.size(); ++i) {
      if (!may_land(state, i)) continue;
      State s = state;
      land(&s, i);
      next->push_back(std::move(s));
    }
    if (found != 0 || !next->empty()) return found;
    if (!done) return kStuck;
    const bool clean = std::all_of(state.memory.begin(), state.memory.end(),
                                   [](uint8_t word) { return word == kEmptyByte; });
    return clean ? kRight : kLeftBehind;
  }

  // Polls once: takes the message if it is whole.
  uint8_t take(State* s, int rank, const Step& step) const {
    bool missing = false;
    for (int w = 0; w < kWords; ++w) {
      const int word = address(rank, step.channel, step.rank, step.number, w);
      settle(s, rank, word);
      missing |= s->memory[static_cast<size_t>(word)] == kEmptyByte;
      if (p_.safe != Safe::kReadBack || !step.reads_back) continue;
      const int before = address(rank, step.channel, step.rank, step.number - 1, w);
      settle(s, rank, before);
      missing |= s->memory[static_cast<size_t>(before)] != kEmptyByte;
    }
    if (missing) return 0;
    ++s->at[static_cast<size_t>(rank)];
    for (int w = 0; w < kWords; ++w) {
      const int word = address(rank, step.channel, step.rank, step.number, w);
      if (s->memory[static_cast<size_t>(word)] != step.value) return kWrongRow;
      if (p_.mistake == Mistake::kNothingEmptied) continue;
      s->flying.push_back({static_cast<uint8_t>(rank), static_cast<uint8_t>(word), kEmptyByte});
    }
    return 0;
  }

  const Protocol p_;
  std::vector<std::vector<Step>> programs_;
  State start_;
};

uint8_t outcomes(const Protocol& protocol, uint8_t enough = 0) {
  return Model(protocol).explore(enough);
}

uint8_t walked(const Protocol& protocol, int walks) {
  Model model(protocol);
  uint8_t found = 0;
  for (int i = 0; i < walks; ++i) found |= model.walk(static_cast<uint64_t>(i));
  return found;
}

Protocol one_shot(Safe safe, int slots, int ahead, std::vector<int> launches) {
  Protocol p;
  p.safe = safe;
  p.slots = slots;
  p.ahead = ahead;
  p.launches = std::move(launches);
  return p;
}

TEST(PeerProtocol, WithoutACureAMessageIsLost) {
  // Slot j % 2 is emptied for row j and filled with row j + 2.
  constexpr uint8_t kLost = kStuck | kWrongRow;
  EXPECT_NE(outcomes(one_shot(Safe::kBare, 2, 1, {3}), kLost) & kLost, 0);
  // More slots make it rarer, and leave it possible.
  EXPECT_NE(outcomes(one_shot(Safe::kBare, 3, 1, {4}), kLost) & kLost, 0);
}

TEST(PeerProtocol, ReadBackCures) {
  EXPECT_EQ(outcomes(one_shot(Safe::kReadBack, 3, 1, {4})), kRight);
  EXPECT_EQ(outcomes(one_shot(Safe::kReadBack, kPeerSlots, 1, {4})), kRight);
  // 2 D + 1 slots are needed: the row before is read back, not this one.
  EXPECT_NE(outcomes(one_shot(Safe::kReadBack, 2, 1, {4}), kStuck), kRight);
}

TEST(PeerProtocol, AFenceOrOrderedStoresCureWithTwoSlots) {
  EXPECT_EQ(outcomes(one_shot(Safe::kFence, 2, 1, {4})), kRight);
  EXPECT_EQ(outcomes(one_shot(Safe::kRelease, 2, 1, {4})), kRight);
  EXPECT_EQ(outcomes(one_shot(Safe::kRelease, kPeerSlots, 1, {5})), kRight);
}

TEST(PeerProtocol, LaunchesOfOneRowNeedTwoSlots) {
  EXPECT_EQ(outcomes(one_shot(Safe::kBare, 2, 1, {1, 1, 1, 1})), kRight);
  EXPECT_NE(outcomes(one_shot(Safe::kBare, 1, 1, {1, 1})), kRight);
}

TEST(PeerProtocol, LaunchesFollowWithoutAMeeting) {
  EXPECT_EQ(outcomes(one_shot(Safe::kReadBack, kPeerSlots, 1, {2, 1, 2})), kRight);
  EXPECT_EQ(outcomes(one_shot(Safe::kRelease, kPeerSlots, 1, {1, 3, 1})), kRight);
}

TEST(PeerProtocol, MistakesAreFound) {
  Protocol p = one_shot(Safe::kReadBack, kPeerSlots, 1, {3});
  p.mistake = Mistake::kSentinelSent;
  EXPECT_NE(outcomes(p) & kStuck, 0);
  p.mistake = Mistake::kNothingEmptied;
  EXPECT_NE(outcomes(p), kRight);
  p = one_shot(Safe::kReadBack, kPeerSlots, 1, {1, 1});
  p.mistake = Mistake::kRingsRestart;
  EXPECT_NE(outcomes(p), kRight);
}

TEST(PeerProtocol, TwoShot) {
  Protocol p = one_shot(Safe::kRelease, kPeerSlots, 1, {2, 1});
  p.two_shot = true;
  EXPECT_EQ(outcomes(p), kRight);
  p.safe = Safe::kReadBack;
  EXPECT_EQ(outcomes(p), kRight);
}

TEST(PeerProtocol, MoreRanksAndRowsAtRandom) {
  for (const bool two_shot : {false, true}) {
    for (const Safe safe : {Safe::kReadBack, Safe::kRelease}) {
      Protocol p = one_shot(safe, kPeerSlots, 1, {7, 1, 4});
      p.ranks = 3;
      p.two_shot = two_shot;
      EXPECT_EQ(walked(p, support::share_of(200)), kRight)
          << two_shot << " " << static_cast<int>(safe);
    }
  }
  // These walks find the race where the cure is left out.
  Protocol p = one_shot(Safe::kBare, 2, 1, {7, 1, 4});
  p.ranks = 3;
  EXPECT_NE(walked(p, 200) & (kStuck | kWrongRow), 0);
  p = one_shot(Safe::kReadBack, 5, 2, {7, 1, 4});  // D = 2
  EXPECT_EQ(walked(p, support::share_of(200)), kRight);
}

}  // namespace
}  // namespace fastnorm::test
