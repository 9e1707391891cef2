// Times gradients of heads on a GPU.
#include <algorithm>

#include "bench/families.h"
#include "bench/heads_gpu.h"
#include "bench/norm_heads_backward.h"

namespace bench {
namespace {

// All calls share weights, their gradients, tables and the workspace.
class BackwardCalls {
 public:
  using Case = NormHeadsBackwardCase;

  static int64_t footprint(const Case& c) { return c.bytes_moved(); }
  BackwardCalls(Gpu& gpu, const NormHeadsBackwardCase& c, int calls)
      : c_(c), tables_(c.heads), call_(c, FASTNORM_DEVICE_CUDA, at(kNowhere, 0)) {
    workspace_bytes_ = call_.query(gpu.context()).workspace_bytes;
    arena_ = gpu.arena(at(kNowhere, calls).dy - kNowhere, c.heads.dtype);
    const NormHeadsBackwardBuffers b = at(arena_, 0);
    upload(b.cos, tables_.cos, gpu.queue()), upload(b.sin, tables_.sin, gpu.queue());
    upload(b.positions, tables_.positions, gpu.queue());
    for (int i = 0; c.normalises() && i < calls; ++i)
      fill_random(at(arena_, i).rstd, aligned(c.statistics_bytes()), "f32", 2, gpu.queue());
    call_.set(b);
  }

  std::vector<Stream> kinds() const { return c_.reads() == 2 ? join_streams(2) : streams(1); }
  // As many bytes in all.
  Traffic traffic(int i) const {
    const NormHeadsBackwardBuffers b = at(arena_, i);
    return {b.dy, c_.reads() == 2 ? b.x : nullptr, b.dx, nullptr, c_.stream_bytes()};
  }
  const NormHeadsBackwardCall& call() const { return call_; }
  void run(Gpu& gpu, int i) {
    call_.set(at(arena_, i));
    call_.run(gpu.context(), workspace_bytes_ == 0 ? nullptr : arena_, workspace_bytes_,
              gpu.queue());
  }

 private:
  NormHeadsBackwardBuffers at(char* memory, int64_t call) const {
    Cursor at = {memory};
    NormHeadsBackwardBuffers b = {};
    at.take(static_cast<int64_t>(workspace_bytes_));
    b.weights = at.take(4 * NormHeadsBackwardCall::weight_bytes(c_));
    b.cos = reinterpret_cast<float*>(at.take(size_of(tables_.cos)));
    b.sin = reinterpret_cast<float*>(at.take(size_of(tables_.sin)));
    b.positions = reinterpret_cast<int32_t*>(at.take(size_of(tables_.positions)));
    const int64_t tensor = aligned(std::max(c_.tensor_bytes(), c_.stream_bytes()));
    at.p += call * (3 * tensor + aligned(c_.statistics_bytes()));
    b.dy = at.take(tensor);
    b.x = at.take(tensor);
    b.dx = at.take(tensor);
    b.rstd = at.take(c_.statistics_bytes());
    return b;
  }

  const NormHeadsBackwardCase c_;
  const NormHeadsTables tables_;
  char* arena_ = nullptr;
  uint64_t workspace_bytes_ = 0;
  NormHeadsBackwardCall call_;
};

}  // namespace

int bench_norm_heads_backward_cuda(int id, const FamilyCases& asked, const Options& options) {
  return time_heads_on_gpu<BackwardCalls>(
      id, make_norm_heads_backward_cases(asked.shapes, asked.dtypes), options);
}

}  // namespace bench
