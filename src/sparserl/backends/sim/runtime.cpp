// Runs a kernel: blocks one after the other in a seeded order, the threads of a block as fibers. A thread runs until it
// meets a barrier or a warp operation; then the next one runs. A thread that meets none costs no switch at all. With
// SIM_CHECKED every access is also looked at (watch.h).
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <pthread.h>

#include "cuda_ops.h"
#include "sim.h"

struct uint3 { unsigned int x, y, z; };

extern "C" {
enum { STACK_BYTES = 64 * 1024, GUARD_BYTES = 4096 };
alignas(1024) __attribute__((visibility("hidden"))) unsigned char sim_dynamic_shared[SHARED_LIMIT];
uint3 sim_thread, sim_block, sim_block_size, sim_grid_size;
extern unsigned char sim_shared_begin[] __attribute__((visibility("hidden")));
extern unsigned char sim_shared_end[] __attribute__((visibility("hidden")));
}

static const SimRequest* request;
static SimReport* report;
static char* stacks;
static int free_stacks[MAX_THREADS], free_count;
static Thread threads[MAX_THREADS];
static Warp warps[MAX_WARPS];
static Context home;
static sigjmp_buf way_out;
static pthread_t runner;
static volatile sig_atomic_t running, allocating, expired; // a timer must not jump out of malloc
static int current, warp_count, live, waiting; // threads: running now, not yet ended, at the barrier
static int barrier_any, barrier_all, barrier_count, result_any, result_all, result_count;

[[noreturn]] static void fail(const char* format, ...) {
    running = 0;
    char* out = report->reason;
    int used = snprintf(out, sizeof report->reason, "kernel %s, block %u, thread %u: ", request->kernel, sim_block.x, sim_thread.x);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out + used, sizeof report->reason - used, format, arguments);
    va_end(arguments);
    report->failed = 1;
    siglongjmp(way_out, 1);
}

[[noreturn]] static void hangs() { fail("hangs: no end after %.0f s", request->limit_s); }

#ifdef SIM_CHECKED
// The new place is kept before anything may jump away: the old one is gone by then.
template <typename T> static void grow(T*& memory, size_t count) {
    allocating = 1;
    T* out = (T*)realloc(memory, count * sizeof(T));
    if (out) memory = out;
    allocating = 0;
    if (expired) hangs();
    if (!out) fail("the simulator has no memory left (%zu bytes asked)", count * sizeof(T));
}
#include "watch.h"
#else
static inline void watch_barrier() {}
static inline void watch_warp_op(Warp*, uint32_t, bool) {}
static inline void watch_leave_warp() {}
#endif

#include "warp_ops.h"

// ---- which thread runs next
static void try_release_barrier() {
    if (!waiting || waiting != live) return;
    result_any = barrier_any, result_all = barrier_all, result_count = barrier_count;
    barrier_any = 0, barrier_all = 1, barrier_count = 0, waiting = 0;
    for (int w = 0; w < warp_count; w++) {
        warps[w].ready |= warps[w].at_barrier;
        warps[w].at_barrier = 0;
    }
    watch_barrier();
}

[[noreturn]] static void deadlock() {
    int at_barrier = -1, at_warp = -1, op = 0;
    for (int w = 0; w < warp_count; w++) {
        if (warps[w].at_barrier) at_barrier = w * WARP + __builtin_ctz(warps[w].at_barrier);
        if (warps[w].groups) at_warp = w * WARP + __builtin_ctz(warps[w].group[0].arrived), op = warps[w].group[0].op;
    }
    if (at_warp >= 0) become(at_warp);
    else become(at_barrier);
    if (at_barrier >= 0 && at_warp >= 0)
        fail("waits for ever at %s while thread %d waits at __syncthreads()", name_of(op), at_barrier);
    fail("waits for ever at %s: the lanes that its mask names never come together", name_of(op));
}

static int pick() {
    int w = current / WARP;
    for (int step = 0; step <= warp_count; step++) {
        Warp* warp = warps + w;
        if (!warp->ready)  // everyone else has stopped: those who asked who is here may know
            for (int g = 0; g < warp->groups; g++)
                if (warp->group[g].op == SIM_ACTIVE) { complete(warp, w * WARP, warp->group + g); break; }
        if (warp->ready) {
            const uint32_t after = step ? warp->ready : warp->ready & (~0u << (current % WARP));
            return w * WARP + __builtin_ctz(after ? after : warp->ready);
        }
        if (!step) watch_leave_warp();
        if (++w == warp_count) w = 0;
    }
    deadlock();
}

