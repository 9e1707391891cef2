#include "check/target.h"

#include <cstdlib>
#include <stdexcept>
#include <thread>

#ifdef FASTNORM_SIMT
#include "simt/device.h"
#endif

namespace fastnorm::check {
namespace {

// The least convenient parallel_for that the contract allows: single indices, backwards, on two
// threads.
void unkind_loop(void*, int64_t n, int64_t, fastnorm_range_fn fn, void* task) {
  const int64_t half = n / 2;
  const auto backwards = [&](int64_t begin, int64_t end) {
    for (int64_t i = end; i-- > begin;) fn(task, i, i + 1);
  };
  std::thread other(backwards, half, n);
  backwards(0, half);
  other.join();
}

std::unique_ptr<Device> create(const Backend& backend, int ordinal, int threads, bool own_loop,
                               std::string* why) {
  fastnorm_context_options options = {};
  options.struct_size = sizeof options;
  options.num_threads = threads;
  if (own_loop) options.parallel_for = unkind_loop;
  std::unique_ptr<Device> device;
  Error error;
  if (backend.create(ordinal, options, &device, error) != FASTNORM_OK) {
    *why = error.text;
    return nullptr;
  }
  return device;
}

}  // namespace

Target make_cpu_target(const char* isa, std::string* why) {
  Target target;
  target.name = std::string("cpu ") + isa;
  target.options = std::string("--device cpu --isa ") + isa;
  target.host_memory = true;
  setenv("FASTNORM_CPU_ISA", isa, 1);
  const struct {
    int threads;
    bool own_loop;
  } conditions[] = {{1, false}, {3, false}, {0, true}};
  for (const auto& c : conditions) {
    std::unique_ptr<Device> device = create(cpu_backend(), 0, c.threads, c.own_loop, why);
    if (device == nullptr) {
      target.devices.clear();
      return target;
    }
    target.devices.push_back(std::move(device));
  }
  target.memory = make_cpu_memory();
  return target;
}

Target make_cuda_target(int ordinal, bool late, bool races, std::string* why) {
  Target target;
  target.name = "cuda:" + std::to_string(ordinal);
  target.options = "--device " + target.name + (races ? " --late-races" : late ? " --late" : "");
  target.cuda = true;
  target.order = ref::Order::kGpu;
  std::unique_ptr<Device> device = create(cuda_backend(), ordinal, 0, false, why);
  if (device == nullptr) return target;
  target.name += std::string(" ") + device->facts.arch->name;
  target.devices.push_back(std::move(device));
  try {
    if (late && !target.devices[0]->facts.pdl)
      throw std::runtime_error("--late needs a GPU with programmatic dependent launch");
    target.memory = late ? make_late_cuda_memory(ordinal, races) : make_cuda_memory(ordinal);
  } catch (const std::exception& e) {
    *why = e.what();
    target.devices.clear();
  }
  return target;
}

Target make_simt_target([[maybe_unused]] std::string* why) {
  Target target;
  target.name = "simt sm_90";
  target.options = "--device simt";
  target.host_memory = true;
  target.cuda = true;
  target.order = ref::Order::kGpu;
#ifdef FASTNORM_SIMT
  for (simt::Order order : {simt::Order::kForward, simt::Order::kBackward, simt::Order::kShuffled})
    target.devices.push_back(simt::make_device(order));
  target.memory = make_cpu_memory();
  target.has_kernel = simt::has_kernel;
#else
  *why = "not in this build (-Dsimt=true, no sanitizers: they do not follow fibers)";
#endif
  return target;
}

}  // namespace fastnorm::check
