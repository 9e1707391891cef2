// The kernels of peers, expanded from variants.inc into constexpr tables: planning searches them,
// tests iterate them, and instances.cu turns them into kernels. CUDA-free.
#pragma once

#include <algorithm>
#include <array>

#include "core/peer_plan.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace peer_words {

constexpr uint8_t dtype_bit(Dtype dtype) { return 1 << static_cast<int>(dtype); }
inline constexpr uint8_t F32 = dtype_bit(Dtype::kF32), F16 = dtype_bit(Dtype::kF16),
                         BF16 = dtype_bit(Dtype::kBF16), ALL = F32 | F16 | BF16;

inline constexpr bool early = false, late = true;

struct Line {
  PeerVariant variant;  // without dtype
  uint8_t dtypes;
};

#define V(form, dtypes, stat, sink, threads, vectors, group, weights, per_sm)              \
  {{Dtype::kF32, PeerForm::form, Stat::stat, Sink::sink, threads, vectors, group, weights, \
    per_sm},                                                                               \
   dtypes},
inline constexpr Line kLines[] = {
#include "cuda/peer/variants.inc"
};
#undef V

// Calls use(variant).
template <typename Use>
constexpr void for_each(Use use) {
  for (const Line& line : kLines) {
    for (int dtype = 0; dtype < kRowDtypes; ++dtype) {
      if ((line.dtypes >> dtype & 1) == 0) continue;
      PeerVariant variant = line.variant;
      variant.dtype = static_cast<Dtype>(dtype);
      use(variant);
    }
  }
}

}  // namespace peer_words

constexpr size_t count_peer_kernels() {
  size_t count = 0;
  peer_words::for_each([&](const PeerVariant&) { ++count; });
  return count;
}

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
         << +v.vectors << " by " << +v.group;
  } else if (v.form == PeerForm::kSharded) {
    name << ' ' << +v.threads << 'x' << +v.vectors;
  }
  return entry;
}

// Sorted by their words.
constexpr auto make_peer_words() {
  std::array<uint32_t, count_peer_kernels()> words = {};
  size_t count = 0;
  peer_words::for_each([&](const PeerVariant& v) { words[count++] = packed(v); });
  std::sort(words.begin(), words.end());
  return words;
}

inline constexpr auto kPeerWords = make_peer_words();

}  // namespace fastnorm::cuda
