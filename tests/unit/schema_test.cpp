// The table of every field as core reads it. That the headers have exactly these fields, the
// compiler has checked.
#include "core/common/schema.h"

#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <string>

#include "core/common/quant_scheme.h"
#include "ref/quant_spec.h"
#include "support/call_text.h"

namespace fastnorm::schema {
namespace {

void check_struct(const support::CallStruct& s) {
  SCOPED_TRACE(s.name);
  std::set<std::string> names;
  const size_t count = s.fields.size();
  for (const support::CallStruct::Field& f : s.fields) {
    SCOPED_TRACE(f.name);
    EXPECT_TRUE(names.insert(f.name).second);
    EXPECT_EQ(is_tensor(f.role), f.kind == Kind::kTensor);
    EXPECT_EQ(is_tensor(f.role), f.shape != Shape::kNone);
    EXPECT_EQ(is_tensor(f.role), f.dtypes != 0);
    EXPECT_EQ(f.role == Role::kEnum, f.kind == Kind::kEnum);
    if (f.same_view != 0) {
      EXPECT_TRUE(is_output(f.role));
    }
    for (size_t i = 0; i < 64; ++i) {
      if (((f.same_view | f.apart) >> i & 1) == 0) continue;
      ASSERT_LT(i, count);
      EXPECT_TRUE(is_tensor(s.fields[i].role));
      EXPECT_FALSE(is_output(s.fields[i].role));
    }
    for (const OneOf& one_of : f.needs) {
      for (const Term& t : one_of.terms) EXPECT_TRUE(t.field == kNoField || t.field < count);
    }
    if (f.type != nullptr) check_struct(*f.type);
  }
}

TEST(Schema, FieldsOfEveryStruct) {
  for (const support::CallFamily& family : support::families()) {
    check_struct(*family.args);
    if (family.part != nullptr) check_struct(*family.part);
  }
}

TEST(Schema, WhatAFieldSays) {
  constexpr const Field& gate = field<&fastnorm_norm_args::gate>;
  EXPECT_STREQ(gate.name, "gate");
  EXPECT_EQ(gate.offset, offsetof(fastnorm_norm_args, gate));
  EXPECT_EQ(gate.role, Role::kRowsIn);
  EXPECT_EQ(gate.dtypes, kTBit | kF32Bit);
  EXPECT_EQ(gate.apart, uint64_t{1} << kNumber<&fastnorm_norm_args::x>);
  EXPECT_FALSE(gate.required);
  EXPECT_STREQ(field<&fastnorm_quant::scale>.path, "quant.scale");
  EXPECT_TRUE((may_be_one<&fastnorm_norm_args::y, &fastnorm_norm_args::gate>));
  EXPECT_FALSE((may_be_one<&fastnorm_norm_args::residual_out, &fastnorm_norm_args::gate>));
  constexpr const Field& index = field<&fastnorm_norm_args::modulation_index>;
  EXPECT_EQ(index.needs[0].terms[2].field, kNumber<&fastnorm_norm_args::modulation_shift>);
  EXPECT_EQ(index.needs[0].terms[3].field, kNoField);
  constexpr const Field& sumsq = field<&fastnorm_norm_args::sumsq>;
  EXPECT_EQ(sumsq.excludes[1].op, Op::kIs);
  EXPECT_EQ(sumsq.excludes[1].value, static_cast<uint32_t>(FASTNORM_ROUND_EVERY_STEP));
}

TEST(Schema, EnumsOfTheHeaders) {
  EXPECT_EQ(most_of<&fastnorm_norm_args::rounding>, 3u);
  EXPECT_EQ(most_of<&fastnorm_norm_args::branch_rounding>, 2u);
  EXPECT_EQ(most_of<&fastnorm_peer_sharded_norm_args::rounding>, 1u);
  EXPECT_EQ(most_of<&fastnorm_quant::scheme>, std::size(kQuantSchemes) - 1);
  EXPECT_FALSE(counts_up<fastnorm_norm_flags>);
  EXPECT_EQ(kAllFlags<fastnorm_norm_flags>, 31u + FASTNORM_NORM_NO_PDL);
  EXPECT_STREQ(Enum<fastnorm_norm_kind>::kName, "fastnorm_norm_kind");
  EXPECT_STREQ(Enum<fastnorm_norm_kind>::kAll[1].name, "FASTNORM_NORM_LAYER");
}

// The reference has a list of schemes of its own, with the meaning that the library's has.
static_assert(std::size(ref::kSchemes) == std::size(kQuantSchemes));
static_assert(std::size(kQuantSchemes) == std::size(Enum<fastnorm_quant_scheme>::kAll));

TEST(Schema, SchemesOfTheReference) {
  for (const QuantScheme& s : kQuantSchemes) {
    SCOPED_TRACE(s.text);
    ref::QuantOptions options;
    options.scheme = ref::kSchemes[static_cast<size_t>(s.scheme)];
    options.block_size = 128;
    EXPECT_EQ(s.is_fp4(), ref::is_fp4(options.scheme));
    EXPECT_EQ(s.is_mx(), ref::is_mx(options.scheme));
    const int64_t columns = s.block == kOwnBlock ? 128 : s.block == 0 ? 1000 : s.block;
    EXPECT_EQ(ref::scope_columns(options, 1000), columns);
    const bool bytes = s.scale == SchemeScale::kE8M0 || s.scale == SchemeScale::kE4M3;
    EXPECT_EQ(ref::has_scale_bytes(options), bytes);
    const Enumerator& e = Enum<fastnorm_quant_scheme>::kAll[static_cast<size_t>(s.scheme)];
    EXPECT_EQ(s.text, std::string(e.name) + " (" + std::to_string(e.value) + ")");
  }
}

}  // namespace
}  // namespace fastnorm::schema
