// What the library's files have in common. They include what they use all the same: only builds
// with sanitizers have it.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/api.h"
#include "core/backend.h"
#include "core/check.h"
#include "core/norm_backward_check.h"
#include "core/norm_backward_plan.h"
#include "core/norm_check.h"
#include "core/norm_heads_check.h"
#include "core/norm_plan.h"
#include "core/norm_tensors.h"
