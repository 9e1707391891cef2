// The operators: their inputs and outputs, and the kernels behind them.
#ifndef FASTNORM_INTEGRATIONS_ONNXRUNTIME_OPERATORS_H_
#define FASTNORM_INTEGRATIONS_ONNXRUNTIME_OPERATORS_H_

#include <memory>
#include <span>
#include <string>

#include "call.h"

namespace fastnorm_ort {

// Types of an operator's tensors. Each operator is registered once for every choice of them.
enum class Type : uint8_t {
  kX,          // f32, f16, bf16
  kParameter,  // x's type, or f32
  kTable,      // x's type, or f32, whatever the parameters are
  kCode,       // i8, f8_e4m3fn, f8_e5m2
  kF32,
  kI64,
};

struct Port {
  Type type;
  bool optional = false;
};

// A node of a session.
class Kernel {
 public:
  Kernel(const Api& api, const OrtKernelInfo* info, bool cuda)
      : api(api), constants(api, info), cuda(cuda) {}
  virtual ~Kernel() = default;
  virtual void compute(Call& call) = 0;

  const Api& api;
  const Constants constants;
  const bool cuda;
  std::string name;  // of operator and node
};

struct Operator {
  const char* name;
  std::span<const Port> inputs, outputs;
  std::unique_ptr<Kernel> (*make)(const Api& api, const OrtKernelInfo* info, bool cuda,
                                  OrtElementType code);
  bool adds = false;        // the sum, output 3, may have the memory of input 1
  bool in_place = true;     // output 0 may have the memory of input 0
  bool keeps_shape = true;  // output 0 has the type and shape of input 0
};

std::span<const Operator> norm_operators();
std::span<const Operator> heads_operators();

}  // namespace fastnorm_ort

#endif  // FASTNORM_INTEGRATIONS_ONNXRUNTIME_OPERATORS_H_
