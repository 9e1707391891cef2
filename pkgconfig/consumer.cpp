// A user's program in C++11: knows the library by pkg-config alone. An error, a move and a result.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fastnorm/fastnorm.hpp>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if __cplusplus >= 202002L
#include <span>
#endif

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

// Whether get() of such an expression compiles.
template <typename Tensor, typename = void>
struct HasView : std::false_type {};
template <typename Tensor>
struct HasView<Tensor, decltype(void(std::declval<Tensor>().get()))> : std::true_type {};

static_assert(HasView<fastnorm::tensor&>::value, "an object has a view");
static_assert(HasView<const fastnorm::tensor&>::value, "a constant object has a view");
static_assert(!HasView<fastnorm::tensor>::value, "a temporary has none");
static_assert(!HasView<const fastnorm::tensor>::value, "nor has a constant one");

bool has(const fastnorm::tensor& found, std::vector<std::int64_t> shape,
         std::vector<std::int64_t> strides) {
  const fastnorm_tensor* view = found.get();
  const size_t rank = shape.size();
  if (static_cast<size_t>(view->ndim) != rank || (view->strides == nullptr) != strides.empty()) {
    return false;
  }
  for (size_t i = 0; i < rank; ++i) {
    if (view->shape[i] != shape[i]) return false;
    if (!strides.empty() && view->strides[i] != strides[i]) return false;
  }
  return true;
}

// Whether the arrays that a view points at are parts of the object that it is of.
bool points_into_itself(const fastnorm::tensor& view) {
  const auto begin = reinterpret_cast<std::uintptr_t>(&view), end = begin + sizeof view;
  const auto shape = reinterpret_cast<std::uintptr_t>(view.get()->shape);
  const auto strides = reinterpret_cast<std::uintptr_t>(view.get()->strides);
  return shape >= begin && shape < end && strides >= begin && strides < end;
}

// The ways to give a shape and strides, which are read and not kept.
void test_shapes() {
  float x[24] = {};
  const fastnorm_dtype_id f32 = FASTNORM_DTYPE_F32;
  std::vector<std::int64_t> shape = {2, 3, 4};
  const std::array<std::int64_t, 2> rows = {{2, 4}}, strides = {{8, 1}};
  const fastnorm::tensor of_braces(x, {2, 3, 4}), of_vector(x, shape), of_array(x, rows),
      of_pointer(x, f32, shape.data(), shape.size()),
      strided(x, f32, rows.data(), rows.size(), strides.data()),
      strided_too(x, f32, rows, strides, fastnorm::cuda(1)),
      mixed(x, f32, rows, std::vector<std::int64_t>(), fastnorm::cpu());
  shape.assign({7, 7, 7});
  for (const fastnorm::tensor* found : {&of_braces, &of_vector, &of_pointer}) {
    check(has(*found, {2, 3, 4}, {}), "a shape of three extents");
    check(
        found->get()->data == x && found->get()->dtype.code == 2 && found->get()->dtype.bits == 32,
        "its memory and dtype");
  }
  check(has(of_array, {2, 4}, {}) && has(mixed, {2, 4}, {}), "a shape without strides");
  check(has(strided, {2, 4}, {8, 1}) && has(strided_too, {2, 4}, {8, 1}), "a shape with strides");
  check(strided_too.get()->device_id == 1 && strided.get()->device_id == 0, "their devices");
#if __cplusplus >= 202002L
  const fastnorm::tensor of_span(x, std::span<const std::int64_t>(rows)),
      of_spans(x, f32, std::span(rows), std::span(strides), fastnorm::cpu());
  check(has(of_span, {2, 4}, {}) && has(of_spans, {2, 4}, {8, 1}), "spans");
#endif
  const std::vector<std::int64_t> long_shape(9, 1), none;
  const std::pair<std::string, void (*)(const std::vector<std::int64_t>&, float*)> refused[] = {
      {"the rank is 9; required: 1 to 8",
       [](const std::vector<std::int64_t>& s, float* at) { fastnorm::tensor(at, s); }},
      {"there are 9 strides; required: 2, one for each extent, or none",
       [](const std::vector<std::int64_t>& s, float* at) {
         fastnorm::tensor(at, FASTNORM_DTYPE_F32, std::vector<std::int64_t>{2, 4}, s,
                          fastnorm::cpu());
       }},
      {"there are 1 strides; required: 2, one for each extent, or none",
       [](const std::vector<std::int64_t>&, float* at) {
         fastnorm::tensor(at, FASTNORM_DTYPE_F32, std::vector<std::int64_t>{2, 4},
                          std::vector<std::int64_t>{4}, fastnorm::cpu());
       }},
      {"the rank is 0; required: 1 to 8",
       [](const std::vector<std::int64_t>&, float* at) {
         fastnorm::tensor(at, std::vector<std::int64_t>());
       }},
      {"shape is NULL; required: 2 extents",
       [](const std::vector<std::int64_t>&, float* at) {
         fastnorm::tensor(at, FASTNORM_DTYPE_F32, nullptr, 2);
       }},
  };
  for (const auto& each : refused) {
    try {
      each.second(long_shape, x);
      check(false, each.first.c_str());
    } catch (const std::invalid_argument& e) {
      check(std::strstr(e.what(), each.first.c_str()) != nullptr, e.what());
    }
  }
}

