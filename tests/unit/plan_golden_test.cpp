// Recorded plans: what is launched for many shapes on every architecture. A change of a ladder shows here as a diff.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/norm_plan.h"
#include "cuda/table.h"
#include "unit/norm_request.h"

namespace fastnorm::test {
namespace {

constexpr int64_t kRows[] = {1, 16, 17, 64, 65, 128, 129, 4096};
constexpr int64_t kColumns[] = {7,     64,    128,   576,    1024,   2048,  3072,
                                4096,  5120,  7168,  8192,   12288,  14336, 16384,
                                24576, 32768, 65536, 262144, 1048576};

// "vector 256x4 4096": access, tile and blocks of the grid.
std::string plan_text(const NormDesc& d, const ArchSpec& arch) {
  NormPlan plan;
  Error error;
  const DeviceFacts facts = cuda::make_facts(arch, 0, 132, arch.max_cluster_blocks);
  if (make_plan(d, facts, cuda::norm_table(arch), &plan, error) != FASTNORM_OK) return error.text;
  const NormEntry tile = make_entry(plan.entry->key, plan.entry->tile);
  const std::string name = tile.name;
  std::ostringstream text;
  text << name.substr(name.rfind("store ") + 6) << " grid " << plan.blocks;
  if (plan.stream_loads) text << " stream";
  return text.str();
}

// The plans of all architectures, those that agree together.
std::string line_of(const NormDesc& d) {
  std::vector<std::pair<std::string, std::string>> plans;  // plan, architectures
  for (const ArchSpec* arch : cuda::kArchs) {
    const std::string text = plan_text(d, *arch);
    if (!plans.empty() && plans.back().first == text) {
      plans.back().second += std::string(" ") + arch->name;
    } else {
      plans.emplace_back(text, arch->name);
    }
  }
  if (plans.size() == 1) return "all: " + plans[0].first;
  std::string line;
  for (const auto& [text, archs] : plans) line += (line.empty() ? "" : "; ") + archs + ": " + text;
  return line;
}

std::string all_plans() {
  std::ostringstream out;
  out << "# dtype source statistic rows x n: plan on each architecture. Written by unit_test "
         "--update.\n";
  const struct {
    fastnorm_dtype_id id;
    const char* name;
  } dtypes[] = {{FASTNORM_DTYPE_BF16, "bf16"}, {FASTNORM_DTYPE_F32, "f32"}};
  for (const auto& dtype : dtypes) {
    for (int kind = 0; kind < 4; ++kind) {
      const bool add = (kind & 1) != 0, layer = (kind & 2) != 0;
      for (const int64_t n : kColumns) {
        for (const int64_t rows : kRows) {
          const Request r = simple_request({rows, n}, dtype.id, add,
                                           layer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS);
          NormDesc d;
          Error error;
          EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
          out << dtype.name << (add ? " add" : " plain") << (layer ? " layer " : " rms ") << rows
              << "x" << n << " " << line_of(d) << "\n";
        }
      }
    }
  }
  return out.str();
}

TEST(PlanGoldens, AsRecorded) {
  const std::string path = std::string(UNIT_TEST_DATA) + "/norm_plans.txt";
  const std::string now = all_plans();
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
    ADD_FAILURE() << "line " << number << "\nrecorded " << recorded << "\nnow      " << line;
  }
  EXPECT_EQ(different, 0) << "if the new plans are meant, unit_test --update records them";
  EXPECT_FALSE(std::getline(file, recorded)) << "more lines are recorded than plans made";
  EXPECT_GT(number, 1000);
}

}  // namespace
}  // namespace fastnorm::test
