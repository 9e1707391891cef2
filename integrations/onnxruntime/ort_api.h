// What the operators use of ONNX Runtime's C interface.
//
// ONNX Runtime's Python package has no headers. Its C interface is a table of function pointers.
// Versions append to it, and places never change. So a name, a place and a type are all that a call
// needs. test.py compares the places and the members of OrtCustomOp with those of an
// independent binding.
#ifndef FASTNORM_INTEGRATIONS_ONNXRUNTIME_ORT_API_H_
#define FASTNORM_INTEGRATIONS_ONNXRUNTIME_ORT_API_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

extern "C" {

struct OrtStatus;
struct OrtValue;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtTensorTypeAndShapeInfo;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtSessionOptions;
struct OrtCustomOpDomain;

using OrtFunction = void (*)();
using OrtApi = const OrtFunction;  // the first entry of the table

struct OrtApiBase {
  OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

enum OrtElementType : int32_t {
  kOrtUndefined = 0,
  kOrtF32 = 1,
  kOrtI8 = 3,
  kOrtI64 = 7,
  kOrtF16 = 10,
  kOrtBf16 = 16,
  kOrtF8E4m3fn = 17,
  kOrtF8E5m2 = 19,
};

enum OrtErrorCode : int32_t {
  kOrtFail = 1,
  kOrtInvalidArgument = 2,
  kOrtNotImplemented = 9,
};

enum OrtCharacteristic : int32_t { kOrtRequired = 0, kOrtOptional = 1 };

// An operator, as of version 20. Null members mean that the operator has nothing to say of that.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  OrtElementType (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  OrtElementType (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  OrtCharacteristic (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  OrtCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int32_t (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, OrtApi*, const OrtKernelInfo*, void** kernel);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};

}  // extern "C"

// X(name, place in the table, type)
#define FASTNORM_ORT_FUNCTIONS(X)                                                              \
  X(CreateStatus, 0, OrtStatus*(OrtErrorCode, const char*))                                    \
  X(GetErrorMessage, 2, const char*(const OrtStatus*))                                         \
  X(CreateCustomOpDomain, 26, OrtStatus*(const char*, OrtCustomOpDomain**))                    \
  X(CustomOpDomain_Add, 27, OrtStatus*(OrtCustomOpDomain*, const OrtCustomOp*))                \
  X(AddCustomOpDomain, 28, OrtStatus*(OrtSessionOptions*, OrtCustomOpDomain*))                 \
  X(GetTensorMutableData, 51, OrtStatus*(OrtValue*, void**))                                   \
  X(GetTensorElementType, 60, OrtStatus*(const OrtTensorTypeAndShapeInfo*, OrtElementType*))   \
  X(GetDimensionsCount, 61, OrtStatus*(const OrtTensorTypeAndShapeInfo*, size_t*))             \
  X(GetDimensions, 62, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t))         \
  X(GetTensorTypeAndShape, 65, OrtStatus*(const OrtValue*, OrtTensorTypeAndShapeInfo**))       \
  X(MemoryInfoGetId, 72, OrtStatus*(const OrtMemoryInfo*, int*))                               \
  X(AllocatorAlloc, 75, OrtStatus*(OrtAllocator*, size_t, void**))                             \
  X(AllocatorFree, 76, OrtStatus*(OrtAllocator*, void*))                                       \
  X(KernelInfoGetAttribute_float, 85, OrtStatus*(const OrtKernelInfo*, const char*, float*))   \
  X(KernelInfoGetAttribute_int64, 86, OrtStatus*(const OrtKernelInfo*, const char*, int64_t*)) \
  X(KernelContext_GetInput, 90, OrtStatus*(const OrtKernelContext*, size_t, const OrtValue**)) \
  X(KernelContext_GetOutput, 91,                                                               \
    OrtStatus*(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**))                 \
  X(ReleaseStatus, 93, void(OrtStatus*))                                                       \
  X(ReleaseTensorTypeAndShapeInfo, 99, void(OrtTensorTypeAndShapeInfo*))                       \
  X(KernelContext_GetGPUComputeStream, 193, OrtStatus*(const OrtKernelContext*, void**))       \
  X(GetTensorMemoryInfo, 194, OrtStatus*(const OrtValue*, const OrtMemoryInfo**))              \
  X(KernelInfo_GetInputCount, 230, OrtStatus*(const OrtKernelInfo*, size_t*))                  \
  X(KernelInfo_GetOutputCount, 231, OrtStatus*(const OrtKernelInfo*, size_t*))                 \
  X(KernelInfo_GetNodeName, 244, OrtStatus*(const OrtKernelInfo*, char*, size_t*))             \
  X(KernelInfoGetConstantInput_tensor, 249,                                                    \
    OrtStatus*(const OrtKernelInfo*, size_t, int* is_constant, const OrtValue**))              \
  X(KernelContext_GetAllocator, 253,                                                           \
    OrtStatus*(const OrtKernelContext*, const OrtMemoryInfo*, OrtAllocator**))                 \
  X(ShapeInferContext_GetInputTypeShape, 268,                                                  \
    OrtStatus*(const OrtShapeInferContext*, size_t, OrtTensorTypeAndShapeInfo**))              \
  X(ShapeInferContext_SetOutputTypeShape, 270,                                                 \
    OrtStatus*(const OrtShapeInferContext*, size_t, const OrtTensorTypeAndShapeInfo*))         \
  X(KernelContext_ParallelFor, 274,                                                            \
    OrtStatus*(const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*))

// Functions that later versions have; null in earlier ones.
#define FASTNORM_ORT_LATER_FUNCTIONS(X)             \
  X(GetTensorElementTypeAndShapeDataReference, 414, \
    OrtStatus*(const OrtValue*, OrtElementType*, const int64_t**, size_t*))

namespace fastnorm_ort {

// ONNX Runtime 1.20, the oldest that serves.
constexpr uint32_t kOldestApi = 20;
// ONNX Runtime 1.24, which tells a tensor's type and shape without an allocation.
constexpr uint32_t kShapeReferenceApi = 24;

// The functions of one loaded ONNX Runtime.
struct Api {
  // `later` is the table of kShapeReferenceApi, or null.
  Api(OrtApi* table, OrtApi* later)
#define FASTNORM_ORT_COPY(name, place, ...) \
  name = reinterpret_cast<decltype(name)>(reinterpret_cast<void*>(table[place]));
  {
    FASTNORM_ORT_FUNCTIONS(FASTNORM_ORT_COPY)
    if ((table = later) == nullptr) return;
    FASTNORM_ORT_LATER_FUNCTIONS(FASTNORM_ORT_COPY)
  }
#undef FASTNORM_ORT_COPY

#define FASTNORM_ORT_MEMBER(name, place, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  FASTNORM_ORT_FUNCTIONS(FASTNORM_ORT_MEMBER)
  FASTNORM_ORT_LATER_FUNCTIONS(FASTNORM_ORT_MEMBER)
#undef FASTNORM_ORT_MEMBER
};

}  // namespace fastnorm_ort

#endif  // FASTNORM_INTEGRATIONS_ONNXRUNTIME_ORT_API_H_
