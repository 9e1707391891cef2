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

bool near(float value, float expected) { return std::fabs(value - expected) < 1e-6f; }

// A quarter turn of a normalised head, and one of a plain head back.
void test_heads(const fastnorm::context& cpu) {
  const float x[] = {3, 4}, cosine[] = {0}, sine[] = {1};
  float y[2] = {}, back[2] = {};
  const fastnorm::tensor tx(x, FASTNORM_DTYPE_F32, {1, 1, 2}), ty(y, {1, 1, 2}),
      tback(back, {1, 1, 2}), tcos(cosine, FASTNORM_DTYPE_F32, {1, 1}),
      tsin(sine, FASTNORM_DTYPE_F32, {1, 1});
  fastnorm::norm_heads_args args;
  args.rope_dim = 2;
  args.cos = tcos.get();
  args.sin = tsin.get();
  fastnorm::norm_heads_part turned, plain;
  turned.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
  turned.x = plain.x = tx.get();
  turned.y = ty.get();
  plain.flags = FASTNORM_NORM_HEADS_ROPE | FASTNORM_NORM_HEADS_ROPE_INVERSE;
  plain.y = tback.get();
  check(fastnorm::norm_heads_query(cpu, args, {&turned, &plain}).bytes_written == 16,
        "bytes of two heads");
  fastnorm::norm_heads_prepare(cpu, args, {&turned, &plain});
  fastnorm::norm_heads(cpu, args, {&turned, &plain});
  const float rstd = 1 / std::sqrt(12.5f);
  check(near(y[0], -4 * rstd) && near(y[1], 3 * rstd), "a head, normalised and turned");
  check(back[0] == 4 && back[1] == -3, "a head, turned back");
  turned.x = nullptr;
  try {
    fastnorm::norm_heads(cpu, args, {&plain, &turned});
    check(false, "a part without x throws");
  } catch (const fastnorm::error& e) {
    check(e.status() == FASTNORM_ERROR_ARGUMENT, "its status");
    check(std::strstr(e.what(), "parts[1]") != nullptr, e.what());
  }
}

// The gradients of the first of these heads.
void test_heads_backward(const fastnorm::context& cpu) {
  const float x[] = {3, 4}, dy[] = {1, 0}, w[] = {1, 1}, cosine[] = {0}, sine[] = {1};
  float dx[2] = {}, dweight[2] = {1, 1};
  const fastnorm::tensor tx(x, FASTNORM_DTYPE_F32, {1, 1, 2}),
      tdy(dy, FASTNORM_DTYPE_F32, {1, 1, 2}), tw(w, FASTNORM_DTYPE_F32, {2}), tdx(dx, {1, 1, 2}),
      tdw(dweight, {2}), tcos(cosine, FASTNORM_DTYPE_F32, {1, 1}),
      tsin(sine, FASTNORM_DTYPE_F32, {1, 1});
  fastnorm::norm_heads_args args;
  args.rope_dim = 2;
  args.cos = tcos.get();
  args.sin = tsin.get();
  fastnorm::norm_heads_backward_part part;
  part.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
  part.x = tx.get();
  part.dy = tdy.get();
  part.weight = tw.get();
  part.dx = tdx.get();
  part.dweight = tdw.get();
  const size_t bytes =
      static_cast<size_t>(fastnorm::norm_heads_backward_query(cpu, args, {&part}).workspace_bytes);
  std::vector<unsigned char> memory(bytes + 256);
  const size_t past = reinterpret_cast<std::uintptr_t>(memory.data()) % 256;
  fastnorm::norm_heads_backward_prepare(cpu, args, {&part});
  fastnorm::norm_heads_backward(cpu, args, {&part}, nullptr, memory.data() + (256 - past), bytes);
  const float rstd = 1 / std::sqrt(12.5f);
  check(near(dx[0], 0.48f * rstd) && near(dx[1], -0.36f * rstd), "dx of a head");
  check(dweight[0] == 0 && near(dweight[1], -4 * rstd), "dweight of a head");
  part.dy = nullptr;
  try {
    fastnorm::norm_heads_backward(cpu, args, {&part});
    check(false, "a part without dy throws");
  } catch (const fastnorm::error& e) {
    check(e.status() == FASTNORM_ERROR_ARGUMENT, "its status");
  }
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
  test_heads(cpu);
  test_heads_backward(cpu);
  test_error(cpu);
  if (failed == 0) std::printf("libfastnorm %s\n", fastnorm_version_string());
  return failed != 0;
}
