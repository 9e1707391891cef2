// The norms' operators of fastnorm.torch without Python in a call: allocation of results, the call
// of the library and the graph of autograd. fastnorm/torch/compiled.py builds and loads this file.
//
// The Python operators stay the reference. They have the names of these with "_by_python" behind,
// and run whatever is not the common case: transforms of torch.func, forward derivatives, calls
// that want copies, and all errors, whose texts they have.

#include <ATen/Parallel.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "plans.h"

namespace fastnorm_torch {
namespace {

using at::ScalarType;
using at::Tensor;
using std::optional;
using Keys = c10::DispatchKeySet;

// --- calls of the library ---

struct Options {
  int64_t kind;  // 0: RMSNorm, 1: LayerNorm
  optional<double> eps;
  double weight_offset = 0.0;
  std::string_view rounding;
  std::string_view residual_rounding = "exact";
};

constexpr std::array<std::string_view, 4> kRoundings = {"once", "normalized", "every_step",
                                                        "once_rw"};
constexpr std::array<std::string_view, 3> kResidualRoundings = {"exact", "before_apply",
                                                                "before_statistics"};

template <size_t kCount>
int64_t index_of(const std::array<std::string_view, kCount>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) - words.begin();
}

void add(Key& key, const Options& options) {
  key.add(options.kind);
  key.add(options.eps.has_value());
  key.add(std::bit_cast<int64_t>(options.eps.value_or(0.0)));
  key.add(std::bit_cast<int64_t>(options.weight_offset));
  key.add(index_of(kRoundings, options.rounding));
  key.add(index_of(kResidualRoundings, options.residual_rounding));
}

using Tensors = std::initializer_list<Tensor>;

// Runs a call of the library; false: the Python operator has to run instead. The first tensor is x.
bool run(Body body, const Options& options, Tensors tensors) {
  const Tensor& x = *tensors.begin();
  if (!x.defined()) return false;
  const int device = x.device().is_cpu() ? -1 : x.get_device();
  int64_t addresses[kMostTensors] = {};
  int count = 0;
  Key key;
  key.add(static_cast<int64_t>(body));
  key.add(device);
  add(key, options);
  if (device < 0) plans.follow_threads(at::get_num_threads());
  for (const Tensor& t : tensors) {
    if (t.defined() && (t.device() != x.device() || t.layout() != at::kStrided)) return false;
    addresses[count++] = t.defined() ? reinterpret_cast<int64_t>(t.data_ptr()) : 0;
    Form form;
    if (t.defined()) {
      form = {t.dim(), static_cast<int64_t>(t.scalar_type()), t.sizes().data(), t.strides().data()};
    }
    key.add(form);
  }
  Tensor memory;
  return run_planned(key, body, device, addresses, count, [&](int64_t bytes) {
    memory = at::empty({bytes}, x.options().dtype(at::kByte));
    return memory.data_ptr();
  });
}

// --- results ---

// An empty tensor where x is not there: the Python operator then says so.
Tensor like(const Tensor& x, optional<ScalarType> dtype = std::nullopt) {
  if (!x.defined()) return {};
  return at::empty(x.sizes(), x.options().dtype(dtype.value_or(x.scalar_type())));
}

Tensor statistics(const Tensor& x) {
  if (!x.defined()) return {};
  at::DimVector shape(x.sizes().begin(), x.sizes().end());
  if (!shape.empty()) shape.back() = 1;
  return at::empty(shape, x.options().dtype(at::kFloat));
}

Tensor or_none(const optional<Tensor>& t) { return t.value_or(Tensor()); }

// --- the operators' schemas as types, and calls of operators ---

using Rms = Tensor(const Tensor&, const optional<Tensor>&, optional<double>, double,
                   std::string_view, optional<ScalarType>);
using Layer = Tensor(const Tensor&, const optional<Tensor>&, const optional<Tensor>&,
                     optional<double>, std::string_view, optional<ScalarType>);
using Add = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const optional<Tensor>&,
                                       optional<double>, double, std::string_view, std::string_view,
                                       optional<ScalarType>);
using FusedAdd = Tensor(const Tensor&, Tensor&, const optional<Tensor>&, optional<double>, double,
                        std::string_view, std::string_view, optional<ScalarType>);
using RmsStatistics = std::tuple<Tensor, Tensor>(const Tensor&, const optional<Tensor>&,
                                                 optional<double>, double, std::string_view,
                                                 optional<ScalarType>, const optional<Tensor>&);
