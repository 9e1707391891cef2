/* The public headers of libfastnorm 0.2.0, written by old.py: a promise, never changed after its release. */

#ifndef FASTNORM_VERSION_H_
#define FASTNORM_VERSION_H_

#include <stddef.h>
#include <stdint.h>

#define FASTNORM_VERSION_MAJOR 0
#define FASTNORM_VERSION_MINOR 2
#define FASTNORM_VERSION_PATCH 0

#define FASTNORM_VERSION \
  (FASTNORM_VERSION_MAJOR * 10000 + FASTNORM_VERSION_MINOR * 100 + FASTNORM_VERSION_PATCH)

#if defined(__GNUC__)
#define FASTNORM_API __attribute__((visibility("default")))
#else
#define FASTNORM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

FASTNORM_API int32_t fastnorm_version(void);

FASTNORM_API const char* fastnorm_version_string(void);

FASTNORM_API const char* fastnorm_build_info(void);

FASTNORM_API int32_t fastnorm_numeric_version(void);

#ifdef __cplusplus
}
#endif

#endif

#ifndef FASTNORM_STATUS_H_
#define FASTNORM_STATUS_H_

#ifdef __cplusplus
extern "C" {
#endif

#define FASTNORM_STATUS_MAP(X)                                                             \
  X(OK, 0, "success")                                                                      \
  X(ERROR_ARGUMENT, 10, "an argument is null, out of range or not a known enum value")     \
  X(ERROR_SHAPE, 20, "shapes are wrong or do not fit each other")                          \
  X(ERROR_DTYPE, 30, "a tensor's dtype is not one that its role allows")                   \
  X(ERROR_LAYOUT, 40, "strides, alignment or overlap of tensors are not allowed")          \
  X(ERROR_UNSUPPORTED, 50, "valid, but this build or device has no kernel for it")         \
  X(ERROR_DEVICE, 60, "no such device, no usable driver, or the device reported an error") \
  X(ERROR_OUT_OF_MEMORY, 70, "host or device memory could not be had")                     \
  X(ERROR_INTERNAL, 80, "a defect of this library: please report it with fastnorm_last_error()")

typedef enum fastnorm_status {
#define FASTNORM_STATUS_ENUMERATOR(name, value, text) FASTNORM_##name = value,
  FASTNORM_STATUS_MAP(FASTNORM_STATUS_ENUMERATOR)
#undef FASTNORM_STATUS_ENUMERATOR
      FASTNORM_STATUS_MAX_ENUM = 0x7fffffff
} fastnorm_status;

FASTNORM_API const char* fastnorm_status_name(fastnorm_status status);

FASTNORM_API const char* fastnorm_last_error(void);

FASTNORM_API int32_t fastnorm_last_device_error(void);

#ifdef __cplusplus
}
#endif

#endif

#ifndef FASTNORM_TENSOR_H_
#define FASTNORM_TENSOR_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fastnorm_device_type {
  FASTNORM_DEVICE_CPU = 1,
  FASTNORM_DEVICE_CUDA = 2,
  FASTNORM_DEVICE_CUDA_HOST = 3,
  FASTNORM_DEVICE_CUDA_MANAGED = 13,
  FASTNORM_DEVICE_TYPE_MAX_ENUM = 0x7fffffff
} fastnorm_device_type;

typedef struct fastnorm_device {
  int32_t device_type;
  int32_t device_id;
} fastnorm_device;

typedef struct fastnorm_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} fastnorm_dtype;

typedef enum fastnorm_dtype_id {
  FASTNORM_DTYPE_F32 = 0x00012002,
  FASTNORM_DTYPE_F16 = 0x00011002,
  FASTNORM_DTYPE_BF16 = 0x00011004,
  FASTNORM_DTYPE_F8_E4M3FN = 0x0001080a,
  FASTNORM_DTYPE_F8_E5M2 = 0x0001080c,
  FASTNORM_DTYPE_F8_E8M0FNU = 0x0001080e,
  FASTNORM_DTYPE_F4_E2M1FN = 0x00010411,
  FASTNORM_DTYPE_F4_E2M1FN_X2 = 0x00020411,
  FASTNORM_DTYPE_I8 = 0x00010800,
  FASTNORM_DTYPE_U8 = 0x00010801,
  FASTNORM_DTYPE_I32 = 0x00012000,
  FASTNORM_DTYPE_I64 = 0x00014000,
  FASTNORM_DTYPE_MAX_ENUM = 0x7fffffff
} fastnorm_dtype_id;

