// A model of src/cuda/mla_decode/pair.cuh: thread blocks that work on the two pieces of a request,
// of which the one that begins second merges them. The test tries all orders of steps, and all
// orders in which blocks start while a limited number of them fits on the device. No order may
// deadlock, read what is not there, or leave a request without its output.
//
// A step stands for the code at the same place of the kernel. Change both together. What happens
// inside a block before its outputs are complete is in protocol_test.cpp. Of a consumer's 128
// threads the model has the first and one other, since only the first one touches the pair's words.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

namespace fastnorm::test {
namespace {

constexpr int kMostBlocks = 4, kMostPairs = 3, kMostGroups = 2, kMostThreads = 2;
constexpr int kWhole = -1;  // an item that is all of its request

enum class Do : uint8_t {
  kTake,     // a number from the pair; the block's threads find it in shared memory
  kArrive,   // at a barrier of the block
  kPass,     // waits until all have arrived there
  kIfFirst,  // goes on if the block took the first number, else jumps
  kJump,
  kLeave,  // this thread's outputs, in the workspace
  kRaise,  // the flag that they are there
  kWaitForFlag,
  kReset,
  kMerge,  // reads the other block's outputs and stores the request's
};

struct Step {
  Do what;
  uint8_t pair = 0;
  uint8_t barrier = 0;
  uint8_t jump = 0;
  const char* label = "";  // of what may be left out
};
using Program = std::vector<Step>;

// Who merges. The kernel has kBeganSecond; the others are mistakes.
enum class Rule { kBeganSecond, kSecondPiece, kFirstPiece, kOneCounter };

// Parts of a plan: the items of each block, by the number of their pair.
struct Case {
  std::vector<std::vector<int>> parts;
  int groups, threads;  // consumers of a block, and threads of each
  int resident;         // blocks that the device holds at once
  Rule rule = Rule::kBeganSecond;
};

// Barriers of a block: one of both consumers, then one of each.
constexpr uint8_t kBothGroups = 0, kOneGroup = 1, kBlockBarriers = 1 + kMostGroups;

class Writer {
 public:
  explicit Writer(const std::string& left_out) : left_out_(left_out) {}

  void add(Do what, const char* label, int pair = 0, uint8_t barrier = 0) {
    if (left_out_.empty() || left_out_ != label) {
      program_.push_back({what, static_cast<uint8_t>(pair), barrier, 0, label});
    }
  }
  void sync(const char* label, int barrier) {
    add(Do::kArrive, label, 0, static_cast<uint8_t>(barrier));
    add(Do::kPass, label, 0, static_cast<uint8_t>(barrier));
  }
  // A jump whose length is not known yet.
  size_t jump(Do what, int pair = 0) {
    program_.push_back({what, static_cast<uint8_t>(pair)});
    return program_.size() - 1;
  }
  void land(size_t at) { program_[at].jump = static_cast<uint8_t>(program_.size() - at); }

  Program take() { return std::move(program_); }

 private:
  const std::string left_out_;
  Program program_;
};

// leave_for_partner()
void leave(Writer& w, int pair, int group, bool leads) {
  w.add(Do::kLeave, "outputs are left", pair);
  w.sync("join before the flag", kOneGroup + group);
  if (leads) w.add(Do::kRaise, "the flag is raised", pair);
}

// join_partner()
void join(Writer& w, int pair, int group, bool leads) {
  if (leads) {
    w.add(Do::kWaitForFlag, "wait for the flag", pair);
    w.add(Do::kReset, "the words are reset", pair);
  }
  w.sync("join behind the flag", kOneGroup + group);
  w.add(Do::kMerge, "outputs are merged", pair);
}

Program program_of(const Case& c, size_t block, int group, bool leads,
                   const std::string& left_out) {
  Writer w(left_out);
  for (const int pair : c.parts[block]) {
    // A pair is of two neighbours: the last item of one and the first of the next.
    const bool second = pair != kWhole && pair == c.parts[block].front() && block > 0;
    const bool takes = c.rule == Rule::kBeganSecond || c.rule == Rule::kOneCounter;
    if (pair != kWhole && leads && takes) w.add(Do::kTake, "a number is taken", pair);
    w.sync("join before the sums", kBothGroups);
    if (pair == kWhole) continue;
    if (takes) {
      const size_t to_join = w.jump(Do::kIfFirst, pair);
      leave(w, pair, group, leads);
      const size_t to_end = w.jump(Do::kJump);
      w.land(to_join);
      join(w, pair, group, leads);
      w.land(to_end);
    } else if (second == (c.rule == Rule::kSecondPiece)) {
      join(w, pair, group, leads);
    } else {
      leave(w, pair, group, leads);
    }
  }
  return w.take();
}

// Everything on which the next step depends. Compared and hashed by its bytes.
struct State {
  template <class T>
  using OfThreads = std::array<std::array<std::array<T, kMostThreads>, kMostGroups>, kMostBlocks>;

