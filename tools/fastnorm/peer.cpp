// fastnorm peer bench: ranks that normalise together, as threads or as processes: whether the
// results are right, and what a call takes.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "commands.h"
#include "dtype.h"
#include "help.h"
#include "json.h"
#include "machine.h"
#include "norm_options.h"
#include "peer_work.h"
#include "progress.h"
#include "random.h"
#include "shape.h"

namespace fastnorm::tool {
namespace {

using Clock = std::chrono::steady_clock;
using support::devmem_check;

constexpr int kMostRanks = FASTNORM_PEER_MAX_RANKS;
constexpr int kMostSamples = 1000;

// What ranks share: in memory that forked processes have in common, too.
struct Meeting {
  // Waits for all ranks; false where one has failed, or none came for a long time.
  bool meet() {
    constexpr auto kLongest = std::chrono::seconds(120);
    const int mine = generation.load();
    if (arrived.fetch_add(1) + 1 == ranks) {
      arrived = 0;
      generation = mine + 1;
      return !failed;
    }
    const auto begin = Clock::now();
    while (generation.load() == mine) {
      if (failed || Clock::now() - begin > kLongest) {
        failed = true;
        return false;
      }
      std::this_thread::yield();
    }
    return !failed;
  }

  int ranks;
  std::atomic<int> arrived, generation;
  std::atomic<bool> failed;
  unsigned char blobs[kMostRanks][FASTNORM_PEER_BLOB_BYTES];
  double us[kMostRanks][kMostSamples];
  double nccl_us[kMostRanks][kMostSamples];
  PeerNccl::Id nccl_id;
  uint64_t digest[kMostRanks];
  char kernel[64];
  char text[kMostRanks][512];  // of a rank's failure
  std::atomic<int> replays, stopped;
  int launches;
  double stopped_ms;
};
static_assert(std::atomic<int>::is_always_lock_free);

uint64_t digest_of(const std::vector<std::byte>& bytes, uint64_t start) {
  for (const std::byte byte : bytes) start = (start ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  return start;
}

// One rank: a device, a peer, and a call's tensors.
class Rank {
 public:
  Rank(const PeerOptions& options, Meeting& meeting, int rank)
      : o_(options),
        meeting_(meeting),
        rank_(rank),
        machine_(parse_target(o_.devices[static_cast<size_t>(rank) % o_.devices.size()]), 1),
        work_(make_peer_work(options, machine_, meeting.ranks, rank)) {}
  ~Rank() { fastnorm_peer_destroy(peer_); }
  Rank(const Rank&) = delete;

  void run() {
    connect();
    if (o_.missing) return run_missing();
    prepare();
    meet();
    if (o_.late_ms > 0 && rank_ == 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(o_.late_ms));
    call();
    machine_.synchronize();
    verify();
    replay();
    measure();
  }

 private:
  void meet() {
    if (!meeting_.meet()) throw CommandError("another rank failed");
  }

  void connect() {
    const fastnorm_peer_options options = peer_options(o_, meeting_.ranks, rank_);
    check(fastnorm_peer_create(machine_.context(), &options, &peer_));
    check(fastnorm_peer_export(peer_, meeting_.blobs[rank_], FASTNORM_PEER_BLOB_BYTES));
    meet();
    check(fastnorm_peer_import(peer_, meeting_.blobs,
                               static_cast<size_t>(meeting_.ranks) * FASTNORM_PEER_BLOB_BYTES));
    work_->set_peer(peer_);
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    work_->query(&info);
    workspace_bytes_ = info.workspace_bytes;
    workspace_ = machine_.allocate(std::max<size_t>(workspace_bytes_, 1));
    if (rank_ == 0) {
      std::snprintf(meeting_.kernel, sizeof meeting_.kernel, "%s", info.kernel);
      meeting_.launches = info.launches;
      if (o_.nccl) meeting_.nccl_id = PeerNccl::make_id();
    }
    meet();
    if (!o_.nccl) return;
    nccl_ = std::make_unique<PeerNccl>(meeting_.nccl_id, meeting_.ranks, rank_,
                                       machine_.target().device_id);
    work_->nccl_call(*nccl_, machine_.stream());
    machine_.synchronize();
    meet();
  }

  void prepare() {
    check(work_->prepare());
    machine_.synchronize();
  }

  fastnorm_status try_call() { return work_->call(workspace_.get(), workspace_bytes_); }
  void call() { check(try_call()); }

  // All but the last rank call: they must end with an error in time, and go on after a reset.
  void run_missing() {
    prepare();
    meet();
    const auto begin = Clock::now();
    const bool here = rank_ != meeting_.ranks - 1;
    if (here) {
      const fastnorm_status status = try_call();
      if (machine_.target().is_cuda()) {
        check(status);
        machine_.synchronize();
      }
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      const fastnorm_peer_state state = state_of();
      // With more ranks one that was stopped is missing, too.
      if (state.error != FASTNORM_PEER_ERROR_MISSING ||
          (meeting_.ranks == 2 && state.rank != meeting_.ranks - 1))
        throw CommandError("rank " + std::to_string(rank_) + " found error " +
                           std::to_string(state.error) + " of rank " + std::to_string(state.rank));
      ++meeting_.stopped;
      if (rank_ == 0) meeting_.stopped_ms = ms;
    }
    meet();
    check(fastnorm_peer_reset(peer_));
    meet();
    call();
    machine_.synchronize();
    verify();
  }

  fastnorm_peer_state state_of() const {
    fastnorm_peer_state state = {};
    state.struct_size = sizeof state;
    check(fastnorm_peer_status(peer_, &state));
    return state;
  }

  // The results are those of this device without other ranks, and all ranks' alike.
  void verify() {
    const fastnorm_peer_state state = state_of();
    if (state.error != FASTNORM_PEER_ERROR_NONE)
      throw CommandError("the peer was stopped: error " + std::to_string(state.error) +
                         " of rank " + std::to_string(state.rank));
    const std::vector<std::byte> found = work_->result();
    expected_ = digest_of(found, 1);
    meeting_.digest[rank_] = expected_;
    if (work_->expected() != found)
      throw CommandError("the results differ from those of one device and ranks in order");
    meet();
    for (int r = 0; r < meeting_.ranks; ++r) {
      if (work_->alike() && meeting_.digest[r] != meeting_.digest[0])
        throw CommandError("ranks differ");
    }
  }

  // Many calls with delays: of a graph, where there is one. Every result has the same bits.
  void replay() {
    Random random(static_cast<uint64_t>(rank_) + 7);
    Graph graph(machine_, 1, [&] { call(); });
    for (int i = 0; i < o_.replays; ++i) {
      if (random.next() % 4 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random.next() % 200));
      graph.launch();
      machine_.synchronize();
      if (digest_of(work_->result(), 1) != expected_)
        throw CommandError("replay " + std::to_string(i) + " has other results");
      if (rank_ == 0) ++meeting_.replays;
    }
    meet();
  }

  void measure() {
    Graph graph(machine_, o_.calls, [&] { call(); });
    std::optional<Graph> nccl;
    if (nccl_ != nullptr) {
      meet();
      nccl.emplace(machine_, o_.calls, [&] { work_->nccl_call(*nccl_, machine_.stream()); });
    }
    graph.launch();
    if (nccl) nccl->launch();
    machine_.synchronize();
    for (int sample = 0; sample < o_.repeats; ++sample) {
      if (rank_ == 0) show_sample(static_cast<size_t>(sample), static_cast<size_t>(o_.repeats));
      meet();
      meeting_.us[rank_][sample] = graph.time_us() / o_.calls;
      if (!nccl) continue;
      meet();
      meeting_.nccl_us[rank_][sample] = nccl->time_us() / o_.calls;
    }
    meet();
    if (state_of().error != FASTNORM_PEER_ERROR_NONE) throw CommandError("the peer was stopped");
  }

  // Some calls: a graph on a GPU.
  class Graph {
   public:
    Graph(const Machine& machine, int calls, std::function<void()> call)
        : m_(machine), calls_(calls), call_(std::move(call)) {
      if (!m_.target().is_cuda()) return;
      devmem_check(devmem_capture_begin(m_.device(), m_.stream()));
      for (int i = 0; i < calls; ++i) call_();
      devmem_check(devmem_capture_end(m_.device(), m_.stream(), &graph_));
      devmem_check(devmem_event_create(m_.device(), &begin_));
      devmem_check(devmem_event_create(m_.device(), &end_));
    }
    ~Graph() {
      if (graph_ == nullptr) return;
      devmem_graph_destroy(m_.device(), graph_);
      devmem_event_destroy(m_.device(), begin_);
      devmem_event_destroy(m_.device(), end_);
    }
    Graph(const Graph&) = delete;

    void launch() {
      if (graph_ != nullptr) {
        devmem_check(devmem_graph_launch(m_.device(), graph_, m_.stream()));
        return;
      }
      for (int i = 0; i < calls_; ++i) call_();
    }
    double time_us() {
      if (graph_ == nullptr) {
        const auto begin = Clock::now();
        launch();
        return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
      }
      float ms = 0;
      devmem_check(devmem_event_record(m_.device(), begin_, m_.stream()));
      launch();
      devmem_check(devmem_event_record(m_.device(), end_, m_.stream()));
      devmem_check(devmem_event_elapsed_ms(m_.device(), begin_, end_, &ms));
      return static_cast<double>(ms) * 1e3;
    }

   private:
    const Machine& m_;
    const int calls_;
    const std::function<void()> call_;
    void *graph_ = nullptr, *begin_ = nullptr, *end_ = nullptr;
  };

  const PeerOptions& o_;
  Meeting& meeting_;
  const int rank_;
  const Machine machine_;
  const std::unique_ptr<PeerWork> work_;
  std::unique_ptr<PeerNccl> nccl_;
  fastnorm_peer* peer_ = nullptr;
  Block workspace_;
  size_t workspace_bytes_ = 0;
  uint64_t expected_ = 0;
};

void run_rank(const PeerOptions& options, Meeting& meeting, int rank) {
  try {
    Rank(options, meeting, rank).run();
  } catch (const std::exception& e) {
    std::snprintf(meeting.text[rank], sizeof meeting.text[rank], "%s", e.what());
    meeting.failed = true;
  }
}

void run_threads(const PeerOptions& options, Meeting& meeting) {
  std::vector<std::thread> threads;
  for (int r = 0; r < meeting.ranks; ++r)
    threads.emplace_back([&, r] { run_rank(options, meeting, r); });
  for (std::thread& thread : threads) thread.join();
}

// Forked ahead of any use of a GPU.
void run_processes(const PeerOptions& options, Meeting& meeting) {
  std::vector<pid_t> children;
  for (int r = 0; r < meeting.ranks; ++r) {
    const pid_t child = fork();
    if (child < 0) throw CommandError("fork failed");
    if (child == 0) {
      run_rank(options, meeting, r);
      std::fflush(nullptr);
      _exit(0);
    }
    children.push_back(child);
  }
  for (size_t r = 0; r < children.size(); ++r) {
    int status = 0;
    waitpid(children[r], &status, 0);
    if (WIFSIGNALED(status)) {
      std::snprintf(meeting.text[r], sizeof meeting.text[r], "ended by signal %d",
                    WTERMSIG(status));
      meeting.failed = true;
    }
  }
}

struct MeetingDeleter {
  void operator()(Meeting* meeting) const { munmap(meeting, sizeof *meeting); }
};
std::unique_ptr<Meeting, MeetingDeleter> make_meeting(int ranks) {
  void* const memory =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  std::unique_ptr<Meeting, MeetingDeleter> meeting(new (memory) Meeting());
  meeting->ranks = ranks;
  return meeting;
}

// The rank that failed for a reason of its own.
std::string reason(const Meeting& meeting) {
  std::string text = "the ranks failed";
  for (int r = meeting.ranks - 1; r >= 0; --r) {
    const std::string of_rank = meeting.text[r];
    if (!of_rank.empty() && (of_rank != "another rank failed" || text == "the ranks failed"))
      text = "rank " + std::to_string(r) + ": " + of_rank;
  }
  return text;
}

std::vector<double> slowest_of(const double (&us)[kMostRanks][kMostSamples], const PeerOptions& o) {
  std::vector<double> slowest;
  for (int sample = 0; sample < o.repeats && !o.missing; ++sample) {
    double most = 0;
    for (int r = 0; r < o.ranks; ++r) most = std::max(most, us[r][sample]);
    slowest.push_back(most);
  }
  return slowest;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void run_peer_bench(PeerOptions o) {
  if (!o.output.empty()) require_writable(o.output);
  if (o.ranks == 0) o.ranks = std::max(2, static_cast<int32_t>(o.devices.size()));
  const auto meeting = make_meeting(o.ranks);
  if (o.processes) {
    run_processes(o, *meeting);
  } else {
    run_threads(o, *meeting);
  }
  if (meeting->failed) throw CommandError(reason(*meeting));
  const std::vector<double> slowest = slowest_of(meeting->us, o);
  Json document = {{"library", fastnorm_version_string()},
                   {"devices", o.devices},
                   {"ranks", o.ranks},
                   {"processes", o.processes},
                   {"family", o.sharded ? "peer_sharded_norm" : "peer_allreduce_norm"},
                   {"rows", o.rows},
                   {"columns", o.columns},
                   {"dtype", o.dtype},
                   {"algorithm", o.algorithm},
                   {"quantise", o.quantise},
                   {"exact", o.exact},
                   {"weights", o.weights},
                   {"pdl", o.pdl},
                   {"kernel", meeting->kernel},
                   {"launches", meeting->launches},
                   {"replays", meeting->replays.load()}};
  if (o.columns2 != 0) document["columns2"] = o.columns2;
  if (o.missing) {
    document["stopped_ranks"] = meeting->stopped.load();
    document["stopped_ms"] = meeting->stopped_ms;
  } else {
    const auto [least, most] = std::minmax_element(slowest.begin(), slowest.end());
    document["median_us"] = median_of(slowest);
    document["spread"] = (*most - *least) / median_of(slowest);
    if (o.nccl) document["nccl_median_us"] = median_of(slowest_of(meeting->nccl_us, o));
  }
  if (!o.output.empty()) write_json(o.output, document);
  if (o.json) return print_json(document);
  clear_progress();
  std::printf("%d ranks, kernel \"%s\"\n", o.ranks, meeting->kernel);
  if (o.missing) {
    std::printf("rank %d missing: %d ranks stopped, rank 0 after %.0f ms; right after a reset\n",
                o.ranks - 1, meeting->stopped.load(), meeting->stopped_ms);
    return;
  }
  std::printf("right on all ranks, and %d times more with delays\n", meeting->replays.load());
  std::printf("median %.2f us of the slowest rank (spread %.0f%%)\n",
              document["median_us"].get<double>(), 100 * document["spread"].get<double>());
  if (o.nccl) {
    std::printf("by NCCL: median %.2f us, %.2f times as long\n",
                document["nccl_median_us"].get<double>(),
                document["nccl_median_us"].get<double>() / document["median_us"].get<double>());
  }
}

void add_peer_bench(CLI::App& family) {
  auto o = std::make_shared<PeerOptions>();
  CLI::App* command = family.add_subcommand("bench", "Check a norm of several ranks, and time it");
  command->footer(
      "Every rank's results are compared with those of one device, which takes the ranks in "
      "order.\n"
      "A time is of the slowest rank, on GPUs in a graph. --nccl also times the library's kernels\n"
      "with ncclAllReduce between them: with --sharded, the sums stand in for rstd, so a launch\n"
      "less than a caller needs.");
  command->add_option("--device", o->devices, "cpu, or cuda:0,cuda:1: a rank's each; may repeat")
      ->delimiter(',')
      ->check(CLI::Validator(check_device, ""))
      ->type_name(kDevice)
      ->capture_default_str();
  add_peer_options(*command, *o);
  command->add_flag("--processes", o->processes, "a process for each rank (GPUs); else threads");
  command->add_flag("--nccl", o->nccl, "time ncclAllReduce and norm, too: GPUs, libnccl.so.2");
  add_number(*command, "--wait-ms", o->wait_ms, "the longest wait for another rank", int64_t{1},
             int64_t{1000000});
  add_number(*command, "--calls", o->calls, "of a sample", 1, 100000);
  add_number(*command, "--repeats", o->repeats, "samples; the median counts", 1, kMostSamples);
  add_number(*command, "--replays", o->replays, "calls with delays whose results are compared", 0,
             1000000);
  add_number(*command, "--late-ms", o->late_ms, "rank 1 comes so late to the first call", 0,
             100000);
  command->add_flag("--missing", o->missing, "the last rank does not come: errors, then a reset");
  add_output_option(*command, &o->output);
  command->add_flag("--json", o->json, "print JSON");
  set_examples(
      *command,
      {"fastnorm peer bench --ranks 4 --rows 32 --columns 4096 --dtype bf16",
       "fastnorm peer bench --device cuda:0,cuda:1 --processes --rows 128 --columns 8192"});
  command->callback([o] {
    if (o->processes && o->devices[0] == "cpu")
      throw CLI::ValidationError(
          "--processes needs GPUs; required: CPU ranks as threads of one process");
    check_peer_options(*o);
    for (const int64_t columns : {o->columns, o->columns2}) {
      if (o->sharded && columns > 8192 && columns % 128 != 0)
        throw CLI::ValidationError(
            "--sharded has more than 8192 columns; required: a multiple of 128");
    }
    if (o->nccl && o->devices[0] == "cpu") throw CLI::ValidationError("--nccl needs GPUs");
    if (o->ranks != 0 && static_cast<size_t>(o->ranks) < o->devices.size())
      throw CLI::ValidationError("--ranks is less than there are devices");
    run_peer_bench(*o);
  });
}

}  // namespace

void add_peer(CLI::App& program) {
  CLI::App* family = program.add_subcommand("peer", "Tensor parallel norms of several ranks");
  family->require_subcommand(1);
  add_peer_explain(*family);
  add_peer_bench(*family);
  set_examples(*family, {"fastnorm peer explain --device sm_90 --ranks 4 --rows 32 --columns 4096",
                         "fastnorm peer bench --ranks 2 --rows 32 --columns 4096"});
}

}  // namespace fastnorm::tool
