/* libfastnorm for Java: package-private classes Raw and RawJNI, and the C code behind them.
 *
 * Calls go through the functions of words.h. What users see is written by hand over Raw. java.py
 * lists in wrapped.i what else follows from the headers: handles, structs that the library fills
 * in, and what is not wrapped because words.h or the functions below replace it. */
%module(moduleimports="") Raw

%include "enumtypeunsafe.swg"
%javaconst(1);

/* Classes of the package, without finalizers. These lines must follow enumtypeunsafe.swg. */
%typemap(javaclassmodifiers) SWIGTYPE, SWIGTYPE *, SWIGTYPE &, SWIGTYPE [] "final class"
%typemap(javaclassmodifiers) enum SWIGTYPE "final class"
%typemap(javafinalize) SWIGTYPE ""
%pragma(java) moduleclassmodifiers="final class"
%pragma(java) jniclassclassmodifiers="final class"

/* --- numbers --- */

/* Not from stdint.i, which takes int64_t for C's long long or for Java's int, as a macro has it. */
%apply int { int32_t, uint32_t };
%apply long long { int64_t, uint64_t, size_t };

/* Addresses and handles are numbers. */
%define NUMBER(type...)
%typemap(jni) type "jlong"
%typemap(jtype) type "long"
%typemap(jstype) type "long"
%typemap(javain) type "$javainput"
%typemap(javaout) type { return $jnicall; }
%typemap(in) type %{ $1 = ($1_ltype)(uintptr_t)$input; %}
%typemap(out) type %{ $result = (jlong)(uintptr_t)$1; %}
%enddef
NUMBER(void *)

/* --- texts: bytes, since Java's own UTF-8 is another one --- */

%typemap(jni) const char *, char [ANY] "jbyteArray"
%typemap(jtype) const char *, char [ANY] "byte[]"
%typemap(jstype) const char *, char [ANY] "String"
%typemap(javaout) const char *, char [ANY] { return Text.of($jnicall); }
%typemap(javain) const char * "Text.bytes($javainput)"
%typemap(in) const char * %{
  $1 = $input == NULL ? NULL : (char *)(*jenv)->GetByteArrayElements(jenv, $input, NULL);
  if ($1 == NULL && $input != NULL) return $null; %}
%typemap(freearg) const char * %{
  if ($1 != NULL) (*jenv)->ReleaseByteArrayElements(jenv, $input, (jbyte *)$1, JNI_ABORT); %}
%typemap(out) const char * %{ $result = fnj_bytes(jenv, $1, $1 == NULL ? 0 : strlen($1)); %}
%typemap(out) char [ANY] %{ $result = fnj_bytes(jenv, $1, fnj_length($1, $1_dim0)); %}

/* --- failures: thrown in the call that found them, while the text is this thread's last --- */

%typemap(out) fastnorm_status %{
  if ($1 != FASTNORM_OK) fnj_throw(jenv, $1);
  $result = (jint)$1; %}

%typemap(out) fnb_nccl_status %{
  if ($1 != FASTNORM_OK) fnj_nccl_throw(jenv, $1);
  $result = (jint)$1; %}

/* --- lists of words: copied, so that the collector is never held up --- */

%typemap(jni) (const uint64_t *words, size_t word_count) "jlongArray"
%typemap(jtype) (const uint64_t *words, size_t word_count) "long[]"
%typemap(jstype) (const uint64_t *words, size_t word_count) "long[]"
%typemap(javain) (const uint64_t *words, size_t word_count) "$javainput"
%typemap(in) (const uint64_t *words, size_t word_count) {
  const jsize count = (*jenv)->GetArrayLength(jenv, $input);
  if (count > FNJ_MAX_WORDS) {
    fnj_throw(jenv, FNB_MALFORMED);
    return $null;
  }
  jlong *copy = (jlong *)__builtin_alloca((size_t)count * sizeof *copy);
  (*jenv)->GetLongArrayRegion(jenv, $input, 0, count, copy);
  $1 = ($1_ltype)copy;
  $2 = (size_t)count;
}

/* --- objects of Java --- */

/* NUMBER for each handle; must come before the functions below. */
%include "wrapped.i"

%typemap(in, numinputs=0) JNIEnv *jenv %{ $1 = jenv; %}
%typemap(jtype) jobject buffer "java.nio.Buffer"
%typemap(jstype) jobject buffer "java.nio.Buffer"
%typemap(jtype) jobject sink "LogSink"
%typemap(jstype) jobject sink "LogSink"

