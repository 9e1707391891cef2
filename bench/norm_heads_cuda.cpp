// Times heads on a GPU.
#include <algorithm>

#include "bench/families.h"
#include "bench/heads_gpu.h"

namespace bench {
namespace {

// Where the tensors of a case's calls lie in one piece of memory: what all calls share, then each
// call's buffer, caches, and where the stream beside it writes.
class HeadsLayout {
 public:
  HeadsLayout(const NormHeadsCase& c, const NormHeadsTables& tables)
      : tables_(tables),
        x_(aligned(std::max(c.buffer_bytes(), c.stream_bytes()))),
        cache_(aligned(c.cache_bytes())),
        spare_(c.in_place() ? 0 : aligned(c.stream_bytes())) {}

  int64_t bytes(int64_t calls) const { return shared_bytes() + calls * (x_ + cache_ + spare_); }

  NormHeadsBuffers at(char* memory, int64_t call) const {
    Cursor at = {memory};
    NormHeadsBuffers b = {};
    b.weight = at.take(size_of(tables_.weight));
    b.cos = reinterpret_cast<float*>(at.take(size_of(tables_.cos)));
    b.sin = reinterpret_cast<float*>(at.take(size_of(tables_.sin)));
    b.scale = reinterpret_cast<float*>(at.take(size_of(tables_.scale)));
    b.positions = reinterpret_cast<int32_t*>(at.take(size_of(tables_.positions)));
    b.slots = reinterpret_cast<int32_t*>(at.take(size_of(tables_.slots)));
    at.p += call * (x_ + cache_ + spare_);
    b.x = at.take(x_);
    b.cache = at.take(cache_);
    return b;
  }
  char* spare(char* memory, int64_t call) const { return at(memory, call).cache + cache_; }

  void upload_all(char* memory, cudaStream_t queue) const {
    const NormHeadsBuffers b = at(memory, 0);
    upload(b.weight, tables_.weight, queue);
    upload(b.cos, tables_.cos, queue), upload(b.sin, tables_.sin, queue);
    upload(b.scale, tables_.scale, queue);
    upload(b.positions, tables_.positions, queue), upload(b.slots, tables_.slots, queue);
  }

 private:
  int64_t shared_bytes() const {
    return aligned(size_of(tables_.weight)) + aligned(size_of(tables_.cos)) +
           aligned(size_of(tables_.sin)) + aligned(size_of(tables_.scale)) +
           aligned(size_of(tables_.positions)) + aligned(size_of(tables_.slots));
  }

  const NormHeadsTables& tables_;
  int64_t x_, cache_, spare_;
};

// Calls of a case on a GPU, and the streams beside them.
class ForwardCalls {
 public:
  using Case = NormHeadsCase;

  static int64_t footprint(const Case& c) {
    return c.in_place() ? c.bytes_moved() / 2 : c.bytes_moved();
  }
  ForwardCalls(Gpu& gpu, const NormHeadsCase& c, int calls)
      : c_(c),
        tables_(c),
        layout_(c, tables_),
        call_(c, FASTNORM_DEVICE_CUDA, layout_.at(kNowhere, 0)) {
    call_.query(gpu.context());  // without kernels it says so before memory is taken
    arena_ = gpu.arena(layout_.bytes(calls), c.dtype);
    layout_.upload_all(arena_, gpu.queue());
    call_.set(layout_.at(arena_, 0));
  }

  std::vector<Stream> kinds() const { return c_.in_place() ? strided_streams() : streams(1); }
  // In place: the rows that the call changes. Else a copy of as many bytes in all.
  Traffic traffic(int i) const {
    const NormHeadsBuffers b = layout_.at(arena_, i);
    Traffic t = {b.x, nullptr, layout_.spare(arena_, i), nullptr, c_.stream_bytes()};
    if (c_.in_place()) {
      t.c = b.x;
      t.bytes = c_.tokens * c_.read_bytes();
      t.row_bytes = c_.read_bytes();
      t.stride_bytes = c_.token_bytes();
    }
    return t;
  }
  const NormHeadsCall& call() const { return call_; }
  void run(Gpu& gpu, int i) {
    call_.set(layout_.at(arena_, i));
    call_.run(gpu.context(), gpu.queue());
  }

 private:
  const NormHeadsCase c_;
  const NormHeadsTables tables_;
  const HeadsLayout layout_;
  char* arena_ = nullptr;
  NormHeadsCall call_;
};

}  // namespace

int bench_norm_heads_cuda(int id, const FamilyCases& asked, const Options& options) {
  return time_heads_on_gpu<ForwardCalls>(id, make_norm_heads_cases(asked.shapes, asked.dtypes),
                                         options);
}

}  // namespace bench