  std::array<uint8_t, kMostBlocks> started;
  OfThreads<uint8_t> pc;
  OfThreads<uint8_t> inside;  // generation + 1 of the barrier at which the thread waits
  std::array<std::array<uint8_t, kBlockBarriers>, kMostBlocks> arrived, generation;
  std::array<std::array<uint8_t, kMostGroups>, kMostBlocks> number;  // the last, see number_of()
  std::array<std::array<uint8_t, kMostGroups>, kMostPairs> taken, written;
  // By which block, + 1, a thread's outputs were left, and how often they were stored.
  std::array<std::array<std::array<uint8_t, kMostThreads>, kMostGroups>, kMostPairs> left, stored;

  std::string key() const { return std::string(reinterpret_cast<const char*>(this), sizeof *this); }
};

// What a block has in shared memory after it has taken a number from a pair.
uint8_t number_of(int pair, int number) { return static_cast<uint8_t>(1 + 16 * pair + number); }

// A thread of a block's consumer.
struct Actor {
  size_t block, group, thread;
};

class Model {
 public:
  explicit Model(const Case& c, const std::string& left_out = "") : case_(c) {
    for (size_t block = 0; block < c.parts.size(); ++block) {
      for (int group = 0; group < c.groups; ++group) {
        for (int thread = 0; thread < c.threads; ++thread) {
          actors_.push_back({block, static_cast<size_t>(group), static_cast<size_t>(thread)});
          programs_.push_back(program_of(c, block, group, thread == 0, left_out));
        }
      }
      for (const int pair : c.parts[block]) pairs_ = pair >= pairs_ ? pair + 1 : pairs_;
    }
  }

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
      const auto visit = [&](const State& next) {
        moved = true;
        if (seen_.insert(next.key()).second) open.push_back(next);
      };
      State next = state;
      if (step_that_commutes(&next)) {
        visit(next);
        continue;
      }
      for (size_t block = 0; block < case_.parts.size(); ++block) {
        next = state;
        if (start(block, &next)) visit(next);
      }
      for (size_t i = 0; i < actors_.size(); ++i) {
        next = state;
        const Outcome outcome = step(i, &next);
        if (outcome == Outcome::kWrong) return finding_;
        if (outcome == Outcome::kMoved) visit(next);
      }
      if (!moved) {
        const std::string finding = at_the_end(state);
        if (!finding.empty()) return finding;
      }
    }
    return "";
  }

  size_t states() const { return seen_.size(); }

 private:
  enum class Outcome { kMoved, kBlocked, kWrong };

  bool is_over(size_t i, const State& s) const {
    const Actor& a = actors_[i];
    return s.pc[a.block][a.group][a.thread] == programs_[i].size();
  }

  bool start(size_t block, State* s) const {
    if (s->started[block] != 0) return false;
    int running = 0;
    for (size_t b = 0; b < case_.parts.size(); ++b) {
      bool over = true;
      for (size_t i = 0; i < actors_.size(); ++i) {
        if (actors_[i].block == b && !is_over(i, *s)) over = false;
      }
      if (s->started[b] != 0 && !over) ++running;
    }
    if (running >= case_.resident) return false;
    s->started[block] = 1;
    return true;
  }

  std::string at_the_end(const State& s) const {
    for (size_t i = 0; i < actors_.size(); ++i) {
      if (!is_over(i, s)) return "deadlock";
    }
    for (size_t pair = 0; pair < static_cast<size_t>(pairs_); ++pair) {
      for (size_t group = 0; group < static_cast<size_t>(case_.groups); ++group) {
        for (size_t thread = 0; thread < static_cast<size_t>(case_.threads); ++thread) {
          if (s.stored[pair][group][thread] != 1) return "an output is not stored once";
        }
        if (s.taken[pair][group] != 0 || s.written[pair][group] != 0) {
          return "a word is not 0 for the next call";
        }
      }
    }
    return "";
  }

  Outcome wrong(const char* what) {
    finding_ = what;
    return Outcome::kWrong;
  }

  // Steps at barriers of a block have the same effect before and after any step of another thread
  // that can be taken now. One order of them is enough.
  bool step_that_commutes(State* s) {
    for (size_t i = 0; i < actors_.size(); ++i) {
      const auto [block, group, thread] = actors_[i];
      if (s->started[block] == 0 || is_over(i, *s)) continue;
      const Do what = programs_[i][s->pc[block][group][thread]].what;
      if (what != Do::kArrive && what != Do::kPass && what != Do::kJump) continue;
      if (step(i, s) == Outcome::kMoved) return true;
    }
    return false;
  }

