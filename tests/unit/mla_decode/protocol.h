// A machine for models of barriers in a thread block: it tries all orders of the steps of programs
// that run at once, and of loads that arrive. No order may deadlock, read what is not there, write
// what is being read, or leave a named barrier half full.
//
// Where a program can arrive at a named barrier, or pass it, the machine looks at one order alone:
// nothing that another program can do now changes such a step or is changed by it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace fastnorm::test::protocol {

enum class Do : uint8_t {
  kWait,         // until the phase of an mbarrier with this parity is over
  kArrive,       // at an mbarrier
  kLoad,         // start of a load that arrives at an mbarrier by itself
  kExpect,       // arrival of a load's issuer
  kCopy,         // start of a load that arrives nowhere
  kLanded,       // waits for such loads
  kNamedArrive,  // at a named barrier
  kNamedSync,    // the same, and wait for the others
  kBeginRead,    // by the tensor cores or a bulk copy, until ..
  kEndRead,
  kRead,
  kWrite,
  kTest,  // goes on if the phase is over, else jumps
  kJump,
};

// Regions of shared memory, a bit each.
using Regions = uint32_t;
constexpr Regions region(int number) { return Regions{1} << number; }

struct Step {
  Do what;
  uint8_t object = 0;  // mbarrier or named barrier
  uint8_t parity = 0;
  uint8_t loads = 0;  // that follow an arrival of their issuer
  Regions regions = 0;
  int16_t tag = 0;         // what the regions must hold, or hold from now on
  int16_t jump = 0;        // steps
  const char* label = "";  // of what may be left out
};

using Program = std::vector<Step>;

// Contents: those of two kinds, items or tiles differ, and none is 0.
inline int16_t tag_of(int kind, int item, int tile) {
  return static_cast<int16_t>(1 + kind + 8 * (tile + 16 * item));
}

class Writer {
 public:
  explicit Writer(const std::string& left_out) : left_out_(left_out) {}

  void wait(const char* label, int barrier, int parity) {
    Step step = at(Do::kWait, barrier, label);
    step.parity = static_cast<uint8_t>(parity);
    add(step);
  }
  void arrive(const char* label, int barrier) { add(at(Do::kArrive, barrier, label)); }
  void load(Regions one, int16_t tag, int full) {
    Step step = of(Do::kLoad, one, tag);
    step.object = static_cast<uint8_t>(full);
    add(step);
  }
  void expect(int full, int loads) {
    Step step = at(Do::kExpect, full, "");
    step.loads = static_cast<uint8_t>(loads);
    add(step);
  }
  void copy(Regions r, int16_t tag) { add(of(Do::kCopy, r, tag)); }
  void landed(const char* label, Regions r) {
    Step step = of(Do::kLanded, r, 0);
    step.label = label;
    add(step);
  }
  void named_arrive(const char* label, int named) { add(at(Do::kNamedArrive, named, label)); }
  void named_sync(const char* label, int named) { add(at(Do::kNamedSync, named, label)); }
  void begin(Regions r, int16_t tag) { add(of(Do::kBeginRead, r, tag)); }
  void end(Regions r) { add(of(Do::kEndRead, r, 0)); }
  void read(Regions r, int16_t tag) { add(of(Do::kRead, r, tag)); }
  void write(Regions r, int16_t tag) { add(of(Do::kWrite, r, tag)); }
  // Steps of `yes` where the phase is over, else of `no`.
  template <class Yes, class No>
  void test(int barrier, int parity, Yes yes, No no) {
    const size_t from = program_.size();
    Step step = at(Do::kTest, barrier, "");
    step.parity = static_cast<uint8_t>(parity);
    add(step);
    yes();
    const size_t jump = program_.size();
    add({Do::kJump});
    no();
    program_[from].jump = static_cast<int16_t>(jump + 1 - from);
    program_[jump].jump = static_cast<int16_t>(program_.size() - jump);
  }

  bool leaves_out(const char* label) const { return !left_out_.empty() && left_out_ == label; }
  Program take() { return std::move(program_); }

