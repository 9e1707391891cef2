// NCCL, as far as `fastnorm peer bench --nccl` needs it: libnccl.so.2 and the driver are found at
// run time.
#include "commands.h"
#include "nccl_library.h"
#include "peer_work.h"

namespace fastnorm::tool {
namespace {

struct Nccl : NcclLibrary {
  Nccl() {
    find("ncclGetUniqueId", &get_id);
    find("ncclCommInitRank", &init);
    find("ncclCommDestroy", &destroy);
    find("ncclAllReduce", &all_reduce);
  }
  static const Nccl& instance() {
    static const Nccl nccl;
    return nccl;
  }

  int (*get_id)(PeerNccl::Id*);
  int (*init)(void**, int, PeerNccl::Id, int);
  int (*destroy)(void*);
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, void*);
};

// NCCL takes the thread's current device, which is that of its driver context.
void make_current(int device) {
  const SharedLibrary driver("libcuda.so.1");
  int (*retain)(void**, int);
  int (*set)(void*);
  driver.find("cuDevicePrimaryCtxRetain", &retain);
  driver.find("cuCtxSetCurrent", &set);
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
  const Nccl& nccl = Nccl::instance();
  nccl.check(nccl.all_reduce(from, to, count, nccl_type(dtype), kNcclSum, communicator_, stream));
}

}  // namespace fastnorm::tool
