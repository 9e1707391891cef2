/* libfastnorm_nccl for Go and Java.
 *
 * The bindings do not need the library: it is loaded when it is first used. Its functions take
 * words in the place of descriptions, as those of words.h. Handles, communicators, streams and
 * lists of them are addresses, and so is the memory that receives results. */
#ifndef FASTNORM_BINDINGS_NCCL_CALLS_H_
#define FASTNORM_BINDINGS_NCCL_CALLS_H_

typedef fastnorm_status fnb_nccl_status; /* its text is that of fnb_nccl_last_error */

#ifndef SWIG
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fastnorm_nccl.h"
#include "words.h"

#define FNB_NCCL_SONAME "libfastnorm_nccl.so.1"

/* What nccl.py compares with the header. */
#define FNB_NCCL_FUNCTIONS(X)             \
  X(fastnorm_nccl_set_functions)          \
  X(fastnorm_nccl_version)                \
  X(fastnorm_nccl_create_all)             \
  X(fastnorm_nccl_destroy)                \
  X(fastnorm_nccl_peer)                   \
  X(fastnorm_nccl_allreduce_norm_query)   \
  X(fastnorm_nccl_allreduce_norm_prepare) \
  X(fastnorm_nccl_allreduce_norm)         \
  X(fastnorm_nccl_allreduce_norm_all)     \
  X(fastnorm_nccl_sequence_norm_query)    \
  X(fastnorm_nccl_sequence_norm_prepare)  \
  X(fastnorm_nccl_sequence_norm)          \
  X(fastnorm_nccl_sequence_norm_all)      \
  X(fastnorm_nccl_last_error)

typedef struct fnb_nccl_library {
#define FNB_NCCL_FIELD(name) __typeof__(&name) name;
  FNB_NCCL_FUNCTIONS(FNB_NCCL_FIELD)
#undef FNB_NCCL_FIELD
} fnb_nccl_library;

/* What went wrong in a call that did not reach the library; else empty. */
static __thread char fnb_nccl_failure[1024];

static fastnorm_status fnb_nccl_open(const char* path, fnb_nccl_library* loaded) {
  const char* missing = NULL;
  const char* (*version)(void) = NULL;
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char* const why = dlerror();
    snprintf(fnb_nccl_failure, sizeof fnb_nccl_failure,
             "%s cannot be loaded: %s; required: the library that -Dnccl=true builds beside "
             "libfastnorm, where the loader finds it",
             path, why != NULL ? why : "no reason");
    return FASTNORM_ERROR_UNSUPPORTED;
  }
#define FNB_NCCL_FIND(name)                         \
  *(void**)(&loaded->name) = dlsym(library, #name); \
  if (loaded->name == NULL) missing = #name;
  FNB_NCCL_FUNCTIONS(FNB_NCCL_FIND)
#undef FNB_NCCL_FIND
  if (missing != NULL) {
    snprintf(fnb_nccl_failure, sizeof fnb_nccl_failure,
             "%s has no %s; required: that of libfastnorm %d.%d.%d or later", path, missing,
             FASTNORM_VERSION_MAJOR, FASTNORM_VERSION_MINOR, FASTNORM_VERSION_PATCH);
    return FASTNORM_ERROR_UNSUPPORTED;
  }
  /* Contexts are of one copy of libfastnorm, whose texts lie in it. */
  *(void**)(&version) = dlsym(library, "fastnorm_version_string");
  if (version == NULL || version() != fastnorm_version_string()) {
    snprintf(
        fnb_nccl_failure, sizeof fnb_nccl_failure,
        "%s uses another copy of libfastnorm than this program; required: one libfastnorm.so.1 "
        "for both",
        path);
    return FASTNORM_ERROR_UNSUPPORTED;
  }
  return FASTNORM_OK;
}