static void fiber_main();

static void give_stack(Thread* thread, int stack) {
    thread->stack = stack;
    // Stacks at equal distances would all fall into the same cache sets.
    char* top = stacks + (size_t)(stack + 1) * STACK_BYTES - (size_t)(stack * 7 % 32) * 64;
    fiber_make(&thread->context, top, STACK_BYTES - GUARD_BYTES - 32 * 64, fiber_main);
}

static void start(int next) {
    Warp* warp = warps + next / WARP;
    const uint32_t bit = 1u << (next % WARP);
    warp->ready &= ~bit;
    if (!(warp->started & bit)) {
        warp->started |= bit;
        give_stack(threads + next, free_stacks[--free_count]);
    }
    become(next);
}

static void stop_until_ready() {
    const int before = current, next = pick();
    start(next);
    if (next != before) fiber_switch(&threads[before].context, &threads[next].context);
}

#ifdef SIM_CHECKED
// For a thread that spins: somebody else of the block may be able to end it.
static bool yield_to_other() {
    uint32_t others = 0;
    for (int w = 0; w < warp_count; w++) others |= warps[w].ready;
    if (!others) return false;
    const int before = current, next = pick();
    warps[before / WARP].ready |= 1u << (before % WARP);
    start(next);
    fiber_switch(&threads[before].context, &threads[next].context);
    return true;
}
#endif

static void thread_ended() {
    Warp* warp = warps + current / WARP;
    warp->done |= 1u << (current % WARP);
    live--;
    for (int g = 0; g < warp->groups;)
        if (!try_complete(warp, current / WARP * WARP, warp->group + g)) g++;
    try_release_barrier();
}

static void fiber_main() {
    for (;;) {
        request->entry(request->arguments);
        const int before = current;
        thread_ended();
        if (!live) {
            watch_leave_warp();
            free_stacks[free_count++] = threads[before].stack;
            fiber_switch(&threads[before].context, &home);
        }
        const int next = pick();
        Warp* warp = warps + next / WARP;
        const uint32_t bit = 1u << (next % WARP);
        if (!(warp->started & bit)) {  // the fast path: the next thread begins where this one ended
            warp->started |= bit;
            warp->ready &= ~bit;
            threads[next].stack = threads[before].stack;
            become(next);
            continue;
        }
        free_stacks[free_count++] = threads[before].stack;
        start(next);
        fiber_switch(&threads[before].context, &threads[next].context);
    }
}

// ---- what kernels call
extern "C" {
uint3 sim_thread_idx() { return sim_thread; }
uint3 sim_block_idx() { return sim_block; }
uint3 sim_block_dim() { return sim_block_size; }
uint3 sim_grid_dim() { return sim_grid_size; }
unsigned int sim_lane() { return sim_thread.x % WARP; }

unsigned long long sim_warp_op(int op, unsigned int mask, unsigned long long value, int source) {
    Warp* warp = warps + current / WARP;
    Thread* self = threads + current;
    const uint32_t bit = 1u << (current % WARP);
    if (op != SIM_ACTIVE && !(mask & bit)) fail("calls %s with mask 0x%08x, which does not name its own lane %d", name_of(op), mask, current % WARP);
    if (op == SIM_SHUFFLE && (source < 0 || source >= WARP)) fail("a shuffle reads lane %d; a warp has 32", source);
    self->value = value;
    self->source = source;
    Group* group = nullptr;
    for (int g = 0; g < warp->groups; g++)
        if (warp->group[g].mask == mask) group = warp->group + g;
    if (!group) {
        group = warp->group + warp->groups++;
        *group = {mask, 0, op};
    }
    if (group->op != op) fail("is at %s while lane %d of its warp is at %s with the same mask", name_of(op), __builtin_ctz(group->arrived), name_of(group->op));
    group->arrived |= bit;
    if (try_complete(warp, current / WARP * WARP, group)) warp->ready &= ~bit;
    else stop_until_ready();
    return threads[current].result;
}

int sim_barrier(int predicate, int* all, int* count) {
    warps[current / WARP].at_barrier |= 1u << (current % WARP);
    barrier_any |= predicate != 0;
    barrier_all &= predicate != 0;
    barrier_count += predicate != 0;
    waiting++;
    try_release_barrier();
    stop_until_ready();
    if (all) *all = result_all;
    if (count) *count = result_count;
    return result_any;
}

#ifndef SIM_CHECKED
void sim_fence() { asm volatile("" ::: "memory"); }
void sim_pdl_trigger() {}
void sim_pdl_wait() { asm volatile("" ::: "memory"); }
#endif
}

