// RegisterCustomOps: what ONNX Runtime calls when a program registers the library.

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>

#include "operators.h"

namespace fastnorm_ort {
namespace {

constexpr const char* kDomain = "fastnorm";
constexpr const char* kCpuProvider = "CPUExecutionProvider";
constexpr const char* kCudaProvider = "CUDAExecutionProvider";

// An operator for one provider and one choice of types.
struct Registered : OrtCustomOp {
  const Operator* op;
  const Api* api;
  bool cuda;
  OrtElementType x, parameter, table, code;

  OrtElementType type_of(Type type) const {
    switch (type) {
      case Type::kX:
        return x;
      case Type::kParameter:
        return parameter;
      case Type::kTable:
        return table;
      case Type::kCode:
        return code;
      case Type::kI64:
        return kOrtI64;
      default:
        return kOrtF32;
    }
  }
};

const Registered& of(const OrtCustomOp* op) { return *static_cast<const Registered*>(op); }

// What a node or its call ends with. No exception leaves the library.
template <typename Work>
OrtStatus* report(const Api& api, const std::string& name, Work work) noexcept {
  try {
    work();
    return nullptr;
  } catch (const Failure& failure) {
    return api.CreateStatus(failure.code, ("fastnorm: " + name + ": " + failure.text).c_str());
  } catch (const std::exception& error) {
    return api.CreateStatus(kOrtFail, error.what());
  }
}

std::string node_name(const Api& api, const OrtKernelInfo* info) {
  size_t size = 0;
  OrtStatus* status = api.KernelInfo_GetNodeName(info, nullptr, &size);
  std::string name(size, '\0');
  if (status == nullptr) status = api.KernelInfo_GetNodeName(info, name.data(), &size);
  if (status != nullptr) api.ReleaseStatus(status);
  while (!name.empty() && name.back() == '\0') name.pop_back();
  return name;
}

OrtStatus* create_kernel(const OrtCustomOp* custom, OrtApi*, const OrtKernelInfo* info,
                         void** made) {
  const Registered& r = of(custom);
  const std::string name = std::string(r.op->name) + " '" + node_name(*r.api, info) + "'";
  return report(*r.api, name, [&] {
    auto kernel = r.op->make(*r.api, info, r.cuda, r.code);
    kernel->name = name;
    *made = kernel.release();
  });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) {
  auto& k = *static_cast<Kernel*>(kernel);
  return report(k.api, k.name, [&] {
    Call call(k.api, context, k.constants, k.cuda);
    k.compute(call);
  });
}

// Output 0 has the shape of input 0. Operators whose inputs may have a gap do not say so: ONNX
// Runtime 1.20 reads the type of every input before it calls this, also of those that are left out.
OrtStatus* infer_shapes(const OrtCustomOp* custom, OrtShapeInferContext* context) {
  const Api& api = *of(custom).api;
  OrtTensorTypeAndShapeInfo* x = nullptr;  // the context's own
  OrtStatus* const status = api.ShapeInferContext_GetInputTypeShape(context, 0, &x);
  if (status != nullptr) api.ReleaseStatus(status);  // x's shape is not known
  return x == nullptr ? nullptr : api.ShapeInferContext_SetOutputTypeShape(context, 0, x);
}

template <size_t Outputs>
size_t may_in_place(int** inputs, int** outputs) {
  *inputs = new int[2]{0, 1};
  *outputs = new int[2]{0, 3};
  return Outputs;
}
size_t may_in_place_sum(int** inputs, int** outputs) {
  *inputs = new int[1]{1};
  *outputs = new int[1]{3};
  return 1;
}
void release_in_place(int* inputs, int* outputs) {
  delete[] inputs;
  delete[] outputs;
}

Registered make_registered(const Operator& op, const Api& api, bool cuda, OrtElementType x,
                           OrtElementType parameter, OrtElementType table, OrtElementType code) {
  Registered r = {};
  r.op = &op, r.api = &api, r.cuda = cuda;
  r.x = x, r.parameter = parameter, r.table = table, r.code = code;
  r.version = kOldestApi;
  r.GetName = [](const OrtCustomOp* o) { return of(o).op->name; };
  r.GetExecutionProviderType = [](const OrtCustomOp* o) {
    return of(o).cuda ? kCudaProvider : kCpuProvider;
  };
  r.GetInputTypeCount = [](const OrtCustomOp* o) { return of(o).op->inputs.size(); };
  r.GetOutputTypeCount = [](const OrtCustomOp* o) { return of(o).op->outputs.size(); };
  r.GetInputType = [](const OrtCustomOp* o, size_t i) {
    return of(o).type_of(of(o).op->inputs[i].type);
  };
  r.GetOutputType = [](const OrtCustomOp* o, size_t i) {
    return of(o).type_of(of(o).op->outputs[i].type);
  };
  r.GetInputCharacteristic = [](const OrtCustomOp* o, size_t i) {
    return of(o).op->inputs[i].optional ? kOrtOptional : kOrtRequired;
  };
  r.GetOutputCharacteristic = [](const OrtCustomOp* o, size_t i) {
    return of(o).op->outputs[i].optional ? kOrtOptional : kOrtRequired;
  };
  r.GetInputMemoryType = [](const OrtCustomOp*, size_t) -> int32_t { return 0; };  // of the device
  r.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  r.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  r.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
  r.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  r.CreateKernelV2 = create_kernel;
  r.KernelComputeV2 = compute;
  r.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  const auto optional = [](const Port& port) { return port.optional; };
  const bool gaps = std::ranges::count_if(op.inputs, optional) > 1;
  if (op.keeps_shape && !gaps) r.InferOutputShapeFn = infer_shapes;
  r.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  r.GetEndVersion = [](const OrtCustomOp*) { return 1000; };
  if (op.in_place || op.adds) {
    r.GetMayInplace = !op.in_place ? may_in_place_sum : op.adds ? may_in_place<2> : may_in_place<1>;
    r.ReleaseMayInplace = release_in_place;
  }
  return r;
}

bool uses(const Operator& op, Type type) {
  return std::ranges::any_of(op.inputs, [&](const Port& port) { return port.type == type; });
}

// The domain of one loaded ONNX Runtime. It lives as long as the process: sessions point to it.
struct Domain {
  Domain(OrtApi* table, OrtApi* later) : table(table), api(table, later) {
    check(api, api.CreateCustomOpDomain(kDomain, &domain));
    int32_t gpus = 0;
    const bool has_cuda =
        fastnorm_device_count(FASTNORM_DEVICE_CUDA, &gpus) == FASTNORM_OK && gpus > 0;
    for (const bool cuda : {false, true}) {
      if (cuda && !has_cuda) continue;
      for (const Operator& op : norm_operators()) add(op, cuda);
      for (const Operator& op : heads_operators()) add(op, cuda);
    }
  }

