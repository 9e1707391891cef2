// Calls as text: every field of every struct there and back, and what is wrong with a text.
#include "support/call_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace fastnorm::support {
namespace {

using schema::Kind;

// The text of a value that a new struct does not have.
std::string some_value(const CallStruct::Field& field) {
  switch (field.kind) {
    case Kind::kTensor:
      return "bf16[2,3]";
    case Kind::kStruct:
      return "";
    case Kind::kPointer:
      return "0x1234";
    case Kind::kEnum:
      return field.values->values.back().first;
    case Kind::kFloat:
    case Kind::kDouble:
      return "-0.1";
    case Kind::kInt32:
    case Kind::kInt64:
      return "-7";
    case Kind::kUint32:
      return "0x80000001";
    case Kind::kSize:
      return "1234";
  }
  return "";
}

// What the structs of a call say. It must be what its own text says.
std::string text_of_structs(Call call) {
  const CallFamily& family = call.family();
  const void* const* const parts = reinterpret_cast<const void* const*>(call.parts<char>());
  return Call(family, call.args<char>(), parts, call.count(), call.device()).text();
}

// The text with numbers for all addresses.
std::string with_addresses(Call call) {
  for (const std::string& path : call.tensors())
    call.tensor(path)->address = CallTensor::Address{"", call.address_of(path)};
  return call.text();
}

void expect_round_trip(const std::string& text) {
  SCOPED_TRACE(text);
  const Call call(text);
  EXPECT_EQ(Call(call.text()).text(), call.text());
  EXPECT_EQ(text_of_structs(call), with_addresses(call));
  EXPECT_EQ(text_of_structs(Call(with_addresses(call))), with_addresses(call));
}

int try_fields(const std::string& family, const CallStruct& type, const std::string& prefix) {
  int tried = 0;
  for (const CallStruct::Field& field : type.fields) {
    const std::string path = prefix + field.name;
    if (field.kind == Kind::kStruct) {
      tried += try_fields(family, *field.type, path + ".");
      continue;
    }
    const std::string word = " " + path + "=" + some_value(field);
    expect_round_trip(family + word);
    EXPECT_NE((Call(family + word).text() + " ").find(word + " "), std::string::npos) << word;
    ++tried;
  }
  return tried;
}

TEST(CallText, EveryFieldOfEveryStruct) {
  int tried = 0;
  for (const CallFamily& family : families()) {
    expect_round_trip(family.name);
    tried += try_fields(family.name, *family.args, "");
    if (family.part != nullptr) tried += try_fields(family.name, *family.part, "parts[1].");
  }
  EXPECT_GT(tried, 221);
}

TEST(CallText, EveryValueOfEveryEnum) {
  for (const CallStruct::Field& field : find_family("norm")->args->fields) {
    if (field.kind != Kind::kEnum) continue;
    for (const auto& [text, number] : field.values->values) {
      Call call("norm " + std::string(field.name) + "=" + text);
      const char* const args = call.args<char>();
      EXPECT_EQ(std::memcmp(args + field.offset, &number, sizeof number), 0) << text;
      expect_round_trip("norm " + std::string(field.name) + "=" + text);
    }
    expect_round_trip("norm " + std::string(field.name) + "=-1");
    expect_round_trip("norm " + std::string(field.name) + "=77");
  }
}

TEST(CallText, StructsAsWritten) {
  Call call(
      "norm kind=layer eps=1e-5 flags=0x10 alpha=0.5 group_size=16 gate_act=silu "
      "x,y=bf16[2,3,16] y.strides=[96,32,1] quant.scheme=per_row quant.quantized=i8[2,3,16]");
  const auto* const args = call.args<fastnorm_norm_args>();
  EXPECT_EQ(args->struct_size, sizeof(fastnorm_norm_args));
  EXPECT_EQ(args->kind, FASTNORM_NORM_LAYER);
  EXPECT_EQ(args->eps, 1e-5f);
  EXPECT_EQ(args->flags, 16u);
  EXPECT_EQ(args->alpha, 0.5f);
  EXPECT_EQ(args->group_size, 16);
  EXPECT_EQ(args->gate_act, FASTNORM_ACTIVATION_SILU);
  EXPECT_EQ(args->weight, nullptr);
  ASSERT_NE(args->x, nullptr);
  EXPECT_EQ(args->x->ndim, 3);
  EXPECT_EQ(args->x->shape[2], 16);
  EXPECT_EQ(args->x->strides, nullptr);
  EXPECT_EQ(args->x->dtype.code, fastnorm_dtype_of(FASTNORM_DTYPE_BF16).code);
  EXPECT_EQ(args->x->device_type, FASTNORM_DEVICE_CPU);
  EXPECT_EQ(args->y->strides[1], 32);
  ASSERT_NE(args->quant, nullptr);
  EXPECT_EQ(args->quant->struct_size, sizeof(fastnorm_quant));
  EXPECT_EQ(args->quant->scheme, FASTNORM_QUANT_PER_ROW);
  EXPECT_EQ(args->quant->quantized->dtype.code, fastnorm_dtype_of(FASTNORM_DTYPE_I8).code);
  call.change("quant=null eps=nan");
  EXPECT_EQ(call.args<fastnorm_norm_args>()->quant, nullptr);
  EXPECT_TRUE(std::isnan(call.args<fastnorm_norm_args>()->eps));
}

TEST(CallText, Tensors) {
  for (const char* word :
       {"x=f32[2]", "x=f32[]", "x=0x14002[1,2]", "x=f32[] x.shape=null x.ndim=1",
        "x=f32[] x.ndim=-3", "x=f32[2,4] x.strides=[-5,1]", "x=f32[2] x.address=0x1000",
        "x=f32[2] x.address=null", "x=f32[2] x.address=x+3", "x,y=f32[2] y.address=x-4",
        "x=f32[2] x.offset=18446744073709551615", "x=f32[2] x.device=cuda:3",
        "x=f32[2] x.device=99:0", "device=cuda:1 x=f32[2]",
        "x=f4_e2m1fn_x2[9223372036854775807]"}) {
    expect_round_trip(std::string("norm ") + word);
  }
}

TEST(CallText, Addresses) {
  Call call("norm x,y,weight=f32[4] y.address=x+32 weight.address=y-8 y.offset=4");
  const uint64_t x = call.address_of("x");
  EXPECT_EQ(call.address_of("y"), x + 32);
  EXPECT_EQ(call.address_of("weight"), x + 24);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(call.args<fastnorm_norm_args>()->weight->data), x + 24);
  call.change("x.address=x+16");
  EXPECT_EQ(call.address_of("weight"), x + 40);
  call.change("y.address=y");  // its own place
  EXPECT_GE(call.address_of("y") - call.address_of("x"), uint64_t{1} << 39);
  // Own places do not depend on what else is given.
  EXPECT_EQ(Call("norm y=f32[4]").address_of("y"), call.address_of("y"));
  Call parts("norm_heads parts[0].x,parts[1].x,cos=f32[4] parts[1].quant.scale=f32[4]");
  std::vector<uint64_t> all;
  for (const std::string& path : parts.tensors()) {
    for (const uint64_t other : all)
      EXPECT_GE(parts.address_of(path) - other, uint64_t{1} << 40) << path;
    all.push_back(parts.address_of(path));
  }
  EXPECT_EQ(all.size(), 4u);
}

