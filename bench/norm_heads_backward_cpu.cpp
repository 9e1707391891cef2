// Times gradients of heads on the CPU.
#include "bench/families.h"
#include "bench/heads_cpu.h"
#include "bench/norm_heads_backward.h"

namespace bench {
namespace {

// The loop beside the calls reads dy and x, and writes dx.
class BackwardCalls {
 public:
  using Case = NormHeadsBackwardCase;

  static int64_t set_bytes(const Case& c) { return 3 * tensor_bytes(c) + statistics_bytes(c); }
  BackwardCalls(fastnorm_context* context, const Case& c, int sets)
      : c_(c),
        sets_(sets),
        memory_(allocate(sets * set_bytes(c))),
        tables_(c.heads),
        weights_(allocate(4 * NormHeadsBackwardCall::weight_bytes(c))),
        call_(c, FASTNORM_DEVICE_CPU, buffers(0)),
        workspace_bytes_(call_.query(context).workspace_bytes),
        workspace_(allocate(std::max<int64_t>(1, static_cast<int64_t>(workspace_bytes_)))) {
    fill(memory_.get(), sets * set_bytes(c), c.heads.dtype);
    fill(weights_.get(), 4 * NormHeadsBackwardCall::weight_bytes(c), c.heads.dtype);
    for (int i = 0; i < sets; ++i) fill(buffers(i).rstd, statistics_bytes(c), "f32");
  }

  fastnorm_info query(fastnorm_context* context) const { return call_.query(context); }
  void run(fastnorm_context* context, int i) {
    call_.set(buffers(i));
    call_.run(context, workspace_bytes_ == 0 ? nullptr : workspace_.get(), workspace_bytes_,
              nullptr);
  }
  void stream_tokens(int i, int64_t begin, int64_t end, bool cold) const {
    const int64_t bytes = c_.stream_bytes(), token = bytes / c_.heads.tokens / 64 * 64;
    const int64_t stop = end == c_.heads.tokens ? bytes : end * token, from = begin * token;
    const NormHeadsBackwardBuffers b = buffers(i);
    const char* const read[] = {b.dy + from, b.x + from};
    stream_join(b.dx + from, read, c_.reads(), stop - from, cold);
  }
  std::string ceiling(bool cold) const {
    return std::string(c_.reads() == 2 ? "R2W1" : "R1W1") + (cold ? " non-temporal" : " in cache");
  }

 private:
  // A stream moves as many bytes of each tensor.
  static int64_t tensor_bytes(const Case& c) {
    return whole_pages(std::max(c.tensor_bytes(), c.stream_bytes()));
  }
  static int64_t statistics_bytes(const Case& c) { return whole_pages(c.statistics_bytes()); }
  NormHeadsBackwardBuffers buffers(int i) const {
    char* const base = memory_.get() + i % sets_ * set_bytes(c_);
    const int64_t tensor = tensor_bytes(c_);
    return {base,
            base + tensor,
            base + 2 * tensor,
            base + 3 * tensor,
            weights_.get(),
            const_cast<float*>(tables_.cos.data()),
            const_cast<float*>(tables_.sin.data()),
            const_cast<int32_t*>(tables_.positions.data())};
  }

  const Case c_;
  const int sets_;
  Memory memory_;
  NormHeadsTables tables_;
  Memory weights_;
  NormHeadsBackwardCall call_;
  const uint64_t workspace_bytes_;
  Memory workspace_;
};

}  // namespace

int bench_norm_heads_backward_cpu(const FamilyCases& asked, const Options& options) {
  return time_heads_on_cpu<BackwardCalls>(
      make_norm_heads_backward_cases(asked.shapes, asked.dtypes), options);
}

}  // namespace bench
