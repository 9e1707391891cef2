// fastnorm peer explain: what a call of a rank would do, without memory, GPUs and other ranks.
#include <memory>

#include "commands.h"
#include "dtype.h"
#include "explain.h"
#include "help.h"
#include "norm_options.h"
#include "peer_work.h"
#include "shape.h"

namespace fastnorm::tool {
namespace {

constexpr int64_t kMostColumns = 65536;

struct PeerDeleter {
  void operator()(fastnorm_peer* peer) const { fastnorm_peer_destroy(peer); }
};
using PeerPtr = std::unique_ptr<fastnorm_peer, PeerDeleter>;

// The query of rank 0.
class PeerQuestion {
 public:
  PeerQuestion(const PeerOptions& options, const std::string& device)
      : o_(options), target_(parse_target(device)), context_(make_context(target_, 1, "")) {
    const fastnorm_peer_options of_peer = peer_options(o_, o_.ranks, 0);
    fastnorm_peer* peer = nullptr;
    check(fastnorm_peer_create(context_.get(), &of_peer, &peer));
    peer_.reset(peer);
  }

  fastnorm_info ask() {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    if (o_.sharded) {
      ask_sharded(&info);
    } else {
      ask_allreduce(&info);
    }
    return info;
  }

 private:
  // A call with rank 0's peer. Its norm's fields have this prefix.
  support::Call begin(const char* family, const std::string& norm) {
    support::Call call(family);
    call.change("device=" + std::to_string(target_.device_type) + ":" +
                std::to_string(target_.device_id) + " " + norm +
                "kind=" + std::string(o_.layer ? "layer" : "rms") + " " + norm +
                "flags=" + std::to_string(peer_call_flags(o_)));
    call.set_pointer("peer", peer_.get());
    return call;
  }
  void give(support::Call* call, const std::string& path, fastnorm_dtype dtype,
            const std::vector<int64_t>& shape) {
    call->give(path, call_tensor(reinterpret_cast<uintptr_t>(regions_.next()), dtype, shape));
  }

  void ask_allreduce(fastnorm_info* info) {
    const fastnorm_dtype dtype = find_dtype(o_.dtype)->dtype;
    const PeerShapes shapes = peer_shapes(o_);
    support::Call call = begin("peer_allreduce_norm", "norm.");
    give(&call, "norm.x", dtype, shapes.x);
    give(&call, "norm.y", dtype, shapes.x);
    give(&call, "norm.weight", dtype, shapes.weight);
    if (!o_.no_residual) give(&call, "norm.residual", dtype, shapes.x);
    if (!o_.no_residual) give(&call, "norm.residual_out", dtype, shapes.x);
    if (o_.exact) call.change("sum_rounding=1");
    if (o_.quantise != "none") {
      const bool per_row = o_.quantise == "per-row";
      call.change(per_row ? "norm.quant.scheme=per_row" : "norm.quant.scheme=per_tensor");
      give(&call, "norm.quant.quantized", fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN), shapes.x);
      give(&call, "norm.quant.scale", fastnorm_dtype_of(FASTNORM_DTYPE_F32),
           per_row ? shapes.rows : std::vector<int64_t>{1});
    }
    check(fastnorm_peer_allreduce_norm_query(context_.get(),
                                             call.args<fastnorm_peer_allreduce_norm_args>(), info));
  }

  void ask_sharded(fastnorm_info* info) {
    const fastnorm_dtype dtype = find_dtype(o_.dtype)->dtype;
    support::Call call = begin("peer_sharded_norm", "");
    for (int p = 0; p < (o_.columns2 == 0 ? 1 : 2); ++p) {
      const std::string end = p == 0 ? "" : "2";
      const PeerHeads heads = peer_heads(p == 0 ? o_.columns : o_.columns2);
      give(&call, "x" + end, dtype, {o_.rows, heads.count, heads.columns});
      give(&call, "y" + end, dtype, {o_.rows, heads.count, heads.columns});
      give(&call, "weight" + end, dtype, {heads.count, heads.columns});
    }
    check(fastnorm_peer_sharded_norm_query(context_.get(),
                                           call.args<fastnorm_peer_sharded_norm_args>(), info));
  }

  const PeerOptions& o_;
  const Target target_;
  const ContextPtr context_;
  PeerPtr peer_;
  Regions regions_;
};

}  // namespace