using LayerStatistics = std::tuple<Tensor, Tensor, Tensor>(
    const Tensor&, const optional<Tensor>&, const optional<Tensor>&, optional<double>,
    std::string_view, optional<ScalarType>, const optional<Tensor>&, const optional<Tensor>&);
using AddStatistics = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&,
                                                         const optional<Tensor>&, optional<double>,
                                                         double, std::string_view, std::string_view,
                                                         optional<ScalarType>,
                                                         const optional<Tensor>&);
using Backward = std::tuple<Tensor, Tensor, Tensor, Tensor>(
    const Tensor&, const Tensor&, const optional<Tensor>&, const optional<Tensor>&,
    const optional<Tensor>&, const optional<Tensor>&, const optional<Tensor>&, int64_t,
    optional<double>, double, std::string_view, ScalarType, optional<ScalarType>,
    std::array<bool, 3>);

template <typename Schema>
c10::TypedOperatorHandle<Schema> handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Schema>();
}

// The operator of this name.
#define OPERATOR(Schema, name)                                   \
  []() -> const c10::TypedOperatorHandle<Schema>& {              \
    static const auto found = handle<Schema>("fastnorm::" name); \
    return found;                                                \
  }()

template <typename Schema, typename... Arguments>
auto below_autograd(const c10::TypedOperatorHandle<Schema>& op, Arguments&&... arguments) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(std::forward<Arguments>(arguments)...);
}

// --- kernels ---

Tensor rms_norm(const Tensor& x, const optional<Tensor>& weight, optional<double> eps,
                double weight_offset, std::string_view rounding, optional<ScalarType> y_dtype) {
  Tensor y = like(x, y_dtype);
  if (run(Body::kRms, {0, eps, weight_offset, rounding}, {x, or_none(weight), y})) return y;
  return below_autograd(OPERATOR(Rms, "rms_norm_by_python"), x, weight, eps, weight_offset,
                        rounding, y_dtype);
}

Tensor layer_norm(const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias,
                  optional<double> eps, std::string_view rounding, optional<ScalarType> y_dtype) {
  Tensor y = like(x, y_dtype);
  const Options options = {1, eps, 0.0, rounding};
  if (run(Body::kLayer, options, {x, or_none(weight), or_none(bias), y})) return y;
  return below_autograd(OPERATOR(Layer, "layer_norm_by_python"), x, weight, bias, eps, rounding,
                        y_dtype);
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                        const optional<Tensor>& weight, optional<double> eps,
                                        double weight_offset, std::string_view rounding,
                                        std::string_view residual_rounding,
                                        optional<ScalarType> y_dtype) {
  Tensor y = like(x, y_dtype), total = like(residual);
  const Options options = {0, eps, weight_offset, rounding, residual_rounding};
  if (total.defined() && run(Body::kAdd, options, {x, residual, or_none(weight), y, total})) {
    return {y, total};
  }
  return below_autograd(OPERATOR(Add, "add_rms_norm_by_python"), x, residual, weight, eps,
                        weight_offset, rounding, residual_rounding, y_dtype);
}

Tensor fused_add_rms_norm(const Tensor& x, Tensor& residual, const optional<Tensor>& weight,
                          optional<double> eps, double weight_offset, std::string_view rounding,
                          std::string_view residual_rounding, optional<ScalarType> y_dtype) {
  Tensor y = like(x, y_dtype);
  const Options options = {0, eps, weight_offset, rounding, residual_rounding};
  if (residual.defined() &&
      run(Body::kFusedAdd, options, {x, residual, or_none(weight), y, residual})) {
    return y;
  }
  return below_autograd(OPERATOR(FusedAdd, "fused_add_rms_norm_by_python"), x, residual, weight,
                        eps, weight_offset, rounding, residual_rounding, y_dtype);
}