/* Loads the library from that file, unless it is loaded. What is loaded stays so. */
static fastnorm_status fnb_nccl_load_from(const char* path, const fnb_nccl_library** library) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static fnb_nccl_library all;
  static int is_loaded;
  fastnorm_status status = FASTNORM_OK;
  fnb_nccl_failure[0] = '\0';
  if (!__atomic_load_n(&is_loaded, __ATOMIC_ACQUIRE)) {
    fnb_nccl_library loaded;
    pthread_mutex_lock(&mutex);
    if (!is_loaded) {
      status = fnb_nccl_open(path, &loaded);
      if (status == FASTNORM_OK) {
        all = loaded;
        __atomic_store_n(&is_loaded, 1, __ATOMIC_RELEASE);
      }
    }
    pthread_mutex_unlock(&mutex);
  }
  *library = status == FASTNORM_OK ? &all : NULL;
  return status;
}

#define FNB_NCCL_LIBRARY(name)                                                \
  const fnb_nccl_library* name;                                               \
  const fastnorm_status loading = fnb_nccl_load_from(FNB_NCCL_SONAME, &name); \
  if (loading != FASTNORM_OK) return loading

static fastnorm_status fnb_nccl_no_memory(int32_t count) {
  snprintf(fnb_nccl_failure, sizeof fnb_nccl_failure,
           "count is %d; required: memory for so many calls", (int)count);
  return FASTNORM_ERROR_OUT_OF_MEMORY;
}
#endif /* SWIG */

static inline fnb_nccl_status fnb_nccl_load(const char* path) {
  const fnb_nccl_library* library;
  return fnb_nccl_load_from(path, &library);
}

/* The text of this thread's last call here that failed. */
static inline const char* fnb_nccl_last_error(void) {
  const fnb_nccl_library* library;
  if (fnb_nccl_failure[0] != '\0') return fnb_nccl_failure;
  if (fnb_nccl_load_from(FNB_NCCL_SONAME, &library) != FASTNORM_OK) return fnb_nccl_failure;
  return library->fastnorm_nccl_last_error();
}

/* CUDA's code, where it was libfastnorm that failed: then the text is libfastnorm's. */
static inline int32_t fnb_nccl_last_device_error(void) {
  return strcmp(fnb_nccl_last_error(), fastnorm_last_error()) == 0 ? fastnorm_last_device_error()
                                                                   : 0;
}

/* `functions`: memory of `count` addresses, in the order of fastnorm_nccl_functions; NULL = NCCL is
 * looked for again. */
static inline fnb_nccl_status fnb_nccl_set_functions(void* functions, size_t count) {
  fastnorm_nccl_functions all;
  FNB_NCCL_LIBRARY(library);
  if (functions == NULL) return library->fastnorm_nccl_set_functions(NULL);
  memset(&all, 0, sizeof all);
  all.struct_size = sizeof all;
  if (count != (sizeof all - sizeof all.struct_size) / sizeof(void*)) return FNB_MALFORMED;
  memcpy(&all.get_version, functions, count * sizeof(void*));
  return library->fastnorm_nccl_set_functions(&all);
}

static inline fnb_nccl_status fnb_nccl_version(void* version) {
  FNB_NCCL_LIBRARY(library);
  return library->fastnorm_nccl_version((int32_t*)version);
}

/* The lists have `count` entries; `handles` receives as many. */
static inline fnb_nccl_status fnb_nccl_create_all(void* contexts, void* devices, void* comms,
                                                  uint32_t dtype, int32_t algorithm,
                                                  int64_t max_columns, int64_t one_shot_bytes,
                                                  int64_t wait_ns, int32_t rings, uint32_t flags,
                                                  int64_t peer_bytes, void* streams, int32_t count,
                                                  void* handles) {
  fastnorm_nccl_options options;
  FNB_NCCL_LIBRARY(library);
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.dtype = (fastnorm_dtype_id)dtype;
  options.algorithm = (fastnorm_peer_algorithm)algorithm;
  options.max_columns = max_columns;
  options.one_shot_bytes = one_shot_bytes;
  options.wait_ns = wait_ns;
  options.rings = rings;
  options.flags = flags;
  options.peer_bytes = peer_bytes;
  return library->fastnorm_nccl_create_all(
      (fastnorm_context* const*)contexts, (const fastnorm_device*)devices, (void* const*)comms,
      &options, (void* const*)streams, count, (fastnorm_nccl**)handles);
}

