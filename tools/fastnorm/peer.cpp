// fastnorm peer bench: ranks that add up their rows and normalise them, as threads or as processes:
// whether the results are right, and what a call takes.
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
#include <thread>

#include "commands.h"
#include "dtype.h"
#include "json.h"
#include "machine.h"
#include "random.h"

namespace fastnorm::tool {
namespace {

using Clock = std::chrono::steady_clock;
using support::devmem_check;

constexpr int kMostRanks = FASTNORM_PEER_MAX_RANKS;
constexpr int kMostSamples = 1000;

struct PeerOptions {
  std::vector<std::string> devices = {"cpu"};
  int32_t ranks = 0;  // 0 = as many as there are devices, or 2
  int64_t rows = 32, columns = 4096;
  std::string dtype = "bf16", algorithm = "auto", quantise = "none";
  bool layer = false, no_residual = false, pdl = false, processes = false, json = false;
  int32_t rings = 0, calls = 50, repeats = 9, replays = 100, late_ms = 0;
  int64_t one_shot_bytes = 0, wait_ms = 10000;
  bool missing = false;
  std::string output;
};

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
  uint64_t digest[kMostRanks];
  char kernel[64];
  char text[kMostRanks][512];  // of a rank's failure
  std::atomic<int> replays, stopped;
  double stopped_ms;
};
static_assert(std::atomic<int>::is_always_lock_free);

uint64_t digest_of(const std::vector<std::byte>& bytes, uint64_t start) {
  for (const std::byte byte : bytes) start = (start ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  return start;
}

fastnorm_peer_algorithm algorithm_of(const std::string& name) {
  return name == "one-shot"   ? FASTNORM_PEER_ONE_SHOT
         : name == "two-shot" ? FASTNORM_PEER_TWO_SHOT
                              : FASTNORM_PEER_AUTO;
}

// One rank: a device, a peer, and a call's tensors.
class Rank {
 public:
  Rank(const PeerOptions& options, Meeting& meeting, int rank)
      : o_(options),
        meeting_(meeting),
        rank_(rank),
        machine_(parse_target(o_.devices[static_cast<size_t>(rank) % o_.devices.size()]), 1),
        dtype_(find_dtype(o_.dtype)->dtype),
        row_bytes_(static_cast<size_t>(o_.columns) * element_bytes(dtype_)),
        bytes_(static_cast<size_t>(o_.rows) * row_bytes_) {
    x_ = place(data_of(rank_));
    residual_ = place(data_of(100));
    weight_ = place(weights());
    y_ = place({}), h_ = place({});
    codes_ = machine_.allocate(static_cast<size_t>(o_.rows * o_.columns));
    scale_ = machine_.allocate(static_cast<size_t>(o_.rows) * 4);
    constexpr float kScale = 0.0625f;
    const std::vector<float> scales(static_cast<size_t>(o_.rows), kScale);
    machine_.upload(scale_.get(), scales.data(), scales.size() * 4);
  }
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
    fastnorm_peer_options options = {};
    options.struct_size = sizeof options;
    options.rank = rank_;
    options.ranks = meeting_.ranks;
    options.dtype =
        static_cast<fastnorm_dtype_id>(dtype_.code | dtype_.bits << 8 | dtype_.lanes << 16);
    options.algorithm = algorithm_of(o_.algorithm);
    options.max_columns = o_.columns;
    options.one_shot_bytes = o_.one_shot_bytes;
    options.wait_ns = o_.wait_ms * 1000000;
    options.rings = o_.rings;
    check(fastnorm_peer_create(machine_.context(), &options, &peer_));
    check(fastnorm_peer_export(peer_, meeting_.blobs[rank_], FASTNORM_PEER_BLOB_BYTES));
    meet();
    check(fastnorm_peer_import(peer_, meeting_.blobs,
                               static_cast<size_t>(meeting_.ranks) * FASTNORM_PEER_BLOB_BYTES));
    set_views();
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    check(fastnorm_peer_allreduce_norm_query(machine_.context(), &args_, &info));
    workspace_bytes_ = info.workspace_bytes;
    workspace_ = machine_.allocate(std::max<size_t>(workspace_bytes_, 1));
    if (rank_ == 0) std::snprintf(meeting_.kernel, sizeof meeting_.kernel, "%s", info.kernel);
    meet();
  }

  void prepare() {
    check(fastnorm_peer_allreduce_norm_prepare(machine_.context(), &args_));
    machine_.synchronize();
  }

  void call() {
    check(fastnorm_peer_allreduce_norm(machine_.context(), &args_, workspace_.get(),
                                       workspace_bytes_, machine_.stream()));
  }

  // All but the last rank call: they must end with an error in time, and go on after a reset.
  void run_missing() {
    prepare();
    meet();
    const auto begin = Clock::now();
    const bool here = rank_ != meeting_.ranks - 1;
    if (here) {
      const fastnorm_status status = fastnorm_peer_allreduce_norm(
          machine_.context(), &args_, workspace_.get(), workspace_bytes_, machine_.stream());
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

  std::vector<std::byte> result() const {
    std::vector<std::byte> all(2 * bytes_ + static_cast<size_t>(o_.rows * o_.columns));
    machine_.download(all.data(), y_.get(), bytes_);
    machine_.download(all.data() + bytes_, h_.get(), o_.no_residual ? 0 : bytes_);
    if (has_codes())
      machine_.download(all.data() + 2 * bytes_, codes_.get(), all.size() - 2 * bytes_);
    return all;
  }

  // The results are those of a sum in rank order and fastnorm_norm, and all ranks have the same.
  void verify() {
    const fastnorm_peer_state state = state_of();
    if (state.error != FASTNORM_PEER_ERROR_NONE)
      throw CommandError("the peer was stopped: error " + std::to_string(state.error) +
                         " of rank " + std::to_string(state.rank));
    const std::vector<std::byte> found = result();
    meeting_.digest[rank_] = digest_of(found, 1);
    std::vector<std::byte> sum(bytes_);
    std::vector<std::vector<std::byte>> parts;
    for (int r = 0; r < meeting_.ranks; ++r) parts.push_back(data_of(r));
    const size_t element = element_bytes(dtype_);
    for (size_t at = 0; at < bytes_; at += element) {
      auto total = static_cast<float>(decode(dtype_, parts[0].data() + at));
      for (size_t r = 1; r < parts.size(); ++r)
        total += static_cast<float>(decode(dtype_, parts[r].data() + at));
      encode(dtype_, static_cast<double>(total), sum.data() + at);
    }
    const Block of_sum = place(sum);
    TensorView x = view(of_sum);
    fastnorm_norm_args norm = {};
    norm.struct_size = sizeof norm;
    set_norm(norm);
    norm.x = x.get();
    norm.flags = 0;
    machine_.run(norm);
    if (result() != found)
      throw CommandError("the results differ from those of a sum in rank order and one norm");
    meet();
    for (int r = 0; r < meeting_.ranks; ++r) {
      if (meeting_.digest[r] != meeting_.digest[0]) throw CommandError("ranks differ");
    }
    expected_ = meeting_.digest[0];
  }

  // Many calls with delays: of a graph, where there is one. Every result has the same bits.
  void replay() {
    Random random(static_cast<uint64_t>(rank_) + 7);
    Graph graph(*this, 1);
    for (int i = 0; i < o_.replays; ++i) {
      if (random.next() % 4 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random.next() % 200));
      graph.launch();
      machine_.synchronize();
      if (digest_of(result(), 1) != expected_)
        throw CommandError("replay " + std::to_string(i) + " has other results");
      if (rank_ == 0) ++meeting_.replays;
    }
    meet();
  }

  void measure() {
    Graph graph(*this, o_.calls);
    graph.launch();
    machine_.synchronize();
    for (int sample = 0; sample < o_.repeats; ++sample) {
      meet();
      meeting_.us[rank_][sample] = graph.time_us() / o_.calls;
    }
    meet();
    if (state_of().error != FASTNORM_PEER_ERROR_NONE) throw CommandError("the peer was stopped");
  }

  // Some calls: a graph on a GPU.
  class Graph {
   public:
    Graph(Rank& rank, int calls) : rank_(rank), calls_(calls) {
      const Machine& m = rank.machine_;
      if (!m.target().is_cuda()) return;
      devmem_check(devmem_capture_begin(m.device(), m.stream()));
      for (int i = 0; i < calls; ++i) rank.call();
      devmem_check(devmem_capture_end(m.device(), m.stream(), &graph_));
      devmem_check(devmem_event_create(m.device(), &begin_));
      devmem_check(devmem_event_create(m.device(), &end_));
    }
    ~Graph() {
      if (graph_ == nullptr) return;
      devmem* const device = rank_.machine_.device();
      devmem_graph_destroy(device, graph_);
      devmem_event_destroy(device, begin_);
      devmem_event_destroy(device, end_);
    }
    Graph(const Graph&) = delete;

    void launch() {
      const Machine& m = rank_.machine_;
      if (graph_ != nullptr) {
        devmem_check(devmem_graph_launch(m.device(), graph_, m.stream()));
        return;
      }
      for (int i = 0; i < calls_; ++i) rank_.call();
    }
    double time_us() {
      const Machine& m = rank_.machine_;
      if (graph_ == nullptr) {
        const auto begin = Clock::now();
        launch();
        return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
      }
      float ms = 0;
      devmem_check(devmem_event_record(m.device(), begin_, m.stream()));
      launch();
      devmem_check(devmem_event_record(m.device(), end_, m.stream()));
      devmem_check(devmem_event_elapsed_ms(m.device(), begin_, end_, &ms));
      return static_cast<double>(ms) * 1e3;
    }

   private:
    Rank& rank_;
    const int calls_;
    void *graph_ = nullptr, *begin_ = nullptr, *end_ = nullptr;
  };

  bool has_codes() const { return o_.quantise != "none"; }

  // Numbers that both a device and this program round alike: rows of a rank, or of the residual.
  std::vector<std::byte> data_of(int seed) const {
    std::vector<std::byte> data(bytes_);
    Random random(static_cast<uint64_t>(seed) + 1);
    for (size_t at = 0; at < bytes_; at += element_bytes(dtype_))
      encode(dtype_, random.uniform(-2, 2), data.data() + at);
    return data;
  }
  std::vector<std::byte> weights() const {
    std::vector<std::byte> data(row_bytes_);
    Random random(77);
    for (size_t at = 0; at < row_bytes_; at += element_bytes(dtype_))
      encode(dtype_, random.uniform(0.5, 1.5), data.data() + at);
    return data;
  }

  Block place(const std::vector<std::byte>& content) const {
    Block block = machine_.allocate(std::max(content.size(), bytes_));
    if (!content.empty()) machine_.upload(block.get(), content.data(), content.size());
    return block;
  }
  TensorView view(const Block& block) const {
    return {machine_.target(), block.get(), dtype_, {o_.rows, o_.columns}};
  }

  void set_views() {
    views_[0] = view(x_), views_[1] = view(residual_), views_[2] = view(y_), views_[3] = view(h_);
    views_[4] = TensorView(machine_.target(), weight_.get(), dtype_, {o_.columns});
    const fastnorm_dtype f8 = fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN),
                         f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    views_[5] = TensorView(machine_.target(), codes_.get(), f8, {o_.rows, o_.columns});
    views_[6] =
        TensorView(machine_.target(), scale_.get(), f32, {o_.quantise == "per-row" ? o_.rows : 1});
    args_ = {};
    args_.struct_size = sizeof args_;
    args_.peer = peer_;
    args_.x = views_[0].get();
    set_norm(args_);
    if (o_.pdl)
      args_.flags =
          FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER | FASTNORM_NORM_PDL_CONSTANT_WEIGHTS;
  }
  template <class Args>
  void set_norm(Args& args) {
    args.kind = o_.layer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    args.eps = 1e-6f;
    args.weight = views_[4].get();
    args.y = views_[2].get();
    if (!o_.no_residual) args.residual = views_[1].get(), args.residual_out = views_[3].get();
    if (!has_codes()) return;
    args.quant_scheme =
        o_.quantise == "per-row" ? FASTNORM_QUANT_PER_ROW : FASTNORM_QUANT_PER_TENSOR;
    args.quantized = views_[5].get();
    args.scale = views_[6].get();
  }

  const PeerOptions& o_;
  Meeting& meeting_;
  const int rank_;
  const Machine machine_;
  const fastnorm_dtype dtype_;
  const size_t row_bytes_, bytes_;
  fastnorm_peer* peer_ = nullptr;
  Block x_, residual_, weight_, y_, h_, codes_, scale_, workspace_;
  TensorView views_[7];
  fastnorm_peer_allreduce_norm_args args_ = {};
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
  std::vector<double> slowest;
  for (int sample = 0; sample < o.repeats && !o.missing; ++sample) {
    double us = 0;
    for (int r = 0; r < o.ranks; ++r) us = std::max(us, meeting->us[r][sample]);
    slowest.push_back(us);
  }
  Json document = {{"library", fastnorm_version_string()},
                   {"devices", o.devices},
                   {"ranks", o.ranks},
                   {"processes", o.processes},
                   {"rows", o.rows},
                   {"columns", o.columns},
                   {"dtype", o.dtype},
                   {"algorithm", o.algorithm},
                   {"quantise", o.quantise},
                   {"pdl", o.pdl},
                   {"kernel", meeting->kernel},
                   {"replays", meeting->replays.load()}};
  if (o.missing) {
    document["stopped_ranks"] = meeting->stopped.load();
    document["stopped_ms"] = meeting->stopped_ms;
  } else {
    const auto [least, most] = std::minmax_element(slowest.begin(), slowest.end());
    document["median_us"] = median_of(slowest);
    document["spread"] = (*most - *least) / median_of(slowest);
  }
  if (!o.output.empty()) write_json(o.output, document);
  if (o.json) return print_json(document);
  std::printf("%d ranks, kernel \"%s\"\n", o.ranks, meeting->kernel);
  if (o.missing) {
    std::printf("rank %d missing: %d ranks stopped, rank 0 after %.0f ms; right after a reset\n",
                o.ranks - 1, meeting->stopped.load(), meeting->stopped_ms);
    return;
  }
  std::printf("right on all ranks, and %d times more with delays\n", meeting->replays.load());
  std::printf("median %.2f us of the slowest rank (spread %.0f%%)\n",
              document["median_us"].get<double>(), 100 * document["spread"].get<double>());
}

}  // namespace