std::tuple<Tensor, Tensor> rms_norm_with_statistics(const Tensor& x, const optional<Tensor>& weight,
                                                    optional<double> eps, double weight_offset,
                                                    std::string_view rounding,
                                                    optional<ScalarType> y_dtype,
                                                    const optional<Tensor>& main_grad) {
  if (!main_grad.has_value()) {
    Tensor y = like(x, y_dtype), rstd = statistics(x);
    const Options options = {0, eps, weight_offset, rounding};
    if (run(Body::kRmsStatistics, options, {x, or_none(weight), y, rstd})) return {y, rstd};
  }
  return below_autograd(OPERATOR(RmsStatistics, "rms_norm_with_statistics_by_python"), x, weight,
                        eps, weight_offset, rounding, y_dtype, main_grad);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_with_statistics(
    const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias,
    optional<double> eps, std::string_view rounding, optional<ScalarType> y_dtype,
    const optional<Tensor>& main_grad, const optional<Tensor>& bias_main_grad) {
  if (!main_grad.has_value() && !bias_main_grad.has_value()) {
    Tensor y = like(x, y_dtype), mean = statistics(x), rstd = statistics(x);
    const Options options = {1, eps, 0.0, rounding};
    if (run(Body::kLayerStatistics, options, {x, or_none(weight), or_none(bias), y, mean, rstd})) {
      return {y, mean, rstd};
    }
  }
  return below_autograd(OPERATOR(LayerStatistics, "layer_norm_with_statistics_by_python"), x,
                        weight, bias, eps, rounding, y_dtype, main_grad, bias_main_grad);
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_with_statistics(
    const Tensor& x, const Tensor& residual, const optional<Tensor>& weight, optional<double> eps,
    double weight_offset, std::string_view rounding, std::string_view residual_rounding,
    optional<ScalarType> y_dtype, const optional<Tensor>& main_grad) {
  if (!main_grad.has_value() && residual.defined()) {
    Tensor y = like(x, y_dtype), total = like(residual), rstd = statistics(x);
    const Options options = {0, eps, weight_offset, rounding, residual_rounding};
    if (run(Body::kAddStatistics, options, {x, residual, or_none(weight), y, total, rstd})) {
      return {y, total, rstd};
    }
  }
  return below_autograd(OPERATOR(AddStatistics, "add_rms_norm_with_statistics_by_python"), x,
                        residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype,
                        main_grad);
}

// dx, dresidual, dweight and dbias, which are not defined where not wanted.
std::tuple<Tensor, Tensor, Tensor, Tensor> gradients(
    const Tensor& x, const Tensor& dy, const optional<Tensor>& weight, const optional<Tensor>& bias,
    const optional<Tensor>& mean, const optional<Tensor>& rstd,
    const optional<Tensor>& dresidual_in, int64_t kind, optional<double> eps, double weight_offset,
    std::string_view rounding, ScalarType dtype, optional<ScalarType> dresidual_dtype,
    std::array<bool, 3> wanted) {
  const auto [wants_x, wants_weight, wants_bias] = wanted;
  Tensor dx, dresidual, dweight, dbias;
  if (wants_x) dx = like(x, dtype);
  if (dresidual_dtype.has_value()) dresidual = like(x, dresidual_dtype);
  if (wants_weight && weight.has_value()) dweight = like(*weight);
  if (wants_bias && bias.has_value()) dbias = like(*bias);
  const bool complete =
      dy.defined() && wants_weight == dweight.defined() && wants_bias == dbias.defined();
  if (complete && run(Body::kBackward, {kind, eps, weight_offset, rounding},
                      {x, dy, or_none(weight), or_none(mean), or_none(rstd), or_none(dresidual_in),
                       dx, dresidual, dweight, dbias})) {
    return {dx, dresidual, dweight, dbias};
  }
  return below_autograd(OPERATOR(Backward, "norm_backward_by_python"), x, dy, weight, bias, mean,
                        rstd, dresidual_in, kind, eps, weight_offset, rounding, dtype,
                        dresidual_dtype, wanted);
}

// The operator, whose results are empty where not wanted.
std::tuple<Tensor, Tensor, Tensor, Tensor> norm_backward(
    const Tensor& x, const Tensor& dy, const optional<Tensor>& weight, const optional<Tensor>& bias,
    const optional<Tensor>& mean, const optional<Tensor>& rstd,
    const optional<Tensor>& dresidual_in, int64_t kind, optional<double> eps, double weight_offset,
    std::string_view rounding, ScalarType dtype, optional<ScalarType> dresidual_dtype,
    std::array<bool, 3> wanted) {
  auto found = gradients(x, dy, weight, bias, mean, rstd, dresidual_in, kind, eps, weight_offset,
                         rounding, dtype, dresidual_dtype, wanted);
  const auto fill = [&](auto&... t) {
    ((t.defined() ? void() : void(t = at::empty({0}, x.options()))), ...);
  };
  std::apply(fill, found);
  return found;
}

// --- autograd ---

bool has_tangent(const Tensor& t) { return t.defined() && t._fw_grad(0).defined(); }

// Whether the Python operator has to run: inside of torch.func's transforms, for forward
// derivatives, which it refuses, and where required tensors are not there.
template <typename... Inputs>
bool is_special(std::initializer_list<Tensor> required, const Inputs&... inputs) {
  for (const Tensor& t : required) {
    if (!t.defined() || has_tangent(t)) return true;
  }
  return (has_tangent(inputs) || ...) || at::functorch::maybeCurrentDynamicLayer().has_value();
}

template <typename... Inputs>
bool wants_gradient(const Inputs&... inputs) {
  return at::GradMode::is_enabled() && ((inputs.defined() && inputs.requires_grad()) || ...);
}

// The operator's kernel for the backend, or whatever stands between.
template <typename Schema, typename... Arguments>
auto below(const c10::TypedOperatorHandle<Schema>& op, Keys keys, Arguments&&... arguments) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_ADInplaceOrView_keyset,
                       std::forward<Arguments>(arguments)...);
}

