/* The raw layer of the Go bindings, package raw. go.py runs SWIG on this with a folder on the path
 * that holds words.h and go_hidden.i, the list of what the word functions replace.
 *
 * Enums are int32, sizes uintptr, and so are handles and addresses, that of the words included: cgo
 * looks through what pointers point to before each call. */
%{
#include <fastnorm/fastnorm.h>
#include <stdlib.h>
#include "words.h"
#include "nccl_calls.h"

/* Exported by log.go. */
extern void fastnormGoLog(uintptr_t handle, int32_t level, char* text);
%}

/* --- types --- */

%apply signed char { int8_t };
%apply unsigned char { uint8_t };
%apply short { int16_t };
%apply unsigned short { uint16_t };
%apply int { int32_t };
%apply unsigned int { uint32_t };
%apply long long { int64_t };
%apply unsigned long long { uint64_t };
%typemap(gotype) int32_t, const int32_t & "int32"
%typemap(gotype) uint32_t, const uint32_t & "uint32"

%typemap(gotype) size_t, uintptr_t "uintptr"
%typemap(in) size_t, uintptr_t %{ $1 = ($1_ltype)$input; %}
%typemap(out) size_t, uintptr_t %{ $result = (uintptr_t)$1; %}

%typemap(gotype) enum SWIGTYPE "int32"
%typemap(in) enum SWIGTYPE %{ $1 = ($1_ltype)$input; %}
%typemap(out) enum SWIGTYPE %{ $result = (int32_t)$1; %}

%typemap(gotype) void *, fastnorm_context *, fastnorm_peer *, const fastnorm_peer *,
                 const uint64_t *words "uintptr"
%typemap(in) void *, fastnorm_context *, fastnorm_peer *, const fastnorm_peer *,
             const uint64_t *words %{ $1 = ($1_ltype)$input; %}
%typemap(out) void *, fastnorm_context *, fastnorm_peer * %{ $result = (uintptr_t)$1; %}

/* A plain T * would be one type with T **. */
%typemap(gotype) fastnorm_context **, fastnorm_peer ** "*uintptr"
%typemap(gotype) int32_t * "*int32"
%typemap(gotype) uint64_t *bytes "*uint64"

/* --- what is bound --- */

%immutable;
%rename("$ignore", %$isenumitem) "";
%rename("$ignore", %$isenum) "";
%rename("$ignore", %$isconstant) "";
%include "go_hidden.i"

/* Structs that the library fills in. */
%define FNB_FILLED(name)
%extend name {
  name() {
    name* self = (name*)calloc(1, sizeof(name));
    if (self != NULL) self->struct_size = sizeof(name);
    return self;
  }
}
%ignore name::struct_size;
%enddef
FNB_FILLED(fastnorm_info)
FNB_FILLED(fastnorm_device_info)
FNB_FILLED(fastnorm_kernel_info)
FNB_FILLED(fastnorm_peer_state)
%ignore fastnorm_peer_state::reserved;

%include "fastnorm.i"
%include "words.h"
%include "nccl_calls.h"

/* --- functions whose structs hold pointers to functions, or go by value --- */

%{
static void fnb_log(void* user, int32_t level, const char* text) {
  fastnormGoLog((uintptr_t)user, level, (char*)text);
}

static fastnorm_peer_options fnb_peer_options(int32_t rank, int32_t ranks, uint32_t dtype,
                                              int32_t algorithm, int64_t max_columns,
                                              int64_t one_shot_bytes, int64_t wait_ns,
                                              int32_t rings) {
  fastnorm_peer_options options = {0};
  options.struct_size = sizeof options;
  options.rank = rank;
  options.ranks = ranks;
  options.dtype = (fastnorm_dtype_id)dtype;
  options.algorithm = (fastnorm_peer_algorithm)algorithm;
  options.max_columns = max_columns;
  options.one_shot_bytes = one_shot_bytes;
  options.wait_ns = wait_ns;
  options.rings = rings;
  return options;
}
%}

%inline %{
static fastnorm_status fnb_context_create(int32_t device_type, int32_t device_id, int32_t num_threads,
                                          uint32_t flags, int32_t dry_run_capability,
                                          const char* tuning_file, uintptr_t log_handle,
                                          fastnorm_context** context) {
  fastnorm_device device = {device_type, device_id};
  fastnorm_context_options options = {0};
  options.struct_size = sizeof options;
  options.num_threads = num_threads;
  options.flags = flags;
  options.dry_run_capability = dry_run_capability;
  if (tuning_file[0] != '\0') options.tuning_file = tuning_file;
  if (log_handle != 0) {
    options.log = fnb_log;
    options.log_user = (void*)log_handle;
  }
  return fastnorm_context_create(device, &options, context);
}

/* The events go to memory of `capacity` structs fastnorm_profile_event, their number to a
 * size_t. */
static fastnorm_status fnb_profile_decode(void* buffer, size_t bytes, void* events, size_t capacity,
                                          void* count) {
  return fastnorm_profile_decode(buffer, bytes, (fastnorm_profile_event*)events, capacity,
                                 (size_t*)count);
}

/* `buffers`: memory of `count` addresses; NULL = a peer with a buffer of its own. */
static fastnorm_status fnb_peer_create(fastnorm_context* context, int32_t rank, int32_t ranks,
                                       uint32_t dtype, int32_t algorithm, int64_t max_columns,
                                       int64_t one_shot_bytes, int64_t wait_ns, int32_t rings,
                                       void* buffers, int32_t count, fastnorm_peer** peer) {
  const fastnorm_peer_options options = fnb_peer_options(rank, ranks, dtype, algorithm, max_columns,
                                                         one_shot_bytes, wait_ns, rings);
  if (buffers == NULL) return fastnorm_peer_create(context, &options, peer);
  return fastnorm_peer_create_from_pointers(context, &options, (void* const*)buffers, count, peer);
}
static fastnorm_status fnb_peer_buffer_bytes(fastnorm_context* context, int32_t rank, int32_t ranks,
                                             uint32_t dtype, int32_t algorithm, int64_t max_columns,
                                             int64_t one_shot_bytes, int64_t wait_ns, int32_t rings,
                                             uint64_t* bytes) {
  const fastnorm_peer_options options = fnb_peer_options(rank, ranks, dtype, algorithm, max_columns,
                                                         one_shot_bytes, wait_ns, rings);
  return fastnorm_peer_buffer_bytes(context, &options, bytes);
}

static fastnorm_status fnb_device_describe(int32_t device_type, int32_t device_id,
                                           fastnorm_device_info* info) {
  fastnorm_device device = {device_type, device_id};
  return fastnorm_device_describe(device, info);
}
%}
