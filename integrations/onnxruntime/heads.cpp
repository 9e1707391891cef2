// Norm and rotary embedding of query and key heads, and the transposition that stands between them
// in most models.

#include <algorithm>
#include <cstddef>

#include "operators.h"

namespace fastnorm_ort {
namespace {

enum Input : size_t { kX, kWeight, kCos, kSin, kPositions, kKey, kKeyWeight };

// A tensor of heads as [batch, tokens, heads, d], with the strides of its order in memory.
struct Heads {
  int64_t batch, tokens, heads, d;
  bool tokens_first;

  int64_t token_stride() const { return tokens_first ? heads * d : d; }
  int64_t head_stride() const { return tokens_first ? d : tokens * d; }
};

class HeadsKernel final : public Kernel {
 public:
  HeadsKernel(const Api& api, const OrtKernelInfo* info, bool cuda) : Kernel(api, info, cuda) {
    eps_ = attribute(api, info, "epsilon", 1e-5f);
    rope_dim_ = attribute(api, info, "rotary_embedding_dim", int64_t{0});
    interleaved_ = attribute(api, info, "interleaved", int64_t{0}) != 0;
    num_heads_[0] = attribute(api, info, "num_heads", int64_t{0});
    num_heads_[1] = attribute(api, info, "kv_num_heads", num_heads_[0]);
    input_tokens_first_ = attribute(api, info, "input_tokens_first", int64_t{0}) != 0;
    output_tokens_first_ = attribute(api, info, "output_tokens_first", int64_t{0}) != 0;
    rounding_ = attribute(api, info, "rounding", int64_t{FASTNORM_ROUND_ONCE});
    from_rounded_ = attribute(api, info, "rotate_rounded", int64_t{0}) != 0;
  }

  void compute(Call& call) override {
    const Value x[2] = {call.input(kX), call.input(kKey)};
    const Value weight[2] = {call.input(kWeight), call.input(kKeyWeight)};
    const Value cos = call.input(kCos), sin = call.input(kSin);
    const Value positions = call.input(kPositions);
    const size_t count = x[1] ? 2 : 1;
    call.find_device(x[0]);

    Heads in[2] = {}, out[2] = {};
    Value y[2];
    for (size_t i = 0; i < count; ++i) {
      in[i] = heads_of(x[i], num_heads_[i]);
      out[i] = in[i];
      std::array<int64_t, 4> dims = {in[i].batch, in[i].heads, in[i].tokens, in[i].d};
      if (x[i].rank == 4) {
        out[i].tokens_first = output_tokens_first_;
        if (output_tokens_first_) std::swap(dims[1], dims[2]);
        y[i] = call.output(i, x[i].type, dims);
      } else {
        y[i] = call.output(i, x[i].type, x[i].shape());
      }
      if (!y[i]) fail(kOrtInvalidArgument, "the key has no output");
    }
    if (count == 2 && (in[0].batch != in[1].batch || in[0].tokens != in[1].tokens)) {
      fail(kOrtInvalidArgument, "the query is " + text_of(x[0].shape()) + ", the key " +
                                    text_of(x[1].shape()) + "; required: the same tokens");
    }
    const Heads& h = in[0];
    if (h.batch * h.tokens == 0) return;

    // Batches are more tokens where the strides of tokens go on across them.
    bool joined = true;
    for (size_t i = 0; i < count; ++i) joined &= in[i].tokens_first && out[i].tokens_first;
    // A position for the whole call is where the table begins.
    const bool first_only = positions && elements(positions) == 1 && h.batch * h.tokens != 1;
    const bool own_tables = cos.rank == 3;
    if (joined && !positions && !own_tables && h.batch > 1) joined = false;
    if (first_only) joined &= h.batch == 1;
    const int64_t calls = joined ? 1 : h.batch;
    const int64_t tokens = joined ? h.batch * h.tokens : h.tokens;

    for (int64_t b = 0; b < calls; ++b) {
      Tensor tensors[9];
      for (Tensor& t : tensors) t.device = call.device();
      fastnorm_norm_heads_args args = {};
      args.struct_size = sizeof args;
      args.parallel_user = call.parallel_user();
      const int64_t half = cos.rank == 0 ? 0 : cos.dims[cos.rank - 1];
      args.rope_dim = static_cast<int32_t>(rope_dim_ != 0 ? rope_dim_ : 2 * half);
      if (elements(cos) != elements(sin)) {
        fail(kOrtInvalidArgument,
             "the cosines are " + text_of(cos.shape()) + ", the sines " + text_of(sin.shape()));
      }
      set_tables(call, cos, sin, positions, first_only, b, joined, h, half, tensors, args);
      if (positions && !first_only) {
        if (elements(positions) != h.batch * h.tokens) {
          fail(kOrtInvalidArgument, "position_ids is " + text_of(positions.shape()) +
                                        "; required: a position for each of " +
                                        std::to_string(h.batch * h.tokens) + " tokens, or one");
        }
        const int64_t one = 1;
        args.positions = tensors[2].set(positions, {&tokens, 1}, {&one, 1}, b * tokens);
      }
      fastnorm_norm_heads_part parts[2] = {};
      const fastnorm_norm_heads_part* pointers[2] = {&parts[0], &parts[1]};
      for (size_t i = 0; i < count; ++i) {
        fastnorm_norm_heads_part& part = parts[i];
        part.struct_size = sizeof part;
        part.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
        if (interleaved_) part.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
        if (from_rounded_) part.flags |= FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED;
        part.kind = FASTNORM_NORM_RMS;
        part.eps = eps_;
        part.rounding = static_cast<fastnorm_rounding>(rounding_);
        const int64_t shape[] = {tokens, in[i].heads, in[i].d};
        const int64_t offset = b * h.tokens * in[i].heads * in[i].d;
        part.x = view(tensors[3 + 3 * i], x[i], in[i], shape, offset);
        part.y = view(tensors[4 + 3 * i], y[i], out[i], shape, offset);
        part.weight = tensors[5 + 3 * i].set(weight[i], weight[i].shape());
      }
      check(fastnorm_norm_heads(call.library(), &args, pointers, static_cast<int32_t>(count),
                                nullptr, 0, call.stream()));
    }
  }

