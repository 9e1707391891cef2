// Random backward calls. By dry runs, for a CPU and for GPUs: nothing crashes, the entry points
// agree, what was accepted keeps the rules of the table, and a call in which nothing was spoiled is
// accepted. In real memory on the CPU, with tensors that may lie in each other: what is refused
// writes nothing, and what is accepted writes its outputs and nothing else.
#include <cstdint>
#include <cstdlib>
#include <iterator>

#include "../judge.h"
#include "../memory.h"
#include "../target.h"

namespace fastnorm::fuzz {
namespace {

using Args = fastnorm_norm_backward_args;

const CallStruct& type() {
  static const CallStruct& args = type_of("fastnorm_norm_backward_args");
  return args;
}

// Gradients that a flag adds to what is there.
constexpr struct {
  uint32_t flag;
  const fastnorm_tensor* Args::*tensor;
} kSums[] = {
    {FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT, &Args::dweight},
    {FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS, &Args::dbias},
    {FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT, &Args::dbranch_weight},
    {FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS, &Args::dbranch_bias},
    {FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE, &Args::dresidual_gate},
};

class BackwardFamily : public Family {
 public:
  void choose(Choice* choice, Bytes& bytes) const override {
    Choice& c = *choice;
    // A gate, or a branch.
    const uint32_t stage = bytes.pick(4);
    if (stage != 2) c.drop<&Args::gate>(), c.drop<&Args::gate_act>();
    if (stage != 2) c.drop<&Args::gate_position>(), c.drop<&Args::gate_source>();
    if (stage != 2) c.drop<&Args::dgate>();
    if (stage == 3) c.want<&Args::branch>(), c.drop<&Args::group_size>();
    if (bytes.pick(4) != 3) c.want<&Args::dx>();
    if (bytes.pick(4) == 3) c.want<&Args::dbias>();
    if (c.has<&Args::alpha>()) {
      c.want<&Args::flags>();
      c.value<&Args::flags>() |= FASTNORM_NORM_BACKWARD_ALPHA;
    }
    if (c.has<&Args::rstd>() && c.value<&Args::kind>() == FASTNORM_NORM_LAYER)
      c.want<&Args::mean>();
    if (c.has<&Args::branch_rstd>() && c.value<&Args::branch_kind>() == FASTNORM_NORM_LAYER)
      c.want<&Args::branch_mean>();
  }

  void numbers(const CallStruct&, void* args, Bytes& bytes) const override {
    Args& a = *static_cast<Args*>(args);
    const int64_t groups = 1 + bytes.pick(3);
    if (a.group_size != 0) a.group_size = columns % groups == 0 ? columns / groups : columns;
    if (bytes.rarely()) return;
    for (const auto& sum : kSums) {
      if (a.*sum.tensor == nullptr) a.flags &= ~sum.flag;
    }
  }

  Extents extents(const CallStruct&, const void* args, const Field*,
                  const Extents& in) const override {
    const Args& a = *static_cast<const Args*>(args);
    Extents e = in;
    e.x = shape_of(a.x, in.x.empty() ? std::vector<int64_t>{1} : in.x);
    e.group = a.group_size;
    // T is that of the branch or of dx. Without them dy has it, or x.
    const fastnorm_tensor* of = a.dx;
    if (a.dbranch != nullptr) of = a.dbranch;
    if (a.branch != nullptr) of = a.branch;
    if (of != a.dx) e.any = "dx";
    if (of == nullptr && a.dy != nullptr)
      of = id_of(a.dy->dtype) == FASTNORM_DTYPE_F32 ? a.x : a.dy;
    if (of != nullptr) e.dtype = id_of(of->dtype);
    return e;
  }

  const char* fault(const CallStruct&, const void* args, const Field*,
                    const Extents& e) const override {
    const Args& a = *static_cast<const Args*>(args);
    if (a.eps < 0 || a.branch_eps < 0) return "a negative eps";
    if ((a.flags & ~schema::kAllFlags<fastnorm_norm_backward_flags>) != 0)
      return "flags that mean nothing yet";
    for (const auto& sum : kSums) {
      if ((a.flags & sum.flag) != 0 && a.*sum.tensor == nullptr) return "a sum that is not wanted";
    }
    if ((a.flags & FASTNORM_NORM_BACKWARD_ALPHA) != 0 && (a.gate != nullptr || a.group_size != 0))
      return "a factor of a branch beside a gate or groups";
    if (a.dx == nullptr && a.dweight == nullptr && a.dbias == nullptr && a.dgate == nullptr &&
        a.dbranch == nullptr && a.dbranch_weight == nullptr && a.dbranch_bias == nullptr &&
        a.dresidual_gate == nullptr)
      return "no output";
    if (number(a.kind) == FASTNORM_NORM_LAYER && (a.mean == nullptr) != (a.rstd == nullptr))
      return "half a statistic";
    if (number(a.branch_kind) == FASTNORM_NORM_LAYER &&
        (a.branch_mean == nullptr) != (a.branch_rstd == nullptr))
      return "half a statistic of the branch";
    if (a.dresidual != nullptr && id_of(a.dresidual->dtype) == id_of(a.dx->dtype))
      return "one gradient twice";
    const int64_t n = e.x.back();
    if (n < 1 || n > int64_t{1} << 32) return "rows of no columns, or of too many";
    return a.group_size < 0 || (a.group_size > 0 && n % a.group_size != 0)
               ? "groups that do not divide a row"
               : nullptr;
  }