%{
#include <fastnorm/fastnorm.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_calls.h"
#include "words.h"

/* More than any call has: the decoder finds out the rest. */
enum { FNJ_MAX_WORDS = 4096 };

static jclass fnj_exception, fnj_delivery;
static jmethodID fnj_exception_new, fnj_deliver;

static jclass fnj_class(JNIEnv *env, const char *name) {
  jclass local = (*env)->FindClass(env, name);
  return local == NULL ? NULL : (jclass)(*env)->NewGlobalRef(env, local);
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved) {
  JNIEnv *env = NULL;
  (void)reserved;
  if ((*vm)->GetEnv(vm, (void **)&env, JNI_VERSION_10) != JNI_OK) return JNI_ERR;
  fnj_exception = fnj_class(env, "dev/fastnorm/FastnormException");
  if (fnj_exception == NULL) return JNI_ERR;
  fnj_delivery = fnj_class(env, "dev/fastnorm/LogDelivery");
  if (fnj_delivery == NULL) return JNI_ERR;
  fnj_exception_new = (*env)->GetMethodID(env, fnj_exception, "<init>", "(I[BI)V");
  if (fnj_exception_new == NULL) return JNI_ERR;
  fnj_deliver = (*env)->GetStaticMethodID(env, fnj_delivery, "deliver", "(Ldev/fastnorm/LogSink;I[B)V");
  return fnj_deliver == NULL ? JNI_ERR : JNI_VERSION_10;
}

JNIEXPORT void JNICALL JNI_OnUnload(JavaVM *vm, void *reserved) {
  JNIEnv *env = NULL;
  (void)reserved;
  if ((*vm)->GetEnv(vm, (void **)&env, JNI_VERSION_10) != JNI_OK) return;
  (*env)->DeleteGlobalRef(env, fnj_exception);
  (*env)->DeleteGlobalRef(env, fnj_delivery);
}

static size_t fnj_length(const char *text, size_t most) {
  const char *end = (const char *)memchr(text, 0, most);
  return end == NULL ? most : (size_t)(end - text);
}

/* NULL for a NULL text, and with an exception pending where memory ran out. */
static jbyteArray fnj_bytes(JNIEnv *env, const char *text, size_t length) {
  jbyteArray bytes;
  if (text == NULL) return NULL;
  bytes = (*env)->NewByteArray(env, (jsize)length);
  if (bytes != NULL) (*env)->SetByteArrayRegion(env, bytes, 0, (jsize)length, (const jbyte *)text);
  return bytes;
}

static void fnj_throw_text(JNIEnv *env, fastnorm_status status, const char *text, jint device_error) {
  jbyteArray bytes;
  jobject exception;
  if (status == FNB_MALFORMED) {
    jclass error = (*env)->FindClass(env, "java/lang/AssertionError");
    if (error != NULL) (*env)->ThrowNew(env, error, "the binding made a malformed list of words");
    return;
  }
  bytes = fnj_bytes(env, text, strlen(text));
  if (bytes == NULL) return;
  exception = (*env)->NewObject(env, fnj_exception, fnj_exception_new, (jint)status, bytes, device_error);
  if (exception != NULL) (*env)->Throw(env, (jthrowable)exception);
}

static void fnj_throw(JNIEnv *env, fastnorm_status status) {
  fnj_throw_text(env, status, fastnorm_last_error(), fastnorm_last_device_error());
}

static void fnj_nccl_throw(JNIEnv *env, fastnorm_status status) {
  fnj_throw_text(env, status, fnb_nccl_last_error(), fnb_nccl_last_device_error());
}

/* --- log --- */

typedef struct fnj_sink {
  JavaVM *vm;
  jobject object; /* a LogSink */
} fnj_sink;

static void fnj_log(void *user, int32_t level, const char *text) {
  const fnj_sink *sink = (const fnj_sink *)user;
  JavaVM *vm = sink->vm;
  JNIEnv *env = NULL;
  jbyteArray bytes;
  const int foreign = (*vm)->GetEnv(vm, (void **)&env, JNI_VERSION_10) != JNI_OK;
  if (foreign && (*vm)->AttachCurrentThreadAsDaemon(vm, (void **)&env, NULL) != JNI_OK) return;
  bytes = fnj_bytes(env, text, strlen(text));
  if (bytes != NULL) {
    (*env)->CallStaticVoidMethod(env, fnj_delivery, fnj_deliver, sink->object, (jint)level, bytes);
  }
  if ((*env)->ExceptionCheck(env)) (*env)->ExceptionClear(env);
  if (bytes != NULL) (*env)->DeleteLocalRef(env, bytes);
  if (foreign) (*vm)->DetachCurrentThread(vm);
}

/* --- peers --- */

static fastnorm_peer_options fnj_peer_options(int32_t rank, int32_t ranks, int32_t dtype, int32_t algorithm,
                                              int64_t max_columns, int64_t one_shot_bytes, int64_t wait_ns,
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
/* Address of a direct buffer's first byte; 0 if the buffer is not direct. */
static void *fnj_buffer_address(JNIEnv *jenv, jobject buffer) {
  return (*jenv)->GetDirectBufferAddress(jenv, buffer);
}

/* Runs a call some of whose tensors lie in arrays of the Java heap. HeapArrays.java says what stands
 * for their addresses. Between the first GetPrimitiveArrayCritical and the last release nothing
 * calls Java: the library logs only when a context is made. */
static fastnorm_status fnj_run_arrays(JNIEnv *jenv, int32_t function, fastnorm_context *context, jlongArray list,
                                      int32_t parts, jobjectArray arrays, jlongArray at, void *workspace,
                                      size_t workspace_bytes, void *stream) {
  const jsize count = (*jenv)->GetArrayLength(jenv, list);
  const jsize array_count = (*jenv)->GetArrayLength(jenv, arrays), place_count = (*jenv)->GetArrayLength(jenv, at);
  fastnorm_status status = FNB_MALFORMED;
  jlong *words, *places;
  jarray *objects;
  void **addresses;
  uint64_t *call;
  jsize held = 0, i;
  if (count > FNJ_MAX_WORDS || array_count > place_count || place_count > count) return FNB_MALFORMED;
  words = (jlong *)__builtin_alloca((size_t)count * sizeof *words);
  places = (jlong *)__builtin_alloca((size_t)place_count * sizeof *places);
  objects = (jarray *)__builtin_alloca((size_t)array_count * sizeof *objects);
  addresses = (void **)__builtin_alloca((size_t)array_count * sizeof *addresses);
  (*jenv)->GetLongArrayRegion(jenv, list, 0, count, words);
  (*jenv)->GetLongArrayRegion(jenv, at, 0, place_count, places);
  for (i = 0; i < array_count; ++i) objects[i] = (jarray)(*jenv)->GetObjectArrayElement(jenv, arrays, i);
  for (; held < array_count; ++held) {
    addresses[held] = (*jenv)->GetPrimitiveArrayCritical(jenv, objects[held], NULL);
    if (addresses[held] == NULL) break;
  }
  call = (uint64_t *)words;
  for (i = 0; i < place_count && held == array_count; ++i) {
    const uint32_t place = (uint32_t)places[i], array = (uint32_t)((uint64_t)places[i] >> 32);
    if (place >= (uint32_t)count || array >= (uint32_t)array_count) break;
    call[place] += (uint64_t)(uintptr_t)addresses[array] - ((uint64_t)(array + 1) << 44);
  }
  if (i == place_count && held == array_count) {
    switch (function) {
      case 0: status = fnb_norm(context, call, (size_t)count, workspace, workspace_bytes, stream); break;
      case 1: status = fnb_norm_many(context, call, (size_t)count, parts, workspace, workspace_bytes, stream); break;
      case 2: status = fnb_norm_backward(context, call, (size_t)count, workspace, workspace_bytes, stream); break;
      case 3:
        status = fnb_norm_backward_many(context, call, (size_t)count, parts, workspace, workspace_bytes, stream);
        break;
      case 4: status = fnb_norm_heads(context, call, (size_t)count, parts, workspace, workspace_bytes, stream); break;
      case 5:
        status = fnb_norm_heads_backward(context, call, (size_t)count, parts, workspace, workspace_bytes, stream);
        break;
      case 6: status = fnb_mla_decode(context, call, (size_t)count, workspace, workspace_bytes, stream); break;
      default: break;
    }
  }
  while (held-- > 0) (*jenv)->ReleasePrimitiveArrayCritical(jenv, objects[held], addresses[held], 0);
  for (i = 0; i < array_count; ++i) (*jenv)->DeleteLocalRef(jenv, objects[i]);
  /* Where an array could not be held, Java's error is pending. */
  return (*jenv)->ExceptionCheck(jenv) ? FASTNORM_OK : status;
}

static void *fnj_sink_create(JNIEnv *jenv, jobject sink) {
  fnj_sink *made = (fnj_sink *)calloc(1, sizeof *made);
  jclass error;
  if (made != NULL && (*jenv)->GetJavaVM(jenv, &made->vm) == JNI_OK) made->object = (*jenv)->NewGlobalRef(jenv, sink);
  if (made != NULL && made->object != NULL) return made;
  free(made);
  if (!(*jenv)->ExceptionCheck(jenv)) {
    error = (*jenv)->FindClass(jenv, "java/lang/OutOfMemoryError");
    if (error != NULL) (*jenv)->ThrowNew(jenv, error, "no native memory for a log sink");
  }
  return NULL;
}

static void fnj_sink_destroy(JNIEnv *jenv, void *address) {
  (*jenv)->DeleteGlobalRef(jenv, ((fnj_sink *)address)->object);
  free(address);
}

static fastnorm_context *fnj_context_create(JNIEnv *jenv, int32_t device_type, int32_t device_id, int32_t num_threads,
                                            uint32_t flags, int32_t dry_run_capability, const char *tuning_file,
                                            void *address_of_sink) {
  const fastnorm_device device = {device_type, device_id};
  fastnorm_context_options options = {0};
  fastnorm_context *context = NULL;
  fastnorm_status status;
  options.struct_size = sizeof options;
  options.num_threads = num_threads;
  options.flags = flags;
  options.dry_run_capability = dry_run_capability;
  options.tuning_file = tuning_file;
  options.log = address_of_sink == NULL ? NULL : fnj_log;
  options.log_user = address_of_sink;
  status = fastnorm_context_create(device, &options, &context);
  if (status != FASTNORM_OK) fnj_throw(jenv, status);
  return context;
}

static int32_t fnj_device_count(JNIEnv *jenv, int32_t device_type) {
  int32_t count = 0;
  const fastnorm_status status = fastnorm_device_count(device_type, &count);
  if (status != FASTNORM_OK) fnj_throw(jenv, status);
  return count;
}

/* Fills `events`, memory of `capacity` structs fastnorm_profile_event; how many there are. */
static int64_t fnj_profile_decode(JNIEnv *jenv, void *buffer, int64_t bytes, void *events, int64_t capacity) {
  size_t count = 0;
  const fastnorm_status status = fastnorm_profile_decode(buffer, (size_t)bytes, (fastnorm_profile_event *)events,
                                                         (size_t)capacity, &count);
  if (status != FASTNORM_OK) fnj_throw(jenv, status);
  return (int64_t)count;
}

static fastnorm_status fnj_device_describe(int32_t device_type, int32_t device_id, fastnorm_device_info *info) {
  const fastnorm_device device = {device_type, device_id};
  return fastnorm_device_describe(device, info);
}

/* `buffers`: memory of `count` addresses, or NULL for a peer with a buffer of its own. */
static fastnorm_peer *fnj_peer_create(JNIEnv *jenv, fastnorm_context *context, int32_t rank, int32_t ranks,
                                      int32_t dtype, int32_t algorithm, int64_t max_columns, int64_t one_shot_bytes,
                                      int64_t wait_ns, int32_t rings, void *buffers, int32_t count) {
  const fastnorm_peer_options options =
      fnj_peer_options(rank, ranks, dtype, algorithm, max_columns, one_shot_bytes, wait_ns, rings);
  fastnorm_peer *peer = NULL;
  const fastnorm_status status =
      buffers == NULL ? fastnorm_peer_create(context, &options, &peer)
                      : fastnorm_peer_create_from_pointers(context, &options, (void *const *)buffers, count, &peer);
  if (status != FASTNORM_OK) fnj_throw(jenv, status);
  return peer;
}

static int64_t fnj_peer_buffer_bytes(JNIEnv *jenv, fastnorm_context *context, int32_t rank, int32_t ranks,
                                     int32_t dtype, int32_t algorithm, int64_t max_columns, int64_t one_shot_bytes,
                                     int64_t wait_ns, int32_t rings) {
  const fastnorm_peer_options options =
      fnj_peer_options(rank, ranks, dtype, algorithm, max_columns, one_shot_bytes, wait_ns, rings);
  uint64_t bytes = 0;
  const fastnorm_status status = fastnorm_peer_buffer_bytes(context, &options, &bytes);
  if (status != FASTNORM_OK) fnj_throw(jenv, status);
  return (int64_t)bytes;
}

/* The error in the low 8 bits, connected in the next, the rank plus 1 above. */
static int32_t fnj_peer_state(JNIEnv *jenv, fastnorm_peer *peer) {
  fastnorm_peer_state state = {0};
  fastnorm_status status;
  state.struct_size = sizeof state;
  status = fastnorm_peer_status(peer, &state);
  if (status != FASTNORM_OK) fnj_throw(jenv, status);
  return (int32_t)state.error | state.connected << 8 | (state.rank + 1) << 9;
}

static int64_t fnj_peer_calls(JNIEnv *jenv, fastnorm_peer *peer) {
  fastnorm_peer_state state = {0};
  fastnorm_status status;
  state.struct_size = sizeof state;
  status = fastnorm_peer_status(peer, &state);
  if (status != FASTNORM_OK) fnj_throw(jenv, status);
  return (int64_t)state.calls;
}
%}

%include "words.h"
%include "nccl_calls.h"
%include "fastnorm.i"
