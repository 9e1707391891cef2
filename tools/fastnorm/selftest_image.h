// The memory of one call of the self-test.
#pragma once

#include <cstring>

#include "dtype.h"
#include "selftest.h"

namespace fastnorm::tool {

// A tensor in the image with a row for each row of a case. A matrix is tokens of one head.
struct Rows {
  fastnorm_dtype dtype = {};
  int64_t rows = 0, columns = 0;
  int64_t heads = 1, stride = 0, token_stride = 0;  // elements
  size_t first = 0;                                 // byte
  fastnorm_scale_layout order = FASTNORM_SCALE_ROW_MAJOR;

  bool present() const { return columns != 0; }
  size_t size() const { return element_bytes(dtype); }
  // Elements of a swizzled tensor: tiles of 128 rows and 4 columns.
  int64_t tiles() const { return (columns + 3) / 4; }
  int64_t swizzled() const { return (rows + 127) / 128 * tiles() * 512; }

  size_t at(int64_t row, int64_t column) const {
    const int64_t element = order == FASTNORM_SCALE_SWIZZLED_128X4
                                ? (row / 128 * tiles() + column / 4) * 512 + row % 32 * 16 +
                                      row % 128 / 32 * 4 + column % 4
                            : order == FASTNORM_SCALE_COLUMN_MAJOR
                                ? column * rows + row
                                : row / heads * token_stride + row % heads * stride + column;
    return first + static_cast<size_t>(element) * size();
  }
  // Calls body(byte, bytes) for each run of contiguous elements, in the order of compact rows.
  template <typename Body>
  void for_runs(Body body) const {
    const int64_t run = order == FASTNORM_SCALE_ROW_MAJOR ? columns : 1;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; column += run) {
        body(at(row, column), static_cast<size_t>(run) * size());
      }
    }
  }
};

// The memory of a call: all its tensors, with guards before, between and after their rows.
class Image {
 public:
  // An image of tensors that have `rows` rows, `heads` to a token.
  Image(int64_t rows, int64_t heads, const CaseLayout& layout)
      : rows_(rows), heads_(heads), layout_(layout) {}

  // A tensor of rows as the layout has them. A token has two heads more, of values, say.
  Rows add_rows(fastnorm_dtype dtype, int64_t columns) {
    Rows t{dtype, rows_, columns, heads_, columns + layout_.gap_elems};
    t.token_stride = (t.heads > 1 ? t.heads + 2 : 1) * t.stride;
    place(&t, rows_ / heads_ * t.token_stride, layout_.offset_elems);
    return t;
  }
  // Compact rows.
  Rows add_compact(fastnorm_dtype dtype, int64_t rows, int64_t columns,
                   fastnorm_scale_layout order = FASTNORM_SCALE_ROW_MAJOR) {
    Rows t{dtype, rows, columns, 1, columns, columns, 0, order};
    place(&t, order == FASTNORM_SCALE_SWIZZLED_128X4 ? t.swizzled() : rows * columns, 0);
    return t;
  }
  // Sets the rows to those of `compact`, over and over.
  void fill(const Rows& t, const std::vector<std::byte>& compact) {
    size_t from = 0;
    t.for_runs([&](size_t at, size_t bytes) {
      std::memcpy(&bytes_[at], &compact[from], bytes);
      from = (from + bytes) % compact.size();
    });
  }
  void fill(const Rows& t, float value) { std::memcpy(&bytes_[t.first], &value, sizeof value); }

  void upload(const Machine& machine) {
    memory_ = machine.allocate(bytes_.size());
    machine.upload(memory_.get(), bytes_.data(), bytes_.size());
  }
  void download(const Machine& machine) {
    found_.resize(bytes_.size());
    machine.download(found_.data(), memory_.get(), found_.size());
  }
  // The rows of an output, which need not be what they were, and the padding, which must be 0.
  std::vector<std::byte> take(const Rows& t) {
    if (!t.present()) return {};
    std::vector<std::byte> compact(static_cast<size_t>(t.rows * t.columns) * t.size());
    if (t.order == FASTNORM_SCALE_SWIZZLED_128X4) {
      std::memset(&bytes_[t.first], 0, static_cast<size_t>(t.swizzled()));
    }
    size_t to = 0;
    t.for_runs([&](size_t at, size_t bytes) {
      std::memcpy(&compact[to], &found_[at], bytes);
      std::memcpy(&bytes_[at], &found_[at], bytes);
      to += bytes;
    });
    return compact;
  }
  // All the rest is as it was.
  bool intact() const { return std::memcmp(found_.data(), bytes_.data(), bytes_.size()) == 0; }

  // What the library is given: these heads of every token, or all rows of a matrix.
  TensorView view(const Target& target, const Rows& t, int64_t head, int64_t heads) const {
    if (!t.present()) return {};
    std::byte* data = memory_.get() + t.at(head, 0);
    if (t.order == FASTNORM_SCALE_SWIZZLED_128X4) return {target, data, t.dtype, {t.swizzled()}};
    if (t.order == FASTNORM_SCALE_COLUMN_MAJOR) return {target, data, t.dtype, {t.rows, t.columns}};
    if (t.heads == 1) return {target, data, t.dtype, {t.rows, t.columns}, {t.token_stride, 1}};
    return {
        target, data, t.dtype, {t.rows / t.heads, heads, t.columns}, {t.token_stride, t.stride, 1}};
  }
  // `count` rows of a compact tensor from `first` on; one row has one dimension.
  TensorView columns(const Target& target, const Rows& t, int64_t first, int64_t count) const {
    if (!t.present()) return {};
    std::byte* data = memory_.get() + t.at(first, 0);
    if (count == 1) return {target, data, t.dtype, {t.columns}};
    return {target, data, t.dtype, {count, t.columns}};
  }

 private:
  static constexpr size_t kGuardBytes = 256;  // the alignment of a tensor, too

  void place(Rows* t, int64_t elements, int64_t offset) {
    t->first = bytes_.size() + kGuardBytes + static_cast<size_t>(offset) * t->size();
    const size_t end = t->first + static_cast<size_t>(elements) * t->size() + kGuardBytes;
    bytes_.resize((end + kGuardBytes - 1) / kGuardBytes * kGuardBytes, std::byte{layout_.poison});
  }

  int64_t rows_, heads_;
  CaseLayout layout_;
  std::vector<std::byte> bytes_, found_;
  Block memory_;
};

}  // namespace fastnorm::tool