TEST(CallText, Parts) {
  Call call("norm_heads parts[1].flags=0x3 parts[0].eps=2 parts[1].quant.scheme=nvfp4");
  EXPECT_EQ(call.count(), 2);
  EXPECT_EQ(call.parts<fastnorm_norm_heads_part>()[0]->eps, 2);
  EXPECT_EQ(call.parts<fastnorm_norm_heads_part>()[1]->flags, 3u);
  EXPECT_EQ(call.parts<fastnorm_norm_heads_part>()[1]->quant->scheme, FASTNORM_QUANT_NVFP4);
  call.change("parts[0]=null count=9");
  EXPECT_EQ(call.parts<fastnorm_norm_heads_part>()[0], nullptr);
  EXPECT_EQ(call.count(), 9);
  EXPECT_EQ(Call(call.text()).text(), call.text());
}

TEST(CallText, CopiesAreApart) {
  Call a("norm x=f32[2]");
  Call b = a;
  b.change("x.shape=[5] quant.scheme=per_row");
  EXPECT_EQ(a.args<fastnorm_norm_args>()->x->shape[0], 2);
  EXPECT_EQ(b.args<fastnorm_norm_args>()->x->shape[0], 5);
  EXPECT_EQ(a.args<fastnorm_norm_args>()->quant, nullptr);
}

