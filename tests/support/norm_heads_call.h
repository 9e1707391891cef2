// Random calls of norm_heads as lines of text, and what the model says should be there afterwards.
#pragma once

#include <string>
#include <vector>

#include "fastnorm/norm_heads.h"
#include "ref/norm_heads_ref.h"
#include "ref/norm_model.h"
#include "support/operands.h"

namespace fastnorm::support {

// What calls are drawn from.
enum class CallKind {
  kAny,        // every option, any address
  kAligned,    // what kernels that hold rows in registers can serve
  kMany,       // such, of several hundred tokens
  kMore,       // aligned, with sums of squares, and with codes of y by a static scale
  kAcross,     // aligned, of 16 bits, with statistics across the heads of up to 8192 columns
  kLatents,    // aligned, of 16 bits: latents of MLA, short rows, and latents of queries with codes
  kPrologue,   // such, mostly as models have them
  kIndexer,    // aligned, of 16 bits: rows of 128 columns, whose codes have one scale each
  kLarge,      // aligned: more than 10240 rows of a part, more than 32 heads, rope of some columns
  kFew,        // aligned, of 16 bits: one part of 3 tokens and 3 slots
  kFarRows,    // such, whose rows and pages lie 2^30 elements apart
  kFarTables,  // such, at positions from a million on: offsets in tables exceed 2^31 elements
};

std::string draw_norm_heads(uint64_t seed, CallKind kind, bool gpu);

// Positions and slots. Some tokens are padding: they have no slot, and positions that no row has.
void fill_norm_heads(Operands& call);

// ---- What norm_heads_backward has, too.

// Words of the tables and positions of a call: mrope sections, and whether the rope is interleaved.
struct DrawnTables {
  ref::Type type = ref::Type::kF32;  // T
  int64_t tokens = 0, rope_dim = 0;
  int64_t heads = 0;  // with tables of their own; 0: one for all
  bool aligned = false, many = false, far = false;
};
void draw_tables(ref::Random& random, LineWriter& line, const DrawnTables& drawn);

// The tables of a call as the model sees them.
class Tables {
 public:
  Tables(const Operands& call, const fastnorm_norm_heads_args& args);
  // Cosines or sines of a token.
  std::vector<float> cosines(const ref::RopeOptions& o, int64_t head, int64_t token) const {
    return angles(*cos_, o, head, token);
  }
  std::vector<float> sines(const ref::RopeOptions& o, int64_t head, int64_t token) const {
    return angles(*sin_, o, head, token);
  }

 private:
  std::vector<float> angles(const Operand& t, const ref::RopeOptions& o, int64_t head,
                            int64_t token) const;

  const Operand *cos_, *sin_, *positions_;
  int axes_ = 1;
  int32_t section_[4];
  bool interleaved_;
};

// The rope of a part with rows of n columns.
template <class Part>
ref::RopeOptions rope_options(const Part& part, const fastnorm_norm_heads_args& args, int64_t n) {
  ref::RopeOptions o;
  o.interleaved = (part.flags & FASTNORM_NORM_HEADS_ROPE_INTERLEAVED) != 0;
  o.inverse = (part.flags & FASTNORM_NORM_HEADS_ROPE_INVERSE) != 0;
  o.half = args.rope_dim / 2;
  o.offset = part.rope_offset == -1 ? n - args.rope_dim : part.rope_offset;
  return o;
}

}  // namespace fastnorm::support