 private:
  Heads heads_of(const Value& x, int64_t num_heads) const {
    if (x.rank == 4) {
      const bool first = input_tokens_first_;
      return {x.dims[0], x.dims[first ? 1 : 2], x.dims[first ? 2 : 1], x.dims[3], first};
    }
    if (x.rank != 3 || num_heads <= 0 || x.dims[2] % num_heads != 0) {
      fail(kOrtInvalidArgument,
           "x is " + text_of(x.shape()) + " with num_heads " + std::to_string(num_heads) +
               "; required: four dimensions, or three whose last is num_heads heads");
    }
    return {x.dims[0], x.dims[1], num_heads, x.dims[2] / num_heads, true};
  }

  static const fastnorm_tensor* view(Tensor& tensor, const Value& value, const Heads& heads,
                                     std::span<const int64_t> shape, int64_t offset) {
    const int64_t strides[] = {heads.token_stride(), heads.head_stride(), 1};
    return tensor.set(value, shape, strides, offset);
  }

  // Cosines and sines as [positions, columns]: a table, or rows of their own for each token.
  static void set_tables(const Call& call, const Value& cos, const Value& sin,
                         const Value& positions, bool first_only, int64_t b, bool joined,
                         const Heads& h, int64_t half, Tensor* tensors,
                         fastnorm_norm_heads_args& args) {
    if (cos.rank != 2 && cos.rank != 3) {
      fail(kOrtInvalidArgument,
           "the cosines are " + text_of(cos.shape()) + "; required: two or three dimensions");
    }
    int64_t number = half == 0 ? 0 : elements(cos) / half, offset = 0;
    if (cos.rank == 3) {
      if (positions || cos.dims[0] != h.batch || cos.dims[1] != h.tokens) {
        fail(kOrtInvalidArgument,
             "the cosines are " + text_of(cos.shape()) + "; required: " +
                 (positions ? "two dimensions with position_ids" : "a row for each token"));
      }
      if (!joined) number = h.tokens, offset = b * h.tokens * half;
    } else if (first_only) {
      if (call.cuda()) {
        fail(kOrtNotImplemented,
             "one position for all tokens on a GPU; supported: a position for each");
      }
      const int64_t first = *static_cast<const int64_t*>(positions.data);
      if (first < 0 || first > number) {
        fail(kOrtInvalidArgument, "position_ids is " + std::to_string(first) + "; the table has " +
                                      std::to_string(number) + " rows");
      }
      number -= first, offset = first * half;
    }
    const int64_t shape[] = {number, half}, strides[] = {half, 1};
    args.cos = tensors[0].set(cos, shape, strides, offset);
    args.sin = tensors[1].set(sin, shape, strides, offset);
  }

  float eps_;
  int64_t rope_dim_, rounding_;
  int64_t num_heads_[2];
  bool interleaved_, input_tokens_first_, output_tokens_first_, from_rounded_;
};

std::unique_ptr<Kernel> make(const Api& api, const OrtKernelInfo* info, bool cuda, OrtElementType) {
  return std::make_unique<HeadsKernel>(api, info, cuda);
}

constexpr Port kInputs[] = {
    {Type::kX},         {Type::kParameter}, {Type::kTable},          {Type::kTable},
    {Type::kI64, true}, {Type::kX, true},   {Type::kParameter, true}};
constexpr Port kOutputs[] = {{Type::kX}, {Type::kX, true}};
constexpr Operator kOperators[] = {
    {"RMSNormalizationRotaryEmbedding", kInputs, kOutputs, make, false, false, false}};

}  // namespace

std::span<const Operator> heads_operators() { return kOperators; }

}  // namespace fastnorm_ort
