// The kernels of peers, expanded from variants.inc into constexpr tables: planning searches them,
// tests iterate them, and instances.cu turns them into kernels. CUDA-free.
#pragma once

#include "core/peer/plan.h"
#include "cuda/family.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace peer_words {

using namespace family_words;
inline constexpr bool early = false, late = true, any = false, lean = true;

using Line = FamilyLine<PeerVariant>;

#define V(form, dtypes, stat, sink, threads, vectors, blocks, group, calls, weights, sm80, sm90, \
          sm100, sm120, ptx)                                                                     \
  {{Dtype::kF32, PeerForm::form, Stat::stat, Sink::sink, threads, vectors, blocks, group, calls, \
    weights},                                                                                    \
   dtypes,                                                                                       \
   {{sm80, sm90, sm100, sm120, ptx}}},
inline constexpr Line kLines[] = {
#include "cuda/peer/variants.inc"
};
#undef V

}  // namespace peer_words

constexpr const char* name_of(PeerForm form) {
  return form == PeerForm::kOneShot      ? "one-shot"
         : form == PeerForm::kTwoShot    ? "two-shot"
         : form == PeerForm::kSum        ? "sum"
         : form == PeerForm::kSumTwoShot ? "sum two-shot"
         : form == PeerForm::kSharded    ? "sharded"
                                         : "statistics";
}

constexpr PeerEntry make_peer_entry(const PeerVariant& v) {
  PeerEntry entry{v, packed(v), ""};
  NameWriter name(entry.name);
  name << "peer ";
  if (v.form != PeerForm::kStatistics) name << dtype_name(v.dtype) << ' ';
  name << name_of(v.form);
  if (v.is_fused()) {
    name << ' ' << name_of(v.stat) << ' ' << name_of(v.sink) << ' ' << +v.threads << 'x'
         << +v.vectors;
    if (v.is_cluster()) name << 'x' << +v.blocks;
    name << " by " << +v.group;
    if (v.lean) name << " lean";
  } else if (v.form == PeerForm::kSharded) {
    name << ' ' << +v.threads << 'x' << +v.vectors;
  }
  return entry;
}

struct PeerFamily : FamilyOf<PeerVariant, uint32_t, 3> {
  static constexpr const char* kName = "peer";
  using Entry = PeerEntry;
  static constexpr auto& kLines = peer_words::kLines;
  static constexpr Entry make_entry(Word word, uint16_t) {
    return make_peer_entry(variant_of(word));
  }
};

}  // namespace fastnorm::cuda