static inline fastnorm_dtype fastnorm_dtype_of(fastnorm_dtype_id id) {
  fastnorm_dtype dtype;
  dtype.code = (uint8_t)((uint32_t)id & 0xffu);
  dtype.bits = (uint8_t)(((uint32_t)id >> 8) & 0xffu);
  dtype.lanes = (uint16_t)((uint32_t)id >> 16);
  return dtype;
}

typedef struct fastnorm_tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  fastnorm_dtype dtype;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t byte_offset;
} fastnorm_tensor;

#ifdef __cplusplus
}
#endif

#endif

#ifndef FASTNORM_CONTEXT_H_
#define FASTNORM_CONTEXT_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fastnorm_context fastnorm_context;

typedef enum fastnorm_log_level {
  FASTNORM_LOG_ERROR = 0,
  FASTNORM_LOG_WARNING = 1,
  FASTNORM_LOG_INFO = 2,
  FASTNORM_LOG_DEBUG = 3,
  FASTNORM_LOG_MAX_ENUM = 0x7fffffff
} fastnorm_log_level;

typedef void (*fastnorm_log_fn)(void* user, int32_t level, const char* text);

typedef void (*fastnorm_range_fn)(void* task, int64_t begin, int64_t end);

typedef void (*fastnorm_parallel_for_fn)(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn,
                                         void* task);

typedef enum fastnorm_context_flags {

  FASTNORM_CONTEXT_DRY_RUN = 1,
  FASTNORM_CONTEXT_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_context_flags;

typedef struct fastnorm_context_options {
  size_t struct_size;
  fastnorm_log_fn log;
  void* log_user;
  fastnorm_parallel_for_fn parallel_for;
  void* parallel_user;
  int32_t num_threads;
  uint32_t flags;
  int32_t dry_run_capability;
  int32_t reserved;
  const char* tuning_file;
} fastnorm_context_options;

FASTNORM_API fastnorm_status fastnorm_device_count(int32_t device_type, int32_t* count);

typedef struct fastnorm_device_info {
  size_t struct_size;
  char name[128];
  int32_t capability;
  int32_t multiprocessors;
  uint64_t l2_bytes;
  uint64_t memory_bytes;
  int32_t driver_version;
  int32_t runtime_version;
  const char* kernel_arch;
} fastnorm_device_info;

FASTNORM_API fastnorm_status fastnorm_device_describe(fastnorm_device device,
                                                      fastnorm_device_info* info);

FASTNORM_API fastnorm_status fastnorm_context_create(fastnorm_device device,
                                                     const fastnorm_context_options* options,
                                                     fastnorm_context** context);

FASTNORM_API void fastnorm_context_destroy(fastnorm_context* context);

typedef struct fastnorm_info {
  size_t struct_size;
  uint64_t workspace_bytes;

  uint64_t bytes_read;
  uint64_t bytes_written;

  const char* kernel;
  int32_t launches;
  int32_t threads_per_row;
  int32_t vectors_per_thread;
  int32_t rows_per_block;
  int32_t blocks_per_row;
  int32_t vector_bytes;
  uint64_t blocks;
  uint64_t profile_bytes;
  const char* kind;
  const char* choice;
  const char* variant;
} fastnorm_info;

typedef struct fastnorm_kernel_info {
  size_t struct_size;
  const char* family;
  const char* arch;
  const char* name;
} fastnorm_kernel_info;

FASTNORM_API int32_t fastnorm_kernel_count(void);

FASTNORM_API fastnorm_status fastnorm_kernel_describe(int32_t index, fastnorm_kernel_info* info);

#ifdef __cplusplus
}
#endif

#endif

#ifndef FASTNORM_MLA_DECODE_H_
#define FASTNORM_MLA_DECODE_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fastnorm_lse_base {
  FASTNORM_LSE_NATURAL = 0,
  FASTNORM_LSE_BASE_2 = 1,
  FASTNORM_LSE_BASE_MAX_ENUM = 0x7fffffff
} fastnorm_lse_base;

typedef struct fastnorm_mla_decode_args {
  size_t struct_size;

  double sm_scale;
  int32_t causal;
  fastnorm_lse_base lse_base;

  int32_t max_s_q;

  int32_t reuse_plan;

  int32_t split_tokens;

  int32_t profile_events;

  int64_t total_kv_hint;

  const fastnorm_tensor* q_nope;
  const fastnorm_tensor* q_pe;
  const fastnorm_tensor* ckv;
  const fastnorm_tensor* kpe;
  const fastnorm_tensor* kv_len;

  const fastnorm_tensor* page_table;

  const fastnorm_tensor* kv_indptr;

  const fastnorm_tensor* qo_indptr;
  const fastnorm_tensor* o;
  const fastnorm_tensor* lse;

  const fastnorm_tensor* profile;
} fastnorm_mla_decode_args;

