// The parts of a call that has several of them: the caller's list, and how error texts name a part.
#pragma once

#include <cstdint>

#include "core/common/field_rules.h"

namespace fastnorm {

inline constexpr int32_t kMostListParts = 8;

struct PartNames {
  const char* list;
  const char* part[kMostListParts];    // the name of a part
  const char* prefix[kMostListParts];  // error texts of a part's fields begin with it
};
inline constexpr PartNames kArgsNames = {
    "args",
    {"args[0]", "args[1]", "args[2]", "args[3]", "args[4]", "args[5]", "args[6]", "args[7]"},
    {"args[0].", "args[1].", "args[2].", "args[3].", "args[4].", "args[5].", "args[6].",
     "args[7]."}};
inline constexpr PartNames kPartsNames = {"parts",
                                          {"parts[0]", "parts[1]", "parts[2]", "parts[3]",
                                           "parts[4]", "parts[5]", "parts[6]", "parts[7]"},
                                          {"parts[0].", "parts[1].", "parts[2].", "parts[3].",
                                           "parts[4].", "parts[5].", "parts[6].", "parts[7]."}};

template <class Part>
fastnorm_status check_part_list(const PartNames& names, const Part* const* parts, int32_t count,
                                Error& error) {
  FASTNORM_REQUIRE(count >= 0 && count <= kMostListParts, FASTNORM_ERROR_ARGUMENT,
                   "count is %d; required: 0 to %d", count, kMostListParts);
  FASTNORM_REQUIRE(parts != nullptr || count == 0, FASTNORM_ERROR_ARGUMENT,
                   "%s is NULL; required: %d pointers", names.list, count);
  return FASTNORM_OK;
}

// Calls use(i) for each part, whose errors then begin with its name.
template <class Part, class Use>
FASTNORM_HOT fastnorm_status for_each_part(const PartNames& names, const Part* const* parts,
                                           int32_t count, Error& error, Use use) {
  for (int32_t i = 0; i < count; ++i) {
    error.prefix = "";
    FASTNORM_REQUIRE(parts[i] != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "%s is NULL; required: a pointer", names.part[i]);
    error.prefix = names.prefix[i];
    FASTNORM_TRY(use(i));
  }
  error.prefix = "";
  return FASTNORM_OK;
}

// accept_call() of a part, with use(ours) of the struct in our size in place of use(i).
template <class Part, class Use>
FASTNORM_HOT fastnorm_status for_each_part_struct(const PartNames& names, const Part* const* parts,
                                                  int32_t count, Error& error, Use use) {
  for (int32_t i = 0; i < count; ++i) {
    error.prefix = "";
    Part local;
    const Part* ours = nullptr;
    FASTNORM_TRY(accept_call(parts[i], names.part[i], &local, &ours, error));
    error.prefix = names.prefix[i];
    FASTNORM_TRY(use(i, *ours));
  }
  error.prefix = "";
  return FASTNORM_OK;
}

}  // namespace fastnorm
