// What the library refuses, and what it says: the lines of tests/unit/calls. Also every rule that
// the schema states of a field, broken once in each base call of these tables.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "unit/call_table.h"

namespace fastnorm::test {

using support::Call;
using support::CallStruct;
using support::CallTensor;

void PrintTo(const CallLine& line, std::ostream* out) {
  *out << line.where << ": " << line.base << " | " << line.name << " | " << line.changes;
}

namespace {

using schema::Kind;
using schema::Role;

// A table for each family. The calls of peers share one.
std::set<std::string> table_names() {
  std::set<std::string> names;
  for (const support::CallFamily& family : support::families()) {
    const std::string name = family.name;
    names.insert(name.starts_with("peer_") ? "peer" : name);
  }
  return names;
}

// A table that cannot be read is a line that fails.
std::vector<CallLine> lines_of(const std::string& name) {
  try {
    return call_table(name).lines;
  } catch (const std::exception& error) {
    return {{name, error.what(), "", "unreadable", "", FASTNORM_OK, {}}};
  }
}

void expect_message(const Error& error, const std::vector<std::string>& texts) {
  EXPECT_EQ(error.device_error, 0) << error.text;
  const std::string text = error.text;
  for (const std::string& part : texts)
    EXPECT_NE(text.find(part), text.npos) << "no \"" << part << "\" in: " << text;
  EXPECT_TRUE(text.find("required") != text.npos || text.find("nearest") != text.npos) << text;
  EXPECT_EQ(text.find('\n'), text.npos) << text;
}

std::vector<CallLine> all_lines() {
  std::vector<CallLine> all;
  for (const std::string& name : table_names()) {
    for (CallLine& line : lines_of(name)) all.push_back(std::move(line));
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<CallLine>& info) {
  std::string name = info.param.table + "_" + info.param.base + "_" + info.param.name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

class CallTables : public testing::TestWithParam<CallLine> {};

TEST_P(CallTables, Line) {
  const CallLine& line = GetParam();
  ASSERT_FALSE(line.base.empty()) << line.where;
  Call call = call_of(line.table, line.base, line.changes);
  SCOPED_TRACE(call.text());
  Error error;
  const fastnorm_status status = check_call(call, error);
  EXPECT_STREQ(fastnorm_status_name(status), fastnorm_status_name(line.status)) << error.text;
  EXPECT_EQ(error.status, status);
  if (line.status != FASTNORM_OK) expect_message(error, line.texts);
}

INSTANTIATE_TEST_SUITE_P(All, CallTables, testing::ValuesIn(all_lines()), name_of);

// --- each rule of a field, broken once ---

struct Broken {
  std::string changes;
  fastnorm_status status;
  std::vector<std::string> texts;
  bool may_be_unsupported = false;  // where the library says what it lacks
};

// The bits of Field::dtypes that allow a dtype.
uint32_t bits_of(uint32_t dtype) {
  using namespace schema;
  switch (dtype) {
    case FASTNORM_DTYPE_F32:
      return kTBit | kAnyBit | kOwnBit | kF32Bit | kScalesBit;
    case FASTNORM_DTYPE_F16:
      return kTBit | kAnyBit | kOwnBit | kF16Bit;
    case FASTNORM_DTYPE_BF16:
      return kTBit | kAnyBit | kOwnBit | kBf16Bit;
    case FASTNORM_DTYPE_I32:
      return kI32Bit;
    case FASTNORM_DTYPE_I64:
      return kI64Bit;
    case FASTNORM_DTYPE_U8:
      return kU8Bit | kCodesBit | kScalesBit;
    case FASTNORM_DTYPE_F8_E8M0FNU:
      return kScalesBit;
    default:
      return kCodesBit | kScalesBit;
  }
}

std::string list_of(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (const int64_t v : values) text += (text.size() > 1 ? "," : "") + std::to_string(v);
  return text + "]";
}

// The strides of a compact tensor whose last stride is `step`.
std::vector<int64_t> strides_of(const std::vector<int64_t>& shape, int64_t step) {
  std::vector<int64_t> strides(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = step;
    step *= shape[d];
  }
  return strides;
}

// Names that a text has. The parts of a sharded norm have others there.
std::vector<std::string> named(const Call& call, std::vector<std::string> names) {
  if (std::string(call.family().name) == "peer_sharded_norm") names.clear();
  return names;
}

// Roles whose last dimension is contiguous.
bool has_rows(Role role) {
  switch (role) {
    case Role::kRowsIn:
    case Role::kRowsOut:
    case Role::kWeightIn:
    case Role::kWeightOut:
    case Role::kCodesOut:
    case Role::kTableIn:
      return true;
    default:
      return false;
  }
}

// Everything that is wrong with one tensor, whatever the others are.
void break_tensor(const Call& call, const std::string& path, const CallTensor& t,
                  const schema::Field& field, std::vector<Broken>* to) {
  const auto add = [&](const std::string& change, fastnorm_status status, const std::string& text) {
    to->push_back({path + change, status, {path + text}});
  };
  if (field.required) add("=null", FASTNORM_ERROR_ARGUMENT, " is NULL");
  for (const uint32_t dtype :
       {0x00014002u, 0x00021004u, uint32_t{FASTNORM_DTYPE_I8}, uint32_t{FASTNORM_DTYPE_I32},
        uint32_t{FASTNORM_DTYPE_I64}, uint32_t{FASTNORM_DTYPE_F8_E4M3FN}}) {
    if ((field.dtypes & bits_of(dtype)) != 0) continue;
    char text[16];
    std::snprintf(text, sizeof text, ".dtype=0x%x", dtype);
    add(text, FASTNORM_ERROR_DTYPE, ".dtype is ");
    to->back().may_be_unsupported = dtype == FASTNORM_DTYPE_F8_E4M3FN;
  }
  add(".shape=[]", FASTNORM_ERROR_SHAPE, ".");
  add(".ndim=-1", FASTNORM_ERROR_SHAPE, ".ndim is -1");
  add(".shape=[1,1,1,1,1,1,1,1,1]", FASTNORM_ERROR_SHAPE, ".");
  add(".shape=null", FASTNORM_ERROR_ARGUMENT, ".shape is NULL");
  std::vector<int64_t> shape = t.shape;
  shape[0] = -1;
  add(".shape=" + list_of(shape), FASTNORM_ERROR_SHAPE, ".shape is ");
  shape = t.shape;
  ++shape.back();
  // Another field may be the one that does not fit.
  if (field.shape != schema::Shape::kPageTable && field.shape != schema::Shape::kTopk &&
      field.shape != schema::Shape::kBytes)
    to->push_back({path + ".shape=" + list_of(shape), FASTNORM_ERROR_SHAPE, {}, true});
  const bool on_cpu = call.device().device_type == FASTNORM_DEVICE_CPU;
  add(on_cpu ? ".device=cuda:0" : ".device=cpu", FASTNORM_ERROR_DEVICE, " is on device ");
  add(".device=99:0", FASTNORM_ERROR_DEVICE, " is on device unknown");
  add(".address=null", FASTNORM_ERROR_ARGUMENT, ".data is NULL");
  if ((t.dtype >> 8 & 0xff) > 8)
    add(".address=" + path + "+1", FASTNORM_ERROR_LAYOUT, "'s address is ");
  if (has_rows(field.role) && t.shape.back() > 1)
    add(".strides=" + list_of(strides_of(t.shape, 2)), FASTNORM_ERROR_LAYOUT, ".strides[");
  if (t.shape.size() == 1 || t.shape[0] == 1) return;
  std::vector<int64_t> strides = strides_of(t.shape, 1);
  strides[0] = std::numeric_limits<int64_t>::max() / 2;
  to->push_back({path + ".strides=" + list_of(strides), FASTNORM_ERROR_LAYOUT, {"strides"}});
  strides[0] = 0;
  // Gradients of weights with a stride of 0 are one sum.
  if (schema::is_output(field.role) && field.role != Role::kWeightOut)
    to->push_back(
        {path + ".strides=" + list_of(strides), FASTNORM_ERROR_LAYOUT, named(call, {path})});
}

void break_scalar(const Call& call, const std::string& path, const CallStruct::Field& field,
                  size_t first_size, std::vector<Broken>* to) {
  const auto add = [&](const std::string& value, const std::string& shown,
                       fastnorm_status status = FASTNORM_ERROR_ARGUMENT) {
    to->push_back({path + "=" + value, status, {field.name + (" is " + shown)}});
  };
  switch (field.role) {
    case Role::kSize:
      for (const std::string& value :
           {std::string("0"), std::to_string(first_size - 1), std::to_string(SIZE_MAX)}) {
        add(value, value);
      }
      break;
    case Role::kEnum: {
      int32_t most = 0;
      for (const auto& [text, number] : field.values->values) most = std::max(most, number);
      add(std::to_string(most + 1), std::to_string(most + 1));
      add("-1", "-1");
      break;
    }
    case Role::kSwitch:
      add("2", "2");
      add("-1", "-1");
      break;
    case Role::kReserved:
      add("1", "1");
      break;
    case Role::kFlags: {
      uint32_t flags = 0;
      std::memcpy(&flags, call.scalar(path), sizeof flags);
      add(std::to_string(flags | 0x80000000), "0x8", FASTNORM_ERROR_UNSUPPORTED);
      break;
    }
    case Role::kNumber:
      if (field.kind == Kind::kFloat || field.kind == Kind::kDouble) {
        add("nan", "nan");
        add("inf", "inf");
      }
      break;
    default:
      break;
  }
}

// An all-reduce has none of the fields of a norm's stages.
bool is_refused(const Call& call, const std::string& prefix, const schema::Field& field) {
  return std::string(call.family().name) == "peer_allreduce_norm" && prefix == "norm." &&
         field.offset >= offsetof(fastnorm_norm_args, gate);
}

void break_fields(const Call& call, const CallStruct& type, const std::string& prefix,
                  std::vector<Broken>* to) {
  Call there = call;
  for (const CallStruct::Field& field : type.fields) {
    const std::string path = prefix + field.name;
    if (field.kind == Kind::kStruct) {
      const std::vector<std::string> given = there.tensors();
      const auto within = [&](const std::string& t) { return t.starts_with(path + "."); };
      if (std::any_of(given.begin(), given.end(), within))
        break_fields(call, *field.type, path + ".", to);
    } else if (is_refused(call, prefix, field)) {
      const std::string value = field.kind == Kind::kTensor ? "f32[1]" : "1";
      to->push_back({path + "=" + value, FASTNORM_ERROR_UNSUPPORTED, {path + " is given"}});
    } else if (field.kind != Kind::kTensor) {
      break_scalar(call, path, field, type.first_size, to);
    } else if (const CallTensor* t = there.tensor(path)) {
      break_tensor(call, path, *t, field, to);
    }
  }
}

std::vector<Broken> broken_calls(const Call& call) {
  std::vector<Broken> all;
  break_fields(call, *call.family().args, "", &all);
  for (int32_t i = 0; i < call.count(); ++i)
    break_fields(call, *call.family().part, "parts[" + std::to_string(i) + "].", &all);
  return all;
}

void expect_refused(const Call& base, const Broken& broken) {
  SCOPED_TRACE(base.text());
  SCOPED_TRACE(broken.changes);
  Call call = base;
  call.change(broken.changes);
  Error error;
  fastnorm_status status = check_call(call, error);
  if (broken.may_be_unsupported && status == FASTNORM_ERROR_UNSUPPORTED) status = broken.status;
  EXPECT_STREQ(fastnorm_status_name(status), fastnorm_status_name(broken.status)) << error.text;
  expect_message(error, broken.texts);
}

// Calls body(table, name, call) for all bases.
template <class Body>
void for_each_base(const Body& body) {
  for (const std::string& of : table_names()) {
    for (const auto& [name, call] : call_table(of).bases) body(of.c_str(), name, call);
  }
}

TEST(CallFields, BasesAreRight) {
  for_each_base([](const char* of, const std::string& name, Call call) {
    Error error;
    EXPECT_EQ(check_call(call, error), FASTNORM_OK) << of << " " << name << ": " << error.text;
  });
}

TEST(CallFields, EachRuleBroken) {
  int refused = 0;
  for_each_base([&](const char*, const std::string&, const Call& call) {
    for (const Broken& broken : broken_calls(call)) {
      expect_refused(call, broken);
      ++refused;
    }
  });
  EXPECT_GT(refused, 4000);
}

// The field that a path leads to, and its struct.
std::pair<const CallStruct*, const CallStruct::Field*> field_of(const Call& call,
                                                                std::string path) {
  const CallStruct* type = call.family().args;
  if (path.starts_with("parts[")) {
    type = call.family().part;
    path.erase(0, path.find('.') + 1);
  }
  for (;;) {
    const size_t dot = path.find('.');
    const auto field = std::find_if(type->fields.begin(), type->fields.end(),
                                    [&](const auto& f) { return f.name == path.substr(0, dot); });
    if (dot == path.npos) return {type, &*field};
    type = field->type;
    path.erase(0, dot + 1);
  }
}

std::string struct_of(const std::string& path) { return path.substr(0, path.rfind('.') + 1); }

bool is_written(const Call& call, const std::string& path) {
  const Role role = field_of(call, path).second->role;
  int32_t scheme = 0;
  if (role == Role::kScales)
    std::memcpy(&scheme, call.scalar(struct_of(path) + "scheme"), sizeof scheme);
  return schema::is_output(role) && scheme != FASTNORM_QUANT_PER_TENSOR;
}

bool may_be_one(const Call& call, const std::string& output, const std::string& input) {
  if (struct_of(output) != struct_of(input)) return false;
  const auto [type, of_input] = field_of(call, input);
  const auto number = of_input - type->fields.data();
  return (field_of(call, output).second->same_view >> number & 1) != 0;
}

// Without the part, which a text need not have.
std::string short_name(const std::string& path) {
  return path.starts_with("parts[") ? path.substr(path.find('.') + 1) : path;
}

// Addresses become numbers, so that one moves alone.
Call with_own_addresses(Call call) {
  const Call as_given = call;
  for (const std::string& path : call.tensors())
    call.tensor(path)->address = CallTensor::Address{"", as_given.address_of(path)};
  return call;
}

// An output over each other tensor, at its first byte and a later one. Where one of both is a
// single value, that one moves.
TEST(CallFields, EachOutputOverEachTensor) {
  int refused = 0;
  for_each_base([&](const char* of, const std::string& name, const Call& base) {
    Call call = with_own_addresses(base);
    const std::vector<std::string> tensors = call.tensors();
    for (const std::string& output : tensors) {
      if (!is_written(call, output)) continue;
      for (const std::string& other : tensors) {
        const bool share = call.address_of(output) == call.address_of(other);
        if (share || may_be_one(call, output, other)) continue;
        const auto is_single = [&](const std::string& path) {
          return call.tensor(path)->shape == std::vector<int64_t>{1};
        };
        const bool single = is_single(other);
        // CUDA has stricter rules of addresses.
        const bool once =
            (single && is_single(output)) || call.device().device_type == FASTNORM_DEVICE_CUDA;
        for (const char* bytes : {"+0", "+4"}) {
          if (once && bytes[1] == '4') continue;
          Call spoiled = call;
          const std::string& moves = single ? other : output;
          const std::string& stays = single ? output : other;
          spoiled.change(moves + ".address=" + stays + bytes + " " + moves +
                         ".offset=" + std::to_string(call.tensor(stays)->byte_offset));
          SCOPED_TRACE(std::string(of) + " " + name + ": " + output + " over " + other + bytes);
          Error error;
          EXPECT_EQ(check_call(spoiled, error), FASTNORM_ERROR_LAYOUT) << error.text;
          expect_message(error, {"overlaps"});
          expect_message(error, named(call, {short_name(output), short_name(other)}));
          ++refused;
        }
      }
    }
  });
  EXPECT_GT(refused, 3000);
}

// What a struct has, as STRUCT.FIELD.
void add_tensors(const CallStruct& type, std::set<std::string>* to) {
  for (const CallStruct::Field& field : type.fields) {
    if (field.kind == Kind::kTensor) to->insert(std::string(type.name) + "." + field.name);
    if (field.kind == Kind::kStruct) add_tensors(*field.type, to);
  }
}

// Changes after which a condition of the schema does not hold; empty where that cannot be said.
std::string without(const Call& call, const std::string& in, const CallStruct& type,
                    const schema::Term& term) {
  const CallStruct::Field& of = type.fields[term.field];
  const std::string path = in + of.name;
  Call there = call;
  if (of.kind == Kind::kTensor) return there.tensor(path) == nullptr ? "" : path + "=null";
  uint32_t value = 0;
  if (of.size != sizeof value) return "";
  std::memcpy(&value, call.scalar(path), sizeof value);
  if (term.op == schema::Op::kHas) return path + "=" + std::to_string(value & ~term.value);
  return value == 0 ? "" : path + "=0";
}

// A field that is given, without the one field that it needs.
TEST(CallFields, EachNeedMissing) {
  int refused = 0;
  for_each_base([&](const char* of, const std::string& name, Call call) {
    for (const std::string& path : call.tensors()) {
      const auto [type, field] = field_of(call, path);
      for (const schema::OneOf& need : field->needs) {
        const schema::Term& term = need.terms[0];
        if (term.field == schema::kNoField || need.terms[1].field != schema::kNoField) continue;
        const std::string change = without(call, struct_of(path), *type, term);
        if (change.empty()) continue;
        SCOPED_TRACE(std::string(of) + " " + name + ": " + path + " after " + change);
        Call spoiled = call;
        spoiled.change(change);
        Error error;
        EXPECT_EQ(check_call(spoiled, error), FASTNORM_ERROR_ARGUMENT) << error.text;
        expect_message(error, {type->fields[term.field].name});
        ++refused;
      }
    }
  });
  EXPECT_GT(refused, 200);
}

// So that every rule of a field is broken, a new one too.
TEST(CallFields, EveryTensorIsInABase) {
  std::set<std::string> missing;
  for (const support::CallFamily& family : support::families()) {
    add_tensors(*family.args, &missing);
    if (family.part != nullptr) add_tensors(*family.part, &missing);
  }
  for_each_base([&](const char*, const std::string&, const Call& call) {
    for (const std::string& path : call.tensors()) {
      const auto [type, field] = field_of(call, path);
      missing.erase(std::string(type->name) + "." + field->name);
    }
  });
  for (const std::string& name : missing)
    ADD_FAILURE() << "no base of tests/unit/calls has " << name;
}

}  // namespace
}  // namespace fastnorm::test
