// Times heads on the CPU.
#include <cstring>

#include "bench/families.h"
#include "bench/heads_cpu.h"

namespace bench {
namespace {

// Calls of a case with memory of their own, and the loop beside them.
class ForwardCalls {
 public:
  using Case = NormHeadsCase;

  static int64_t set_bytes(const Case& c) {
    return x_bytes(c) + whole_pages(c.cache_bytes()) +
           (c.in_place() ? 0 : whole_pages(c.stream_bytes()));
  }
  ForwardCalls(fastnorm_context*, const Case& c, int sets)
      : c_(c),
        sets_(sets),
        memory_(allocate(sets * set_bytes(c))),
        tables_(c),
        call_(c, FASTNORM_DEVICE_CPU, buffers(0)) {
    fill(memory_.get(), sets * set_bytes(c), c.dtype);
  }

  fastnorm_info query(fastnorm_context* context) const { return call_.query(context); }
  void run(fastnorm_context* context, int i) {
    call_.set(buffers(i));
    call_.run(context, nullptr);
  }
  // Tokens [begin, end) of what the loop moves: rows in place where the call works so.
  void stream_tokens(int i, int64_t begin, int64_t end, bool cold) const {
    char* const x = at(i);
    if (!c_.in_place()) {
      char* const spare = x + x_bytes(c_) + whole_pages(c_.cache_bytes());
      const int64_t bytes = c_.stream_bytes(), token = bytes / c_.tokens;
      const int64_t stop = end == c_.tokens ? bytes : end * token;
      if (cold)
        return stream_copy(spare + begin * token, x + begin * token, stop - begin * token, true);
      std::memcpy(spare + begin * token, x + begin * token,
                  static_cast<size_t>(stop - begin * token));
      return;
    }
    for (int64_t t = begin; t < end; ++t) {
      char* const row = x + t * c_.token_bytes();
      stream_copy(row, row, c_.read_bytes(), false);
    }
  }
  std::string ceiling(bool cold) const {
    return c_.in_place() ? "rows in place" : cold ? "non-temporal copy" : "memcpy in cache";
  }

 private:
  static int64_t x_bytes(const Case& c) {
    return whole_pages(std::max(c.buffer_bytes(), c.stream_bytes()));
  }
  char* at(int i) const { return memory_.get() + i % sets_ * set_bytes(c_); }
  NormHeadsBuffers buffers(int i) {
    return {at(i),
            at(i) + x_bytes(c_),
            tables_.weight.data(),
            tables_.cos.data(),
            tables_.sin.data(),
            tables_.scale.data(),
            tables_.positions.data(),
            tables_.slots.data()};
  }

  const Case c_;
  const int sets_;
  Memory memory_;
  NormHeadsTables tables_;
  NormHeadsCall call_;
};

}  // namespace

int bench_norm_heads_cpu(const FamilyCases& asked, const Options& options) {
  return time_heads_on_cpu<ForwardCalls>(make_norm_heads_cases(asked.shapes, asked.dtypes),
                                         options);
}

}  // namespace bench