static inline fnb_nccl_status fnb_nccl_destroy(void* handle) {
  FNB_NCCL_LIBRARY(library);
  library->fastnorm_nccl_destroy((fastnorm_nccl*)handle);
  return FASTNORM_OK;
}

static inline fnb_nccl_status fnb_nccl_peer(void* handle, void* peer) {
  FNB_NCCL_LIBRARY(library);
  return library->fastnorm_nccl_peer((fastnorm_nccl*)handle, (fastnorm_peer**)peer);
}

/* --- all-reduce and norm --- */

static inline fnb_nccl_status fnb_nccl_allreduce_norm_query(void* handle, const uint64_t* words,
                                                            size_t word_count,
                                                            fastnorm_info* info) {
  fnb_reader reader = {words, word_count};
  fnb_peer_allreduce_norm_call call;
  FNB_NCCL_LIBRARY(library);
  if (!fnb_read_peer_allreduce_norm(&reader, &call) || reader.left != 0) return FNB_MALFORMED;
  return library->fastnorm_nccl_allreduce_norm_query((fastnorm_nccl*)handle, &call.args, info);
}

static inline fnb_nccl_status fnb_nccl_allreduce_norm_prepare(void* handle, const uint64_t* words,
                                                              size_t word_count) {
  fnb_reader reader = {words, word_count};
  fnb_peer_allreduce_norm_call call;
  FNB_NCCL_LIBRARY(library);
  if (!fnb_read_peer_allreduce_norm(&reader, &call) || reader.left != 0) return FNB_MALFORMED;
  return library->fastnorm_nccl_allreduce_norm_prepare((fastnorm_nccl*)handle, &call.args);
}

static inline fnb_nccl_status fnb_nccl_allreduce_norm(void* handle, const uint64_t* words,
                                                      size_t word_count, void* workspace,
                                                      size_t workspace_bytes, void* stream) {
  fnb_reader reader = {words, word_count};
  fnb_peer_allreduce_norm_call call;
  FNB_NCCL_LIBRARY(library);
  if (!fnb_read_peer_allreduce_norm(&reader, &call) || reader.left != 0) return FNB_MALFORMED;
  return library->fastnorm_nccl_allreduce_norm((fastnorm_nccl*)handle, &call.args, workspace,
                                               workspace_bytes, stream);
}

/* `words` has `count` descriptions, one after the other. */
static inline fnb_nccl_status fnb_nccl_allreduce_norm_all(void* handles, const uint64_t* words,
                                                          size_t word_count, void* workspaces,
                                                          size_t workspace_bytes, void* streams,
                                                          int32_t count) {
  typedef struct one {
    fnb_peer_allreduce_norm_call call;
    const fastnorm_peer_allreduce_norm_args* args;
  } one;
  fnb_reader reader = {words, word_count};
  const size_t ranks = count > 0 ? (size_t)count : 0;
  one* calls;
  const fastnorm_peer_allreduce_norm_args** list;
  fastnorm_status status = FNB_MALFORMED;
  size_t i = 0;
  FNB_NCCL_LIBRARY(library);
  calls = (one*)malloc((ranks + 1) * sizeof *calls);
  list = (const fastnorm_peer_allreduce_norm_args**)malloc((ranks + 1) * sizeof *list);
  if (calls == NULL || list == NULL) status = fnb_nccl_no_memory(count);
  while (calls != NULL && list != NULL && i < ranks &&
         fnb_read_peer_allreduce_norm(&reader, &calls[i].call)) {
    list[i] = &calls[i].call.args;
    ++i;
  }
  if (calls != NULL && list != NULL && i == ranks && reader.left == 0) {
    status = library->fastnorm_nccl_allreduce_norm_all((fastnorm_nccl* const*)handles, list,
                                                       (void* const*)workspaces, workspace_bytes,
                                                       (void* const*)streams, count);
  }
  free(calls);
  free((void*)list);
  return status;
}

/* --- sequence parallel: `words` describe norms --- */

