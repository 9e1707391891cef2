// Which fields of a norm an all-reduce has, and where its workspace lies. libfastnorm_nccl needs it
// too, so it uses public headers and the table of fields alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/common/schema.h"
#include "core/common/workspace.h"
#include "fastnorm/norm.h"

namespace fastnorm {

// Where the workspace of a query lies: nowhere near memory that a tensor may have.
inline std::byte* pretended_workspace() { return reinterpret_cast<std::byte*>(uintptr_t{1} << 61); }

// The first field of the norm that an all-reduce does not have and that is given; nullptr if there
// is none. Flags have a check of their own.
inline const char* not_of_allreduce(const fastnorm_norm_args& n) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&n);
  const auto first = [&](auto wanted) -> const char* {
    for (const schema::Field& f : schema::Fields<fastnorm_norm_args>::kAll) {
      if (f.offset < offsetof(fastnorm_norm_args, gate) || !wanted(f)) continue;
      // As bytes: an enum may hold any number, a float may be NaN.
      for (size_t i = 0; i < f.size; ++i) {
        if (bytes[f.offset + i] != std::byte{0}) return f.name;
      }
    }
    return nullptr;
  };
  const char* const tensor = first([](const schema::Field& f) { return is_tensor(f.role); });
  if (tensor != nullptr) return tensor;
  if (n.group_size != 0) return "group_size";
  return first([](const schema::Field& f) { return !is_tensor(f.role); });
}

}  // namespace fastnorm
