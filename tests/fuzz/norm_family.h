// What norm has beside the table. Calls of peers have one, too, and every family its quantisation.
#pragma once

#include "drawer.h"

namespace fastnorm::fuzz {

class NormFamily : public Family {
 public:
  void choose(Choice* choice, Bytes& bytes) const override;
  void numbers(const CallStruct& type, void* args, Bytes& bytes) const override;
  Extents extents(const CallStruct& type, const void* args, const Field* field,
                  const Extents& in) const override;
  const char* fault(const CallStruct& type, const void* args, const Field* field,
                    const Extents& e) const override;
};

const char* quant_fault(const fastnorm_quant& q, const Extents& e);
void choose_quant(Choice* choice, Bytes& bytes);
void quant_numbers(fastnorm_quant* q, Bytes& bytes);

// What only the strides of rows, weights and codes can get wrong.
const char* layout_fault(const CallStruct& type, const void* args);

}  // namespace fastnorm::fuzz
