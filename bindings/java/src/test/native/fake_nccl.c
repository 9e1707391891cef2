/* A library that pretends to be NCCL, for NcclTest: its functions, communicators and counters. */
#include <dlfcn.h>
#include <jni.h>
#include <stdint.h>

static void* library;

JNIEXPORT jboolean JNICALL Java_dev_fastnorm_FakeNccl_open(JNIEnv* env, jclass type, jstring path) {
  const char* const text = (*env)->GetStringUTFChars(env, path, NULL);
  (void)type;
  if (text == NULL) return JNI_FALSE;
  library = dlopen(text, RTLD_NOW | RTLD_LOCAL);
  (*env)->ReleaseStringUTFChars(env, path, text);
  return library != NULL;
}

JNIEXPORT jlong JNICALL Java_dev_fastnorm_FakeNccl_find(JNIEnv* env, jclass type, jstring name) {
  const char* const text = (*env)->GetStringUTFChars(env, name, NULL);
  void* found;
  (void)type;
  if (text == NULL) return 0;
  found = dlsym(library, text);
  (*env)->ReleaseStringUTFChars(env, name, text);
  return (jlong)(uintptr_t)found;
}

/* Communicators of one group, for at most 16 ranks. */
JNIEXPORT jlongArray JNICALL Java_dev_fastnorm_FakeNccl_create(JNIEnv* env, jclass type,
                                                               jint ranks) {
  void (*create)(int, int, void**);
  void* comms[16];
  jlong addresses[16];
  jlongArray made = (*env)->NewLongArray(env, ranks);
  jint i;
  (void)type;
  if (made == NULL) return NULL;
  *(void**)&create = dlsym(library, "fake_nccl_create");
  create(ranks, 0, comms);
  for (i = 0; i < ranks; ++i) addresses[i] = (jlong)(uintptr_t)comms[i];
  (*env)->SetLongArrayRegion(env, made, 0, ranks, addresses);
  return made;
}

JNIEXPORT void JNICALL Java_dev_fastnorm_FakeNccl_destroy(JNIEnv* env, jclass type, jlong comm) {
  void (*destroy)(void* const*, int);
  void* const comms[] = {(void*)(uintptr_t)comm};
  (void)env, (void)type;
  *(void**)&destroy = dlsym(library, "fake_nccl_destroy");
  destroy(comms, 1);
}

JNIEXPORT jint JNICALL Java_dev_fastnorm_FakeNccl_calls(JNIEnv* env, jclass type, jlong comm,
                                                        jint operation) {
  int (*calls)(void*, int);
  (void)env, (void)type;
  *(void**)&calls = dlsym(library, "fake_nccl_calls");
  return calls((void*)(uintptr_t)comm, operation);
}

JNIEXPORT void JNICALL Java_dev_fastnorm_FakeNccl_fail(JNIEnv* env, jclass type, jlong comm,
                                                       jint operation) {
  void (*fail)(void*, int);
  (void)env, (void)type;
  *(void**)&fail = dlsym(library, "fake_nccl_fail");
  fail((void*)(uintptr_t)comm, operation);
}
