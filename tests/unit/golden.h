// Texts that are recorded in a file beside the tests, so that a change of them shows as a diff.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace fastnorm::test {

// Compares the lines of `now` with those of a file, or writes it under unit_test --update. There
// are more than `least` lines.
inline void expect_recorded(const char* name, const std::string& now, int least) {
  const std::string path = std::string(UNIT_TEST_DATA) + "/" + name;
  if (std::getenv("GTEST_UPDATE") != nullptr) {
    std::ofstream(path) << now;
    std::printf("wrote %s\n", path.c_str());
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing; unit_test --update writes it";
  std::istringstream lines(now);
  std::string recorded, line;
  int number = 0, different = 0;
  while (std::getline(lines, line)) {
    ++number;
    if (!std::getline(file, recorded)) recorded = "(nothing)";
    if (recorded == line || ++different > 20) continue;
    ADD_FAILURE() << name << " line " << number << "\nrecorded " << recorded << "\nnow      "
                  << line;
  }
  EXPECT_EQ(different, 0) << "if the new plans are meant, unit_test --update records them";
  EXPECT_FALSE(std::getline(file, recorded)) << "more lines are recorded than plans made";
  EXPECT_GT(number, least);
}

}  // namespace fastnorm::test
