/* Stands before libfastnorm (LD_PRELOAD) and fails as a sound library cannot be made to fail: with
 * the status of the environment's FAULTS_STATUS, or as the version of FAULTS_VERSION. */
#include <fastnorm/fastnorm.h>
#include <stdlib.h>

static int32_t number(const char* name, int32_t otherwise) {
  const char* text = getenv(name);
  return text != NULL ? (int32_t)atoi(text) : otherwise;
}

int32_t fastnorm_version(void) { return number("FAULTS_VERSION", FASTNORM_VERSION); }

fastnorm_status fastnorm_norm(fastnorm_context* context, const fastnorm_norm_args* args,
                              void* workspace, size_t workspace_bytes, void* stream) {
  (void)context, (void)args, (void)workspace, (void)workspace_bytes, (void)stream;
  return (fastnorm_status)number("FAULTS_STATUS", 0);
}

const char* fastnorm_last_error(void) { return "the text of a fault"; }

int32_t fastnorm_last_device_error(void) { return 702; }