 private:
  static Step at(Do what, int object, const char* label) {
    Step step = {what};
    step.object = static_cast<uint8_t>(object);
    step.label = label;
    return step;
  }
  static Step of(Do what, Regions regions, int16_t tag) {
    Step step = {what};
    step.regions = regions;
    step.tag = tag;
    return step;
  }
  void add(const Step& step) {
    if (!leaves_out(step.label)) program_.push_back(step);
  }

  const std::string left_out_;
  Program program_;
};

// How many programs, regions, mbarriers and named barriers a model has.
template <size_t kActorCount, size_t kRegionCount, size_t kBarrierCount, size_t kNamedCount>
struct Shape {
  static constexpr size_t kActors = kActorCount, kRegions = kRegionCount;
  static constexpr size_t kBarriers = kBarrierCount, kNamed = kNamedCount;
  static_assert(kRegions <= 8 * sizeof(Regions));
};

template <class Of>
class Machine {
 public:
  using Programs = std::array<Program, Of::kActors>;
  // That end a phase.
  struct Arrivals {
    std::array<uint8_t, Of::kBarriers> barriers;
    std::array<uint8_t, Of::kNamed> named;
  };

  Machine(Programs programs, const Arrivals& arrivals)
      : programs_(std::move(programs)), arrivals_(arrivals) {}

