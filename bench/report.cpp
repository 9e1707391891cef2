#include "bench/report.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>

#include "fastnorm/fastnorm.h"

namespace bench {
namespace {

struct Shape {
  int64_t rows, n, gap = 0, shift = 0;
};

std::vector<Shape> shapes_of(const std::string& list) {
  std::vector<Shape> shapes;
  if (list == "large") {
    for (int64_t n : {1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 16384, 32768})
      shapes.push_back({4096, n});
  } else if (list == "decode") {
    shapes = {{1, 2048},  {1, 4096},  {1, 8192},   {1, 16384},  {16, 4096},  {16, 16384},
              {64, 7168}, {64, 8192}, {64, 16384}, {128, 4096}, {128, 8192}, {128, 16384}};
  } else if (list == "middle") {
    for (int64_t m : {256, 512, 1024, 2048}) {
      for (int64_t n : {4096, 8192, 16384}) shapes.push_back({m, n});
    }
  } else if (list == "small") {
    for (int64_t m : {4096, 16384, 65536}) {
      for (int64_t n : {64, 128, 256, 512}) shapes.push_back({m, n});
    }
  } else if (list == "long") {
    shapes = {{1, 65536},   {1, 262144},   {1, 1048576},  {16, 262144},
              {256, 65536}, {256, 262144}, {128, 1048576}};
  } else if (list == "odd") {
    shapes = {{4096, 4097}, {4096, 4098}, {4096, 4100}, {4096, 5000}, {65536, 111}};
  } else if (list == "strided") {
    for (int64_t n : {1024, 4096, 8192}) {
      for (int64_t gap : {0, 8, 4, 2, 1}) shapes.push_back({4096, n, gap});
      for (int64_t shift : {4, 1}) shapes.push_back({4096, n, 0, shift});
    }
  } else if (list == "quantised") {
    for (int64_t n : {1024, 2048, 3072, 4096, 8192, 16384, 32768}) shapes.push_back({4096, n});
  } else if (list == "heads") {
    shapes = {{1, 128}, {64, 128}, {1024, 128}, {4096, 128}, {9010, 128}, {4096, 64}, {4096, 256}};
  } else if (list == "training") {
    for (int64_t n : {1024, 2048, 4096, 5120, 8192, 12288, 16384}) {
      for (int64_t m : {4096, 8192, 16384, 32768, 65536}) {
        if (m <= 16384 || m * n <= int64_t{1} << 27) shapes.push_back({m, n});
      }
    }
  } else if (list == "training_few") {
    for (int64_t n : {1024, 2048, 4096, 5120, 8192, 12288, 16384}) {
      for (int64_t m : {1, 16, 128, 512, 1024, 2048}) shapes.push_back({m, n});
    }
  } else if (list == "training_short") {
    for (int64_t n : {64, 128, 256, 512}) {
      for (int64_t m : {128, 512, 4096, 16384, 32768, 65536, 262144}) shapes.push_back({m, n});
    }
    shapes.push_back({1048576, 128});
  } else if (list == "stages") {
    for (int64_t n : {1152, 2304, 3072, 4096, 5376, 8192}) {
      for (int64_t m : {1, 16, 64, 4096, 16384}) shapes.push_back({m, n});
    }
  } else if (list == "stages_training") {
    for (int64_t n : {64, 128, 256, 512}) {
      for (int64_t m : {4096, 32768, 131072, 524288}) shapes.push_back({m, n});
    }
    for (int64_t n : {1024, 2048, 4096, 5120, 8192}) {
      for (int64_t m : {512, 4096, 16384}) shapes.push_back({m, n});
    }
  } else if (list == "cpu") {
    shapes = {{4096, 4096}, {512, 8192}, {32, 4096}, {1, 4096}};
  } else {
    throw std::invalid_argument("no list of shapes is called " + list +
                                "; required: large, decode, middle, small, long, odd, strided, "
                                "quantised, heads, training, training_few, training_short, "
                                "stages, stages_training, cpu or ROWSxN");
  }
  return shapes;
}

std::string now_utc() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

// --- result files: bench/compare/lines.py describes and reads the form ---

constexpr int kFormat = 2;

// Numbers that are not whole get four significant digits.
std::string number_text(double value) {
  char text[32];
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  std::snprintf(text, sizeof text, whole ? "%.0f" : "%.4g", value);
  if (whole) return text;
  const auto end = std::to_chars(text, text + sizeof text, std::strtod(text, nullptr)).ptr;
  return std::string(text, end);
}

nlohmann::json rounded(const nlohmann::json& value) {
  if (value.is_number_float()) return nlohmann::json::parse(number_text(value.get<double>()));
  nlohmann::json result = value;
  if (value.is_structured()) {
    for (auto& [name, item] : result.items()) item = rounded(item);
  }
  return result;
}

std::string quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  std::string text = "\"";
  for (const char c : cell) text += c == '"' ? "\"\"" : std::string(1, c);
  return text + "\"";
}

// Text as it is, unless it reads as JSON; other values as JSON.
std::string cell_text(const nlohmann::json& value) {
  if (value.is_number_float()) return number_text(value.get<double>());
  if (!value.is_string()) return rounded(value).dump();
  const std::string text = value.get<std::string>();
  return text.empty() || nlohmann::json::accept(text) ? value.dump() : text;
}

void flatten(const nlohmann::json& value, const std::string& path,
             std::map<std::string, std::string>* row) {
  for (const auto& [name, item] : value.items()) {
    if (item.is_object() && !item.empty()) {
      flatten(item, path + name + ".", row);
    } else {
      (*row)[path + name] = cell_text(item);
    }
  }
}

std::string table_text(const nlohmann::json& results) {
  std::vector<std::map<std::string, std::string>> rows;
  std::set<std::string> found;
  for (const nlohmann::json& result : results) {
    flatten(result, "", &rows.emplace_back());
    for (const auto& [name, cell] : rows.back()) found.insert(name);
  }
  std::vector<std::string> names;
  for (const char* first : {"op", "shape", "dtype", "rows", "tokens", "n"}) {
    if (found.erase(first) != 0) names.push_back(first);
  }
  names.insert(names.end(), found.begin(), found.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + quoted(name);
  if (!names.empty()) text += "\n";
  for (const auto& row : rows) {
    for (const std::string& name : names) {
      const auto cell = row.find(name);
      if (name != names.front()) text += ",";
      if (cell != row.end()) text += quoted(cell->second);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  return n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
}

double spread(const std::vector<double>& samples) {
  const auto [fastest, slowest] = std::minmax_element(samples.begin(), samples.end());
  return (*slowest - *fastest) / median(samples);
}

std::string Case::row_text() const {
  return std::to_string(n) + (gap != 0 ? "+" + std::to_string(gap) : "") +
         (shift != 0 ? "@" + std::to_string(shift) : "");
}

int64_t Case::scale_bytes() const {
  const auto blocks = [&](int64_t columns) { return rows * ((n + columns - 1) / columns); };
  switch (codes()) {
    case Codes::kRow:
      return rows * 4;
    case Codes::kBlock:
      return blocks(128) * 4;
    case Codes::kMx:
      return blocks(32);
    case Codes::kNvfp4:
      return blocks(16);
    case Codes::kNone:
    case Codes::kTensor:
      break;
  }
  return 0;
}

void print_header(bool pdl) {
  std::printf("%-18s %-4s %7s %8s %10s %7s %10s %7s %8s %7s", "op", "type", "rows", "n", "us",
              "GB/s", "ceiling us", "ratio", "excess", "spread");
  if (pdl) std::printf(" %10s %8s", "PDL us", "excess");
  std::printf("  kernel\n");
}

void print_row(const Result& r) {
  std::printf("%-18s %-4s %7lld %8s %10.3f %7.0f %10.3f %7.3f %8.3f %6.1f%%", r.c.op.c_str(),
              r.c.dtype.c_str(), static_cast<long long>(r.c.rows), r.c.row_text().c_str(), r.us,
              r.gb_per_s(), r.ceiling_us, r.ratio(), r.us - r.ceiling_us, r.spread * 100);
  if (r.pdl_us != 0) std::printf(" %10.3f %8.3f", r.pdl_us, r.pdl_us - r.ceiling_us);
  std::printf("  %s\n", r.kernel.c_str());
  std::fflush(stdout);
}

nlohmann::json to_json(const Result& r) {
  nlohmann::json j = {
      {"op", r.c.op},         {"dtype", r.c.dtype},         {"rows", r.c.rows},
      {"n", r.c.n},           {"bytes", r.c.bytes_moved()}, {"us", r.us},
      {"spread", r.spread},   {"gb_per_s", r.gb_per_s()},   {"ceiling_us", r.ceiling_us},
      {"ceiling", r.ceiling}, {"ratio", r.ratio()},         {"kernel", r.kernel}};
  if (r.c.gap != 0) j["gap"] = r.c.gap;
  if (r.c.shift != 0) j["shift"] = r.c.shift;
  if (r.c.statistics_bytes() != 0) j["statistics_bytes"] = r.c.statistics_bytes();
  if (r.c.scale_bytes() != 0) j["scale_bytes"] = r.c.scale_bytes();
  if (r.pdl_us != 0) {
    j["pdl_us"] = r.pdl_us;
    j["pdl_ratio"] = r.pdl_us / r.ceiling_us;
  }
  j.update(r.more);
  return j;
}

int time_all(const std::vector<Case>& cases, bool pdl,
             const std::function<Result(const Case&)>& time,
             const std::function<void(const nlohmann::json&)>& save, nlohmann::json* document) {
  int failed = 0;
  print_header(pdl);
  nlohmann::json& results = (*document)["results"] = nlohmann::json::array();
  for (const Case& c : cases) {
    try {
      const Result r = time(c);
      print_row(r);
      results.push_back(to_json(r));
    } catch (const std::exception& e) {
      ++failed;
      std::printf("%-18s %-4s %7lld %8lld failed: %s\n", c.op.c_str(), c.dtype.c_str(),
                  static_cast<long long>(c.rows), static_cast<long long>(c.n), e.what());
      std::fflush(stdout);
      results.push_back(
          {{"op", c.op}, {"dtype", c.dtype}, {"rows", c.rows}, {"n", c.n}, {"error", e.what()}});
    }
    save(*document);
  }
  return failed;
}

bool write_results(const std::string& path, const nlohmann::json& document) {
  nlohmann::json head = document;
  head.erase("results");
  head["format"] = kFormat;
  head["date"] = now_utc();
  head["library"] = {{"version", fastnorm_version_string()},
                     {"numeric_version", fastnorm_numeric_version()},
                     {"build", fastnorm_build_info()}};
  std::ofstream file(path);
  file << "# " << rounded(head).dump() << "\n" << table_text(document["results"]);
  file.close();
  if (!file) std::fprintf(stderr, "cannot write %s\n", path.c_str());
  return !file.fail();
}

std::vector<std::string> operations() {
  std::vector<std::string> all = {"qk", "qk_rounded"};
  for (const std::string stages : {"gated", "gated_before", "sandwich", "adaln"}) {
    all.push_back(stages);
    all.push_back(stages + "_backward");
  }
  all.insert(all.end(), {"adaln_tables", "modulated"});
  for (const std::string norm : {"rms", "layer", "add", "add_layer"}) {
    all.push_back(norm + "_backward");
    for (const char* codes : {"", "_fp8", "_row_fp8", "_block_fp8", "_mxfp8", "_nvfp4", "_rounded"})
      all.push_back(norm + codes);
  }
  for (const std::string norm : {"rms", "add"}) {
    for (const char* codes :
         {"_rot128_fp8", "_rot16_row_fp8", "_rot128_row_fp8", "_rot32_mxfp8", "_rot16_nvfp4"})
      all.push_back(norm + codes);
  }
  return all;
}

std::vector<Case> make_cases(const std::vector<std::string>& lists,
                             const std::vector<std::string>& ops,
                             const std::vector<std::string>& dtypes) {
  std::vector<Case> cases;
  for (const std::string& list : lists) {
    const bool literal = list.find('x') != std::string::npos;
    std::vector<Shape> shapes;
    if (literal) {
      const Case c = parse_shape(list);
      shapes = {{c.rows, c.n, c.gap, c.shift}};
    } else {
      shapes = shapes_of(list);
    }
    for (const std::string& op : ops) {
      for (const std::string& dtype : dtypes) {
        for (const Shape& s : shapes) {
          cases.push_back({op, dtype, s.rows, s.n, s.gap, s.shift});
          if (cases.back().heads() && (s.gap != 0 || s.shift != 0))
            throw std::invalid_argument("qk has a stride of its own: a shape is TOKENSxHEAD");
        }
      }
    }
  }
  return cases;
}

Case parse_shape(const std::string& text) {
  long long rows = 0, n = 0, gap = 0, shift = 0;
  int end = 0;
  const char* rest = text.c_str();
  const auto take = [&](const char* format, long long* value) {
    end = 0;
    const bool found = std::sscanf(rest, format, value, &end) == 1 && end > 0;
    rest += end;
    return found;
  };
  const bool shape = take("%lldx%n", &rows) && take("%lld%n", &n);
  const bool gaps = *rest != '+' || take("+%lld%n", &gap);
  const bool shifts = *rest != '@' || take("@%lld%n", &shift);
  if (!shape || !gaps || !shifts || *rest != '\0' || rows < 1 || n < 1 || gap < 0 || shift < 0)
    throw std::invalid_argument("a shape is ROWSxN[+GAP][@SHIFT], such as 4096x8192, not " + text);
  return {"", "", rows, n, gap, shift};
}

}  // namespace bench
