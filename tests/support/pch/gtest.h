// What the tests of functions have in common, compiled once for each program.
#include <gtest/gtest.h>

#include <string>
#include <vector>
