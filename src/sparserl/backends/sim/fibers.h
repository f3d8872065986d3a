// Switching between fibers. The hand-written switch saves what the calling convention asks for and costs some
// nanoseconds; ucontext (SIM_UCONTEXT, or any other processor) makes a system call each time and costs a hundred times more.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if !defined(SIM_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define SIM_UCONTEXT
#endif

#ifdef SIM_UCONTEXT
#include <ucontext.h>

struct Context { ucontext_t registers; };

static inline void fiber_make(Context* context, char* top, size_t size, void (*start)()) {
    getcontext(&context->registers);
    context->registers.uc_stack.ss_sp = top - size;
    context->registers.uc_stack.ss_size = size;
    context->registers.uc_link = nullptr;
    makecontext(&context->registers, start, 0);
}
static inline void fiber_switch(Context* from, Context* to) { swapcontext(&from->registers, &to->registers); }

#else

struct Context { void* stack_pointer; };

extern "C" void sim_switch(void** from, void* to);

#if defined(__aarch64__)
// x19-x30 and the low halves of v8-v15 belong to the caller's caller.
asm(R"(
    .text
    .balign 16
    .hidden sim_switch
    .global sim_switch
    .type sim_switch, %function
sim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size sim_switch, .-sim_switch
)");
static inline void fiber_make(Context* context, char* top, size_t, void (*start)()) {
    void** frame = (void**)(((uintptr_t)top & ~(uintptr_t)15) - 160);
    for (int i = 0; i < 20; i++) frame[i] = nullptr;
    frame[11] = (void*)start; // x30: where `ret` goes
    context->stack_pointer = frame;
}
#else
asm(R"(
    .text
    .balign 16
    .hidden sim_switch
    .globl sim_switch
    .type sim_switch, @function
sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size sim_switch, .-sim_switch
)");
static inline void fiber_make(Context* context, char* top, size_t, void (*start)()) {
    // After `ret` the stack pointer must be 8 past a multiple of 16, as after a call.
    void** frame = (void**)(((uintptr_t)top & ~(uintptr_t)15) - 64);
    for (int i = 0; i < 8; i++) frame[i] = nullptr;
    frame[6] = (void*)start;
    context->stack_pointer = frame;
}
#endif
static inline void fiber_switch(Context* from, Context* to) { sim_switch(&from->stack_pointer, to->stack_pointer); }
#endif
