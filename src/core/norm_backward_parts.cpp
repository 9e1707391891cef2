// From a described backward call to the parts that backends run: which rows share parameters, and
// rows in that order.
#include "core/norm_backward_check.h"

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
  const auto take = [&](auto member) {
    (part->*member).stride_bytes[to] = (whole.*member).stride_bytes[from];
  };
  using D = NormBackwardDesc;
  for (RowTensor D::*t :
       {&D::dy, &D::x, &D::dresidual_in, &D::mean, &D::rstd, &D::dx, &D::dresidual})
    take(t);
  for (RowTensor NormBackwardGate::*t : {&NormBackwardGate::gate, &NormBackwardGate::dgate})
    (part->gate.*t).stride_bytes[to] = (whole.gate.*t).stride_bytes[from];
  part->gate.bias.stride_bytes[to] = whole.gate.bias.stride_bytes[from];
  for (ParameterTensor D::*t : {&D::weight, &D::dweight, &D::dbias}) take(t);
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

}  // namespace

NormBackwardParts norm_backward_parts(const NormBackwardDesc& whole, bool bias_apart) {
  NormBackwardParts parts;
  NormBackwardDesc main = whole;
  if (whole.rows == 0) {  // what is added to stays as it is
    if (main.accumulate_dweight) main.dweight = {};
    if (main.accumulate_dbias) main.dbias = {};
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