void add_peer_options(CLI::App& command, PeerOptions& o) {
  add_number(command, "--ranks", o.ranks, "default: as many as devices, at least 2", 2,
             int{FASTNORM_PEER_MAX_RANKS});
  add_number(command, "--rows", o.rows, "of x", int64_t{1}, int64_t{1} << 20);
  add_number(command, "--columns", o.columns, "of x", int64_t{1}, kMostColumns);
  command.add_flag("--sharded", o.sharded,
                   "peer_sharded_norm: --columns are a rank's; else peer_allreduce_norm");
  add_number(command, "--columns2", o.columns2, "of a second part, with --sharded; 0 = none",
             int64_t{0}, kMostColumns);
  command.add_option("--dtype", o.dtype, "of x")
      ->check(CLI::IsMember(row_dtype_names()))
      ->capture_default_str();
  command.add_option("--algorithm", o.algorithm, "how rows travel")
      ->check(CLI::IsMember({"auto", "one-shot", "two-shot"}))
      ->capture_default_str();
  command.add_option("--quantise", o.quantise, "fp8 codes beside y")
      ->check(CLI::IsMember({"none", "per-tensor", "per-row"}))
      ->capture_default_str();
  command.add_flag("--layer", o.layer, "LayerNorm; else RMSNorm");
  command.add_flag("--no-residual", o.no_residual, "add no residual");
  command.add_flag("--exact", o.exact, "add the ranks' rows without rounding the sum to the dtype");
  add_number(command, "--weights", o.weights,
             "rows of the weight: x is [weights, rows / weights, columns]", int64_t{1},
             int64_t{1} << 20);
  command.add_flag("--pdl", o.pdl, "programmatic dependent launch");
  add_number(command, "--rings", o.rings, "rows on their way at once; 0 = the library's default", 0,
             256);
  add_number(command, "--one-shot-bytes", o.one_shot_bytes, "where two-shot begins; 0 = default",
             int64_t{0}, int64_t{1} << 40);
}

void check_peer_options(const PeerOptions& o) {
  const bool of_allreduce = o.no_residual || o.exact || o.weights != 1 || o.quantise != "none" ||
                            o.algorithm != "auto" || o.one_shot_bytes != 0;
  if (o.sharded && of_allreduce)
    throw CLI::ValidationError(
        "--no-residual, --exact, --weights, --quantise, --algorithm and --one-shot-bytes are not "
        "for --sharded");
  if (o.rows % o.weights != 0)
    throw CLI::ValidationError("--weights is " + std::to_string(o.weights) +
                               "; required: a divisor of --rows, which is " +
                               std::to_string(o.rows));
  if (!o.sharded && o.columns2 != 0) throw CLI::ValidationError("--columns2 needs --sharded");
}

fastnorm_peer_options peer_options(const PeerOptions& o, int ranks, int rank) {
  const fastnorm_dtype dtype = find_dtype(o.dtype)->dtype;
  fastnorm_peer_options options = {};
  options.struct_size = sizeof options;
  options.rank = rank;
  options.ranks = ranks;
  options.dtype = static_cast<fastnorm_dtype_id>(dtype.code | dtype.bits << 8 | dtype.lanes << 16);
  options.algorithm = o.algorithm == "one-shot"   ? FASTNORM_PEER_ONE_SHOT
                      : o.algorithm == "two-shot" ? FASTNORM_PEER_TWO_SHOT
                                                  : FASTNORM_PEER_AUTO;
  options.max_columns = o.sharded ? 1 : o.columns;
  options.one_shot_bytes = o.one_shot_bytes;
  options.wait_ns = o.wait_ms * 1000000;
  options.rings = o.rings;
  return options;
}

uint32_t peer_call_flags(const PeerOptions& o) {
  if (!o.pdl) return FASTNORM_NORM_NO_PDL;
  return FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER | FASTNORM_NORM_PDL_CONSTANT_WEIGHTS;
}

PeerShapes peer_shapes(const PeerOptions& o) {
  if (o.weights == 1) return {{o.rows, o.columns}, {o.rows}, {o.columns}};
  const int64_t rows = o.rows / o.weights;
  return {{o.weights, rows, o.columns}, {o.weights, rows}, {o.weights, 1, o.columns}};
}

PeerHeads peer_heads(int64_t columns) {
  constexpr int64_t kHead = 128;  // columns of a head, where they divide the part's
  if (columns % kHead != 0) return {1, columns};
  return {columns / kHead, kHead};
}

void add_peer_explain(CLI::App& family) {
  auto o = std::make_shared<PeerOptions>();
  auto device = std::make_shared<std::string>("cpu");
  CLI::App* command = family.add_subcommand(
      "explain", "What a rank's call would do: kernel, grid, workspace, bytes. Nothing runs");
  add_device_option(*command, device.get(), true);
  add_peer_options(*command, *o);
  command->add_flag("--json", o->json, "print JSON");
  set_examples(*command, {"fastnorm peer explain --device sm_90 --ranks 4 --rows 32 --columns 4096",
                          "fastnorm peer explain --sharded --columns 3072 --columns2 512 --json"});
  command->callback([o, device] {
    check_peer_options(*o);
    if (o->ranks == 0) o->ranks = 2;
    tell_plan(PeerQuestion(*o, *device).ask(), *device, o->json);
  });
}

}  // namespace fastnorm::tool
