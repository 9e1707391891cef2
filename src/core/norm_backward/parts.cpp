// From a described backward call to the parts that backends run: which rows share parameters, and
// rows in that order.
#include "core/norm_backward/check.h"
#include "core/norm_backward/tensors.h"

namespace fastnorm {
namespace {

// A bit for each leading dimension along which a tensor has rows of its own.
using Dims = unsigned;

Dims dims_of(const ParameterTensor& t, const NormBackwardDesc& d) {
  Dims dims = 0;
  for (int i = 0; i < d.outer_rank; ++i) {
    if (t && d.outer[i] != 1 && t.stride_bytes[i] != 0) dims |= 1u << i;
  }
  return dims;
}

// Dimension `from` becomes dimension `to` of the part.
void take_dimension(const NormBackwardDesc& whole, int from, int to, NormBackwardDesc* part) {
  part->outer[to] = whole.outer[from];
  const int64_t* strides[kMostBackwardTensors];
  int count = 0;
  for_each_backward_tensor(whole, [&](auto, const auto& t) {
    if constexpr (kHasStrides<std::remove_cvref_t<decltype(t)>>) strides[count++] = t.stride_bytes;
    return true;
  });
  count = 0;
  for_each_backward_tensor(*part, [&](auto, auto& t) {
    if constexpr (kHasStrides<std::remove_cvref_t<decltype(t)>>)
      t.stride_bytes[to] = strides[count++][from];
    return true;
  });
  for (RowTensor NormBackwardHeads::*t : {&NormBackwardHeads::token, &NormBackwardHeads::head})
    (part->of_heads.*t).stride_bytes[to] = (whole.of_heads.*t).stride_bytes[from];
}

// The call with the dimensions `grouped` behind the others.
NormBackwardDesc arranged(const NormBackwardDesc& whole, Dims grouped) {
  NormBackwardDesc part = whole;
  int to = 0;
  part.shared_rows = part.groups = 1;
  for (const bool group : {false, true}) {
    for (int from = 0; from < whole.outer_rank; ++from) {
      if (((grouped >> from & 1) != 0) != group) continue;
      take_dimension(whole, from, to++, &part);
      (group ? part.groups : part.shared_rows) *= whole.outer[from];
    }
    if (!group) part.shared_rank = to;
  }
  if (whole.rows == 0) part.shared_rows = 0;
  return part;
}

void add(const NormBackwardDesc& part, NormBackwardParts* parts) {
  parts->at[parts->count++] = part;
}

// Sum number i of sums_of().
ParameterTensor& sum_of(NormBackwardDesc* d, size_t i) {
  return const_cast<ParameterTensor&>(*sums_of(*d)[i]);
}

// The part without what is written for each row.
void drop_rows(NormBackwardDesc* part) {
  part->dx = part->dresidual = {};
  part->gate.dgate = part->branch.dbranch = {};
  part->gate.bias = {};
  part->in_place = false;
  if (part->branch.has_sums()) return;
  part->branch = {};
  part->dresidual_in = {};
  if (!part->dweight) part->weight = {};
}

// The parts of a call with a branch: one for each arrangement that its sums have. The last one is
// that of the first sum, and writes rows.
void add_branch_parts(const NormBackwardDesc& whole, NormBackwardParts* parts) {
  NormBackwardDesc left = whole;
  const auto sums = sums_of(whole);
  Dims last = 0;
  for (size_t i = sums.size(); i-- > 0;) {
    if (*sums[i]) last = dims_of(*sums[i], whole);
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const Dims dims = dims_of(*sums[i], whole);
    if (!sum_of(&left, i) || dims == last) continue;
    NormBackwardDesc part = left;
    for (size_t k = 0; k < sums.size(); ++k)
      sum_of(dims_of(*sums[k], whole) == dims ? &left : &part, k) = {};
    drop_rows(&part);
    add(arranged(part, dims), parts);
  }
  if (!left.branch.has_sums() && !left.writes_rows()) drop_rows(&left);
  if (left.has_sums() || left.writes_rows()) add(arranged(left, last), parts);
}

}  // namespace

NormBackwardParts norm_backward_parts(const NormBackwardDesc& whole, bool bias_apart) {
  NormBackwardParts parts;
  NormBackwardDesc main = whole;
  if (whole.rows == 0) {  // what is added to stays as it is
    NormBackwardBranch& branch = main.branch;
    if (main.accumulate_dweight) main.dweight = {};
    if (main.accumulate_dbias) main.dbias = {};
    if (branch.accumulate_dweight) branch.dweight = {};
    if (branch.accumulate_dbias) branch.dbias = {};
    if (branch.accumulate_dresidual_gate) branch.dresidual_gate = {};
  }
  if (main.branch.present) {
    add_branch_parts(main, &parts);
    return parts;
  }
  const Dims of_weight = main.dweight ? dims_of(main.dweight, main) : dims_of(main.weight, main);
  const Dims of_bias = dims_of(main.dbias, main);
  if (!main.writes_rows() && !main.dweight) {
    if (main.dbias) add(arranged(main, of_bias), &parts);
    return parts;
  }
  if (main.dbias && (bias_apart || of_bias != of_weight)) {
    NormBackwardDesc bias = main;
    bias.dx = bias.dresidual = bias.dresidual_in = {};
    bias.weight = bias.dweight = bias.gate.bias = {};
    bias.gate.dgate = {};
    bias.in_place = false;
    add(arranged(bias, of_bias), &parts);
    main.dbias = {};
  }
  add(arranged(main, of_weight), &parts);
  return parts;
}

}  // namespace fastnorm
