// Whether calls of libfastnorm_nccl give the bits of one device, and fail where they must.
#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "bench/nccl.h"

namespace bench {
namespace {

constexpr int64_t kLongWaitNs = 5'000'000'000, kShortWaitNs = 50'000'000;
constexpr int kRounds = 20;

fastnorm_dtype_id dtype_of(const std::string& name) {
  return name == "bf16"  ? FASTNORM_DTYPE_BF16
         : name == "f16" ? FASTNORM_DTYPE_F16
                         : FASTNORM_DTYPE_F32;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

class Checks {
 public:
  Checks(const NcclRanks& ranks, Watch& watch) : ranks_(ranks), watch_(watch) {}

  NcclCounts run(const std::vector<std::string>& dtypes) {
    step("version", [&] { return ranks_.version() > 2000 ? "" : "NCCL has no version"; });
    find_peers();
    first_call();
    for (const std::string& dtype : dtypes) {
      allreduce(dtype_of(dtype));
      sequence(dtype_of(dtype));
    }
    again();
    refusals();
    missing_rank();
    return counts_;
  }

 private:
  // A step whose body returns what is wrong, or throws it.
  template <typename Body>
  void step(const std::string& name, Body body) {
    watch_.step(name);
    std::string wrong;
    try {
      wrong = body();
    } catch (const std::exception& e) {
      wrong = e.what();
    }
    if (wrong.empty()) {
      ++counts_.passed;
      return;
    }
    ++counts_.failed;
    std::printf("FAIL %s: %s\n", name.c_str(), wrong.c_str());
    std::fflush(stdout);
  }
  template <typename Body>
  void step_of_peers(const std::string& name, Body body) {
    if (peers_) return step(name, body);
    ++counts_.skipped;
  }

  // More tokens than a rank has rings, 128 on a GPU and 8 on a CPU, so that a ring has several.
  int64_t most_tokens() const { return ranks_.cuda() ? 300 : 40; }

  // CPU ranks that are peers meet in their calls, which one thread cannot.
  bool together(bool wanted, bool by_peers) const { return wanted && (ranks_.cuda() || !by_peers); }

  void find_peers() {
    step("creation", [&] {
      const NcclHandles handles(ranks_, nccl_options(FASTNORM_DTYPE_BF16), true);
      handles.require();
      peers_ = handles.peer(0) != nullptr;
      return "";
    });
    if (!peers_) std::printf("the ranks are no peers: what needs them is skipped\n");
  }

  // No kernel of the call is loaded: a rank's must not wait for those of others.
  void first_call() {
    step_of_peers("allreduce by peers, nothing prepared", [&] {
      fastnorm_nccl_options options = nccl_options(FASTNORM_DTYPE_BF16, FASTNORM_NCCL_FIXED_ORDER);
      options.wait_ns = kLongWaitNs;
      const NcclHandles handles(ranks_, options, true);
      handles.require();
      const CallShape shape = {false, FASTNORM_DTYPE_BF16, 4, 5120};
      RankCalls calls(ranks_, shape, Numbers(shape.dtype, ranks_.count(), false));
      calls.reserve(handles);
      calls.poison();
      calls.run(handles, together(true, true));
      return result(handles, calls);
    });
  }

  // Outputs, and the state of peers.
  std::string result(const NcclHandles& handles, const RankCalls& calls) const {
    ranks_.synchronize();
    for (size_t r = 0; r < ranks_.count(); ++r) {
      fastnorm_peer* const peer = handles.peer(r);
      if (peer == nullptr) continue;
      const fastnorm_peer_state state = state_of(peer);
      if (state.error != FASTNORM_PEER_ERROR_NONE) {
        return "rank " + std::to_string(r) + " was stopped: error " + std::to_string(state.error) +
               " of rank " + std::to_string(state.rank);
      }
    }
    return calls.difference();
  }

  static fastnorm_peer_state state_of(const fastnorm_peer* peer) {
    fastnorm_peer_state state = {};
    state.struct_size = sizeof state;
    tool::check(fastnorm_peer_status(peer, &state));
    return state;
  }

  // One call by a thread for all, then by a thread a rank.
  void both_ways(const std::string& name, const NcclHandles& handles, const CallShape& shape,
                 bool exact, bool by_peers) {
    std::unique_ptr<RankCalls> calls;
    for (const bool one_thread : {true, false}) {
      if (one_thread && !together(true, by_peers)) continue;
      step(shape.text() + " " + name + (one_thread ? ", one thread" : ", a thread a rank"), [&] {
        if (calls == nullptr) {
          calls = std::make_unique<RankCalls>(ranks_, shape,
                                              Numbers(shape.dtype, ranks_.count(), exact));
          calls->reserve(handles);
          calls->prepare(handles);
        }
        calls->poison();
        calls->run(handles, one_thread);
        return result(handles, *calls);
      });
    }
  }

  void allreduce(fastnorm_dtype_id dtype) {
    const auto with_peer_bytes = [&](int64_t bytes) {
      fastnorm_nccl_options options = nccl_options(dtype);
      options.peer_bytes = bytes;
      return options;
    };
    const int64_t sizes[][2] = {{1, 4096}, {7, 1001}, {33, 4100}, {3, 64}, {most_tokens(), 8192}};
    for (const bool created_together : {true, false}) {
      const NcclHandles fixed(ranks_, nccl_options(dtype, FASTNORM_NCCL_FIXED_ORDER),
                              created_together);
      const NcclHandles by_size(ranks_, with_peer_bytes(1), created_together);
      const NcclHandles no_peers(ranks_, nccl_options(dtype, FASTNORM_NCCL_NO_PEERS),
                                 created_together);
      for (const auto& [tokens, columns] : sizes) {
        for (const bool codes : {false, true}) {
          const CallShape shape = {false, dtype, tokens, columns, codes};
          if (peers_) {
            both_ways("by peers", fixed, shape, false, true);
          } else {
            ++counts_.skipped;
          }
          // What NCCL adds is exact here, in whatever order.
          both_ways("by NCCL above peer_bytes", by_size, shape, true, false);
          both_ways("by NCCL, no peers", no_peers, shape, true, false);
        }
      }
    }
  }

  void sequence(fastnorm_dtype_id dtype) {
    const auto n = static_cast<int64_t>(ranks_.count());
    const int64_t sizes[][2] = {
        {n, 4096}, {3 * n, 1001}, {5 * n, 64}, {(ranks_.cuda() ? 32 : 4) * n, 8192}};
    for (const bool created_together : {true, false}) {
      const NcclHandles handles(ranks_, nccl_options(dtype), created_together);
      for (const auto& [tokens, columns] : sizes) {
        for (const bool codes : {false, true}) {
          for (const bool gather : {true, false})
            both_ways("", handles, {true, dtype, tokens, columns, codes, gather}, true, false);
        }
      }
    }
  }

  // Handles come and go.
  void again() {
    const CallShape shape = {false, FASTNORM_DTYPE_BF16, 16, 4096};
    std::unique_ptr<RankCalls> calls;
    for (int round = 0; round < kRounds; ++round) {
      step("handles, round " + std::to_string(round), [&] {
        const bool one_thread = round % 2 == 0;
        const NcclHandles handles(ranks_, nccl_options(shape.dtype), one_thread);
        handles.require();
        if (calls == nullptr) {
          calls = std::make_unique<RankCalls>(ranks_, shape,
                                              Numbers(shape.dtype, ranks_.count(), true));
          calls->reserve(handles);
          calls->prepare(handles);
        }
        calls->poison();
        calls->run(handles, together(one_thread, peers_));
        return result(handles, *calls);
      });
    }
  }

  // "" if all ranks have this status and text.
  static std::string all_are(const std::vector<Outcome>& outcomes, fastnorm_status status,
                             const char* text) {
    for (const Outcome& outcome : outcomes) {
      if (outcome.status != status || !has(outcome.text, text)) {
        return "status " + std::to_string(outcome.status) + ", \"" + outcome.text +
               "\"; wanted: status " + std::to_string(status) + ", \"" + text + "\"";
      }
    }
    return "";
  }
  static Outcome now(fastnorm_status status) {
    return {status, status == FASTNORM_OK ? "" : fastnorm_nccl_last_error()};
  }

  void refusals() {
    const fastnorm_dtype_id bf16 = FASTNORM_DTYPE_BF16;
    step_of_peers("options that differ", [&] {
      const NcclHandles handles(ranks_, nccl_options(bf16), false,
                                [](size_t r, fastnorm_nccl_options& options) {
                                  options.max_columns = 100 + static_cast<int64_t>(r);
                                });
      for (size_t r = 0; r < ranks_.count(); ++r) {
        if (handles.at(r) != nullptr) return std::string("a rank has a handle");
      }
      return all_are(handles.created(), FASTNORM_ERROR_ARGUMENT, "max_columns");
    });
    step_of_peers("options that are wrong on one rank", [&] {
      const NcclHandles handles(ranks_, nccl_options(bf16), false,
                                [](size_t r, fastnorm_nccl_options& options) {
                                  if (r == 1) options.rings = 1000;
                                });
      return all_are(handles.created(), FASTNORM_ERROR_ARGUMENT, "options");
    });
    step("one rank that wants no peers", [&] {
      const NcclHandles handles(ranks_, nccl_options(bf16), false,
                                [](size_t r, fastnorm_nccl_options& options) {
                                  if (r == 1) options.flags = FASTNORM_NCCL_NO_PEERS;
                                });
      handles.require();
      for (size_t r = 0; r < ranks_.count(); ++r) {
        if (handles.peer(r) != nullptr) return "a rank is a peer";
      }
      return "";
    });
    step("a fixed order without peers", [&] {
      const NcclHandles handles(
          ranks_, nccl_options(bf16, FASTNORM_NCCL_FIXED_ORDER | FASTNORM_NCCL_NO_PEERS), true);
      return all_are(handles.created(), FASTNORM_ERROR_UNSUPPORTED, "FASTNORM_NCCL_FIXED_ORDER");
    });
    step_of_peers("a fixed order above peer_bytes", [&] {
      fastnorm_nccl_options options = nccl_options(bf16, FASTNORM_NCCL_FIXED_ORDER);
      options.peer_bytes = 1;
      return refused(options, {false, bf16, 4, 64}, FASTNORM_ERROR_UNSUPPORTED, "no fixed order");
    });
    step("tokens that do not divide", [&] {
      const auto tokens = static_cast<int64_t>(ranks_.count()) + 1;
      return refused(nccl_options(bf16), {true, bf16, tokens, 64}, FASTNORM_ERROR_SHAPE,
                     "a multiple of");
    });
    if (ranks_.cuda()) step("communicators of other GPUs", [&] { return other_gpus(); });
  }

  // All ranks' calls are refused before anything is sent.
  std::string refused(const fastnorm_nccl_options& options, const CallShape& shape,
                      fastnorm_status status, const char* text) {
    const NcclHandles handles(ranks_, options, true);
    handles.require();
    const RankCalls calls(ranks_, shape, Numbers(shape.dtype, ranks_.count(), true));
    std::vector<Outcome> outcomes =
        ranks_.in_threads([&](size_t r) { return calls.run_one(handles, r); });
    outcomes.push_back(now(calls.run_together(handles)));
    ranks_.synchronize();
    return all_are(outcomes, status, text);
  }

  std::string other_gpus() const {
    std::vector<void*> comms(ranks_.comms(), ranks_.comms() + ranks_.count());
    std::reverse(comms.begin(), comms.end());
    std::vector<fastnorm_nccl*> handles(ranks_.count());
    const fastnorm_nccl_options options = nccl_options(FASTNORM_DTYPE_BF16);
    const Outcome outcome = now(fastnorm_nccl_create_all(
        ranks_.contexts(), ranks_.devices(), comms.data(), &options, ranks_.streams(),
        static_cast<int32_t>(ranks_.count()), handles.data()));
    return all_are({outcome}, FASTNORM_ERROR_ARGUMENT, "required: one device");
  }

  // The first rank calls alone: it finds out in time, and after a reset all go on.
  void missing_rank() {
    step_of_peers("a missing rank", [&]() -> std::string {
      fastnorm_nccl_options options = nccl_options(FASTNORM_DTYPE_BF16);
      options.wait_ns = kShortWaitNs;
      const NcclHandles handles(ranks_, options, true);
      handles.require();
      const CallShape shape = {false, FASTNORM_DTYPE_BF16, 16, 4096};
      RankCalls calls(ranks_, shape, Numbers(shape.dtype, ranks_.count(), false));
      calls.reserve(handles);
      calls.prepare(handles);
      const Outcome alone = now(calls.run_one(handles, 0));
      ranks_.synchronize();
      const bool known = alone.status == (ranks_.cuda() ? FASTNORM_OK : FASTNORM_ERROR_DEVICE);
      if (!known) return "the call alone: " + alone.text;
      if (state_of(handles.peer(0)).error != FASTNORM_PEER_ERROR_MISSING)
        return "no rank is missing";
      for (size_t r = 0; r < ranks_.count(); ++r) tool::check(fastnorm_peer_reset(handles.peer(r)));
      calls.poison();
      calls.run(handles, together(true, true));
      return result(handles, calls);
    });
  }

  const NcclRanks& ranks_;
  Watch& watch_;
  NcclCounts counts_;
  bool peers_ = false;
};

}  // namespace

NcclCounts check_nccl_calls(const NcclRanks& ranks, const std::vector<std::string>& dtypes,
                            Watch& watch) {
  return Checks(ranks, watch).run(dtypes);
}

}  // namespace bench
