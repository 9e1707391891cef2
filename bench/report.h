// What the benchmark measured: rows of a table, and the same as a file.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bench {

// Heads of one fused tensor of queries, keys and values that `qk` normalises in place.
inline constexpr int64_t kQueryHeads = 64, kKeyHeads = 8, kAllHeads = 80;

// What leaves in place of y.
enum class Codes { kNone, kTensor, kRow, kBlock, kMx, kNvfp4 };

// One operation to time.
struct Case {
  std::string op;     // one of operations()
  std::string dtype;  // "bf16", "f16", "f32"
  int64_t rows;       // of "qk": tokens
  int64_t n;          // of "qk": the size of a head
  // Where rows lie, in every tensor of rows except for "qk". gap: elements between one row and the
  // next. shift: elements from an aligned address to the first row.
  int64_t gap = 0, shift = 0;

  bool adds() const { return op.starts_with("add") || sandwich() || adaln(); }
  bool layer() const { return op.find("layer") != std::string::npos; }
  bool heads() const { return op.starts_with("qk"); }
  // Calls with stages: norm(x) * silu(gate) or norm(x * silu(gate)), norm(norm(x) + residual), and
  // norm(x * residual_gate + residual) * (1 + scale) + shift of LayerNorm without weight.
  bool gated() const { return op.starts_with("gated"); }
  bool gate_before() const { return op.starts_with("gated_before"); }
  bool sandwich() const { return op.starts_with("sandwich"); }
  bool adaln() const { return op.starts_with("adaln"); }
  bool tables() const { return op.ends_with("_tables"); }  // modulators and their tables are f32
  // norm(x) * weight * (1 + scale) of RMS.
  bool modulated() const { return op == "modulated"; }
  // Tensors of x's size that a forward call reads.
  int64_t inputs() const { return adds() || gated() ? 2 : 1; }
  // dx, dweight and, of "layer", dbias; "add" stands for the gradient that reaches residual_out.
  // "gated": dgate, too. "sandwich": that gradient, dbranch and dbranch_weight. "adaln": that
  // gradient, dbranch, dresidual_gate and dbias, where dweight is the scale's.
  bool backward() const { return op.ends_with("_backward"); }
  bool has_mean() const { return layer() || adaln(); }
  // Tensors of x's size that a backward pass reads and writes.
  int64_t gradient_inputs() const { return 2 + (adds() ? 1 : 0) + (has_other() ? 1 : 0); }
  int64_t gradients() const { return has_other() ? 2 : 1; }
  // The gate or the branch, which has a gradient.
  bool has_other() const { return gated() || sandwich() || adaln(); }
  bool rounds() const { return op.ends_with("_rounded"); }  // as a chain of 16-bit operations
  Codes codes() const {
    return op.ends_with("_nvfp4")       ? Codes::kNvfp4
           : op.ends_with("_mxfp8")     ? Codes::kMx
           : op.ends_with("_block_fp8") ? Codes::kBlock
           : op.ends_with("_row_fp8")   ? Codes::kRow
           : op.ends_with("_fp8")       ? Codes::kTensor
                                        : Codes::kNone;
  }

  // Columns of a block that is rotated before its codes: the number behind "_rot"; 0: none.
  int32_t rotation() const {
    const size_t at = op.find("_rot");
    return at == std::string::npos ? 0 : std::atoi(op.c_str() + at + 4);
  }

  int64_t element_bytes() const { return dtype == "f32" ? 4 : 2; }
  // How many times fewer bytes leave than an input has.
  int64_t shrink() const {
    return codes() == Codes::kNone    ? 1
           : codes() == Codes::kNvfp4 ? element_bytes() * 2
                                      : element_bytes();
  }
  // The bytes that are normalised.
  int64_t tensor_bytes() const {
    return rows * n * element_bytes() * (heads() ? kQueryHeads + kKeyHeads : 1);
  }
  // The bytes of the memory that holds them.
  int64_t buffer_bytes() const {
    return heads() ? rows * n * element_bytes() * kAllHeads
                   : (rows * (n + gap) + shift) * element_bytes();
  }
  std::string row_text() const;  // "8192", "8192+4@1"
  int64_t scale_bytes() const;
  // rstd and, of LayerNorm, mean, or of "sandwich" the branch's rstd, which a backward pass reads.
  int64_t statistics_bytes() const {
    return backward() ? rows * (has_mean() || sandwich() ? 8 : 4) : 0;
  }
  // Each input read once, each output written once; weights and their gradients are not counted.
  int64_t bytes_moved() const {
    if (backward()) return tensor_bytes() * (gradient_inputs() + gradients()) + statistics_bytes();
    return tensor_bytes() * (inputs() + (adds() ? 1 : 0)) + tensor_bytes() / shrink() +
           scale_bytes();
  }
  // Bytes of distinct memory among these.
  int64_t footprint() const { return heads() ? tensor_bytes() : bytes_moved(); }
};

struct Result {
  Case c;
  double us;            // median of one call
  double spread;        // (slowest - fastest) / median of the replays
  double ceiling_us;    // the best plain stream of the same bytes, in the same run
  std::string ceiling;  // which
  std::string kernel;
  double pdl_us = 0;  // as us, with programmatic dependent launch between the calls; 0: not timed
  nlohmann::json more = nlohmann::json::object();

  double gb_per_s() const { return static_cast<double>(c.bytes_moved()) / us / 1e3; }
  double ratio() const { return us / ceiling_us; }
};

double median(std::vector<double> samples);

// (slowest - fastest) / median
double spread(const std::vector<double>& samples);

void print_header(bool pdl);
void print_row(const Result& result);

nlohmann::json to_json(const Result& result);

// Times each case with `time` and collects the rows in document["results"], which is handed to
// `save` after each. A case that fails has its error in its row; the others go on. Returns how many
// failed.
int time_all(const std::vector<Case>& cases, bool pdl,
             const std::function<Result(const Case&)>& time,
             const std::function<void(const nlohmann::json&)>& save, nlohmann::json* document);

// Writes a result file: `document` with date, library version and build, one line for each of its
// "results". Returns false with a message on stderr if it cannot.
bool write_results(const std::string& path, const nlohmann::json& document);

// All operations. A norm ("rms", "layer", "add" = RMS with a residual, "add_layer") stands alone or
// with a suffix: what leaves in place of y ("_fp8" by a static scale, "_row_fp8", "_block_fp8",
// "_mxfp8", "_nvfp4"), "_rounded", or "_backward". Before a suffix of codes "_rot16" to "_rot128"
// rotates blocks of so many columns. "qk", the query and key heads of a fused tensor,
// stands alone or with "_rounded". "gated", "gated_before", "sandwich" and "adaln" are norms with
// stages, alone or with "_backward". "adaln_tables" has modulators of f32 with tables, "modulated"
// is RMS with a weight and a scale.
std::vector<std::string> operations();

// The cases of named lists ("large", "decode", ..) or shapes, crossed with operations and dtypes.
std::vector<Case> make_cases(const std::vector<std::string>& lists,
                             const std::vector<std::string>& ops,
                             const std::vector<std::string>& dtypes);

// A case from "4096x8192", or with a gap and a shift "4096x8192+4@1".
Case parse_shape(const std::string& text);

}  // namespace bench
