// A user's program in C++11: knows the library by pkg-config alone. An error, a move and a result.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fastnorm/fastnorm.hpp>
#include <utility>
#include <vector>

namespace {

int failed = 0;

void check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "failed: %s\n", what);
  ++failed;
}

void test_result(const fastnorm::context& cpu) {
  std::vector<float> x = {3, 4, 0, 0, 1, 1, 1, 1}, residual(8, 0.0f), w = {1, 2, 1, 1}, y(8);
  const fastnorm::tensor tx(x.data(), {2, 4}), tw(w.data(), {4}), ty(y.data(), {2, 4}),
      tr(residual.data(), {2, 4});
  fastnorm::norm_args args;
  args.x = tx.get();
  args.weight = tw.get();
  args.y = ty.get();
  args.residual = args.residual_out = tr.get();
  check(fastnorm::norm_query(cpu, args).launches == 1, "one launch");
  fastnorm::norm_prepare(cpu, args);
  fastnorm::norm(cpu, args);
  const float expected[] = {1.2f, 3.2f, 0, 0, 1, 2, 1, 1};
  for (int i = 0; i < 8; ++i) {
    check(std::fabs(y[static_cast<size_t>(i)] - expected[i]) < 1e-6f, "y");
  }
  check(residual == x, "residual_out");
}

void test_error(const fastnorm::context& cpu) {
  fastnorm::norm_args args;
  try {
    fastnorm::norm(cpu, args);
    check(false, "a norm without tensors throws");
  } catch (const fastnorm::error& e) {
    check(e.status() == FASTNORM_ERROR_ARGUMENT, "its status");
    check(std::strstr(e.what(), "x is NULL") != nullptr, e.what());
    check(e.device_error() == 0, "no device error");
  }
}

}  // namespace

int main() {
  fastnorm::context first(fastnorm::cpu());
  fastnorm::context cpu(std::move(first));
  check(!first && cpu, "a context moves");
  check(fastnorm::device_count(FASTNORM_DEVICE_CPU) == 1, "one CPU");
  test_result(cpu);
  test_error(cpu);
  if (failed == 0) std::printf("libfastnorm %s\n", fastnorm_version_string());
  return failed != 0;
}
