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
#include "core/common/check.h"
#include "core/norm/check.h"
#include "core/norm/plan.h"
#include "core/norm/tensors.h"
#include "core/norm_backward/check.h"
#include "core/norm_backward/plan.h"
#include "core/norm_heads/check.h"