#ifndef SWIG
typedef struct fnb_nccl_sequence {
  fnb_norm_call norm;
  fastnorm_nccl_sequence_norm_args args;
} fnb_nccl_sequence;

static int fnb_read_nccl_sequence(fnb_reader* reader, int32_t gather, fnb_nccl_sequence* call) {
  if (!fnb_read_norm(reader, &call->norm)) return 0;
  memset(&call->args, 0, sizeof call->args);
  call->args.struct_size = sizeof call->args;
  call->args.norm = &call->norm.args;
  call->args.gather = gather;
  return 1;
}
#endif /* SWIG */

static inline fnb_nccl_status fnb_nccl_sequence_norm_query(void* handle, int32_t gather,
                                                           const uint64_t* words, size_t word_count,
                                                           fastnorm_info* info) {
  fnb_reader reader = {words, word_count};
  fnb_nccl_sequence call;
  FNB_NCCL_LIBRARY(library);
  if (!fnb_read_nccl_sequence(&reader, gather, &call) || reader.left != 0) return FNB_MALFORMED;
  return library->fastnorm_nccl_sequence_norm_query((fastnorm_nccl*)handle, &call.args, info);
}

static inline fnb_nccl_status fnb_nccl_sequence_norm_prepare(void* handle, int32_t gather,
                                                             const uint64_t* words,
                                                             size_t word_count) {
  fnb_reader reader = {words, word_count};
  fnb_nccl_sequence call;
  FNB_NCCL_LIBRARY(library);
  if (!fnb_read_nccl_sequence(&reader, gather, &call) || reader.left != 0) return FNB_MALFORMED;
  return library->fastnorm_nccl_sequence_norm_prepare((fastnorm_nccl*)handle, &call.args);
}

static inline fnb_nccl_status fnb_nccl_sequence_norm(void* handle, int32_t gather,
                                                     const uint64_t* words, size_t word_count,
                                                     void* workspace, size_t workspace_bytes,
                                                     void* stream) {
  fnb_reader reader = {words, word_count};
  fnb_nccl_sequence call;
  FNB_NCCL_LIBRARY(library);
  if (!fnb_read_nccl_sequence(&reader, gather, &call) || reader.left != 0) return FNB_MALFORMED;
  return library->fastnorm_nccl_sequence_norm((fastnorm_nccl*)handle, &call.args, workspace,
                                              workspace_bytes, stream);
}

/* `words` has `count` descriptions, one after the other; `gathers` as many int32_t. */
static inline fnb_nccl_status fnb_nccl_sequence_norm_all(void* handles, void* gathers,
                                                         const uint64_t* words, size_t word_count,
                                                         void* workspaces, size_t workspace_bytes,
                                                         void* streams, int32_t count) {
  fnb_reader reader = {words, word_count};
  const size_t ranks = count > 0 ? (size_t)count : 0;
  fnb_nccl_sequence* calls;
  const fastnorm_nccl_sequence_norm_args** list;
  fastnorm_status status = FNB_MALFORMED;
  size_t i = 0;
  FNB_NCCL_LIBRARY(library);
  calls = (fnb_nccl_sequence*)malloc((ranks + 1) * sizeof *calls);
  list = (const fastnorm_nccl_sequence_norm_args**)malloc((ranks + 1) * sizeof *list);
  if (calls == NULL || list == NULL) status = fnb_nccl_no_memory(count);
  while (calls != NULL && list != NULL && i < ranks &&
         fnb_read_nccl_sequence(&reader, ((const int32_t*)gathers)[i], &calls[i])) {
    list[i] = &calls[i].args;
    ++i;
  }
  if (calls != NULL && list != NULL && i == ranks && reader.left == 0) {
    status = library->fastnorm_nccl_sequence_norm_all((fastnorm_nccl* const*)handles, list,
                                                      (void* const*)workspaces, workspace_bytes,
                                                      (void* const*)streams, count);
  }
  free(calls);
  free((void*)list);
  return status;
}

#endif /* FASTNORM_BINDINGS_NCCL_CALLS_H_ */
