// Looks at every access of a kernel. The compiler's thread sanitizer calls the hooks at the end of this file; instead of
// the sanitizer's own runtime they lead here. An access must lie in one of the arrays that the kernel was given (or in
// shared memory, its own stack, a constant table), be aligned to its size, not write an input, not read what nobody has
// written, not come before the dependency wait where that matters, and not race.
#pragma once
#include <link.h>

#include "races.h"
#include "sectors.h"
#include "trips.h"

enum { SPIN_YIELD = 4096, SPIN_LIMIT = 1 << 20, ROLE_SHIFT = 8 };

static uint8_t static_written[SHARED_LIMIT], dynamic_written[SHARED_LIMIT];
static uintptr_t image_begin, image_end;  // this library: baked tables lie in it
static uintptr_t last_address;
static uint32_t repeats;
static bool any_fence;

static bool yield_to_other();

static int find_image(dl_phdr_info* info, size_t, void* inside) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, to = from + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type != PT_LOAD || (uintptr_t)inside < from || (uintptr_t)inside >= to) continue;
        image_begin = info->dlpi_addr, image_end = 0;
        for (int j = 0; j < info->dlpi_phnum; j++) {
            const uintptr_t end = info->dlpi_addr + info->dlpi_phdr[j].p_vaddr + info->dlpi_phdr[j].p_memsz;
            if (info->dlpi_phdr[j].p_type == PT_LOAD && end > image_end) image_end = end;
        }
        return 1;
    }
    return 0;
}

static const char* verb(int kind) { return kind == SIM_WRITE ? "writes" : kind == SIM_ATOMIC ? "updates" : "reads"; }

// Out of bounds of what? Of the array that this instruction touched before, if it lies near, else of the nearest.
[[noreturn]] static void stray(const Place* place, uintptr_t address, size_t size, int kind) {
    if (address < 4096) fail("%s %zu bytes through a null pointer", verb(kind), size);
    const SimBuffer* nearest = nullptr;
    uint64_t best = 1 << 24;
    for (uint32_t i = 0; i < request->buffer_count; i++) {
        const SimBuffer* b = request->buffers + i;
        const uint64_t gap = address < b->base ? b->base - address : address + size - (b->base + b->size);
        if (gap < best) best = gap, nearest = b;
        if (i + 1 == place->buffer && gap < 1 << 20) { best = gap, nearest = b; break; }
    }
    if (!nearest) fail("%s %zu bytes at an address that belongs to none of its arrays", verb(kind), size);
    if (address < nearest->base) fail("%s %zu bytes %llu bytes before the start of %s", verb(kind), size, (unsigned long long)best, nearest->name);
    fail("%s %zu bytes %llu bytes past the end of %s", verb(kind), size, (unsigned long long)best, nearest->name);
}

static inline void check_written(uint8_t* written, uint64_t offset, size_t size, int kind, const char* name) {
    if (kind != SIM_WRITE)
        for (size_t i = 0; i < size; i++)
            if (!written[offset + i]) fail("reads byte %llu of %s, which nobody has written", (unsigned long long)(offset + i), name);
    if (kind != SIM_READ) memset(written + offset, 1, size);
}

static inline void check_spin(uintptr_t address) {
    if (address != last_address) {
        last_address = address, repeats = 0;
        return;
    }
    if (++repeats % SPIN_YIELD) return;
    const uint32_t so_far = repeats;
    if (so_far >= SPIN_LIMIT) fail("hangs: it spins on one address that nobody will change");
    if (yield_to_other()) last_address = address, repeats = so_far;
}

static void access_shared(uintptr_t address, size_t size, int kind) {
    const bool dynamic = address - (uintptr_t)sim_dynamic_shared < SHARED_LIMIT;
    const uint64_t offset = address - (uintptr_t)(dynamic ? sim_dynamic_shared : sim_shared_begin);
    const uint64_t limit = dynamic ? request->shared_bytes : (uint64_t)(sim_shared_end - sim_shared_begin);
    const char* name = dynamic ? "dynamic shared memory" : "shared memory";
    if (offset + size > limit) fail("%s %zu bytes at byte %llu of %s, which has %llu", verb(kind), size, (unsigned long long)offset, name, (unsigned long long)limit);
    check_written(dynamic ? dynamic_written : static_written, offset, size, kind, name);
    check_race(dynamic ? dynamic_cells : static_cells, offset, size, kind, name, true);
    counts[SHARED]++;
    threads[current].serial_shared++;
}