  Outcome step(size_t i, State* s) {
    const auto [block, group, thread] = actors_[i];
    uint8_t& pc = s->pc[block][group][thread];
    if (s->started[block] == 0 || is_over(i, *s)) return Outcome::kBlocked;
    const Step& step = programs_[i][pc];
    // With one counter both consumers use the first one's words.
    const size_t word = case_.rule == Rule::kOneCounter ? 0 : group;
    uint8_t& left = s->left[step.pair][group][thread];
    uint8_t& inside = s->inside[block][group][thread];
    switch (step.what) {
      case Do::kTake:
        s->number[block][group] = number_of(step.pair, s->taken[step.pair][word]++);
        break;
      case Do::kArrive: {
        const int threads = (step.barrier == kBothGroups ? case_.groups : 1) * case_.threads;
        uint8_t& generation = s->generation[block][step.barrier];
        uint8_t& arrived = s->arrived[block][step.barrier];
        inside = static_cast<uint8_t>(generation + 1);
        if (++arrived == threads) {
          arrived = 0;
          ++generation;
        }
        break;
      }
      case Do::kPass:
        if (s->generation[block][step.barrier] + 1 == inside) return Outcome::kBlocked;
        inside = 0;
        break;
      case Do::kIfFirst:
        if (s->number[block][group] / 16 != step.pair || s->number[block][group] == 0) {
          return wrong("read of a number that is not there");
        }
        if (s->number[block][group] != number_of(step.pair, 0)) {
          pc = static_cast<uint8_t>(pc + step.jump);
          return Outcome::kMoved;
        }
        break;
      case Do::kJump:
        pc = static_cast<uint8_t>(pc + step.jump);
        return Outcome::kMoved;
      case Do::kLeave:
        left = static_cast<uint8_t>(block + 1);
        break;
      case Do::kRaise:
        s->written[step.pair][group] = 1;
        break;
      case Do::kWaitForFlag:
        if (s->written[step.pair][group] == 0) return Outcome::kBlocked;
        break;
      case Do::kReset:
        s->taken[step.pair][word] = s->written[step.pair][group] = 0;
        break;
      case Do::kMerge:
        if (left == 0 || left == block + 1) return wrong("read of outputs that are not there");
        ++s->stored[step.pair][group][thread];
        break;
    }
    ++pc;
    return Outcome::kMoved;
  }

  const Case case_;
  std::vector<Actor> actors_;
  std::vector<Program> programs_;
  int pairs_ = 0;
  std::unordered_set<std::string> seen_;
  std::string finding_;
};

// Two blocks, and three of which the middle one has two pairs; also beside whole requests.
std::vector<Case> cases() {
  const std::vector<std::vector<std::vector<int>>> plans = {
      {{0}, {0}},
      {{kWhole, 0}, {0, kWhole}},
      {{0}, {0, 1}, {1}},
      {{kWhole, 0}, {0, kWhole, 1}, {1}},
  };
  std::vector<Case> list;
  for (const auto& parts : plans) {
    for (int resident = 1; resident <= static_cast<int>(parts.size()); ++resident) {
      list.push_back({parts, 1, 2, resident});
      list.push_back({parts, 2, 1, resident});
    }
  }
  list.push_back({{{0}, {0}}, 2, 2, 2});
  list.push_back({{{0}, {0, 1}, {1, 2}, {2}}, 2, 1, 1});
  return list;
}

// Where it goes wrong, and how: "" if nowhere.
std::string first_finding(Rule rule, const std::string& left_out) {
  for (Case c : cases()) {
    c.rule = rule;
    const std::string finding = Model(c, left_out).run();
    if (!finding.empty()) return finding;
  }
  return "";
}

TEST(MlaDecodePairProtocol, NoOrderGoesWrong) {
  size_t states = 0;
  for (const Case& c : cases()) {
    Model model(c);
    EXPECT_EQ(model.run(), "") << c.parts.size() << " blocks, " << c.resident << " at once, "
                               << c.groups << " consumers, " << c.threads << " threads";
    states += model.states();
  }
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 10000u) << "orders were looked at";
}

TEST(MlaDecodePairProtocol, EveryStepIsNeeded) {
  const std::set<std::string> labels = {
      "a number is taken",    "join before the sums", "outputs are left",
      "join before the flag", "the flag is raised",   "wait for the flag",
      "the words are reset",  "join behind the flag", "outputs are merged"};
  for (const std::string& label : labels) {
    EXPECT_NE(first_finding(Rule::kBeganSecond, label), "") << label;
  }
}

// If the piece decides who merges, the merging block may hold the place that its partner needs.
TEST(MlaDecodePairProtocol, OnlyWhoBeganSecondMayWait) {
  EXPECT_EQ(first_finding(Rule::kSecondPiece, ""), "deadlock");
  EXPECT_EQ(first_finding(Rule::kFirstPiece, ""), "deadlock");
}

// A consumer that counted with the other's words would take its own block for the partner.
TEST(MlaDecodePairProtocol, EachConsumerCountsForItself) {
  EXPECT_NE(first_finding(Rule::kOneCounter, ""), "");
}

}  // namespace
}  // namespace fastnorm::test
