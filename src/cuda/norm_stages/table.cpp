// The kernels of calls with stages that an architecture has. CUDA-free.
#include "cuda/arch.h"
#include "cuda/norm_stages/list.h"

namespace fastnorm::cuda {
namespace {

template <int kArch>
constexpr auto kEntries = make_table<NormStagesFamily, kArch>();

template <int kArch>
constexpr StagesKernelList list_of() {
  constexpr auto& entries = kEntries<table_arch<NormStagesFamily>(kArch)>;
  return {entries.data(), static_cast<int32_t>(entries.size())};
}

}  // namespace

constinit const StagesKernelList kStages80 = list_of<kColumn80>();
constinit const StagesKernelList kStages90 = list_of<kColumn90>();
constinit const StagesKernelList kStages100 = list_of<kColumn100>();
constinit const StagesKernelList kStages120 = list_of<kColumn120>();
constinit const StagesKernelList kStagesPtx = list_of<kColumnPtx>();

}  // namespace fastnorm::cuda