TEST(CallText, WhatIsWrongIsNamed) {
  const struct {
    const char* text;
    const char* error;
  } cases[] = {
      {"", "column 1: `` is no family"},
      {"nor x=f32[2]", "column 1: `nor` is no family"},
      {"norm  kin=rms", "column 7: fastnorm_norm_args has no field `kin`"},
      {"norm eps=1 kind", "column 12: `kind` has no ="},
      {"norm =1", "column 6: fastnorm_norm_args has no field ``"},
      {"norm eps=", "column 6: `` is no number"},
      {"norm eps=1x", "column 6: `1x` is no number"},
      {"norm eps=1e99", "column 6: `1e99` is out of range"},
      {"norm flags=-1", "column 6: `-1` is no number"},
      {"norm flags=0x1ffffffff", "column 6: `0x1ffffffff` is out of range"},
      {"norm group_size=9223372036854775808", "column 6: `9223372036854775808` is out of range"},
      {"norm branch_norm=1.5", "column 6: `1.5` is no number"},
      {"norm kind=lay", "column 6: `lay` is none of rms layer"},
      {"norm kind=", "column 6: `` is none of rms layer"},
      {"norm kind=2147483648", "column 6: `2147483648` is out of range"},
      {"norm eps=1 eps=2", "column 12: `eps` is there twice"},
      {"norm x=bf16", "column 6: `bf16` is no tensor, DTYPE[EXTENT,..]"},
      {"norm x=bf17[2]", "column 6: `bf17` is no dtype"},
      {"norm x=bf16[2", "column 6: `[2` is no list, [1,2,..]"},
      {"norm x=bf16[2,]", "column 6: `[2,]` ends with a comma"},
      {"norm x=bf16[2,,3]", "column 6: `` is no number"},
      {"norm x=bf16[a]", "column 6: `a` is no number"},
      {"norm x.strides=[1]", "column 6: `x` is not given"},
      {"norm x=f32[2] x.color=3", "column 15: a tensor has no `color`"},
      {"norm x=f32[2] x.device=mps", "column 15: `mps` is no number"},
      {"norm x=f32[2] x.address=z", "fastnorm_norm_args has no field `z`"},
      {"norm x=f32[2] x.address=eps", "`eps` is no tensor"},
      {"norm x=f32[2] x.address=x+y", "column 15: `y` is no number"},
      {"norm x,y=f32[2] x.address=y y.address=x", "is its own"},
      {"norm eps.x=3", "column 6: `eps.x`: a scalar has no fields"},
      {"norm quant=1", "column 6: `quant` may be null; its fields have values"},
      {"norm quant.x=f32[2]", "column 6: fastnorm_quant has no field `x`"},
      {"norm parts[0].x=f32[2]", "column 6: `norm` has no parts"},
      {"norm count=1", "column 6: fastnorm_norm_args has no field `count`"},
      {"norm_heads parts[0=null", "column 12: `parts[0` has no ]"},
      {"norm_heads parts[0]=null", "column 12: `parts[0]` is not given"},
      {"norm_heads parts[0]=1", "column 12: `parts[0]` may be null; its fields have values"},
      {"norm_heads parts[999].x=f32[2]", "column 12: `parts[999].x` is too many"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    try {
      const Call call(c.text);
      ADD_FAILURE() << call.text();
    } catch (const CallTextError& error) {
      EXPECT_NE(std::string(error.what()).find(c.error), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace fastnorm::support
