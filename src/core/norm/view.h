// The tensors of a call as the rules about shared memory see them, in every family.
#pragma once

#include <cstdint>
#include <span>

#include "core/common/check.h"
#include "core/common/schema.h"
#include "core/norm/row_map.h"

namespace fastnorm {

struct View {
  RowBytes bytes() const { return {data, strides, piece_bytes, pieces, step}; }
  // True if an input and an output of the call may be the same view.
  bool may_be(const View& input) const {
    return field != nullptr && (field->same_view & input.bit) != 0;
  }

  const char* name;
  bool output;
  const std::byte* data;
  int64_t piece_bytes;
  int64_t outer[kMaxOuter] = {1, 1, 1};  // extents, innermost first
  int64_t strides[kMaxOuter] = {};       // bytes
  int64_t pieces = 1, step = 0;          // of a row, as RowBytes has them
  int32_t part = -1;                     // of a call of several parts; -1: of all, or the only one
  const schema::Field* field = nullptr;
  uint64_t bit = 0;  // of the field in the family's struct; 0 for one of another struct
  Dtype dtype = Dtype::kUnknown;
  AddressRange range = {};
};

// "parts[1].y", or the name alone.
Text name_of(const View& view);

// Sets the range. Fails where the bytes do not fit in the address space.
fastnorm_status set_range(View* view, Error& error);

// A call's tensors with their ranges.
template <size_t most>
class Views {
 public:
  fastnorm_status add(const View& view, Error& error) {
    view_[count_] = view;
    return set_range(&view_[count_++], error);
  }
  std::span<const View> all() const { return {view_, count_}; }

 private:
  size_t count_ = 0;
  View view_[most];  // the first `count_` are set
};

// A tensor that all parts of a call read, with at most kMaxOuter leading dimensions. False if it
// has no elements.
bool shared_view(const char* name, const fastnorm_tensor& tensor, View* view);

// True if two tensors have the same address, dtype, length and strides.
bool same_view(const View& a, const View& b);

bool shares_bytes(const View& a, const View& b);

// Checks that the rows of an output share no byte with each other.
fastnorm_status check_own_rows(const View& out, Error& error);

// Checks that an output shares no byte with another tensor.
fastnorm_status check_overlap(const View& out, const View& other, Error& error);

// Checks that no part of a call touches what another one writes. Errors name part i word[i].
fastnorm_status check_parts(const char* word, size_t i, std::span<const View> first, size_t j,
                            std::span<const View> second, Error& error);

}  // namespace fastnorm