  // The operator for every choice of types.
  void add(const Operator& op, bool cuda) {
    static constexpr OrtElementType kRows[] = {kOrtF32, kOrtF16, kOrtBf16};
    static constexpr OrtElementType kCodes[] = {kOrtI8, kOrtF8E4m3fn, kOrtF8E5m2};
    for (const OrtElementType x : kRows) {
      const OrtElementType both[] = {x, kOrtF32};
      const auto parameters = std::span(both).first(x == kOrtF32 ? 1 : 2);
      const auto tables = parameters.first(uses(op, Type::kTable) ? parameters.size() : 1);
      const auto codes = std::span(kCodes).first(uses(op, Type::kCode) ? 3 : 1);
      for (const OrtElementType parameter : parameters) {
        for (const OrtElementType table_type : tables) {
          for (const OrtElementType code : codes) {
            registered.push_back(make_registered(op, api, cuda, x, parameter, table_type, code));
            check(api, api.CustomOpDomain_Add(domain, &registered.back()));
          }
        }
      }
    }
  }

  OrtApi* const table;
  const Api api;
  OrtCustomOpDomain* domain = nullptr;
  std::deque<Registered> registered;
};

const Domain& domain_of(OrtApi* table, OrtApi* later) {
  static std::mutex mutex;
  static auto* const domains = new std::deque<Domain>;
  const std::lock_guard lock(mutex);
  for (const Domain& domain : *domains) {
    if (domain.table == table) return domain;
  }
  return domains->emplace_back(table, later);
}

}  // namespace
}  // namespace fastnorm_ort

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace fastnorm_ort;
  OrtApi* const table = base->GetApi(kOldestApi);
  if (table == nullptr) {
    // Every version has the first function of the first.
    OrtApi* const first = base->GetApi(1);
    const auto create = reinterpret_cast<OrtStatus* (*)(OrtErrorCode, const char*)>(
        reinterpret_cast<void*>(first[0]));
    const std::string text = std::string("fastnorm: ONNX Runtime is ") + base->GetVersionString() +
                             "; required: 1.20 or later";
    return create(kOrtFail, text.c_str());
  }
  const Api api(table, nullptr);
  return report(api, "RegisterCustomOps", [&] {
    // An earlier version writes a line to its log where a later table is asked for.
    const std::string version = base->GetVersionString();
    const int minor = version.starts_with("1.") ? std::atoi(version.c_str() + 2) : 1000;
    OrtApi* const later =
        minor >= static_cast<int>(kShapeReferenceApi) ? base->GetApi(kShapeReferenceApi) : nullptr;
    check(api, api.AddCustomOpDomain(options, domain_of(table, later).domain));
  });
}
