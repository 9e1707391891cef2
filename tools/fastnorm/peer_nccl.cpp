// NCCL, as far as `fastnorm peer bench --nccl` needs it: libnccl.so.2 and the driver are found at
// run time.
#include <dlfcn.h>

#include <cstring>

#include "commands.h"
#include "peer_work.h"

namespace fastnorm::tool {
namespace {

// Types of nccl.h, which all versions share.
enum NcclType : int { kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9 };
constexpr int kSum = 0;

template <typename Function>
Function find(void* library, const char* name) {
  void* const address = dlsym(library, name);
  if (address == nullptr) throw CommandError(std::string("there is no ") + name);
  return reinterpret_cast<Function>(address);
}

void* open(const char* name) {
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw CommandError(std::string("--nccl needs ") + name + ": " + dlerror());
  return library;
}

struct Nccl {
  Nccl() {
    void* const library = open("libnccl.so.2");
    get_id = find<decltype(get_id)>(library, "ncclGetUniqueId");
    init = find<decltype(init)>(library, "ncclCommInitRank");
    destroy = find<decltype(destroy)>(library, "ncclCommDestroy");
    all_reduce = find<decltype(all_reduce)>(library, "ncclAllReduce");
    text = find<decltype(text)>(library, "ncclGetErrorString");
  }
  static const Nccl& instance() {
    static const Nccl nccl;
    return nccl;
  }
  void check(int result) const {
    if (result != 0) throw CommandError(std::string("NCCL: ") + text(result));
  }

  int (*get_id)(PeerNccl::Id*);
  int (*init)(void**, int, PeerNccl::Id, int);
  int (*destroy)(void*);
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, void*);
  const char* (*text)(int);
};

// NCCL takes the thread's current device, which is that of its driver context.
void make_current(int device) {
  void* const driver = open("libcuda.so.1");
  const auto retain = find<int (*)(void**, int)>(driver, "cuDevicePrimaryCtxRetain");
  const auto set = find<int (*)(void*)>(driver, "cuCtxSetCurrent");
  void* context = nullptr;
  if (retain(&context, device) != 0 || set(context) != 0)
    throw CommandError("cuda:" + std::to_string(device) + " has no context");
}

}  // namespace

PeerNccl::Id PeerNccl::make_id() {
  Id id;
  Nccl::instance().check(Nccl::instance().get_id(&id));
  return id;
}

PeerNccl::PeerNccl(const Id& id, int ranks, int rank, int device) {
  make_current(device);
  const Nccl& nccl = Nccl::instance();
  nccl.check(nccl.init(&communicator_, ranks, id, rank));
}
PeerNccl::~PeerNccl() {
  if (communicator_ != nullptr) Nccl::instance().destroy(communicator_);
}

void PeerNccl::all_reduce(const void* from, void* to, size_t count, fastnorm_dtype dtype,
                          void* stream) {
  const int type = dtype.code == fastnorm_dtype_of(FASTNORM_DTYPE_BF16).code ? kBfloat16
                   : dtype.bits == 16                                        ? kFloat16
                                                                             : kFloat32;
  const Nccl& nccl = Nccl::instance();
  nccl.check(nccl.all_reduce(from, to, count, type, kSum, communicator_, stream));
}

}  // namespace fastnorm::tool
