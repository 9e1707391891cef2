// fastnorm tune --csv without a GPU: what is in the file, in which order, and where a run goes on.
#include "fastnorm/tune_csv.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "fastnorm/tune_json.h"

namespace fastnorm::tool {
namespace {

const TuneOrigin kOrigin = {"a GPU, pretended", "13000", "0.2.0", "1"};

// The columns of a line.
enum { kDevice, kOp = 4, kKind, kDtype, kRows, kN, kRound, kKernel, kUs, kSpread, kCeiling };

class TuneCsvTest : public ::testing::Test {
 protected:
  TuneCsvTest() : folder_(::testing::TempDir() + "tune_csv_" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
    path_ =
        folder_ + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".csv";
  }
  ~TuneCsvTest() override { std::filesystem::remove_all(folder_); }

  std::string text() const {
    std::ifstream file(path_, std::ios::binary);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }
  void write(const std::string& text) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
  }
  // The lines of the file in fields, without the head. An empty one is that of the line above.
  std::vector<std::vector<std::string>> lines() const {
    std::istringstream all(text());
    std::vector<std::vector<std::string>> found;
    std::string line;
    std::getline(all, line);
    while (std::getline(all, line)) {
      std::vector<std::string> fields = csv_fields(line);
      for (size_t i = 0; i < fields.size(); ++i) {
        if (fields[i].empty() && !found.empty()) fields[i] = found.back()[i];
      }
      found.push_back(fields);
    }
    return found;
  }

  // One run with a timer that only counts: timing i of the run is i + 1 us. It ends after `most`
  // timings.
  TuneCounts run(bool resume, size_t most = SIZE_MAX, int rounds = 1, bool memory = true) {
    TuneCsv csv(path_, kOrigin, resume);
    dropped_ = csv.dropped_torn_line();
    timings_ = prepared_ = 0;
    const TimeKernel time = [&](const std::string& kernel) -> std::optional<Timing> {
      ++timings_;
      if (kernel == cannot_run_) return {};
      return Timing{static_cast<double>(timings_) + 0.123456, 0.5, 0.01};
    };
    return run_tune_csv({planner_, cases_, rounds,
                         [&](const BenchCase&) {
                           ++prepared_;
                           if (!memory) throw support::DevmemError("none left");
                           return time;
                         },
                         [&] { return timings_ >= most; }, [](size_t, size_t, const BenchCase&) {}},
                        &csv);
  }
  // What the constructor says of the file as it is.
  std::string refusal(const std::string& text, const TuneOrigin& origin = kOrigin) {
    write(text);
    try {
      TuneCsv(path_, origin, true);
    } catch (const CommandError& e) {
      return e.what();
    }
    return "";
  }
  size_t all_times() const {
    size_t count = 0;
    for (const BenchCase& c : cases_) count += planner_.kernels(c).size();
    return count;
  }

