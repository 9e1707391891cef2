// sigmoid and silu of the device, through gates. Rows of ones are their own RMS norms, so that a
// gated row is what the function makes of its gates. The CPU's results are what it must be.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

#include "selftest.h"

namespace fastnorm::tool {
namespace {

constexpr int64_t kColumns = 4096, kMostRows = 4096;
constexpr uint64_t kPatterns = uint64_t{1} << 32;

// Rows of gates: kMostRows at the most.
class GateCall {
 public:
  explicit GateCall(const Machine& machine)
      : machine_(machine),
        x_(machine.allocate(kBytes)),
        gate_(machine.allocate(kBytes)),
        y_(machine.allocate(kBytes)) {
    const std::vector<float> ones(kColumns * kMostRows, 1.0f);
    machine.upload(x_.get(), ones.data(), kBytes);
  }

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
  static constexpr size_t kBytes = kColumns * kMostRows * sizeof(float);
  const Machine& machine_;
  Block x_, gate_, y_;
};

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace

void test_functions(const Machine& machine, bool full, Tally* tally) {
  const auto threads =
      static_cast<int32_t>(std::clamp(std::thread::hardware_concurrency(), 1u, 64u));
  const Machine cpu(parse_target("cpu"), threads);
  GateCall device_call(machine), cpu_call(cpu);
  std::vector<float> gates, results, wanted;
  // A step that is odd visits every pattern of the last bits.
  const uint64_t step = full ? 1 : 2047;
  for (uint64_t next = 0; next < kPatterns;) {
    gates.clear();
    for (; next < kPatterns && gates.size() < kColumns * kMostRows; next += step)
      gates.push_back(std::bit_cast<float>(static_cast<uint32_t>(next)));
    const float first = gates.front(), last = gates.back();
    gates.resize((gates.size() + kColumns - 1) / kColumns * kColumns);
    for (const auto& [name, function] : {std::pair("sigmoid", FASTNORM_ACTIVATION_SIGMOID),
                                         std::pair("silu", FASTNORM_ACTIVATION_SILU)}) {
      device_call.run(gates, function, &results);
      cpu_call.run(gates, function, &wanted);
      int64_t wrong = 0;
      for (size_t i = 0; i < gates.size(); ++i) wrong += same_bits(results[i], wanted[i]) ? 0 : 1;
      tally->expect(wrong == 0, std::string(name) + " is wrong " + std::to_string(wrong) +
                                    " times for gates of " + std::to_string(first) + " to " +
                                    std::to_string(last));
    }
  }
}

}  // namespace fastnorm::tool
