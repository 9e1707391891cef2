/* A libfastnorm that computes nothing, for the tests of the binding: any version, any failure, and
 * needs that the real one does not have. What fake_norm does depends on eps:
 *
 *   1    logs two messages, then succeeds
 *   2    logs a message from a thread of its own, then succeeds
 *   70   and every other number of a status: fails with it
 *   512  needs a workspace of 512 bytes, which it fills */
#include <fastnorm/fastnorm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION FASTNORM_VERSION
#endif

struct fastnorm_context {
  fastnorm_context_options options;
};

static char fake_text[128];

static fastnorm_status fail(int status, const char* text) {
  snprintf(fake_text, sizeof fake_text, "%s", text);
  return (fastnorm_status)status;
}

int32_t fastnorm_version(void) { return FAKE_VERSION; }
const char* fastnorm_version_string(void) { return "fake \xf0\x9f\x90\xa2"; }
const char* fastnorm_last_error(void) { return fake_text; }
int32_t fastnorm_last_device_error(void) { return 719; }

fastnorm_status fastnorm_context_create(fastnorm_device device,
                                        const fastnorm_context_options* options,
                                        fastnorm_context** context) {
  (void)device;
  *context = (fastnorm_context*)malloc(sizeof **context);
  (*context)->options = *options;
  return FASTNORM_OK;
}

void fastnorm_context_destroy(fastnorm_context* context) {
  if (context->options.log != NULL) {
    context->options.log(context->options.log_user, FASTNORM_LOG_INFO, "destroyed");
  }
  memset(context, 0xdd, sizeof *context);
  free(context);
}

fastnorm_status fastnorm_norm_query(fastnorm_context* context, const fastnorm_norm_args* args,
                                    fastnorm_info* info) {
  (void)context;
  info->kernel = NULL;
  info->workspace_bytes = args->eps == 512.0f ? 512 : 0;
  return FASTNORM_OK;
}

static void* log_elsewhere(void* context) {
  const fastnorm_context_options* options = &((fastnorm_context*)context)->options;
  options->log(options->log_user, FASTNORM_LOG_WARNING, "from another thread");
  return NULL;
}

fastnorm_status fastnorm_norm(fastnorm_context* context, const fastnorm_norm_args* args,
                              void* workspace, size_t workspace_bytes, void* stream) {
  (void)stream;
  if (args->eps == 1.0f) {
    context->options.log(context->options.log_user, FASTNORM_LOG_DEBUG, "in a call");
    context->options.log(context->options.log_user, FASTNORM_LOG_DEBUG, "still in it");
    return FASTNORM_OK;
  }
  if (args->eps == 2.0f) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, log_elsewhere, context) != 0) return fail(80, "no thread");
    pthread_join(thread, NULL);
    return FASTNORM_OK;
  }
  if (args->eps == 512.0f) {
    if (workspace_bytes < 512) return fail(FASTNORM_ERROR_ARGUMENT, "workspace_bytes is too small");
    if ((uintptr_t)workspace % 256 != 0) return fail(FASTNORM_ERROR_ARGUMENT, "misaligned");
    memset(workspace, 0xee, workspace_bytes);
    return FASTNORM_OK;
  }
  return fail((int)args->eps, "as the \xce\xb5 says");
}
