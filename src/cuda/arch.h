// Every number of a GPU architecture. CUDA-free: planning for any architecture works in any build.
#pragma once

#include "core/norm_plan.h"

namespace fastnorm::cuda {

// Thresholds were measured on an H200 (132 SMs, 60 MB L2, CUDA 13.0) on 2026-11-21 and 22 and are taken over where nothing was measured.
// Loads that bypass L1 win for RMS up to 17 MB moved (34 MB with a residual or up to 512 rows, up to 4 %) and lose 3 to 7 % from 64 MB; LAYER never
// gains. Rows of a warp and less win up to 6 MB, however few they are (4096 x 128 1.94 us and 1.99, 8192 x 256 3.59 and 3.56; N 64 up to 11 %;
// 2026-11-26). Rows of 65 to 128 vectors are faster with 64 threads from 64 MB. Prefetching into L2 gains 3 to 8 % of long rows and costs
// the next reader of y a little (1.5 us at 67 MB): it pays from about 100 MB read, for LAYER, which gains 9 % at 67 MB, from 40; codes
// likewise (a scale a row, 4096 x 16384: 57.8 us for 61.9; LAYER to e4m3, 4096 x 8192: 30.0 for 32.7).
// 3 MB ahead is best: from 8 MB on lines are evicted before they are used. The ladder of few rows wins up to 512 rows (add 512 x 5120:
// 6.6 us for 7.6, LAYER 512 x 4096: 4.3 for 4.6), and up to 1024 where little is moved (LAYER 1024 x 2048, 8 MB: 3.95 for 4.42;
// 1024 x 4096, 17 MB: 7.3 for 6.6). 512 threads of 128 registers fill a multiprocessor: sums of as many rows as fit at once on all have
// their loads on the way together (see one_wave_tile()). From 1024 tokens on, short rows are bound by instructions, of which two vectors a
// thread take fewer (heads of 128, 4096 tokens: 38.6 us for 40.2).
// Accesses of 32 bytes, which take half as many instructions, are there from sm_100 on; kernels with them are, where memory is fast enough
// to want them. None of these was measured. Bare kernels are worth their compile time where they were measured and on its successor; the others
// have those to y from columns of x's dtype, rounded once, and codes beside f32 columns by the general kernels.
enum class KernelList { kShort, kFull, kMeasured };

constexpr ArchSpec make_arch(const char* name, int32_t capability, int32_t max_cluster_blocks,
                             KernelList list, int32_t access_bytes = 16) {
  return {.name = name,
          .capability = capability,
          .max_cluster_blocks = max_cluster_blocks,
          .access_bytes = access_bytes,
          .full_list = list != KernelList::kShort,
          .measured = list == KernelList::kMeasured,
          .decode_rows = 128,
          .latency_rows = 512,
          .latency_rows_short = 1024,
          .latency_bytes_moved = 12 << 20,
          .wave_threads = 512,
          .kept_rows = 4096,
          .many_tokens = 1024,
          .wide_row_bytes_moved = 60 << 20,
          .stream_rows = 24,
          .stream_bytes = 18 << 20,
          .stream_bytes_long = 36 << 20,
          .stream_bytes_short = 6 << 20,
          .prefetch_bytes_read = 95 << 20,
          .prefetch_bytes_read_layer = 40 << 20,
          .prefetch_bytes_ahead = capability >= 90 ? 3 << 20 : 0,
          .max_blocks = 0x7fffffff};
}

inline constexpr ArchSpec kSm80 = make_arch("sm_80", 80, 1, KernelList::kShort);
inline constexpr ArchSpec kSm90 = make_arch("sm_90", 90, 16, KernelList::kMeasured);
inline constexpr ArchSpec kSm100 = make_arch("sm_100f", 100, 16, KernelList::kFull, 32);
inline constexpr ArchSpec kSm120 = make_arch("sm_120f", 120, 8, KernelList::kShort);
// PTX for capability 9.0 and later, which a GPU's driver compiles when a kernel is first wanted. Compressed, it is twice as long as the code made
// of it, and compiling takes a while: so it has the kernels of the short list.
inline constexpr ArchSpec kPtx = make_arch("ptx_90", 90, 8, KernelList::kShort);

inline constexpr const ArchSpec* kArchs[] = {&kSm80, &kSm90, &kSm100, &kSm120, &kPtx};

// The architecture whose kernels run on a device of `capability` (major * 10 + minor), among those that `built` has; nullptr if
// none does. Binary code runs on later minor versions of its major one (an `f` target on its family: 10.0 and 10.3, 12.0 and 12.1).
constexpr const ArchSpec* arch_for(int32_t capability, bool (*built)(const ArchSpec&)) {
  for (const ArchSpec* arch : kArchs) {
    if (capability / 10 == arch->capability / 10 && capability >= arch->capability && built(*arch))
      return arch;
  }
  return capability >= kPtx.capability && built(kPtx) ? &kPtx : nullptr;
}

// True if a kernel may start before the stream's previous one has ended.
constexpr bool launches_early(const ArchSpec& arch) { return arch.capability >= 90; }

// Clusters that every GPU with clusters can run. A kernel asks for larger ones.
constexpr bool is_portable_cluster(int blocks) { return blocks <= 8; }

}  // namespace fastnorm::cuda