  // Inputs of the forward that no output needs.
  bool is_read(const CallStruct&, const void* args, const Field& field) const override {
    const Args& a = *static_cast<const Args*>(args);
    const auto is = [&](const auto& member) { return field.offset == member.offset; };
    const bool rows = a.dbranch != nullptr, weight = a.dbranch_weight != nullptr,
               gate = a.dresidual_gate != nullptr;
    const bool norm = a.branch_norm != 0 && (rows || weight || gate);
    if (is(schema::field<&Args::bias>))
      return a.dgate != nullptr && number(a.gate_position) == FASTNORM_GATE_AFTER_NORM;
    if (is(schema::field<&Args::branch>)) return norm || gate;
    if (is(schema::field<&Args::branch_bias>)) return gate;
    if (is(schema::field<&Args::residual_gate>))
      return rows || weight || gate || a.dbranch_bias != nullptr;
    return norm ||
           !(is(schema::field<&Args::branch_weight>) || is(schema::field<&Args::branch_mean>) ||
             is(schema::field<&Args::branch_rstd>));
  }

  int64_t columns = 1;
};

class Call {
 public:
  Call(Bytes& bytes, int32_t device_type) : drawer(bytes, family_, device_type) {
    Extents e;
    e.dtype = row_dtype(bytes);
    family_.columns = (1 + bytes.pick(3)) * (1 + bytes.pick(70));
    e.x = {bytes.pick(8) == 7 ? 0 : 1 + bytes.pick(5), 1 + bytes.pick(3), family_.columns};
    drawn_ = drawer.draw(type(), e);
  }

  const Args* args() const { return drawn_->args<Args>(); }
  std::string text() const { return call_text("norm_backward", drawn_->known.data()); }

  void judge(fastnorm_status status, int32_t device_type) const {
    const std::string fault = find_fault(family_, type(), drawn_->known.data(), device_type);
    if (status != FASTNORM_OK) {
      require(device_type != FASTNORM_DEVICE_CPU || !fault.empty() || !drawer.is_right(),
              "a good call was refused");
      return;
    }
    require(fault.empty(), "accepted", fault);
    Memory memory(family_);
    if (elements_of(*drawn_->as_known<Args>().x) == 0) return;
    memory.add(type(), drawn_->known.data(), 0);
    require(memory.find_fault().empty(), "accepted", memory.find_fault());
  }

 private:
  BackwardFamily family_;

 public:
  Drawer drawer;

 private:
  std::unique_ptr<DrawnStruct> drawn_;
};

// Dry runs: addresses that point nowhere.
void describe(Bytes& bytes) {
  static const struct {
    int32_t device_type;
    fastnorm_context* context;
  } kTargets[] = {{FASTNORM_DEVICE_CPU, make_context(FASTNORM_DEVICE_CPU, true)},
                  {FASTNORM_DEVICE_CUDA, make_context(FASTNORM_DEVICE_CUDA, true, 90)},
                  {FASTNORM_DEVICE_CUDA, make_context(FASTNORM_DEVICE_CUDA, true, 100)}};
  const auto& target = kTargets[bytes.pick(std::size(kTargets))];
  const Call call(bytes, target.device_type);
  const CurrentCall now([&] { return call.text(); });
  fastnorm_info info = new_info();
  const fastnorm_status status = fastnorm_norm_backward_query(target.context, call.args(), &info);
  require_text(status);
  call.judge(status, target.device_type);
  require(fastnorm_norm_backward_prepare(target.context, call.args()) == status,
          "query and prepare differ");
  const Args* list[] = {call.args()};
  require(fastnorm_norm_backward_many_prepare(target.context, list, 1) == status,
          "one call and a list of one differ");
  void* const workspace = reinterpret_cast<void*>(uintptr_t{1} << 52);
  require(
      fastnorm_norm_backward(target.context, call.args(), workspace, SIZE_MAX, nullptr) == status,
      "query and the call differ");
}

void run(Bytes& bytes) {
  static fastnorm_context* const context = make_context(FASTNORM_DEVICE_CPU, false);
  static void* const workspace = std::aligned_alloc(256, 1 << 20);
  Call call(bytes, FASTNORM_DEVICE_CPU);
  if (!call.drawer.place()) return;
  const CurrentCall now([&] { return call.text(); });
  fastnorm_info info = new_info();
  const fastnorm_status status = fastnorm_norm_backward_query(context, call.args(), &info);
  require(status != FASTNORM_OK || info.workspace_bytes <= 1 << 20, "a large workspace");
  require_text(status);
  call.judge(status, FASTNORM_DEVICE_CPU);
  require(fastnorm_norm_backward(context, call.args(), workspace, 1 << 20, nullptr) == status,
          "query and the call differ");
  require(!call.drawer.has_changed(status == FASTNORM_OK), "bytes beside the outputs have changed");
}

}  // namespace
}  // namespace fastnorm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastnorm::fuzz::Bytes bytes(data, size);
  if (bytes.pick(2) == 0) {
    fastnorm::fuzz::describe(bytes);
  } else {
    fastnorm::fuzz::run(bytes);
  }
  return 0;
}
