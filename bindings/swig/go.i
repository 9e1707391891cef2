/* The raw layer of the Go bindings, package raw. go.py runs SWIG on this with a folder on the path
 * that holds words.h and go_hidden.i, the list of what the word functions replace.
 *
 * Enums are int32, sizes uintptr, and so are handles and addresses, that of the words included: cgo
 * looks through what pointers point to before each call. */
%{
#include <fastnorm/fastnorm.h>
#include <stdlib.h>
#include "words.h"

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

%typemap(gotype) void *, fastnorm_context *, const uint64_t *words "uintptr"
%typemap(in) void *, fastnorm_context *, const uint64_t *words %{ $1 = ($1_ltype)$input; %}
%typemap(out) void *, fastnorm_context * %{ $result = (uintptr_t)$1; %}

/* A plain T * would be one type with T **. */
%typemap(gotype) fastnorm_context ** "*uintptr"
%typemap(gotype) int32_t * "*int32"

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

%include "fastnorm.i"
%include "words.h"

/* --- functions whose structs hold pointers to functions, or go by value --- */

%{
static void fnb_log(void* user, int32_t level, const char* text) {
  fastnormGoLog((uintptr_t)user, level, (char*)text);
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

static fastnorm_status fnb_device_describe(int32_t device_type, int32_t device_id,
                                           fastnorm_device_info* info) {
  fastnorm_device device = {device_type, device_id};
  return fastnorm_device_describe(device, info);
}
%}