static SimBuffer* find_buffer(Place* place, uintptr_t address, size_t size, int kind) {
    for (uint32_t i = 0; i < request->buffer_count; i++) {
        SimBuffer* b = request->buffers + i;
        if (address >= b->base && address + size <= b->base + b->size) { place->buffer = i + 1; return b; }
    }
    if (address >= image_begin && address + size <= image_end) {
        if (kind == SIM_READ) return nullptr;
        fail("%s %zu bytes of a variable of its own; kernels may only write their arrays and shared memory", verb(kind), size);
    }
    stray(place, address, size, kind);
}

static void access_global(uintptr_t address, size_t size, int kind, uintptr_t at) {
    Place* place = place_of(at);
    Thread* self = threads + current;
    SimBuffer* buffer = request->buffers + place->buffer - 1;
    if (!place->buffer || place->buffer > request->buffer_count || address < buffer->base || address + size > buffer->base + buffer->size) {
        buffer = find_buffer(place, address, size, kind);
        if (!buffer) return;
    }
    const uint64_t offset = address - buffer->base;
    const size_t natural = size <= 16 ? size & (0 - size) : 16;
    if (address & (natural - 1)) fail("%s %zu bytes at byte %llu of %s, which is not a multiple of %zu", verb(kind), size, (unsigned long long)offset, buffer->name, natural);
    if (kind != SIM_READ && !(buffer->flags & BUFFER_WRITABLE)) fail("%s %s, which is an input", verb(kind), buffer->name);
    const bool early = request->pdl && !self->waited;
    if (early && (buffer->flags & BUFFER_AFTER_WAIT)) fail("touches %s before the dependency wait", buffer->name);
    if (buffer->initialised) check_written(buffer->initialised, offset, size, kind, buffer->name);
    if (buffer->cells) check_race(buffer->cells, offset, size, kind, buffer->name, false);
    if (kind == SIM_ATOMIC && (self->fenced || any_fence)) note_sync(address);
    if (kind == SIM_WRITE) self->fenced = false;
    follow(self, (int)(buffer->flags >> ROLE_SHIFT & 15), kind, early);
    count_access(place, buffer, offset, size, kind, early);
}

static inline __attribute__((always_inline)) void access(const void* pointer, size_t size, int kind, const void* place) {
    const uintptr_t address = (uintptr_t)pointer;
    if (address - (uintptr_t)stacks < (size_t)MAX_THREADS * STACK_BYTES) return;
    check_spin(address);
    if (address - (uintptr_t)sim_shared_begin < (uintptr_t)(sim_shared_end - sim_shared_begin) || address - (uintptr_t)sim_dynamic_shared < SHARED_LIMIT)
        access_shared(address, size, kind);
    else
        access_global(address, size, kind, (uintptr_t)place);
}

// ---- what the scheduler tells
static void watch_barrier() {
    barriers++;
    counts[BARRIERS]++;
    for (uint32_t i = 0; i < request->block; i++) end_chain(threads + i);
}

static void watch_warp_op(Warp* warp, uint32_t lanes, bool syncwarp) {
    const uint32_t operation = ++warp->operations;
    const bool full = lanes == warp->live();
    Thread* first = threads + (warp - warps) * WARP;
    for (uint32_t m = lanes; m; m &= m - 1) {
        Thread* thread = first + __builtin_ctz(m);
        thread->last_op = operation, thread->last_mask = lanes;
        if (full) thread->last_full = operation;
        if (syncwarp) thread->sync_op = operation, thread->sync_mask = lanes;
        if (syncwarp && full) thread->sync_full = operation;
        end_chain(thread);
    }
    counts[WARP_OPS]++;
    if (full) count_flush((int)(warp - warps));
}

