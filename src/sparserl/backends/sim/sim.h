// The runtime's own nouns, and the plain structs that Python (native.py) passes in and reads back. Field order and sizes
// here and there must agree.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "fibers.h"

enum { MAX_THREADS = 1024, WARP = 32, MAX_WARPS = MAX_THREADS / WARP, SHARED_LIMIT = 232448, POISON = 0xff };

enum BufferFlags { BUFFER_WRITABLE = 1, BUFFER_AFTER_WAIT = 2 };

// One array that a kernel may touch.
struct SimBuffer {
    uint64_t base, size;
    uint8_t* initialised;    // a byte for each byte, 0 = never written; null: all of it is
    struct Cell* cells;      // one for each 4-byte word, for races; null: nothing is written, so nothing can race
    uint32_t* touched;       // a bit for each 32-byte sector
    uint64_t virtual_sector; // where the buffer begins in the modelled address space, so that counts don't depend on malloc
    uint32_t flags, distinct;
    char name[32];
};

enum Counter { INSTRUCTIONS, REQUESTED, L2_READ, L2_WRITTEN, LINES, ROUNDS, ATOMICS, SHARED, EARLY, WARP_OPS, BARRIERS, TRIPS, EARLY_TRIPS, LOOPS, SERIAL_SHARED, COUNTERS };

struct SimRequest {
    void (*entry)(void**);
    void** arguments;
    const char* kernel;
    SimBuffer* buffers;
    uint32_t* counters; // grid × COUNTERS
    void** stacks;      // the process's stacks for fibers; made by the first launch
    uint64_t seed;
    double limit_s;
    uint32_t buffer_count, grid, block, shared_bytes, pdl, l1_sectors;
};

struct SimReport {
    uint32_t failed, waited;
    char reason[504];
};

// A CUDA thread. It holds a stack only between its first instruction and its last.
struct Thread {
    Context context;
    int stack;
    int source;              // the lane whose value a shuffle reads
    uint64_t value, result;  // of the warp operation it waits in
    // what the watch knows of it
    uint32_t last_op, last_mask, last_full; // warp operations: its last, who was in it, the last with the whole warp
    uint32_t sync_op, sync_mask, sync_full; // the same of __syncwarp() alone
    bool waited, fenced, looped;
    uint8_t depth;                                      // of the chain of loads it is in (trips.h)
    uint32_t trips, early_trips, loops, serial_shared; // since its block began
};

struct Group { uint32_t mask, arrived; int op; };

struct Warp {
    uint32_t exists, ready, started, done, at_barrier;
    uint32_t operations; // warp operations completed
    int groups;
    Group group[WARP];
    uint32_t live() const { return exists & ~done; }
};
