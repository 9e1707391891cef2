// main() of GoogleTest programs here: skips say why, and the last line is "N passed, N failed, N
// skipped".
//
// --update makes tests of recorded results write them anew in place of comparing; it sets
// GTEST_UPDATE in the environment.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// Asking GoogleTest for the current test inside OnTestPartResult would wait for a lock that the
// caller holds.
class Reasons : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& info) override { current_ = &info; }
  void OnTestEnd(const testing::TestInfo&) override { current_ = nullptr; }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.skipped()) return;
    std::printf("SKIP %s.%s: %s\n", current_ != nullptr ? current_->test_suite_name() : "?",
                current_ != nullptr ? current_->name() : "?", result.message());
  }

  const testing::TestInfo* current_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--update") == 0) {
      setenv("GTEST_UPDATE", "1", 1);
    } else {
      std::fprintf(stderr, "unknown argument %s; known: GoogleTest's and --update\n", argv[i]);
      return 2;
    }
  }
  testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  tests.listeners().Append(new Reasons);  // owned by GoogleTest
  const int result = RUN_ALL_TESTS();
  // A part of few tests may be empty.
  if (tests.test_to_run_count() == 0 && std::getenv("GTEST_TOTAL_SHARDS") != nullptr) {
    std::printf("SKIP all: this part has no test\n0 passed, 0 failed, 1 skipped\n");
    return 77;
  }
  std::printf("%d passed, %d failed, %d skipped\n", tests.successful_test_count(),
              tests.failed_test_count(), tests.skipped_test_count());
  if (result != 0) return 1;
  if (tests.test_to_run_count() == 0) return 2;  // a filter that fits nothing
  return tests.successful_test_count() == 0 ? 77 : 0;
}