static void watch_leave_warp() { count_flush(current / WARP); }

static void watch_block_begins() {
    block_stamp++, barriers = 0;
    for (uint32_t i = 0; i < request->block; i++) {
        Thread* t = threads + i;
        t->last_op = t->last_mask = t->last_full = t->sync_op = t->sync_mask = t->sync_full = 0;
        t->waited = t->fenced = false;
    }
    memset(static_written, 0, (size_t)(sim_shared_end - sim_shared_begin));
    memset(dynamic_written, 0, request->shared_bytes);
    count_block_begins();
    trips_block_begins();
}

static void watch_block_ends() {
    count_block_ends();
    trips_block_ends();
}

static void watch_launch_begins() {
    if (!image_end) dl_iterate_phdr(find_image, (void*)&watch_launch_begins);
    if ((size_t)(sim_shared_end - sim_shared_begin) > SHARED_LIMIT) fail("asks for more shared memory than a block can have");
    for (int i = 0; i < MAX_PLACES; i++) {
        places[i].length = 0;
        memset(places[i].passed, 0, sizeof places[i].passed);
    }
    used_count = 0, last_address = 0, repeats = 0, any_fence = false;
    report->waited = 0;
    races_launch_begins();
}

static void watch_launch_ends() {
    if (request->pdl && !report->waited)
        fail("no thread calls pdl_wait(), though the launch is marked pdl: the next product could start before this one's input is there");
}

extern "C" {
void sim_note(const void* address, size_t size, int kind, const void* place) {
    if (kind != SIM_READ_ONLY) { access(address, size, kind, place); return; }
    for (uint32_t i = 0; i < request->buffer_count; i++) {
        const SimBuffer* b = request->buffers + i;
        if ((uintptr_t)address < b->base || (uintptr_t)address >= b->base + b->size) continue;
        if (b->flags & BUFFER_WRITABLE) fail("reads %s through the read-only path, though kernels write it", b->name);
        if (request->pdl && (b->flags & BUFFER_AFTER_WAIT)) fail("reads %s through the read-only path in a launch with pdl", b->name);
    }
}
void sim_fence() { any_fence = true; note_fence(); }
void sim_pdl_trigger() {}
void sim_pdl_wait() {
    if (request->pdl) end_chain(threads + current);
    threads[current].waited = true;
    report->waited = 1;
}

#define HOOK(NAME, SIZE, KIND) \
    void NAME(void* address) { access(address, SIZE, KIND, __builtin_return_address(0)); }
#define HOOKS(SIZE)                                               \
    HOOK(__tsan_read##SIZE, SIZE, SIM_READ)                       \
    HOOK(__tsan_write##SIZE, SIZE, SIM_WRITE)                     \
    HOOK(__tsan_unaligned_read##SIZE, SIZE, SIM_READ)             \
    HOOK(__tsan_unaligned_write##SIZE, SIZE, SIM_WRITE)           \
    HOOK(__tsan_volatile_read##SIZE, SIZE, SIM_READ)              \
    HOOK(__tsan_volatile_write##SIZE, SIZE, SIM_WRITE)            \
    HOOK(__tsan_unaligned_volatile_read##SIZE, SIZE, SIM_READ)    \
    HOOK(__tsan_unaligned_volatile_write##SIZE, SIZE, SIM_WRITE)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* address, size_t size) { access(address, size, SIM_READ, __builtin_return_address(0)); }
void __tsan_write_range(void* address, size_t size) { access(address, size, SIM_WRITE, __builtin_return_address(0)); }
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}

// Copies that the compiler made of a loop or a struct: seen as one range each.
void* sim_memcpy(void* to, const void* from, size_t size) {
    access(from, size, SIM_READ, __builtin_return_address(0));
    access(to, size, SIM_WRITE, __builtin_return_address(0));
    return memmove(to, from, size);
}
void* sim_memset(void* to, int byte, size_t size) {
    access(to, size, SIM_WRITE, __builtin_return_address(0));
    return memset(to, byte, size);
}
}