  // Tries all orders. Returns "", or what goes wrong in one of them.
  std::string run() {
    State first;
    std::memset(static_cast<void*>(&first), 0, sizeof first);
    std::vector<State> open = {first};
    seen_.insert(first);
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      bool moved = false;
      const auto visit = [&](const State& next) {
        moved = true;
        if (seen_.insert(next).second) open.push_back(next);
      };
      State next = state;
      if (step_that_commutes(&next)) {
        visit(next);
        continue;
      }
      for (size_t actor = 0; actor < Of::kActors; ++actor) {
        next = state;
        const Outcome outcome = step(actor, &next);
        if (outcome == Outcome::kWrong) return finding_;
        if (outcome == Outcome::kMoved) visit(next);
      }
      for (uint8_t r = 0; r < Of::kRegions; ++r) {
        if (state.coming[r] == 0) continue;
        next = state;
        land(r, &next);
        visit(next);
      }
      if (moved) continue;
      if (!finished(state)) return "deadlock" + places(state);
      for (const uint8_t count : state.count) {
        if (count != 0) return "a named barrier is half full at the end";
      }
    }
    return "";
  }

  size_t states() const { return seen_.size(); }

  std::set<std::string> labels() const {
    std::set<std::string> labels;
    for (const Program& p : programs_) {
      for (const Step& step : p) {
        if (step.label[0] != '\0') labels.insert(step.label);
      }
    }
    return labels;
  }

 private:
  enum class Outcome { kMoved, kBlocked, kWrong };
  static constexpr uint8_t kNowhere = 0xff;  // where a copy arrives

  // Everything on which the next step depends. Compared and hashed by its bytes.
  struct State {
    std::array<int16_t, Of::kActors> pc;
    std::array<int16_t, Of::kRegions> holds;
    std::array<int16_t, Of::kRegions> coming;   // by a load under way; 0 = none
    std::array<uint8_t, Of::kRegions> arrives;  // its mbarrier
    std::array<uint8_t, Of::kRegions> readers;
    std::array<uint8_t, Of::kActors> inside;  // generation + 1 of the named barrier waited at
    std::array<uint8_t, Of::kBarriers> phase, arrived, loads;
    std::array<uint8_t, Of::kNamed> generation, count;

    // All bytes but those behind the last member.
    std::string_view bytes() const {
      const auto* const from = reinterpret_cast<const char*>(this);
      return {from, static_cast<size_t>(reinterpret_cast<const char*>(&count + 1) - from)};
    }
    bool operator==(const State& other) const { return bytes() == other.bytes(); }
  };
  struct Hash {
    size_t operator()(const State& s) const { return std::hash<std::string_view>()(s.bytes()); }
  };

  const Step* next_step(size_t actor, const State& s) const {
    const auto pc = static_cast<size_t>(s.pc[actor]);
    return pc == programs_[actor].size() ? nullptr : &programs_[actor][pc];
  }

  bool finished(const State& s) const {
    for (size_t a = 0; a < Of::kActors; ++a) {
      if (next_step(a, s) != nullptr) return false;
    }
    return true;
  }

  std::string places(const State& s) const {
    std::string text;
    for (size_t a = 0; a < Of::kActors; ++a) {
      const Step* const step = next_step(a, s);
      text += std::string(a == 0 ? ": " : ", ") + (step == nullptr ? "end" : step->label);
    }
    return text;
  }

  Outcome wrong(const char* what, const State& s) {
    finding_ = what + places(s);
    return Outcome::kWrong;
  }

  void close(uint8_t barrier, State* s) const {
    if (s->arrived[barrier] < arrivals_.barriers[barrier] || s->loads[barrier] != 0) return;
    s->arrived[barrier] = 0;
    ++s->phase[barrier];
  }
  static bool over(const Step& step, const State& s) {
    return (s.phase[step.object] & 1) != step.parity;
  }
  void named_arrive(uint8_t n, State* s) const {
    if (++s->count[n] < arrivals_.named[n]) return;
    s->count[n] = 0;
    ++s->generation[n];
  }
  void land(uint8_t r, State* s) const {
    s->holds[r] = s->coming[r];
    s->coming[r] = 0;
    const uint8_t barrier = s->arrives[r];
    s->arrives[r] = 0;
    if (barrier == kNowhere) return;
    --s->loads[barrier];
    close(barrier, s);
  }

  bool step_that_commutes(State* s) {
    for (size_t a = 0; a < Of::kActors; ++a) {
      const Step* const next = next_step(a, *s);
      if (next == nullptr) continue;
      if (next->what != Do::kNamedArrive && next->what != Do::kNamedSync &&
          next->what != Do::kJump) {
        continue;
      }
      if (step(a, s) == Outcome::kMoved) return true;
    }
    return false;
  }

  // What stands against a step in one of its regions, or nullptr; takes the step there.
  const char* touch(const Step& step, uint8_t r, State* s) const {
    switch (step.what) {
      case Do::kLoad:
      case Do::kCopy:
        if (s->readers[r] != 0 || s->coming[r] != 0) return "load into what is read";
        s->holds[r] = 0;
        s->coming[r] = step.tag;
        s->arrives[r] = step.what == Do::kLoad ? step.object : kNowhere;
        break;
      case Do::kRead:
      case Do::kBeginRead:
        if (s->holds[r] != step.tag) return "read of what is not there";
        if (step.what == Do::kBeginRead) ++s->readers[r];
        break;
      case Do::kEndRead:
        --s->readers[r];
        break;
      case Do::kWrite:
        if (s->readers[r] != 0) return "write of what is read";
        if (s->coming[r] != 0) return "write of what is loaded";
        s->holds[r] = step.tag;
        break;
      default:
        break;
    }
    return nullptr;
  }

  Outcome step(size_t a, State* s) {
    const Step* const next = next_step(a, *s);
    if (next == nullptr) return Outcome::kBlocked;
    const Step& step = *next;
    const uint8_t object = step.object;
    switch (step.what) {
      case Do::kWait:
        if (!over(step, *s)) return Outcome::kBlocked;
        break;
      case Do::kArrive:
        ++s->arrived[object];
        close(object, s);
        break;
      case Do::kExpect:
        // The loads that follow belong to it. Their bytes are expected from here on.
        s->loads[object] = step.loads;
        ++s->arrived[object];
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
      case Do::kTest:
        if (!over(step, *s)) {
          s->pc[a] = static_cast<int16_t>(s->pc[a] + step.jump);
          return Outcome::kMoved;
        }
        break;
      case Do::kJump:
        s->pc[a] = static_cast<int16_t>(s->pc[a] + step.jump);
        return Outcome::kMoved;
      default:
        for (uint8_t r = 0; r < Of::kRegions; ++r) {
          if ((step.regions & region(r)) == 0) continue;
          if (step.what == Do::kLanded && s->coming[r] != 0) return Outcome::kBlocked;
          if (const char* const what = touch(step, r, s)) return wrong(what, *s);
        }
        break;
    }
    ++s->pc[a];
    return Outcome::kMoved;
  }

  const Programs programs_;
  const Arrivals arrivals_;
  std::unordered_set<State, Hash> seen_;
  std::string finding_;
};

}  // namespace fastnorm::test::protocol
