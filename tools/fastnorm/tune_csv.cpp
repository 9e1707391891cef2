#include "tune_csv.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <tuple>

namespace fastnorm::tool {
namespace {

constexpr char kHeader[] =
    "device,driver,library,numeric_version,op,kind,dtype,rows,n,round,kernel,us,spread,ceiling_us";
enum Column {
  kDevice,
  kDriver,
  kLibrary,
  kNumericVersion,
  kOp,
  kKind,
  kDtype,
  kRows,
  kN,
  kRound,
  kKernel,
  kUs,
  kSpread,
  kCeiling,
  kColumns
};

std::string quoted(const std::string& field) {
  if (field.find_first_of(",\"\n") == std::string::npos) return field;
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? "\"\"" : std::string(1, c);
  return text + "\"";
}

// Four significant digits.
std::string decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  const auto end = std::to_chars(text, text + sizeof text, std::strtod(text, nullptr)).ptr;
  return std::string(text, end);
}

std::string key_of(const std::string& op, const std::string& dtype, const std::string& rows,
                   const std::string& n, const std::string& kernel, const std::string& round) {
  return op + "|" + dtype + "|" + rows + "|" + n + "|" + kernel + "|" + round;
}

bool is_count(const std::string& text) {
  return !text.empty() && text.size() <= 18 && text[0] != '0' &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

bool is_time(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && value > 0 && value < 1e12;
}

bool is_share(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && value >= 0 && value < 1e12;
}

// Place in a list; what is not in it comes behind, in ascending order.
size_t rank_in(const std::vector<int64_t>& list, const std::vector<int64_t>& all, int64_t value) {
  const auto found = std::find(list.begin(), list.end(), value);
  if (found != list.end()) return static_cast<size_t>(found - list.begin());
  return list.size() + static_cast<size_t>(std::count_if(all.begin(), all.end(),
                                                         [&](int64_t v) { return v < value; }));
}

}  // namespace

std::vector<std::string> csv_fields(const std::string& line) {
  std::vector<std::string> fields(1);
  bool inside = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (inside && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += '"';
      ++i;
    } else if (line[i] == '"') {
      inside = !inside;
    } else if (line[i] == ',' && !inside) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

TuneCsv::TuneCsv(const std::string& path, const TuneOrigin& origin, bool resume)
    : path_(path), origin_(origin) {
  std::string text;
  if (std::ifstream before(path, std::ios::binary); before) {
    std::ostringstream all;
    all << before.rdbuf();
    text = all.str();
  }
  if (!text.empty() && !resume) {
    throw CommandError(path + " has times already; required: --resume, or another file");
  }
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  // A file without a whole line can be the beginning of the first one only.
  if (whole == 0 && std::string_view(kHeader).substr(0, text.size()) != text) {
    throw CommandError(path + ", line 1: required: " + kHeader);
  }
  dropped_ = whole < text.size();
  text.resize(whole);
  read(text);
  if (dropped_) std::filesystem::resize_file(path, whole);
  file_.open(path, std::ios::binary | std::ios::app);
  if (text.empty()) file_ << kHeader << '\n' << std::flush;
  if (!file_) throw CommandError(path + ": cannot be written: " + std::strerror(errno));
}

void TuneCsv::read(const std::string& text) {
  std::istringstream lines(text);
  std::vector<std::string> above(kColumns);
  int number = 0;
  const auto refuse = [&](const std::string& what) {
    throw CommandError(path_ + ", line " + std::to_string(number) + ": " + what);
  };
  for (std::string line; std::getline(lines, line);) {
    if (++number == 1) {
      if (line != kHeader) refuse(std::string("required: ") + kHeader);
      continue;
    }
    std::vector<std::string> f = csv_fields(line);
    if (f.size() != kColumns) {
      refuse(std::to_string(f.size()) + " fields; required: " + std::to_string(kColumns));
    }
    for (int column = 0; column <= kKernel; ++column) {
      if (f[column].empty()) f[column] = above[column];
    }
    above = f;
    for (const auto& [column, name, wanted] :
         {std::tuple(kDevice, "device", &origin_.device),
          std::tuple(kDriver, "driver", &origin_.driver),
          std::tuple(kLibrary, "library", &origin_.library),
          std::tuple(kNumericVersion, "numeric_version", &origin_.numeric_version)}) {
      if (f[column] != *wanted) {
        refuse(std::string(name) + " is '" + f[column] + "'; required: '" + *wanted +
               "', as in this run; times of others go into a file of their own");
      }
    }
    if (!is_count(f[kRows]) || !is_count(f[kN]) || !is_count(f[kRound])) {
      refuse("rows, n and round are '" + f[kRows] + "', '" + f[kN] + "' and '" + f[kRound] +
             "'; required: whole numbers from 1 on");
    }
    if (!is_time(f[kUs]) || !is_share(f[kSpread]) || !is_time(f[kCeiling])) {
      refuse("us, spread and ceiling_us are '" + f[kUs] + "', '" + f[kSpread] + "' and '" +
             f[kCeiling] + "'; required: times, and a part of one");
    }
    known_.insert(key_of(f[kOp], f[kDtype], f[kRows], f[kN], f[kKernel], f[kRound]));
  }
}

bool TuneCsv::has(const BenchCase& c, const std::string& kernel, int round) const {
  return known_.contains(key_of(c.op, c.dtype, std::to_string(c.rows), std::to_string(c.n), kernel,
                                std::to_string(round)));
}

void TuneCsv::add(const BenchCase& c, const std::string& kernel, int round, const Timing& time) {
  const std::string rows = std::to_string(c.rows), n = std::to_string(c.n),
                    of_round = std::to_string(round);
  const std::vector<std::string> fields = {origin_.device,
                                           origin_.driver,
                                           origin_.library,
                                           origin_.numeric_version,
                                           c.op,
                                           kind_words(c, kernel),
                                           c.dtype,
                                           rows,
                                           n,
                                           of_round,
                                           kernel,
                                           decimal(time.us),
                                           decimal(time.spread),
                                           decimal(time.copy_us)};
  std::string line;
  for (int column = 0; column < kColumns; ++column) {
    if (column > 0) line += ",";
    const bool same = column <= kKernel && !above_.empty() && fields[column] == above_[column];
    if (!same) line += quoted(fields[column]);
  }
  above_ = fields;
  file_ << line + "\n" << std::flush;
  if (!file_) throw CommandError(path_ + ": cannot be written: " + std::strerror(errno));
  known_.insert(key_of(c.op, c.dtype, rows, n, kernel, of_round));
}

const std::vector<int64_t>& model_lengths() {
  static const std::vector<int64_t> kLengths = {4096, 8192, 5120, 7168, 2048,  6144,  3072,
                                                1024, 2880, 3584, 1536, 16384, 12288, 2560};
  return kLengths;
}

const std::vector<int64_t>& model_rows() {
  static const std::vector<int64_t> kRows = {1, 4096, 64, 1024, 16, 256, 16384};
  return kRows;
}

std::vector<BenchCase> tune_cases(const std::vector<std::string>& ops,
                                  const std::vector<std::string>& dtypes,
                                  const std::vector<int64_t>& lengths,
                                  const std::vector<int64_t>& rows) {
  struct Shape {
    size_t square, length, row;  // in whose grid it is first, and its places
    int64_t n, rows;
    auto operator<=>(const Shape&) const = default;
  };
  std::vector<Shape> shapes;
  for (const int64_t n : lengths) {
    for (const int64_t m : rows) {
      const size_t length = rank_in(model_lengths(), lengths, n),
                   row = rank_in(model_rows(), rows, m);
      // Twice as many lengths as numbers of rows.
      shapes.push_back({std::max(length, 2 * row), length, row, n, m});
    }
  }
  std::sort(shapes.begin(), shapes.end());
  shapes.erase(std::unique(shapes.begin(), shapes.end()), shapes.end());
  std::vector<BenchCase> cases;
  for (const std::string& dtype : dtypes) {
    for (const Shape& shape : shapes) {
      for (const std::string& op : ops) cases.push_back({op, dtype, shape.rows, shape.n});
    }
  }
  return cases;
}

std::optional<Timing> FirstDiscarded::time(const TimeKernel& kernel_time,
                                           const std::string& kernel) {
  std::optional<Timing> time = kernel_time(kernel);
  if (discarded_ > 0 || !time) return time;
  ++discarded_;
  return kernel_time(kernel);
}

TuneCounts run_tune_csv(const TuneRun& run, TuneCsv* csv) {
  TuneCounts counts;
  FirstDiscarded first;
  std::vector<std::vector<std::string>> kernels(run.cases.size());  // of each case, once asked for
  const size_t all = run.cases.size() * static_cast<size_t>(run.rounds);
  for (size_t done = 0; done < all; ++done) {
    const size_t i = done % run.cases.size();
    const int round = static_cast<int>(done / run.cases.size()) + 1;
    const BenchCase& c = run.cases[i];
    if (run.out_of_time()) {
      counts.left = all - done;
      break;
    }
    if (kernels[i].empty()) kernels[i] = run.planner.kernels(c);
    std::vector<std::string> lacking;
    for (const std::string& kernel : kernels[i]) {
      if (!csv->has(c, kernel, round)) lacking.push_back(kernel);
    }
    counts.had += kernels[i].size() - lacking.size();
    if (lacking.empty()) continue;
    run.progress(done, all, c);
    TimeKernel time_kernel;
    try {
      time_kernel = run.prepare(c);
    } catch (const support::DevmemError&) {  // a shape that the memory does not hold
      ++counts.too_large;
      continue;
    }
    for (const std::string& kernel : lacking) {
      if (run.out_of_time()) {
        counts.left = all - done;
        counts.discarded = first.discarded();
        return counts;
      }
      const std::optional<Timing> time = first.time(time_kernel, kernel);
      if (!time) {
        ++counts.cannot_run;
        continue;
      }
      csv->add(c, kernel, round, *time);
      ++counts.written;
    }
  }
  counts.discarded = first.discarded();
  return counts;
}

}  // namespace fastnorm::tool
