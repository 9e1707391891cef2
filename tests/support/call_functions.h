// The functions of the ABI in one form for all calls. Programs that include it link the library.
#pragma once

#include <cstring>
#include <string_view>

#include "fastnorm/fastnorm.h"
#include "support/families.h"

namespace fastnorm::support {

// What describes a call. Without parts the last two are nothing.
struct GivenCall {
  const void* args;
  const void* const* parts;
  int32_t count;
};

struct CallFunctions {
  const char* name;  // as lines have it
  fastnorm_status (*query)(fastnorm_context*, const GivenCall&, fastnorm_info*);
  fastnorm_status (*prepare)(fastnorm_context*, const GivenCall&);
  fastnorm_status (*run)(fastnorm_context*, const GivenCall&, void* workspace,
                         size_t workspace_bytes, void* stream);
};

// A function with or without parts, by its type.
template <class Function>
struct OfGiven;
template <class Args, class... Rest>
struct OfGiven<fastnorm_status(fastnorm_context*, const Args*, Rest...)> {
  template <fastnorm_status (*kFunction)(fastnorm_context*, const Args*, Rest...)>
  static fastnorm_status call(fastnorm_context* context, const GivenCall& g, Rest... rest) {
    return kFunction(context, static_cast<const Args*>(g.args), rest...);
  }
};
template <class Args, class Part, class... Rest>
struct OfGiven<fastnorm_status(fastnorm_context*, const Args*, const Part* const*, int32_t,
                               Rest...)> {
  template <fastnorm_status (*kFunction)(fastnorm_context*, const Args*, const Part* const*,
                                         int32_t, Rest...)>
  static fastnorm_status call(fastnorm_context* context, const GivenCall& g, Rest... rest) {
    return kFunction(context, static_cast<const Args*>(g.args),
                     reinterpret_cast<const Part* const*>(g.parts), g.count, rest...);
  }
};

inline constexpr CallFunctions kCallFunctions[] = {
#define FASTNORM_OF_GIVEN(function) OfGiven<decltype(function)>::call<function>
#define FASTNORM_CALL(name)                           \
  {#name, FASTNORM_OF_GIVEN(fastnorm_##name##_query), \
   FASTNORM_OF_GIVEN(fastnorm_##name##_prepare), FASTNORM_OF_GIVEN(fastnorm_##name)},
    FASTNORM_CALLS(FASTNORM_CALL)
#undef FASTNORM_CALL
#undef FASTNORM_OF_GIVEN
};

// Null if there is no such call.
inline const CallFunctions* find_functions(std::string_view name) {
  for (const CallFunctions& functions : kCallFunctions) {
    if (name == functions.name) return &functions;
  }
  return nullptr;
}

}  // namespace fastnorm::support