FASTNORM_API fastnorm_status fastnorm_mla_decode_query(fastnorm_context* context,
                                                       const fastnorm_mla_decode_args* args,
                                                       fastnorm_info* info);

FASTNORM_API fastnorm_status fastnorm_mla_decode_prepare(fastnorm_context* context,
                                                         const fastnorm_mla_decode_args* args);

FASTNORM_API fastnorm_status fastnorm_mla_decode(fastnorm_context* context,
                                                 const fastnorm_mla_decode_args* args,
                                                 void* workspace, size_t workspace_bytes,
                                                 void* stream);

typedef enum fastnorm_profile_id {
  FASTNORM_PROFILE_WORK = 0,
  FASTNORM_PROFILE_LOAD_Q = 1,
  FASTNORM_PROFILE_LOAD_KV = 2,
  FASTNORM_PROFILE_QK = 3,
  FASTNORM_PROFILE_SOFTMAX = 4,
  FASTNORM_PROFILE_RESCALE = 5,
  FASTNORM_PROFILE_WRITE_P = 6,
  FASTNORM_PROFILE_PV = 7,
  FASTNORM_PROFILE_WRITE_O = 8,
  FASTNORM_PROFILE_MERGE = 9,
  FASTNORM_PROFILE_WAIT_Q = 10,
  FASTNORM_PROFILE_WAIT_KV = 11,
  FASTNORM_PROFILE_WAIT_FREE = 12,
  FASTNORM_PROFILE_WAIT_SCALE_0 = 13,
  FASTNORM_PROFILE_WAIT_SCALE_1 = 14,
  FASTNORM_PROFILE_WAIT_P_0 = 15,
  FASTNORM_PROFILE_WAIT_P_1 = 16,
  FASTNORM_PROFILE_WAIT_PLAN = 17,
  FASTNORM_PROFILE_ID_MAX_ENUM = 0x7fffffff
} fastnorm_profile_id;

typedef enum fastnorm_profile_kind {
  FASTNORM_PROFILE_BEGIN = 0,
  FASTNORM_PROFILE_END = 1,
  FASTNORM_PROFILE_INSTANT = 2,
  FASTNORM_PROFILE_KIND_MAX_ENUM = 0x7fffffff
} fastnorm_profile_kind;

typedef struct fastnorm_profile_event {
  uint64_t time_ns;
  uint64_t cycle;
  int32_t block;
  int32_t multiprocessor;
  int32_t group;
  fastnorm_profile_id id;
  fastnorm_profile_kind kind;
  int32_t value;
} fastnorm_profile_event;

typedef enum fastnorm_trace_format {
  FASTNORM_TRACE_CHROME_JSON = 0,
  FASTNORM_TRACE_FORMAT_MAX_ENUM = 0x7fffffff
} fastnorm_trace_format;

FASTNORM_API const char* fastnorm_profile_id_name(fastnorm_profile_id id);

FASTNORM_API fastnorm_status fastnorm_profile_decode(const void* buffer, size_t bytes,
                                                     fastnorm_profile_event* events,
                                                     size_t capacity, size_t* count);

FASTNORM_API fastnorm_status fastnorm_profile_write_trace(const void* buffer, size_t bytes,
                                                          const char* path,
                                                          fastnorm_trace_format format);

#ifdef __cplusplus
}
#endif

#endif

#ifndef FASTNORM_NORM_H_
#define FASTNORM_NORM_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fastnorm_norm_kind {
  FASTNORM_NORM_RMS = 0,
  FASTNORM_NORM_LAYER = 1,
  FASTNORM_NORM_KIND_MAX_ENUM = 0x7fffffff
} fastnorm_norm_kind;