// Whether a kernel for a backend is all that these keys of the dispatcher lead to, below autograd:
// no mode, no subclass, no view that is negative.
bool ends_in_backend(Keys keys) {
  const auto found = (keys & c10::after_ADInplaceOrView_keyset)
                         .remove(c10::DispatchKey::BackendSelect)
                         .highestPriorityTypeId();
  return found == c10::DispatchKey::CPU || found == c10::DispatchKey::CUDA;
}

template <typename... Tensors>
Keys keys_of(const Tensors&... tensors) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  Keys keys = local.included_;
  ((keys = tensors.defined() ? keys | tensors.key_set() : keys), ...);
  return keys - local.excluded_;
}

using torch::autograd::AutogradContext;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// What a backward needs beside tensors.
struct Saved {
  int64_t kind;
  optional<double> eps;
  double weight_offset;
  std::string_view rounding;
  ScalarType dtype;  // of x
};

// In one list, since each entry of saved_data is memory of its own. An eps of NaN is none.
constexpr char kSaved[] = "options";

void save(AutogradContext* context, const Saved& saved) {
  context->saved_data[kSaved] = std::vector<double>{
      static_cast<double>(saved.kind), saved.eps.value_or(std::numeric_limits<double>::quiet_NaN()),
      saved.weight_offset, static_cast<double>(index_of(kRoundings, saved.rounding)),
      static_cast<double>(saved.dtype)};
  context->set_materialize_grads(false);
}

Saved saved_of(AutogradContext* context) {
  const auto list = context->saved_data[kSaved].toDoubleVector();
  return {static_cast<int64_t>(list[0]),
          std::isnan(list[1]) ? std::nullopt : optional<double>(list[1]), list[2],
          kRoundings[static_cast<size_t>(list[3])], static_cast<ScalarType>(list[4])};
}

// dx, dresidual, dweight and dbias for the gradient of y, and that of the sum where it has one.
std::tuple<Tensor, Tensor, Tensor, Tensor> differentiate(const Saved& saved, const Tensor& x,
                                                         const Tensor& weight, const Tensor& bias,
                                                         const Tensor& mean, const Tensor& rstd,
                                                         const Tensor& dy, const Tensor& dtotal,
                                                         optional<ScalarType> dresidual_dtype,
                                                         std::array<bool, 3> wanted) {
  const auto given = [](const Tensor& t) {
    return t.defined() ? optional<Tensor>(t) : std::nullopt;
  };
  if (!at::GradMode::is_enabled() &&
      ends_in_backend(keys_of(x, weight, bias, mean, rstd, dy, dtotal))) {
    return gradients(x, dy, given(weight), given(bias), given(mean), given(rstd), given(dtotal),
                     saved.kind, saved.eps, saved.weight_offset, saved.rounding, saved.dtype,
                     dresidual_dtype, wanted);
  }
  return OPERATOR(Backward, "norm_backward")
      .call(x, dy, given(weight), given(bias), given(mean), given(rstd), given(dtotal), saved.kind,
            saved.eps, saved.weight_offset, saved.rounding, saved.dtype, dresidual_dtype, wanted);
}