void add_peer(CLI::App& program) {
  CLI::App* family = program.add_subcommand("peer", "Tensor parallel norms of several ranks");
  family->require_subcommand(1);
  auto o = std::make_shared<PeerOptions>();
  CLI::App* command =
      family->add_subcommand("bench", "Check an all-reduce and norm of several ranks, and time it");
  command->footer(
      "Every rank's results are compared with those of a sum in rank order and one norm. A time "
      "is\nof the slowest rank, on GPUs in a graph.");
  command->add_option("--device", o->devices, "cpu, or cuda:0,cuda:1: a rank's each; may repeat")
      ->delimiter(',')
      ->check(CLI::Validator(check_device, "DEVICE"))
      ->capture_default_str();
  command->add_option("--ranks", o->ranks, "default: as many as devices, at least 2")
      ->check(CLI::Range(2, kMostRanks));
  command->add_flag("--processes", o->processes, "a process for each rank (GPUs); else threads");
  command->add_option("--rows", o->rows, "of x")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--columns", o->columns, "of x")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}))
      ->capture_default_str();
  command->add_option("--dtype", o->dtype, "of x")
      ->check(CLI::IsMember(row_dtype_names()))
      ->capture_default_str();
  command->add_option("--algorithm", o->algorithm, "how rows travel")
      ->check(CLI::IsMember({"auto", "one-shot", "two-shot"}))
      ->capture_default_str();
  command->add_option("--quantise", o->quantise, "fp8 codes beside y")
      ->check(CLI::IsMember({"none", "per-tensor", "per-row"}))
      ->capture_default_str();
  command->add_flag("--layer", o->layer, "LayerNorm; else RMSNorm");
  command->add_flag("--no-residual", o->no_residual, "add no residual");
  command->add_flag("--pdl", o->pdl, "programmatic dependent launch");
  command->add_option("--rings", o->rings, "rows on their way at once; 0 = the library's default")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  command->add_option("--one-shot-bytes", o->one_shot_bytes, "where two-shot begins; 0 = default")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--wait-ms", o->wait_ms, "the longest wait for another rank")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--calls", o->calls, "of a sample")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--repeats", o->repeats, "samples; the median counts")
      ->check(CLI::Range(1, kMostSamples))
      ->capture_default_str();
  command->add_option("--replays", o->replays, "calls with delays whose results are compared")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command->add_option("--late-ms", o->late_ms, "rank 1 comes so late to the first call")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command->add_flag("--missing", o->missing, "the last rank does not come: errors, then a reset");
  command->add_option("--output", o->output, "also write the results to this file");
  command->add_flag("--json", o->json, "print JSON");
  command->callback([o] {
    if (o->processes && o->devices[0] == "cpu")
      throw CLI::ValidationError(
          "--processes needs GPUs; required: CPU ranks as threads of one process");
    if (o->ranks != 0 && static_cast<size_t>(o->ranks) < o->devices.size())
      throw CLI::ValidationError("--ranks is less than there are devices");
    run_peer_bench(*o);
  });
}

}  // namespace fastnorm::tool