typedef enum fastnorm_rounding {
  FASTNORM_ROUND_ONCE = 0,
  FASTNORM_ROUND_NORMALIZED = 1,
  FASTNORM_ROUND_EVERY_STEP = 2,

  FASTNORM_ROUND_ONCE_RW = 3,
  FASTNORM_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_rounding;

typedef enum fastnorm_residual_rounding {
  FASTNORM_RESIDUAL_EXACT = 0,
  FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY = 1,
  FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS = 2,
  FASTNORM_RESIDUAL_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_residual_rounding;

typedef enum fastnorm_quant_scheme {
  FASTNORM_QUANT_NONE = 0,
  FASTNORM_QUANT_PER_TENSOR = 1,
  FASTNORM_QUANT_PER_ROW = 2,
  FASTNORM_QUANT_PER_BLOCK = 3,
  FASTNORM_QUANT_MXFP8 = 4,
  FASTNORM_QUANT_NVFP4 = 5,
  FASTNORM_QUANT_MXFP4 = 6,
  FASTNORM_QUANT_SCHEME_MAX_ENUM = 0x7fffffff
} fastnorm_quant_scheme;

typedef enum fastnorm_quant_source {
  FASTNORM_QUANT_FROM_F32 = 0,
  FASTNORM_QUANT_FROM_ROUNDED = 1,
  FASTNORM_QUANT_SOURCE_MAX_ENUM = 0x7fffffff
} fastnorm_quant_source;

typedef enum fastnorm_quant_division {
  FASTNORM_QUANT_MULTIPLY_RECIPROCAL = 0,
  FASTNORM_QUANT_DIVIDE = 1,
  FASTNORM_QUANT_DIVISION_MAX_ENUM = 0x7fffffff
} fastnorm_quant_division;

typedef enum fastnorm_scale_layout {
  FASTNORM_SCALE_ROW_MAJOR = 0,
  FASTNORM_SCALE_COLUMN_MAJOR = 1,
  FASTNORM_SCALE_SWIZZLED_128X4 = 2,
  FASTNORM_SCALE_LAYOUT_MAX_ENUM = 0x7fffffff
} fastnorm_scale_layout;

typedef enum fastnorm_activation {
  FASTNORM_ACTIVATION_IDENTITY = 0,
  FASTNORM_ACTIVATION_SILU = 1,
  FASTNORM_ACTIVATION_SIGMOID = 2,
  FASTNORM_ACTIVATION_TANH = 3,
  FASTNORM_ACTIVATION_MAX_ENUM = 0x7fffffff
} fastnorm_activation;

typedef enum fastnorm_gate_position {
  FASTNORM_GATE_AFTER_NORM = 0,
  FASTNORM_GATE_BEFORE_NORM = 1,
  FASTNORM_GATE_POSITION_MAX_ENUM = 0x7fffffff
} fastnorm_gate_position;

typedef enum fastnorm_gate_source {
  FASTNORM_GATE_FROM_F32 = 0,
  FASTNORM_GATE_FROM_ROUNDED = 1,
  FASTNORM_GATE_SOURCE_MAX_ENUM = 0x7fffffff
} fastnorm_gate_source;

typedef enum fastnorm_sum_rounding {
  FASTNORM_SUM_ONCE = 0,
  FASTNORM_SUM_EVERY_STEP = 1,
  FASTNORM_SUM_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_sum_rounding;

typedef enum fastnorm_modulation_rounding {
  FASTNORM_MODULATION_ONCE = 0,
  FASTNORM_MODULATION_EVERY_STEP = 1,
  FASTNORM_MODULATION_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_modulation_rounding;

typedef enum fastnorm_norm_flags {
  FASTNORM_NORM_PDL_WAIT = 1,
  FASTNORM_NORM_PDL_TRIGGER = 2,
  FASTNORM_NORM_PDL_CONSTANT_WEIGHTS = 4,
  FASTNORM_NORM_MODULATION_PLAIN_SCALE = 8,
  FASTNORM_NORM_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_flags;

typedef struct fastnorm_norm_args {
  size_t struct_size;
  fastnorm_norm_kind kind;
  float eps;
  float weight_offset;
  fastnorm_rounding rounding;
  fastnorm_residual_rounding residual_rounding;
  uint32_t flags;

  const fastnorm_tensor* x;
  const fastnorm_tensor* residual;
  const fastnorm_tensor* weight;
  const fastnorm_tensor* bias;
  const fastnorm_tensor* y;
  const fastnorm_tensor* residual_out;
  const fastnorm_tensor* mean;
  const fastnorm_tensor* rstd;

  fastnorm_quant_scheme quant_scheme;
  int32_t quant_block_size;
  fastnorm_quant_source quant_source;
  fastnorm_scale_layout scale_layout;
  int32_t scale_pow2;
  float amax_floor;
  float clamp;
  fastnorm_quant_division quant_division;
  const fastnorm_tensor* global_scale;
  const fastnorm_tensor* quantized;
  const fastnorm_tensor* scale;
  const fastnorm_tensor* amax;

  const fastnorm_tensor* clamp_scale;

  const fastnorm_tensor* gate;
  fastnorm_activation gate_act;
  fastnorm_gate_position gate_position;
  fastnorm_gate_source gate_source;
  fastnorm_activation activation;
  int64_t group_size;

  const fastnorm_tensor* sumsq;
  const fastnorm_tensor* mean_in;
  const fastnorm_tensor* rstd_in;

  int32_t branch_norm;
  fastnorm_norm_kind branch_kind;
  float branch_eps;
  float branch_weight_offset;
  fastnorm_rounding branch_rounding;
  int32_t branch_rounded;
  float alpha;
  fastnorm_sum_rounding sum_rounding;
  const fastnorm_tensor* branch_weight;
  const fastnorm_tensor* branch_bias;
  const fastnorm_tensor* branch_rstd;
  const fastnorm_tensor* sum_scale;

  const fastnorm_tensor* residual_gate;

  const fastnorm_tensor* residual_gate_table;
  fastnorm_activation residual_gate_act;
  fastnorm_modulation_rounding modulation_rounding;

  const fastnorm_tensor* modulation_scale;
  const fastnorm_tensor* scale_table;

  const fastnorm_tensor* modulation_shift;
  const fastnorm_tensor* shift_table;

  const fastnorm_tensor* modulation_index;
} fastnorm_norm_args;

FASTNORM_API fastnorm_status fastnorm_norm_query(fastnorm_context* context,
                                                 const fastnorm_norm_args* args,
                                                 fastnorm_info* info);

FASTNORM_API fastnorm_status fastnorm_norm_prepare(fastnorm_context* context,
                                                   const fastnorm_norm_args* args);

FASTNORM_API fastnorm_status fastnorm_norm(fastnorm_context* context,
                                           const fastnorm_norm_args* args, void* workspace,
                                           size_t workspace_bytes, void* stream);

FASTNORM_API fastnorm_status fastnorm_norm_many_query(fastnorm_context* context,
                                                      const fastnorm_norm_args* const* args,
                                                      int32_t count, fastnorm_info* info);

FASTNORM_API fastnorm_status fastnorm_norm_many_prepare(fastnorm_context* context,
                                                        const fastnorm_norm_args* const* args,
                                                        int32_t count);

FASTNORM_API fastnorm_status fastnorm_norm_many(fastnorm_context* context,
                                                const fastnorm_norm_args* const* args,
                                                int32_t count, void* workspace,
                                                size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif

#ifndef FASTNORM_NORM_BACKWARD_H_
#define FASTNORM_NORM_BACKWARD_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fastnorm_norm_backward_flags {
  FASTNORM_NORM_BACKWARD_PDL_WAIT = 1,
  FASTNORM_NORM_BACKWARD_PDL_TRIGGER = 2,
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT = 8,
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS = 16,
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT = 32,
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS = 64,
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE = 128,
  FASTNORM_NORM_BACKWARD_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_backward_flags;

typedef struct fastnorm_norm_backward_args {
  size_t struct_size;
  fastnorm_norm_kind kind;
  float eps;
  float weight_offset;
  fastnorm_rounding rounding;
  uint32_t flags;
  int32_t reserved;

  const fastnorm_tensor* dy;
  const fastnorm_tensor* x;
  const fastnorm_tensor* weight;
  const fastnorm_tensor* mean;
  const fastnorm_tensor* rstd;
  const fastnorm_tensor* dresidual_in;

  const fastnorm_tensor* dx;
  const fastnorm_tensor* dresidual;
  const fastnorm_tensor* dweight;
  const fastnorm_tensor* dbias;

  const fastnorm_tensor* gate;
  const fastnorm_tensor* bias;
  const fastnorm_tensor* dgate;
  fastnorm_activation gate_act;
  fastnorm_gate_position gate_position;
  fastnorm_gate_source gate_source;
  int32_t stage_reserved;
  int64_t group_size;

  const fastnorm_tensor* branch;
  const fastnorm_tensor* branch_weight;
  const fastnorm_tensor* branch_bias;
  const fastnorm_tensor* branch_mean;
  const fastnorm_tensor* branch_rstd;
  const fastnorm_tensor* residual_gate;
  const fastnorm_tensor* sum_scale;
  const fastnorm_tensor* dbranch;
  const fastnorm_tensor* dbranch_weight;
  const fastnorm_tensor* dbranch_bias;
  const fastnorm_tensor* dresidual_gate;
  fastnorm_norm_kind branch_kind;
  float branch_eps;
  float branch_weight_offset;
  fastnorm_rounding branch_rounding;
  int32_t branch_norm;
  int32_t branch_rounded;
  fastnorm_activation residual_gate_act;
  float alpha;
} fastnorm_norm_backward_args;

FASTNORM_API fastnorm_status fastnorm_norm_backward_query(fastnorm_context* context,
                                                          const fastnorm_norm_backward_args* args,
                                                          fastnorm_info* info);

FASTNORM_API fastnorm_status
fastnorm_norm_backward_prepare(fastnorm_context* context, const fastnorm_norm_backward_args* args);

FASTNORM_API fastnorm_status fastnorm_norm_backward(fastnorm_context* context,
                                                    const fastnorm_norm_backward_args* args,
                                                    void* workspace, size_t workspace_bytes,
                                                    void* stream);

FASTNORM_API fastnorm_status fastnorm_norm_backward_many_query(
    fastnorm_context* context, const fastnorm_norm_backward_args* const* args, int32_t count,
    fastnorm_info* info);

FASTNORM_API fastnorm_status fastnorm_norm_backward_many_prepare(
    fastnorm_context* context, const fastnorm_norm_backward_args* const* args, int32_t count);

FASTNORM_API fastnorm_status fastnorm_norm_backward_many(
    fastnorm_context* context, const fastnorm_norm_backward_args* const* args, int32_t count,
    void* workspace, size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif

#ifndef FASTNORM_NORM_HEADS_H_
#define FASTNORM_NORM_HEADS_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fastnorm_norm_heads_part_flags {
  FASTNORM_NORM_HEADS_NORM = 1,
  FASTNORM_NORM_HEADS_ROPE = 2,

  FASTNORM_NORM_HEADS_ROPE_INTERLEAVED = 4,
  FASTNORM_NORM_HEADS_ROPE_INVERSE = 8,
  FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED = 16,
  FASTNORM_NORM_HEADS_ACROSS_HEADS = 32,
  FASTNORM_NORM_HEADS_PART_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_heads_part_flags;

typedef enum fastnorm_norm_heads_flags {
  FASTNORM_NORM_HEADS_MROPE_INTERLEAVED = 8,
  FASTNORM_NORM_HEADS_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_heads_flags;

typedef enum fastnorm_rope_rounding {
  FASTNORM_ROPE_ONCE = 0,
  FASTNORM_ROPE_EVERY_STEP = 1,
  FASTNORM_ROPE_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_rope_rounding;

typedef struct fastnorm_norm_heads_part {
  size_t struct_size;
  uint32_t flags;
  fastnorm_norm_kind kind;
  float eps;
  float weight_offset;
  fastnorm_rounding rounding;
  fastnorm_rope_rounding rope_rounding;

  int32_t rope_offset;
  int32_t reserved;

  const fastnorm_tensor* x;
  const fastnorm_tensor* weight;
  const fastnorm_tensor* bias;
  const fastnorm_tensor* y;

  const fastnorm_tensor* mean;
  const fastnorm_tensor* rstd;

  const fastnorm_tensor* mean_in;

  const fastnorm_tensor* rstd_in;

  const fastnorm_tensor* sumsq;

  fastnorm_quant_scheme quant_scheme;
  int32_t quant_block_size;
  fastnorm_quant_source quant_source;
  fastnorm_scale_layout scale_layout;
  int32_t scale_pow2;
  float amax_floor;
  float clamp;
  fastnorm_quant_scheme cache_scheme;
  int32_t cache_block_size;
  int32_t cache_pow2;
  const fastnorm_tensor* global_scale;
  const fastnorm_tensor* quantized;
  const fastnorm_tensor* scale;
  const fastnorm_tensor* amax;

  const fastnorm_tensor* cache;

  const fastnorm_tensor* cache_scale;

  fastnorm_quant_division quant_division;
  int32_t reserved_2;
  const fastnorm_tensor* clamp_scale;
} fastnorm_norm_heads_part;

typedef struct fastnorm_norm_heads_args {
  size_t struct_size;
  uint32_t flags;
  int32_t rope_dim;
  int32_t mrope_0;
  int32_t mrope_1;
  int32_t mrope_2;
  int32_t mrope_3;

  const fastnorm_tensor* cos;
  const fastnorm_tensor* sin;

  const fastnorm_tensor* positions;

  const fastnorm_tensor* slots;
} fastnorm_norm_heads_args;

FASTNORM_API fastnorm_status fastnorm_norm_heads_query(fastnorm_context* context,
                                                       const fastnorm_norm_heads_args* args,
                                                       const fastnorm_norm_heads_part* const* parts,
                                                       int32_t count, fastnorm_info* info);

FASTNORM_API fastnorm_status
fastnorm_norm_heads_prepare(fastnorm_context* context, const fastnorm_norm_heads_args* args,
                            const fastnorm_norm_heads_part* const* parts, int32_t count);

FASTNORM_API fastnorm_status fastnorm_norm_heads(fastnorm_context* context,
                                                 const fastnorm_norm_heads_args* args,
                                                 const fastnorm_norm_heads_part* const* parts,
                                                 int32_t count, void* workspace,
                                                 size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif

#ifndef FASTNORM_NORM_HEADS_BACKWARD_H_
#define FASTNORM_NORM_HEADS_BACKWARD_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fastnorm_norm_heads_backward_flags {

  FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT = 64,
  FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS = 128,
  FASTNORM_NORM_HEADS_BACKWARD_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_heads_backward_flags;

typedef struct fastnorm_norm_heads_backward_part {
  size_t struct_size;

  uint32_t flags;
  fastnorm_norm_kind kind;
  float eps;
  float weight_offset;
  fastnorm_rounding rounding;
  int32_t rope_offset;

  const fastnorm_tensor* dy;

  const fastnorm_tensor* x;

  const fastnorm_tensor* weight;

  const fastnorm_tensor* mean;

  const fastnorm_tensor* rstd;

  const fastnorm_tensor* dx;

  const fastnorm_tensor* dweight;

  const fastnorm_tensor* dbias;
} fastnorm_norm_heads_backward_part;

FASTNORM_API fastnorm_status fastnorm_norm_heads_backward_query(
    fastnorm_context* context, const fastnorm_norm_heads_args* args,
    const fastnorm_norm_heads_backward_part* const* parts, int32_t count, fastnorm_info* info);

FASTNORM_API fastnorm_status fastnorm_norm_heads_backward_prepare(
    fastnorm_context* context, const fastnorm_norm_heads_args* args,
    const fastnorm_norm_heads_backward_part* const* parts, int32_t count);

FASTNORM_API fastnorm_status
fastnorm_norm_heads_backward(fastnorm_context* context, const fastnorm_norm_heads_args* args,
                             const fastnorm_norm_heads_backward_part* const* parts, int32_t count,
                             void* workspace, size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif

#ifndef FASTNORM_PEER_H_
#define FASTNORM_PEER_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fastnorm_peer fastnorm_peer;

typedef enum fastnorm_peer_algorithm {

  FASTNORM_PEER_AUTO = 0,
  FASTNORM_PEER_ONE_SHOT = 1,
  FASTNORM_PEER_TWO_SHOT = 2,
  FASTNORM_PEER_ALGORITHM_MAX_ENUM = 0x7fffffff
} fastnorm_peer_algorithm;

typedef enum fastnorm_peer_sum_rounding {

  FASTNORM_PEER_SUM_ROUNDED = 0,
  FASTNORM_PEER_SUM_EXACT = 1,
  FASTNORM_PEER_SUM_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_peer_sum_rounding;

typedef enum fastnorm_peer_error {
  FASTNORM_PEER_ERROR_NONE = 0,
  FASTNORM_PEER_ERROR_MISSING = 1,
  FASTNORM_PEER_ERROR_DISAGREES = 2,
  FASTNORM_PEER_ERROR_MAX_ENUM = 0x7fffffff
} fastnorm_peer_error;

typedef enum fastnorm_peer_limits {
  FASTNORM_PEER_MAX_RANKS = 8,
  FASTNORM_PEER_BLOB_BYTES = 128,
  FASTNORM_PEER_LIMITS_MAX_ENUM = 0x7fffffff
} fastnorm_peer_limits;

typedef struct fastnorm_peer_options {
  size_t struct_size;
  int32_t rank;
  int32_t ranks;
  fastnorm_dtype_id dtype;
  fastnorm_peer_algorithm algorithm;
  int64_t max_columns;

  int64_t one_shot_bytes;
  int64_t wait_ns;
  int32_t rings;
  int32_t reserved;
} fastnorm_peer_options;

typedef struct fastnorm_peer_state {
  size_t struct_size;
  fastnorm_peer_error error;
  int32_t rank;
  uint64_t calls;
  int32_t connected;
  int32_t reserved;
} fastnorm_peer_state;

FASTNORM_API fastnorm_status fastnorm_peer_buffer_bytes(fastnorm_context* context,
                                                        const fastnorm_peer_options* options,
                                                        uint64_t* bytes);

FASTNORM_API fastnorm_status fastnorm_peer_create(fastnorm_context* context,
                                                  const fastnorm_peer_options* options,
                                                  fastnorm_peer** peer);

FASTNORM_API fastnorm_status
fastnorm_peer_create_from_pointers(fastnorm_context* context, const fastnorm_peer_options* options,
                                   void* const* buffers, int32_t count, fastnorm_peer** peer);

FASTNORM_API fastnorm_status fastnorm_peer_export(fastnorm_peer* peer, void* blob, size_t bytes);

FASTNORM_API fastnorm_status fastnorm_peer_import(fastnorm_peer* peer, const void* blobs,
                                                  size_t bytes);

FASTNORM_API fastnorm_status fastnorm_peer_status(const fastnorm_peer* peer,
                                                  fastnorm_peer_state* state);

FASTNORM_API fastnorm_status fastnorm_peer_reset(fastnorm_peer* peer);

FASTNORM_API void fastnorm_peer_destroy(fastnorm_peer* peer);

typedef struct fastnorm_peer_allreduce_norm_args {
  size_t struct_size;
  fastnorm_peer* peer;
  fastnorm_norm_kind kind;
  float eps;
  float weight_offset;
  fastnorm_rounding rounding;
  fastnorm_residual_rounding residual_rounding;
  fastnorm_peer_sum_rounding sum_rounding;
  uint32_t flags;
  int32_t reserved;
  const fastnorm_tensor* x;
  const fastnorm_tensor* residual;
  const fastnorm_tensor* weight;
  const fastnorm_tensor* bias;
  const fastnorm_tensor* y;
  const fastnorm_tensor* residual_out;
  const fastnorm_tensor* mean;
  const fastnorm_tensor* rstd;
  fastnorm_quant_scheme quant_scheme;
  int32_t quant_block_size;
  fastnorm_quant_source quant_source;
  fastnorm_scale_layout scale_layout;
  int32_t scale_pow2;
  float amax_floor;
  float clamp;
  fastnorm_quant_division quant_division;
  const fastnorm_tensor* global_scale;
  const fastnorm_tensor* quantized;
  const fastnorm_tensor* scale;
  const fastnorm_tensor* amax;
  const fastnorm_tensor* clamp_scale;
} fastnorm_peer_allreduce_norm_args;

FASTNORM_API fastnorm_status fastnorm_peer_allreduce_norm_query(
    fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args, fastnorm_info* info);

FASTNORM_API fastnorm_status fastnorm_peer_allreduce_norm_prepare(
    fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args);

FASTNORM_API fastnorm_status fastnorm_peer_allreduce_norm(
    fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args, void* workspace,
    size_t workspace_bytes, void* stream);

typedef struct fastnorm_peer_sharded_norm_args {
  size_t struct_size;
  fastnorm_peer* peer;
  fastnorm_norm_kind kind;
  float eps;
  float weight_offset;
  fastnorm_rounding rounding;
  uint32_t flags;
  int32_t reserved;

  const fastnorm_tensor* x;
  const fastnorm_tensor* weight;
  const fastnorm_tensor* bias;
  const fastnorm_tensor* y;
  const fastnorm_tensor* x2;
  const fastnorm_tensor* weight2;
  const fastnorm_tensor* bias2;
  const fastnorm_tensor* y2;
} fastnorm_peer_sharded_norm_args;

FASTNORM_API fastnorm_status fastnorm_peer_sharded_norm_query(
    fastnorm_context* context, const fastnorm_peer_sharded_norm_args* args, fastnorm_info* info);

FASTNORM_API fastnorm_status fastnorm_peer_sharded_norm_prepare(
    fastnorm_context* context, const fastnorm_peer_sharded_norm_args* args);

FASTNORM_API fastnorm_status fastnorm_peer_sharded_norm(fastnorm_context* context,
                                                        const fastnorm_peer_sharded_norm_args* args,
                                                        void* workspace, size_t workspace_bytes,
                                                        void* stream);

#ifdef __cplusplus
}
#endif

#endif