// Which inputs want a gradient: autograd numbers those that are there.
template <size_t kCount>
std::array<bool, kCount> wanted_of(AutogradContext* context, std::array<bool, kCount> there) {
  size_t edge = 0;
  for (bool& input : there) input = input && context->needs_input_grad(edge++);
  return there;
}

Tensor if_wanted(bool wanted, const Tensor& t) { return wanted ? t : Tensor(); }

// The node of RMSNorm and LayerNorm. Function<> would keep what it needs in maps and lists.
struct NormNode : torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override {
    std::lock_guard<std::mutex> lock(mutex_);
    variable_list found(3);
    if (!gradients[0].defined()) return found;
    const Tensor of_x = x.unpack(), of_weight = weight.unpack(), of_bias = bias.unpack();
    const bool wants_x = task_should_compute_output(0);
    const bool wants_weight = of_weight.defined() && task_should_compute_output(1);
    const bool wants_bias = of_bias.defined() && task_should_compute_output(2);
    auto [dx, dresidual, dweight, dbias] =
        differentiate(saved, of_x, of_weight, of_bias, mean.unpack(), rstd.unpack(), gradients[0],
                      {}, std::nullopt, {wants_x, wants_weight, wants_bias});
    if (wants_x) found[0] = std::move(dx);
    if (wants_weight) found[1] = std::move(dweight);
    if (wants_bias) found[2] = std::move(dbias);
    return found;
  }
  std::string name() const override { return "FastnormNormBackward"; }
  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable* t : {&x, &weight, &bias, &mean, &rstd}) t->reset_data();
  }

  // For compiled autograd, which calls apply() with stand-ins to see the operator.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    for (const SavedVariable* t : {&x, &weight, &bias, &mean, &rstd}) args.collect(*t, false);
    args.collect(saved.kind);
    args.collect(saved.eps.has_value());
    args.collect(saved.eps.value_or(0.0));
    args.collect(saved.weight_offset);
    args.collect(std::string(saved.rounding));
    args.collect(saved.dtype);
  }
  variable_list apply_with_saved(const variable_list& gradients,
                                 torch::dynamo::autograd::SwapSavedVariables& swap) override {
    for (SavedVariable* t : {&x, &weight, &bias, &mean, &rstd}) swap.before(*t);
    variable_list found = apply(variable_list(gradients));
    for (SavedVariable* t : {&x, &weight, &bias, &mean, &rstd}) swap.after(*t);
    return found;
  }

  Saved saved;
  SavedVariable x, weight, bias, mean, rstd;
};

// References to a node are counted in the node itself, before PyTorch 2.15 beside it.
template <typename Made>
auto make_node() {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Made>) {
    return c10::make_intrusive<Made>();
  } else {
    // Graphs are deep: PyTorch's deleteNode(), found by its argument, does not recurse.
    return std::shared_ptr<Made>(new Made, [](Made* node) { deleteNode(node); });
  }
}

// y, whose gradient leads to these tensors. mean is not there for RMSNorm.
Tensor with_node(Tensor y, const Saved& saved, const Tensor& x, const Tensor& weight,
                 const Tensor& bias, const Tensor& mean, const Tensor& rstd) {
  auto node = make_node<NormNode>();
  node->set_next_edges(torch::autograd::collect_next_edges(x, weight, bias));
  node->saved = saved;
  // The words that options may be live longer than a node.
  node->saved.rounding = kRoundings[index_of(kRoundings, saved.rounding)];
  const auto keep = [](const Tensor& t) { return SavedVariable(t, false); };
  node->x = keep(x), node->weight = keep(weight), node->bias = keep(bias);
  node->mean = keep(mean), node->rstd = keep(rstd);
  torch::autograd::set_history(y, node);
  return y;
}

