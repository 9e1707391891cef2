// What the benchmark measured: rows of a table, and the same as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bench {

// One operation to time.
struct Case {
  std::string op;     // "rms", "layer", "add" (RMS with a residual), "add_layer"
  std::string dtype;  // "bf16", "f16", "f32"
  int64_t rows;
  int64_t n;

  bool adds() const { return op.starts_with("add"); }
  bool layer() const { return op.ends_with("layer"); }
  int64_t element_bytes() const { return dtype == "f32" ? 4 : 2; }
  int64_t tensor_bytes() const { return rows * n * element_bytes(); }
  int64_t bytes_moved() const { return tensor_bytes() * (adds() ? 4 : 2); }
};

struct Result {
  Case c;
  double us;            // median of one call
  double spread;        // (slowest - fastest) / median of the replays
  double ceiling_us;    // the best plain stream of the same bytes, in the same run
  std::string ceiling;  // which
  std::string kernel;
  nlohmann::json more = nlohmann::json::object();

  double gb_per_s() const { return static_cast<double>(c.bytes_moved()) / us / 1e3; }
  double ratio() const { return us / ceiling_us; }
};

double median(std::vector<double> samples);

void print_header();
void print_row(const Result& result);

nlohmann::json to_json(const Result& result);

// Adds date, library version and build to `document`, and writes it; returns false with a message on stderr if it can't.
bool write_json(const std::string& path, nlohmann::json document);

// The cases of a named list ("goals", "decode", "short", ..), crossed with operations and dtypes.
std::vector<Case> make_cases(const std::vector<std::string>& lists,
                             const std::vector<std::string>& ops,
                             const std::vector<std::string>& dtypes);

// A case from "4096x8192".
Case parse_shape(const std::string& text);

}  // namespace bench
