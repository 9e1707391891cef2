// What calls with their memory have in common, and the fuzzers, which make calls of bytes.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fastnorm/fastnorm.h"
#include "support/call_text.h"