// A GPU's memory is that of a type of devices and of a number, which differ here.
void test_devices() {
  float x[4] = {};
  const fastnorm::tensor on_gpu(x, FASTNORM_DTYPE_F32, {4}, fastnorm::cuda(5)),
      on_cpu(x, FASTNORM_DTYPE_F32, {4});
  check(on_gpu.get()->device_type == FASTNORM_DEVICE_CUDA, "the type of a GPU");
  check(on_gpu.get()->device_id == 5, "the number of a GPU");
  check(on_cpu.get()->device_type == FASTNORM_DEVICE_CPU, "the type of a CPU");
  check(on_cpu.get()->device_id == 0, "the number of a CPU");
}

// A copy is used after the original is gone, whose memory another tensor has taken.
void test_copies() {
  float x[4] = {};
  alignas(fastnorm::tensor) unsigned char memory[sizeof(fastnorm::tensor)];
  auto* first =
      new (memory) fastnorm::tensor(x, FASTNORM_DTYPE_F32, {2, 2}, {2, 1}, fastnorm::cpu());
  const fastnorm::tensor copied = *first;
  fastnorm::tensor assigned(x, {1});
  assigned = *first;
  first->~tensor();
  std::memset(memory, 0x55, sizeof memory);
  for (const fastnorm::tensor* copy : {&copied, static_cast<const fastnorm::tensor*>(&assigned)}) {
    check(points_into_itself(*copy), "a copy points at its own arrays");
    check(has(*copy, {2, 2}, {2, 1}), "a copy has the shape and the strides");
  }
}

// What has moved has no handle: else both would destroy it.
template <typename Owner>
void test_moves(Owner first, Owner second, const char* what) {
  const auto* const moved = first.get();
  check(moved != nullptr && second.get() != nullptr && moved != second.get(), what);
  second = std::move(first);
  check(second.get() == moved, what);
  check(first.get() == nullptr && !first, what);
  Owner& same = second;
  second = std::move(same);
  check(second.get() == moved, what);
  Owner third(std::move(second));
  check(third.get() == moved && second.get() == nullptr, what);
}

void test_owners(const fastnorm::context& cpu) {
  test_moves(fastnorm::context(fastnorm::cpu()), fastnorm::context(fastnorm::cpu()),
             "a context moves its handle");
  fastnorm::peer_options options;
  options.ranks = 2;
  options.dtype = FASTNORM_DTYPE_F32;
  options.max_columns = 64;
  test_moves(fastnorm::peer(cpu, options), fastnorm::peer(cpu, options), "a peer moves its handle");
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
  test_shapes();
  test_devices();
  test_copies();
  test_owners(cpu);
  test_error(cpu);
  if (failed == 0) std::printf("libfastnorm %s\n", fastnorm_version_string());
  return failed != 0;
}
