// A user's program in C++11: knows the library by pkg-config alone. An error, a move and a result.
#include <cmath>
#include <cstdint>
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

// The gradients of a row that can be worked out by hand.
void test_backward(const fastnorm::context& cpu) {
  const float x[] = {3, 4}, dy[] = {1, 0}, w[] = {1, 1};
  float dx[2] = {}, dweight[2] = {};
  const fastnorm::tensor tx(x, FASTNORM_DTYPE_F32, {1, 2}, {2, 1}, fastnorm::cpu()),
      tdy(dy, FASTNORM_DTYPE_F32, {1, 2}, {2, 1}, fastnorm::cpu()),
      tw(w, FASTNORM_DTYPE_F32, {2}, {1}, fastnorm::cpu()), tdx(dx, {1, 2}), tdw(dweight, {2});
  fastnorm::norm_backward_args args;
  args.x = tx.get();
  args.dy = tdy.get();
  args.weight = tw.get();
  args.dx = tdx.get();
  fastnorm::norm_backward_prepare(cpu, args);
  fastnorm::norm_backward(cpu, args);
  const float rstd = 1 / std::sqrt(12.5f);
  check(std::fabs(dx[0] - 0.64f * rstd) < 1e-6f && std::fabs(dx[1] + 0.48f * rstd) < 1e-6f, "dx");
  args.dx = nullptr;
  args.dweight = tdw.get();
  const size_t bytes =
      static_cast<size_t>(fastnorm::norm_backward_query(cpu, args).workspace_bytes);
  std::vector<unsigned char> memory(bytes + 256);
  const size_t past = reinterpret_cast<std::uintptr_t>(memory.data()) % 256;
  fastnorm::norm_backward_many(cpu, {&args}, nullptr, memory.data() + (256 - past), bytes);
  check(std::fabs(dweight[0] - 3 * rstd) < 1e-6f && dweight[1] == 0, "dweight");
}

// Two descriptions in one call, by views that were copied.
void test_many(const fastnorm::context& cpu) {
  const float x[] = {3, 4, 9, 9, 0, 5, 9, 9};
  float y[4] = {}, z[4] = {};
  std::vector<fastnorm::tensor> views;  // moved as it grows
  views.push_back(fastnorm::tensor(x, FASTNORM_DTYPE_F32, {2, 2}, {4, 1}, fastnorm::cpu()));
  views.push_back(fastnorm::tensor(y, {2, 2}));
  views.push_back(fastnorm::tensor(z, {2, 2}));
  fastnorm::tensor other = views[1];
  other = views[0];
  check(other.get()->shape != views[0].get()->shape && other.get()->strides[0] == 4,
        "a copy has a shape and strides of its own");
  fastnorm::norm_args first, second;
  first.x = views[0].get();
  first.y = views[1].get();
  second.x = other.get();
  second.y = views[2].get();
  check(fastnorm::norm_many_query(cpu, {&first, &second}).bytes_written == 32, "bytes of two");
  fastnorm::norm_many_prepare(cpu, {&first, &second});
  fastnorm::norm_many(cpu, {&first, &second});
  check(std::fabs(y[1] - 1.1313709f) < 1e-6f && y[3] > 1.4f, "y of many");
  check(std::memcmp(y, z, sizeof y) == 0, "the same twice");
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
  check(fastnorm::device_describe(fastnorm::cpu()).name[0] != 0, "with a name");
  test_result(cpu);
  test_backward(cpu);
  test_many(cpu);
  test_error(cpu);
  if (failed == 0) std::printf("libfastnorm %s\n", fastnorm_version_string());
  return failed != 0;
}
