#include "drawer.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "memory.h"

namespace fastnorm::fuzz {

using schema::Kind;
using schema::Op;
using schema::Role;

namespace {

constexpr uint32_t kDtypes[] = {
    FASTNORM_DTYPE_F32,       FASTNORM_DTYPE_F16,          FASTNORM_DTYPE_BF16,
    FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2,      FASTNORM_DTYPE_F8_E8M0FNU,
    FASTNORM_DTYPE_F4_E2M1FN, FASTNORM_DTYPE_F4_E2M1FN_X2, FASTNORM_DTYPE_I8,
    FASTNORM_DTYPE_U8,        FASTNORM_DTYPE_I32,          FASTNORM_DTYPE_I64};

constexpr int64_t kHardNumbers[] = {-1,
                                    0,
                                    1,
                                    std::numeric_limits<int32_t>::max(),
                                    int64_t{1} << 31,
                                    (int64_t{1} << 33) + 1,
                                    int64_t{1} << 61,
                                    int64_t{1} << 62,
                                    std::numeric_limits<int64_t>::max(),
                                    std::numeric_limits<int64_t>::min(),
                                    std::numeric_limits<int64_t>::min() + 1};

bool is_choice(const Field& field) {
  return field.role == Role::kEnum || field.role == Role::kFlags || field.role == Role::kSwitch;
}

// One that is allowed, and not the neutral one.
uint32_t value_of(const Field& field, Bytes& bytes) {
  if (field.role == Role::kSwitch) return 1;
  if (field.role == Role::kFlags) return bytes.byte();
  std::vector<uint32_t> allowed;
  for (const auto& [text, value] : field.values->values) {
    if (value != 0 && (field.refused >> value & 1) == 0)
      allowed.push_back(static_cast<uint32_t>(value));
  }
  return allowed[bytes.pick(static_cast<uint32_t>(allowed.size()))];
}

void make_true(const schema::Term& term, Choice* choice) {
  choice->want(term.field);
  if (term.op == Op::kIs) choice->values[term.field] = term.value;
  if (term.op == Op::kHas) choice->values[term.field] |= term.value;
}

bool holds(const Choice& choice, const schema::Term& term) {
  if (!choice.has(term.field)) return false;
  const uint32_t value = choice.values[term.field];
  if (term.op == Op::kGiven) return !is_choice(choice.type.fields[term.field]) || value != 0;
  return term.op == Op::kIs ? value == term.value : (value & term.value) != 0;
}

}  // namespace

int64_t hard_number(Bytes& bytes) { return kHardNumbers[bytes.pick(std::size(kHardNumbers))]; }

int64_t small_extent(Bytes& bytes) {
  const uint8_t b = bytes.byte();
  return b < 250 ? b % 6 : hard_number(bytes);
}

float random_float(Bytes& bytes) {
  if (!bytes.rarely()) return static_cast<float>(bytes.byte()) / 256;
  return bytes.take<float>();
}

fastnorm_dtype_id row_dtype(Bytes& bytes) {
  return static_cast<fastnorm_dtype_id>(kDtypes[bytes.pick(3)]);
}

bool Drawer::now_and_then() {
  const bool damages = bytes_.rarely() && (bytes_.byte() & 1) != 0;
  right_ &= !damages;
  return damages;
}

bool Drawer::is_met(const Choice& choice, const schema::OneOf& need) const {
  if (need.terms[0].field == schema::kNoField) return true;
  return std::any_of(std::begin(need.terms), std::end(need.terms), [&](const schema::Term& t) {
    return t.field != schema::kNoField && holds(choice, t);
  });
}

// Gives what the given fields need.
void Drawer::complete(Choice* choice) {
  for (int pass = 0; pass < 3; ++pass) {
    for (size_t f = 0; f < choice->type.fields.size(); ++f) {
      if (!choice->has(f)) continue;
      for (const schema::OneOf& need : choice->type.fields[f].needs) {
        if (is_met(*choice, need)) continue;
        uint32_t terms = 0;
        while (terms < std::size(need.terms) && need.terms[terms].field != schema::kNoField)
          ++terms;
        const schema::Term& term = need.terms[terms == 1 ? 0 : bytes_.pick(terms)];
        make_true(term, choice);
        uint32_t& value = choice->values[term.field];
        const Field& needed = choice->type.fields[term.field];
        if (term.op == Op::kGiven && is_choice(needed) && value == 0)
          value = value_of(needed, bytes_);
      }
    }
  }
}

// Drops what has not what it needs, or has what it excludes; whether that was anything.
bool Drawer::drop_what_does_not_fit(Choice* choice) {
  bool dropped = false;
  for (size_t f = choice->type.fields.size(); f-- > 0;) {
    const Field& field = choice->type.fields[f];
    if (!choice->has(f) || field.required) continue;
    bool fits = true;
    for (const schema::OneOf& need : field.needs) fits &= is_met(*choice, need);
    for (const schema::Term& t : field.excludes)
      fits &= t.field == schema::kNoField || !holds(*choice, t);
    if (!fits) choice->drop(f);
    dropped |= !fits;
  }
  return dropped;
}

// Mostly few fields, of an early version of the struct; sometimes half of all.
Choice Drawer::choose(const CallStruct& type, const Field* at) {
  Choice choice(type, at);
  const uint32_t dense = bytes_.pick(4), count = static_cast<uint32_t>(type.fields.size());
  const uint32_t until = 1 + bytes_.byte() % count;
  choice.wanted = bytes_.take<uint64_t>();
  for (uint32_t i = 0; i < dense; ++i) choice.wanted &= bytes_.take<uint64_t>();
  if ((until & 1) != 0) choice.wanted &= (uint64_t{2} << until) - 1;
  for (size_t f = 0; f < count; ++f) {
    const Field& field = type.fields[f];
    if (field.role == Role::kReserved || field.role == Role::kUser || field.role == Role::kSize)
      choice.drop(f);
    if (field.required && field.role != Role::kSize) choice.want(f);
    if (choice.has(f) && is_choice(field)) choice.values[f] = value_of(field, bytes_);
  }
  family_.choose(&choice, bytes_);
  if (!family_.keeps_needs(at)) return choice;
  complete(&choice);
  if (now_and_then()) return choice;
  while (drop_what_does_not_fit(&choice)) {
  }
  for (size_t f = 0; f < count; ++f) {
    if (type.fields[f].required && now_and_then()) choice.drop(f);
  }
  return choice;
}

void Drawer::scalars(const Choice& choice, void* args) {
  for (size_t f = 0; f < choice.type.fields.size(); ++f) {
    const Field& field = choice.type.fields[f];
    if (field.role == Role::kSize) store(args, field, choice.type.size);
    if (field.role == Role::kReserved && now_and_then()) store(args, field, int32_t{1});
    if (!choice.has(f)) continue;
    if (is_choice(field)) {
      store(args, field, now_and_then() ? bytes_.take<uint32_t>() : choice.values[f]);
      continue;
    }
    switch (field.kind) {
      case Kind::kFloat:
        store(args, field, random_float(bytes_));
        break;
      case Kind::kDouble:
        store(args, field, static_cast<double>(random_float(bytes_)));
        break;
      case Kind::kInt32:
        store(args, field, static_cast<int32_t>(bytes_.pick(4)));
        break;
      case Kind::kInt64:
        store(args, field, int64_t{bytes_.pick(4)});
        break;
      default:
        break;
    }
  }
  family_.numbers(choice.type, args, bytes_);
  if (!now_and_then()) return;
  // One number that fits nothing else.
  const Field& field = choice.type.fields[bytes_.byte() % choice.type.fields.size()];
  if (field.kind == Kind::kFloat) return store(args, field, bytes_.take<float>());
  if (field.kind == Kind::kDouble) return store(args, field, bytes_.take<double>());
  if (field.kind == Kind::kInt64) return store(args, field, hard_number(bytes_));
  if (field.size == 4) store(args, field, bytes_.take<int32_t>());
}

std::unique_ptr<DrawnStruct> Drawer::begin(const CallStruct& type, const Field* at) {
  auto s = std::make_unique<DrawnStruct>();
  s->type = &type;
  s->value.resize((type.size + 7) / 8);
  const Choice choice = choose(type, at);
  scalars(choice, s->value.data());
  for (size_t f = 0; f < type.fields.size(); ++f) {
    const Field& field = type.fields[f];
    if (field.kind == Kind::kStruct && choice.has(f)) {
      s->children.push_back({&field, begin(*field.type, &field)});
      store(s->value.data(), field,
            static_cast<const void*>(s->children.back().drawn->value.data()));
    } else if (is_tensor(field) && choice.has(f)) {
      // Which are given: finish() makes them.
      store(s->value.data(), field, uintptr_t{1});
    }
  }
  return s;
}

void Drawer::finish(DrawnStruct* s, const Extents& in, const Field* at) {
  void* const args = s->value.data();
  std::vector<const Field*> given;
  for (const Field& field : s->type->fields) {
    if (!is_tensor(field) || tensor_of(args, field) == nullptr) continue;
    given.push_back(&field);
    store(args, field, uintptr_t{0});
  }
  for (const Field* field : given)
    store(args, *field, tensor(*s, *field, family_.extents(*s->type, args, at, in)));
  const Extents own = family_.extents(*s->type, args, at, in);
  for (const DrawnStruct::Child& child : s->children) finish(child.drawn.get(), own, child.field);
  if (at == nullptr) pack(s);
}

std::unique_ptr<DrawnStruct> Drawer::draw(const CallStruct& type, const Extents& extents) {
  auto s = begin(type);
  finish(s.get(), extents);
  return s;
}

// --- tensors ---

// Mostly a place of its own. The others lie in buffers a little way apart, so that overlap is as
// likely as not.
uintptr_t Drawer::address() {
  constexpr uintptr_t kOwn = uintptr_t{1} << 42, kNear = uintptr_t{1} << 40, kApart = 1 << 16;
  const uint8_t b = bytes_.byte();
  if ((b & 7) != 7) return kOwn * (tensors_.size() + 1);
  right_ = false;
  if (bytes_.rarely()) return bytes_.take<uint64_t>();
  return kNear + kApart * bytes_.pick(16) + ((b & 8) != 0 ? bytes_.byte() : 0u);
}

const fastnorm_tensor* Drawer::tensor(const DrawnStruct& s, const Field& field, const Extents& e) {
  const void* const args = s.value.data();
  // In the place of an input.
  if (field.same_view != 0 && (bytes_.byte() & 3) == 3) {
    for (size_t f = bytes_.byte() % s.type->fields.size(); f < s.type->fields.size(); ++f) {
      const fastnorm_tensor* const input =
          (field.same_view >> f & 1) != 0 ? tensor_of(args, s.type->fields[f]) : nullptr;
      if (input == nullptr) continue;
      right_ = false;  // dtypes and layouts may not allow it
      outputs_.push_back(input);
      return input;
    }
  }
  const fastnorm_tensor* const own = own_of(*s.type, args, field);
  std::vector<uint32_t> dtypes = dtypes_of(field, e, own);
  if (now_and_then() || dtypes.empty()) dtypes.assign(std::begin(kDtypes), std::end(kDtypes));
  const uint8_t choice = bytes_.byte();
  const uint32_t dtype = dtypes[choice % dtypes.size()];
  std::vector<Pattern> patterns = patterns_of(field, dtype, e, own);
  std::erase_if(patterns, [](const Pattern& p) { return p.empty() || p.size() > 8; });
  if (patterns.empty()) patterns.push_back({{0, 3}});
  auto t = std::make_unique<DrawnTensor>();
  t->field = &field;
  t->view = std::make_unique<fastnorm_tensor>();
  shape(t.get(), patterns[choice / 16 % patterns.size()]);
  fastnorm_tensor& view = *t->view;
  view.device_type = device_type_;
  // Any number may come, not only those of the enum.
  view.dtype = {static_cast<uint8_t>(dtype), static_cast<uint8_t>(dtype >> 8),
                static_cast<uint16_t>(dtype >> 16)};
  view.data = reinterpret_cast<void*>(address());
  if ((bytes_.byte() & 31) == 31) view.byte_offset = bytes_.byte(), right_ = false;
  const uint8_t layout = bytes_.byte();
  if ((layout & 3) == 1 || (layout & 15) == 15) strides(t.get());
  if (now_and_then()) damage(t.get());
  if (schema::is_output(field.role)) outputs_.push_back(&view);
  tensors_.push_back(std::move(t));
  return tensors_.back()->view.get();
}

void Drawer::shape(DrawnTensor* t, const Pattern& pattern) {
  t->shape = std::make_unique<int64_t[]>(pattern.size());
  const uint8_t ones = bytes_.byte();
  for (size_t d = 0; d < pattern.size(); ++d) {
    const Extent& e = pattern[d];
    int64_t extent = e.least;
    if (e.or_one && (ones >> d % 8 & 1) != 0) extent = 1;
    if (e.least != e.most && !e.or_one)
      extent += std::min<int64_t>(bytes_.pick(6), e.most - e.least);
    t->shape[d] = extent;
  }
  t->view->ndim = static_cast<int32_t>(pattern.size());
  t->view->shape = t->shape.get();
  if (now_and_then())
    t->shape[bytes_.pick(static_cast<uint32_t>(pattern.size()))] = small_extent(bytes_);
}

// Compact strides, then often a little off: padded, broadcast, negative, permuted or hard.
void Drawer::strides(DrawnTensor* t) {
  const auto rank = static_cast<size_t>(t->view->ndim);
  t->strides = std::make_unique<int64_t[]>(rank);
  t->view->strides = t->strides.get();
  const uint8_t how = bytes_.byte();
  uint64_t step = 1;  // wraps for hopeless shapes, as intended
  for (size_t d = rank; d-- > 0;) {
    t->strides[d] = static_cast<int64_t>(step);
    step *= static_cast<uint64_t>(t->shape[d]);
    if ((how >> d % 4 & 1) == 0) continue;
    step += how >> 4 & 7;
    if ((how & 128) == 0) continue;
    right_ = false;
    switch (bytes_.pick(8)) {
      case 0:
        t->strides[d] = 0;
        break;
      case 1:
        t->strides[d] = static_cast<int64_t>(-static_cast<uint64_t>(t->strides[d]));
        break;
      case 2:
        t->strides[d] = hard_number(bytes_);
        break;
      case 3:
        std::swap(t->strides[d], t->strides[bytes_.pick(static_cast<uint32_t>(rank))]);
        break;
      default:
        step += bytes_.byte();
        break;
    }
  }
}

void Drawer::damage(DrawnTensor* t) {
  fastnorm_tensor& out = *t->view;
  switch (bytes_.pick(8)) {
    case 0:
      out.data = nullptr;
      break;
    case 1:
      out.device_type = static_cast<int32_t>(bytes_.pick(16));
      break;
    case 2:
      out.device_id = bytes_.take<int32_t>();
      break;
    case 3: {
      // A rank for which there are no arrays: they must not be read.
      constexpr int32_t kRanks[] = {
          0, -1, 9, 64, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()};
      out.ndim = kRanks[bytes_.pick(std::size(kRanks))];
      break;
    }
    case 4:
      out.dtype = {bytes_.byte(), bytes_.byte(), bytes_.take<uint16_t>()};
      break;
    case 5:
      out.shape = nullptr;
      break;
    case 6:
      out.byte_offset = bytes_.take<uint64_t>();
      break;
    default:
      out.ndim = static_cast<int32_t>(1 + bytes_.pick(static_cast<uint32_t>(out.ndim)));
      break;
  }
}

// A struct in a block of the size that it claims: a shorter one of a caller that is too old, or a
// longer one of a newer caller, whose tail may be set.
void Drawer::pack(DrawnStruct* s) {
  const Field& size_field = s->type->fields[0];
  size_t size = s->type->size;
  if (now_and_then()) size = bytes_.take<uint16_t>() % 128 * sizeof(void*);
  const size_t block = std::max(size, sizeof size);
  s->block = std::make_unique<uint8_t[]>(block);
  store(s->value.data(), size_field, size);
  std::memcpy(s->block.get(), s->value.data(), std::min(block, s->type->size));
  s->known.assign(s->value.size(), 0);
  std::memcpy(s->known.data(), s->value.data(), std::min(block, s->type->size));
  if (block > s->type->size && (bytes_.byte() & 1) != 0) s->block[block - 1] = bytes_.byte();
  for (const DrawnStruct::Child& child : s->children) {
    pack(child.drawn.get());
    if (child.field->end() > size) continue;
    store(s->block.get(), *child.field, static_cast<const void*>(child.drawn->block.get()));
    store(s->known.data(), *child.field, static_cast<const void*>(child.drawn->known.data()));
  }
}

// --- real memory ---

bool Drawer::place() {
  constexpr size_t kMostBytes = 1 << 18;
  for (const auto& t : tensors_) {
    if (t->view->data == nullptr) continue;
    const int64_t bytes = bytes_behind(*t->view);
    if (bytes < 0 || static_cast<size_t>(bytes) > kMostBytes) return false;
    t->bytes = static_cast<size_t>(bytes);
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    DrawnTensor& t = *tensors_[i];
    if (t.view->data == nullptr) continue;
    t.view->byte_offset = 0;
    DrawnTensor* const other =
        i > 0 && bytes_.rarely() ? tensors_[bytes_.byte() % i].get() : nullptr;
    if (other != nullptr && other->memory != nullptr && other->bytes >= t.bytes) {
      const size_t at = bytes_.byte() % (other->bytes - t.bytes + 1) / 4 * 4;
      t.view->data = other->memory.get() + at;
      right_ = false;
      continue;
    }
    t.memory = std::make_unique<uint8_t[]>(t.bytes);
    t.view->data = t.memory.get();
    const uint8_t fill = bytes_.byte();
    std::memset(t.memory.get(), fill, t.bytes);
    if (t.field->role == Role::kIndexIn) {
      // Small numbers, now and then one that is out of range.
      const size_t step = t.view->dtype.bits == 64 ? 8 : 4;
      for (size_t at = 0; at + step <= t.bytes; at += step) {
        const int64_t value =
            bytes_.rarely() ? int64_t{static_cast<int8_t>(bytes_.byte())} : bytes_.pick(6) - 1;
        std::memcpy(t.memory.get() + at, &value, step);
      }
    }
    t.before.assign(t.memory.get(), t.memory.get() + t.bytes);
  }
  return true;
}

void Drawer::move_to_cuda() {
  for (const auto& t : tensors_) {
    int32_t& own = t->view->device_type;
    if (own == FASTNORM_DEVICE_CUDA || own == FASTNORM_DEVICE_CUDA_MANAGED) {
      own = FASTNORM_DEVICE_CPU;
    } else if (own == FASTNORM_DEVICE_CPU || own == FASTNORM_DEVICE_CUDA_HOST) {
      own = FASTNORM_DEVICE_CUDA;
    }
    t->view->device_id = 0;
  }
}

bool Drawer::has_changed(bool accepted) {
  for (const fastnorm_tensor* const t : outputs_) {
    if (!accepted || t->data == nullptr) continue;
    for_each_element(*t, [&](const uint8_t* at, size_t bytes) {
      for (const auto& of : tensors_) {
        if (of->memory == nullptr || at < of->memory.get() || at >= of->memory.get() + of->bytes)
          continue;
        std::memcpy(&of->before[static_cast<size_t>(at - of->memory.get())], at, bytes);
      }
    });
  }
  return std::any_of(tensors_.begin(), tensors_.end(), [](const auto& t) {
    return t->memory != nullptr && t->bytes != 0 &&
           std::memcmp(t->memory.get(), t->before.data(), t->bytes) != 0;
  });
}

}  // namespace fastnorm::fuzz
