// Uses what `pkg-config fastnorm-nccl` gives: without a communicator, nobody gets a handle.
#include <cstdio>
#include <fastnorm/nccl.hpp>

int main() {
  try {
    const fastnorm::context context(fastnorm::cpu());
    fastnorm::nccl_options options;
    options.dtype = FASTNORM_DTYPE_F32;
    options.max_columns = 8;
    const fastnorm::nccl handle(context, fastnorm::cpu(), nullptr, options);
  } catch (const fastnorm::error& e) {
    std::puts(e.what());
    return e.status() == FASTNORM_ERROR_ARGUMENT ? 0 : 1;
  }
  return 1;
}
