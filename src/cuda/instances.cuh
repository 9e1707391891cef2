// The kernels of one family, architecture and dtype, for kernels.h. The build compiles a family's
// instances.cu once for each, with FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h) and
// FASTNORM_DTYPE (kF32, kF16, kBF16). That file names its FASTNORM_FAMILY, defines
// kernel_of<word>(), and includes this one at its end.
#include "cuda/arch.h"
#include "cuda/kernels.h"

namespace fastnorm::cuda {
namespace {

constexpr int kPart = static_cast<int>(Dtype::FASTNORM_DTYPE);
constexpr auto& kPartWords = kWords<FASTNORM_FAMILY, FASTNORM_SPEC.column, kPart>;

struct Maker {
  template <size_t kNumber>
  static constexpr auto kernel() {
    return kernel_of<kPartWords[kNumber].word>();
  }
};

}  // namespace

template <>
std::span<const void* const> part_kernels<FASTNORM_FAMILY, FASTNORM_ARCH, kPart>() {
  return addresses_of<FASTNORM_FAMILY, FASTNORM_ARCH, kPart, Maker, kPartWords.size()>();
}

}  // namespace fastnorm::cuda