struct AddNode : torch::autograd::Function<AddNode> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& residual,
                               const optional<Tensor>& weight, optional<double> eps,
                               double weight_offset, std::string_view rounding,
                               std::string_view residual_rounding, optional<ScalarType> y_dtype) {
    auto [y, total, rstd] =
        below_autograd(OPERATOR(AddStatistics, "add_rms_norm_with_statistics"), x, residual, weight,
                       eps, weight_offset, rounding, residual_rounding, y_dtype, std::nullopt);
    save(context, {0, eps, weight_offset, rounding, x.scalar_type()});
    context->save_for_backward({total, or_none(weight), rstd});
    return {y, total};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list found(8);
    const Tensor &dy = gradients[0], &dtotal = gradients[1];
    const auto saved = context->get_saved_variables();
    const Tensor &total = saved[0], &weight = saved[1];
    const ScalarType dtype = saved_of(context).dtype;
    const auto [wants_x, wants_residual, wants_weight] =
        wanted_of<3>(context, {true, true, weight.defined()});
    if (!dy.defined()) {  // then nothing of the norm's is left
      if (!dtotal.defined()) return found;
      found[0] = if_wanted(wants_x, dtotal.to(dtype));
      found[1] = if_wanted(wants_residual, dtotal);
      if (wants_weight) found[2] = at::zeros_like(weight, at::MemoryFormat::Contiguous);
      return found;
    }
    // One gradient serves x and the residual where their dtypes agree.
    const bool own = wants_residual && total.scalar_type() != dtype;
    const auto own_dtype = own ? optional<ScalarType>(total.scalar_type()) : std::nullopt;
    auto [dx, dresidual, dweight, dbias] =
        differentiate(saved_of(context), total, weight, {}, {}, saved[2], dy, dtotal, own_dtype,
                      {wants_x || wants_residual, wants_weight, false});
    found[0] = if_wanted(wants_x, dx);
    found[1] = if_wanted(wants_residual, own ? dresidual : dx);
    found[2] = if_wanted(wants_weight, dweight);
    return found;
  }
};

Tensor rms_norm_autograd(Keys keys, const Tensor& x, const optional<Tensor>& weight,
                         optional<double> eps, double weight_offset, std::string_view rounding,
                         optional<ScalarType> y_dtype) {
  const Tensor w = or_none(weight);
  if (is_special({x}, w)) {
    return OPERATOR(Rms, "rms_norm_by_python")
        .redispatch(keys, x, weight, eps, weight_offset, rounding, y_dtype);
  }
  if (wants_gradient(x, w)) {
    auto [y, rstd] =
        ends_in_backend(keys)
            ? rms_norm_with_statistics(x, weight, eps, weight_offset, rounding, y_dtype, {})
            : below_autograd(OPERATOR(RmsStatistics, "rms_norm_with_statistics"), x, weight, eps,
                             weight_offset, rounding, y_dtype, std::nullopt);
    const Saved saved = {0, eps, weight_offset, rounding, x.scalar_type()};
    return with_node(y, saved, x, w, {}, {}, rstd);
  }
  return below(OPERATOR(Rms, "rms_norm"), keys, x, weight, eps, weight_offset, rounding, y_dtype);
}

Tensor layer_norm_autograd(Keys keys, const Tensor& x, const optional<Tensor>& weight,
                           const optional<Tensor>& bias, optional<double> eps,
                           std::string_view rounding, optional<ScalarType> y_dtype) {
  const Tensor w = or_none(weight), b = or_none(bias);
  if (is_special({x}, w, b)) {
    return OPERATOR(Layer, "layer_norm_by_python")
        .redispatch(keys, x, weight, bias, eps, rounding, y_dtype);
  }
  if (wants_gradient(x, w, b)) {
    auto [y, mean, rstd] =
        ends_in_backend(keys)
            ? layer_norm_with_statistics(x, weight, bias, eps, rounding, y_dtype, {}, {})
            : below_autograd(OPERATOR(LayerStatistics, "layer_norm_with_statistics"), x, weight,
                             bias, eps, rounding, y_dtype, std::nullopt, std::nullopt);
    return with_node(y, {1, eps, 0.0, rounding, x.scalar_type()}, x, w, b, mean, rstd);
  }
  return below(OPERATOR(Layer, "layer_norm"), keys, x, weight, bias, eps, rounding, y_dtype);
}

std::tuple<Tensor, Tensor> add_rms_norm_autograd(Keys keys, const Tensor& x, const Tensor& residual,
                                                 const optional<Tensor>& weight,
                                                 optional<double> eps, double weight_offset,
                                                 std::string_view rounding,
                                                 std::string_view residual_rounding,
                                                 optional<ScalarType> y_dtype) {
  const Tensor w = or_none(weight);
  if (is_special({x, residual}, w)) {
    return OPERATOR(Add, "add_rms_norm_by_python")
        .redispatch(keys, x, residual, weight, eps, weight_offset, rounding, residual_rounding,
                    y_dtype);
  }
  if (wants_gradient(x, residual, w)) {
    auto found = AddNode::apply(x, residual, weight, eps, weight_offset, rounding,
                                residual_rounding, y_dtype);
    return {found[0], found[1]};
  }
  return below(OPERATOR(Add, "add_rms_norm"), keys, x, residual, weight, eps, weight_offset,
               rounding, residual_rounding, y_dtype);
}

