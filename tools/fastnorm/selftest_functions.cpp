// sigmoid and silu of the device, through gates. Rows of ones are their own RMS norms, so that a
// gated row is what the function makes of its gates. The CPU's results are what it must be.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "selftest.h"

namespace fastnorm::tool {
namespace {

constexpr int64_t kColumns = 4096;
constexpr uint64_t kParts = 256, kPatterns = (uint64_t{1} << 32) / kParts;  // of a part

// Rows of a call: on a CPU so many that they stay in its caches.
int64_t most_rows(const Machine& machine) { return machine.target().is_cuda() ? 4096 : 16; }

// Rows of gates: most_rows() at the most.
class GateCall {
 public:
  explicit GateCall(const Machine& machine)
      : GateCall(machine, static_cast<size_t>(kColumns * most_rows(machine))) {}
  GateCall(const Machine& machine, size_t most)
      : machine_(machine),
        most_(most),
        x_(machine.allocate(most_ * sizeof(float))),
        gate_(machine.allocate(most_ * sizeof(float))),
        y_(machine.allocate(most_ * sizeof(float))) {
    const std::vector<float> ones(most_, 1.0f);
    machine.upload(x_.get(), ones.data(), most_ * sizeof(float));
  }

  size_t most() const { return most_; }

  void run(const std::vector<float>& gates, fastnorm_activation function,
           std::vector<float>* results) {
    const auto rows = static_cast<int64_t>(gates.size()) / kColumns;
    const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    const auto view = [&](const Block& block) {
      return TensorView(machine_.target(), block.get(), f32, {rows, kColumns});
    };
    TensorView x = view(x_), gate = view(gate_), y = view(y_);
    fastnorm_norm_args args = {};
    args.struct_size = sizeof args;
    args.x = x.get(), args.gate = gate.get(), args.y = y.get();
    args.gate_act = function;
    machine_.upload(gate_.get(), gates.data(), gates.size() * sizeof(float));
    machine_.run(args);
    results->resize(gates.size());
    machine_.download(results->data(), y_.get(), results->size() * sizeof(float));
  }

 private:
  const Machine& machine_;
  size_t most_;
  Block x_, gate_, y_;
};

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

constexpr std::pair<const char*, fastnorm_activation> kFunctions[] = {
    {"sigmoid", FASTNORM_ACTIVATION_SIGMOID}, {"silu", FASTNORM_ACTIVATION_SILU}};

// How many results of each function differ, of every `step`-th pattern of a part.
std::array<int64_t, 2> count_different(GateCall& device, GateCall& cpu, uint64_t part,
                                       uint64_t step) {
  const uint64_t end = (part + 1) * kPatterns;
  const size_t most = device.most();
  std::array<int64_t, 2> different = {};
  std::vector<float> gates, results, wanted;
  for (uint64_t next = (part * kPatterns + step - 1) / step * step; next < end;) {
    gates.clear();
    for (; next < end && gates.size() < most; next += step)
      gates.push_back(std::bit_cast<float>(static_cast<uint32_t>(next)));
    gates.resize((gates.size() + kColumns - 1) / kColumns * kColumns);
    for (size_t f = 0; f < different.size(); ++f) {
      device.run(gates, kFunctions[f].second, &results);
      cpu.run(gates, kFunctions[f].second, &wanted);
      for (size_t i = 0; i < gates.size(); ++i)
        different[f] += same_bits(results[i], wanted[i]) ? 0 : 1;
    }
  }
  return different;
}

}  // namespace

void test_functions(const Machine& machine, const Effort& effort, Tally* tally) {
  const Workers workers(machine);
  const auto all = static_cast<int32_t>(std::clamp(std::thread::hardware_concurrency(), 1u, 64u));
  // A GPU waits for its reference, which has all threads; a CPU's workers have one each.
  const Machine reference(parse_target("cpu"), machine.target().is_cuda() ? all : 1);
  std::vector<GateCall> device, cpu;
  for (size_t i = 0; i < workers.count(); ++i) {
    device.emplace_back(workers.machine(i));
    cpu.emplace_back(reference, device.back().most());
  }
  // A step that is odd visits every pattern of the last bits.
  const uint64_t step = effort.full ? 1 : 2047;
  std::vector<std::array<int64_t, 2>> different(kParts);
  workers.run(kParts, "sigmoid and silu", [&](size_t worker, size_t part) {
    different[part] = count_different(device[worker], cpu[worker], part, step);
  });
  for (uint64_t part = 0; part < kParts; ++part) {
    char range[64];
    std::snprintf(range, sizeof range, "0x%02x000000 to 0x%02xffffff", static_cast<unsigned>(part),
                  static_cast<unsigned>(part));
    for (size_t f = 0; f < different[part].size(); ++f) {
      tally->expect(different[part][f] == 0, std::string(kFunctions[f].first) + " is wrong " +
                                                 std::to_string(different[part][f]) +
                                                 " times for gates of bits " + range);
    }
  }
}

}  // namespace fastnorm::tool