  std::string folder_, path_, cannot_run_;
  const Planner planner_{"sm_90"};
  // Without CUDA each has one kernel: the one that the library would choose.
  std::vector<BenchCase> cases_ = {
      {"rms", "bf16", 1, 4096},     {"layer", "bf16", 64, 4096},
      {"add", "bf16", 64, 8192},    {"layer", "f16", 64, 8192},
      {"rms_fp8", "bf16", 1, 1024}, {"add_fp8", "bf16", 16, 1024},
      {"layer_f32", "bf16", 1, 64}, {"rms_backward", "bf16", 64, 4096},
      {"rms_dx", "bf16", 64, 4096}, {"rms_row_fp8", "bf16", 4096, 4096}};
  size_t timings_ = 0, prepared_ = 0;
  bool dropped_ = false;
};

TEST_F(TuneCsvTest, EveryKernelHasALine) {
  const TuneCounts counts = run(false);
  EXPECT_EQ(counts.written, all_times());
  EXPECT_EQ(counts.had + counts.cannot_run + counts.too_large + counts.left, 0u);
  const auto found = lines();
  ASSERT_EQ(found.size(), all_times());
  std::set<std::string> kernels;
  for (const auto& line : found) {
    ASSERT_EQ(line.size(), 14u);
    EXPECT_EQ(line[kDevice], kOrigin.device);
    EXPECT_EQ(line[kSpread], "0.01");
    EXPECT_EQ(line[kCeiling], "0.5");
    EXPECT_EQ(line[kRound], "1");
    kernels.insert(line[kOp] + line[kRows] + line[kKernel]);
  }
  EXPECT_EQ(kernels.size(), found.size());
  EXPECT_EQ(found[0][kKind], "b16 plain rms own_dtype y aligned lean rows");
  EXPECT_EQ(found[0][kKernel], planner_.choice(cases_[0]));
  EXPECT_EQ(found.back()[kKind], "b16 plain rms own_dtype per_row aligned lean rows");
  for (const auto& line : found) {
    if (line[kOp] == "rms_backward" && line[kKernel] == planner_.choice(cases_[7])) {
      EXPECT_EQ(line[kKind], "few bf16 rms plain");
    } else if (line[kOp] == "rms_dx") {
      EXPECT_EQ(line[kKind], "alone bf16 rms plain");
    }
  }
}

// The first timing of a run, which takes 1 us here, is in no line.
TEST_F(TuneCsvTest, TheFirstTimingOfARunIsDiscarded) {
  TuneCounts counts = run(false, 3);
  EXPECT_EQ(counts.discarded, 1);
  EXPECT_EQ(counts.written, 2u);
  EXPECT_EQ(timings_, 3u);
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_EQ(lines()[0][kUs], "2.123");
  EXPECT_EQ(lines()[1][kUs], "3.123");
  counts = run(true, 4);
  EXPECT_EQ(counts.discarded, 1);
  EXPECT_EQ(counts.written, 3u);
  EXPECT_EQ(lines()[2][kUs], "2.123");
  // A kernel that cannot run warms nothing up.
  std::filesystem::remove(path_);
  cannot_run_ = planner_.choice(cases_[0]);
  counts = run(false);
  EXPECT_EQ(counts.cannot_run, 1u);
  EXPECT_EQ(counts.discarded, 1);
  EXPECT_EQ(lines()[0][kUs], "3.123");
  EXPECT_EQ(lines().size(), all_times() - 1);
}

TEST_F(TuneCsvTest, ResumesWhereItStopped) {
  size_t written = 0;
  TuneCounts counts = run(false, 4);
  EXPECT_GT(counts.left, 0u);
  EXPECT_LE(counts.left, cases_.size());
  for (int i = 0; counts.left > 0 && i < 100; ++i) {
    written += counts.written;
    counts = run(true, 4);
    EXPECT_EQ(dropped_, false);
    EXPECT_LE(counts.had, written);
  }
  const auto found = lines();
  EXPECT_EQ(found.size(), all_times());
  std::set<std::string> kernels;
  for (const auto& line : found) kernels.insert(line[kOp] + line[kRows] + line[kKernel]);
  EXPECT_EQ(kernels.size(), found.size());
  // Nothing is left: nothing is timed, and no memory is asked for.
  const std::string before = text();
  counts = run(true);
  EXPECT_EQ(counts.had, all_times());
  EXPECT_EQ(counts.written + timings_ + prepared_, 0u);
  EXPECT_EQ(counts.discarded, 0);
  EXPECT_EQ(text(), before);
}

TEST_F(TuneCsvTest, ATornLastLineIsDropped) {
  run(false);
  const std::string whole = text();
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (const size_t end : {last + 1, whole.size() - 10, whole.size() - 1}) {
    write(whole.substr(0, end));
    const TuneCounts counts = run(true);
    EXPECT_TRUE(dropped_);
    EXPECT_EQ(counts.written, 1u);
    EXPECT_EQ(lines().size(), all_times());
    EXPECT_EQ(text().substr(0, last), whole.substr(0, last));
    EXPECT_EQ(lines().back()[kKernel], csv_fields(whole.substr(last))[kKernel]);
  }
  // The head itself may be torn.
  write(whole.substr(0, 20));
  EXPECT_EQ(run(true).written, all_times());
  EXPECT_TRUE(dropped_);
  EXPECT_EQ(text(), whole);
}

// What a line has in common with the one above is not written; a run writes its first line whole.
TEST_F(TuneCsvTest, EmptyCellsAreThoseOfTheLineAbove) {
  run(false, 3);
  const auto written = [this] {
    std::istringstream all(text());
    std::vector<std::vector<std::string>> found;
    for (std::string line; std::getline(all, line);) found.push_back(csv_fields(line));
    return found;
  };
  ASSERT_EQ(written().size(), 3u);
  EXPECT_EQ(written()[1][kDevice], kOrigin.device);
  EXPECT_EQ(written()[2][kDevice], "");
  EXPECT_EQ(written()[2][kDtype], "");
  const bool same_rows = lines()[1][kRows] == lines()[0][kRows];  // another kernel, or shape
  EXPECT_EQ(written()[2][kRows], same_rows ? "" : lines()[1][kRows]);
  EXPECT_EQ(written()[2][kRound], "");
  EXPECT_EQ(written()[2][kSpread], "0.01");
  run(true, 2);
  ASSERT_EQ(written().size(), 4u);
  EXPECT_EQ(written()[3][kDevice], kOrigin.device);
  EXPECT_EQ(written()[3][kRound], "1");
  EXPECT_EQ(run(true).had, 3u);
}

TEST_F(TuneCsvTest, RoundsAreTimedOneAfterTheOther) {
  EXPECT_EQ(run(false, SIZE_MAX, 2).written, 2 * all_times());
  const auto found = lines();
  ASSERT_EQ(found.size(), 2 * all_times());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(found[i][kRound], i < all_times() ? "1" : "2");
  EXPECT_EQ(run(true, SIZE_MAX, 3).written, all_times());
}

TEST_F(TuneCsvTest, ShapesThatTheMemoryDoesNotHoldAreCounted) {
  const TuneCounts counts = run(false, SIZE_MAX, 1, false);
  EXPECT_EQ(counts.too_large, cases_.size());
  EXPECT_EQ(counts.written, 0u);
  EXPECT_EQ(lines().size(), 0u);
}

TEST_F(TuneCsvTest, OtherFilesAreRefused) {
  run(false);
  const std::string whole = text(), head = whole.substr(0, whole.find('\n') + 1);
  EXPECT_EQ(refusal(whole), "");
  EXPECT_EQ(refusal(""), "");
  EXPECT_THROW(run(false), CommandError);  // the head is there now
  for (const auto& [name, origin] : std::map<std::string, TuneOrigin>{
           {"device is 'a GPU, pretended'; required: 'another'",
            {"another", "13000", "0.2.0", "1"}},
           {"driver is '13000'; required: '12080'", {kOrigin.device, "12080", "0.2.0", "1"}},
           {"library is '0.2.0'; required: '0.3.0'", {kOrigin.device, "13000", "0.3.0", "1"}},
           {"numeric_version is '1'; required: '2'", {kOrigin.device, "13000", "0.2.0", "2"}}}) {
    const std::string why = refusal(whole, origin);
    EXPECT_NE(why.find("line 2: " + name), std::string::npos) << why;
    EXPECT_EQ(text(), whole);
  }
  for (const std::string& other : {std::string("op,us\n"), std::string("no table"),
                                   head + "one,two\n", head + whole.substr(0, head.size())}) {
    EXPECT_NE(refusal(other), "") << other;
    EXPECT_EQ(text(), other);
  }
  const std::string line =
      whole.substr(head.size(), whole.find('\n', head.size()) + 1 - head.size());
  for (const auto& [from, to] : std::map<std::string, std::string>{{",2.123,", ",0,"},
                                                                   {",2.123,", ",two,"},
                                                                   {",4096,1,", ",4096,0,"},
                                                                   {",1,4096,", ",-1,4096,"},
                                                                   {",0.5\n", ",\n"}}) {
    std::string wrong = line;
    ASSERT_NE(wrong.find(from), std::string::npos) << from;
    wrong.replace(wrong.find(from), from.size(), to);
    const std::string why = refusal(head + line + wrong);
    EXPECT_NE(why.find("line 3: "), std::string::npos) << wrong << why;
  }
}

// Whenever a run stops, what is there is a grid of the most important lengths and numbers of rows.
TEST_F(TuneCsvTest, ImportantShapesComeFirst) {
  const std::vector<int64_t> lengths = {1000, 1024, 4096, 8192, 5120}, rows = {1, 2, 64, 4096};
  const std::vector<BenchCase> cases = tune_cases({"rms", "layer"}, {"bf16", "f16"}, lengths, rows);
  ASSERT_EQ(cases.size(), 2 * 2 * lengths.size() * rows.size());
  EXPECT_EQ(cases[0].op, "rms");
  EXPECT_EQ(cases[0].n, 4096);
  EXPECT_EQ(cases[0].rows, 1);
  EXPECT_EQ(cases[1].op, "layer");
  EXPECT_EQ(cases[2].n, 8192);
  EXPECT_EQ(cases[2].rows, 1);
  EXPECT_EQ(cases.back().dtype, "f16");
  std::set<std::pair<int64_t, int64_t>> seen;
  for (size_t i = 0; i < cases.size() / 2; ++i) {
    EXPECT_EQ(cases[i].dtype, "bf16");
    seen.insert({cases[i].n, cases[i].rows});
  }
  EXPECT_EQ(seen.size(), lengths.size() * rows.size());
  // 1000 and 2 are no model's: they come behind all others.
  for (size_t i = 0; i < 2 * 4 * 3; ++i) {
    EXPECT_NE(cases[i].n, 1000);
    EXPECT_NE(cases[i].rows, 2);
  }
  // The issue's grid, whole.
  EXPECT_EQ(model_lengths().size(), 14u);
  EXPECT_EQ(model_rows().size(), 7u);
  const std::vector<BenchCase> all = tune_cases({"rms"}, {"bf16"}, model_lengths(), model_rows());
  std::set<std::pair<int64_t, int64_t>> grid;
  for (const BenchCase& c : all) grid.insert({c.n, c.rows});
  EXPECT_EQ(grid.size(), 98u);
  EXPECT_EQ(all.size(), 98u);
}

TEST_F(TuneCsvTest, FieldsOfALine) {
  EXPECT_EQ(csv_fields("a,\"b, c\",\"say \"\"d\"\"\",,"),
            (std::vector<std::string>{"a", "b, c", "say \"d\"", "", ""}));
}

TEST(TuneJson, TellsWhatTheTableTells) {
  const Finding found = {{"add", "bf16", 64, 4096}, "a kernel 256x4", "a kernel 512x2", 12, 10};
  const Json told = to_json(found);
  EXPECT_EQ(told["op"], "add");
  EXPECT_EQ(told["rows"], 64);
  EXPECT_EQ(told["n"], 4096);
  EXPECT_EQ(told["choice"], "a kernel 256x4");
  EXPECT_EQ(told["choice_us"], 12);
  EXPECT_EQ(told["fastest"], "a kernel 512x2");
  EXPECT_EQ(told["fastest_us"], 10);
  EXPECT_NEAR(told["gain"].get<double>(), 0.2, 1e-12);
  TuneCounts counts;
  counts.written = 5, counts.had = 4, counts.cannot_run = 3, counts.too_large = 2, counts.left = 1;
  EXPECT_EQ(to_json(counts).dump(),
            R"({"written":5,"found":4,"discarded":0,"cannot_run":3,"too_large":2,"left":1})");
}

}  // namespace
}  // namespace fastnorm::tool