Tensor fused_add_rms_norm_autograd(Keys keys, const Tensor& x, Tensor& residual,
                                   const optional<Tensor>& weight, optional<double> eps,
                                   double weight_offset, std::string_view rounding,
                                   std::string_view residual_rounding,
                                   optional<ScalarType> y_dtype) {
  const Tensor w = or_none(weight);
  if (is_special({x, residual}, w) || wants_gradient(x, residual, w)) {
    return OPERATOR(FusedAdd, "fused_add_rms_norm_by_python")
        .redispatch(keys, x, residual, weight, eps, weight_offset, rounding, residual_rounding,
                    y_dtype);
  }
  Tensor y = below(OPERATOR(FusedAdd, "fused_add_rms_norm"), keys, x, residual, weight, eps,
                   weight_offset, rounding, residual_rounding, y_dtype);
  if (!residual.is_inference()) torch::autograd::impl::bump_version(residual);
  return y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> norm_backward_autograd(
    Keys keys, const Tensor& x, const Tensor& dy, const optional<Tensor>& weight,
    const optional<Tensor>& bias, const optional<Tensor>& mean, const optional<Tensor>& rstd,
    const optional<Tensor>& dresidual_in, int64_t kind, optional<double> eps, double weight_offset,
    std::string_view rounding, ScalarType dtype, optional<ScalarType> dresidual_dtype,
    std::array<bool, 3> wanted) {
  const Tensor w = or_none(weight), b = or_none(bias), r = or_none(dresidual_in);
  const Tensor m = or_none(mean), s = or_none(rstd);
  if (is_special({x, dy}, w, b, m, s, r) || wants_gradient(x, dy, w, b, m, s, r)) {
    return OPERATOR(Backward, "norm_backward_by_python")
        .redispatch(keys, x, dy, weight, bias, mean, rstd, dresidual_in, kind, eps, weight_offset,
                    rounding, dtype, dresidual_dtype, wanted);
  }
  return below(OPERATOR(Backward, "norm_backward"), keys, x, dy, weight, bias, mean, rstd,
               dresidual_in, kind, eps, weight_offset, rounding, dtype, dresidual_dtype, wanted);
}

void add_kernels(torch::Library& library) {
  library.impl("rms_norm", rms_norm);
  library.impl("layer_norm", layer_norm);
  library.impl("add_rms_norm", add_rms_norm);
  library.impl("fused_add_rms_norm", fused_add_rms_norm);
  library.impl("rms_norm_with_statistics", rms_norm_with_statistics);
  library.impl("layer_norm_with_statistics", layer_norm_with_statistics);
  library.impl("add_rms_norm_with_statistics", add_rms_norm_with_statistics);
  library.impl("norm_backward", norm_backward);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastnorm, CPU, library) { add_kernels(library); }
TORCH_LIBRARY_IMPL(fastnorm, CUDA, library) { add_kernels(library); }
TORCH_LIBRARY_IMPL(fastnorm, Autograd, library) {
  library.impl("rms_norm", rms_norm_autograd);
  library.impl("layer_norm", layer_norm_autograd);
  library.impl("add_rms_norm", add_rms_norm_autograd);
  library.impl("fused_add_rms_norm", fused_add_rms_norm_autograd);
  library.impl("norm_backward", norm_backward_autograd);
}

// Functions of libfastnorm and of Python, before the first call.
FASTNORM_TORCH_EXPORTED void fastnorm_torch_bind(Run norm, Run backward, StreamOf stream_of,
                                                 MakePlan make_plan, EndPlans end_plans) {
  bound.norm = norm, bound.backward = backward;
  bound.stream_of = stream_of;
  bound.make_plan = make_plan, bound.end_plans = end_plans;
}

// Python ends: nothing of it is called any more by threads that end later.
FASTNORM_TORCH_EXPORTED void fastnorm_torch_unbind() { bound.end_plans = nullptr; }

// How often these operators have called the library.
FASTNORM_TORCH_EXPORTED int64_t fastnorm_torch_runs() { return runs.load(); }

}  // namespace fastnorm_torch
