/* A kernel of a user of the library, in PTX for capability 9.0 and later: copy(to, from, bytes,
 * options, nanoseconds, times) copies by single bytes, not before so many nanoseconds have passed.
 * times: 0, or where its first thread stores when it began and when it ended. */
#ifndef FASTNORM_TESTS_SUPPORT_COPY_KERNEL_H_
#define FASTNORM_TESTS_SUPPORT_COPY_KERNEL_H_

enum {
  COPY_WAITS = 1,   /* for the stream's previous kernel, before it reads and writes */
  COPY_TRIGGERS = 2 /* lets the next one start at once */
};

static const char copy_kernel_ptx[] =
    ".version 7.8\n"
    ".target sm_90\n"
    ".address_size 64\n"
    ".visible .entry copy(.param .u64 p_to, .param .u64 p_from, .param .u64 p_bytes,\n"
    "                     .param .u32 p_options, .param .u32 p_late, .param .u64 p_times) {\n"
    "  .reg .pred %waits, %triggers, %more, %notes;\n"
    "  .reg .b32 %options, %bit, %block, %threads, %thread, %blocks, %byte;\n"
    "  .reg .b64 %to, %from, %bytes, %late, %begin, %now, %i, %step, %at, %times;\n"
    "  mov.u64 %begin, %globaltimer;\n"
    "  ld.param.u32 %options, [p_options];\n"
    "  and.b32 %bit, %options, 2;\n"
    "  setp.ne.u32 %triggers, %bit, 0;\n"
    "  @%triggers griddepcontrol.launch_dependents;\n"
    "  and.b32 %bit, %options, 1;\n"
    "  setp.ne.u32 %waits, %bit, 0;\n"
    "  @%waits griddepcontrol.wait;\n"
    "  ld.param.u64 %to, [p_to];\n"
    "  ld.param.u64 %from, [p_from];\n"
    "  ld.param.u64 %bytes, [p_bytes];\n"
    "  ld.param.u64 %times, [p_times];\n"
    "  ld.param.u32 %bit, [p_late];\n"
    "  cvt.u64.u32 %late, %bit;\n"
    "again:\n"
    "  mov.u64 %now, %globaltimer;\n"
    "  sub.u64 %now, %now, %begin;\n"
    "  setp.lt.u64 %more, %now, %late;\n"
    "  @%more bra again;\n"
    "  mov.u32 %block, %ctaid.x;\n"
    "  mov.u32 %threads, %ntid.x;\n"
    "  mov.u32 %thread, %tid.x;\n"
    "  mov.u32 %blocks, %nctaid.x;\n"
    "  mul.wide.u32 %i, %block, %threads;\n"
    "  cvt.u64.u32 %at, %thread;\n"
    "  add.u64 %i, %i, %at;\n"
    "  setp.ne.u64 %notes, %times, 0;\n"
    "  setp.eq.and.u64 %notes, %i, 0, %notes;\n"
    "  mul.wide.u32 %step, %blocks, %threads;\n"
    "next:\n"
    "  setp.ge.u64 %more, %i, %bytes;\n"
    "  @%more bra done;\n"
    "  add.u64 %at, %from, %i;\n"
    "  ld.volatile.global.u8 %byte, [%at];\n"
    "  add.u64 %at, %to, %i;\n"
    "  st.global.u8 [%at], %byte;\n"
    "  add.u64 %i, %i, %step;\n"
    "  bra next;\n"
    "done:\n"
    "  mov.u64 %now, %globaltimer;\n"
    "  @%notes st.global.u64 [%times], %begin;\n"
    "  @%notes st.global.u64 [%times+8], %now;\n"
    "  ret;\n"
    "}\n";

#endif