// ---- a launch
static void on_signal(int number) {
    if (!running) return;
    if (!pthread_equal(pthread_self(), runner)) { pthread_kill(runner, number); return; }
    if (number == SIGVTALRM && allocating) { expired = 1; return; }
    if (number == SIGVTALRM) hangs();
    fail(number == SIGFPE ? "divides by zero (SIGFPE)" : number == SIGILL ? "runs into an impossible instruction (SIGILL)"
                          : "touches memory that is not mapped (SIGSEGV)");
}

static uint64_t mix(uint64_t* state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void run_block(unsigned int block) {
    sim_block.x = block;
    live = (int)request->block, waiting = 0, barrier_any = 0, barrier_all = 1, barrier_count = 0;
    warp_count = (live + WARP - 1) / WARP;
    for (int w = 0; w < warp_count; w++) {
        const int lanes = live - w * WARP;
        warps[w] = Warp();
        warps[w].exists = warps[w].ready = lanes >= WARP ? ~0u : (1u << lanes) - 1;
    }
    memset(sim_shared_begin, POISON, (size_t)(sim_shared_end - sim_shared_begin));
    memset(sim_dynamic_shared, POISON, request->shared_bytes);
#ifdef SIM_CHECKED
    watch_block_begins();
#endif
    become(0);
    start(0);
    fiber_switch(&home, &threads[0].context);
#ifdef SIM_CHECKED
    watch_block_ends();
#endif
}

// One set of stacks serves every library of the process: guard pages split a mapping, and a process may hold only so many.
static bool make_stacks() {
    free_count = 0;
    for (int i = MAX_THREADS - 1; i >= 0; i--) free_stacks[free_count++] = i;
    stacks = (char*)*request->stacks;
    if (stacks) return true;
    void* memory = mmap(nullptr, (size_t)MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    *request->stacks = memory;
    stacks = (char*)memory;
    for (int i = 0; i < MAX_THREADS; i++) mprotect(stacks + (size_t)i * STACK_BYTES, GUARD_BYTES, PROT_NONE);
    return true;
}

static void run_blocks(unsigned int* order) {
    uint64_t state = request->seed;
    for (unsigned int i = 0; i < request->grid; i++) order[i] = i;
    for (unsigned int i = request->grid; i > 1; i--) {
        const unsigned int j = (unsigned int)(mix(&state) % i), t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
    for (unsigned int i = 0; i < request->grid; i++) run_block(order[i]);
}

extern "C" __attribute__((visibility("default"))) int sim_launch(const SimRequest* asked, SimReport* answer) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGVTALRM};
    enum { SIGNALS = 5, SIGNAL_STACK = 64 * 1024 };
    static char signal_stack[SIGNAL_STACK];
    struct sigaction now = {}, before[SIGNALS];
    stack_t stack = {}, stack_before;
    itimerval limit = {}, limit_before;
    request = asked, report = answer;
    report->failed = 0, report->reason[0] = 0;
    unsigned int* order = (unsigned int*)malloc(sizeof(unsigned int) * request->grid);
    if (!order || !make_stacks()) { free(order); return -1; }
    sim_block_size = {request->block, 1, 1}, sim_grid_size = {request->grid, 1, 1};
    stack.ss_sp = signal_stack, stack.ss_size = SIGNAL_STACK;
    sigaltstack(&stack, &stack_before);
    now.sa_handler = on_signal, now.sa_flags = SA_ONSTACK;
    for (int i = 0; i < SIGNALS; i++) sigaction(signals[i], &now, before + i);
    limit.it_value.tv_sec = (time_t)request->limit_s;
    limit.it_value.tv_usec = (suseconds_t)((request->limit_s - (double)limit.it_value.tv_sec) * 1e6);
    limit.it_interval.tv_usec = 50000;
    runner = pthread_self();
    expired = 0;
    if (!sigsetjmp(way_out, 1)) {
        setitimer(ITIMER_VIRTUAL, &limit, &limit_before);
        running = 1;
#ifdef SIM_CHECKED
        watch_launch_begins();
#endif
        run_blocks(order);
#ifdef SIM_CHECKED
        watch_launch_ends();
#endif
    }
    running = 0;
    limit = {};
    setitimer(ITIMER_VIRTUAL, &limit, nullptr);
    for (int i = 0; i < SIGNALS; i++) sigaction(signals[i], before + i, nullptr);
    sigaltstack(&stack_before, nullptr);
    free(order);
    return 0;
}
