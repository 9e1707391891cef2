// What the tests of functions have in common, compiled once for each program.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/norm/check.h"
#include "core/norm/plan.h"
#include "core/norm_backward/check.h"
#include "core/norm_backward/plan.h"
#include "core/norm_heads/check.h"
#include "fastnorm/fastnorm.h"
#include "ref/data.h"
