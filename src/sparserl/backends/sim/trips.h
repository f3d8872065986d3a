// How long a thread waits for memory. Loads that follow one another through an array (a row's bounds, then a column, then
// x) are dependent round trips; the same array again is in flight beside the last one. A shuffle, a barrier, an atomic or
// a store ends such a chain: what is read after it starts a new one. A loop that goes back from x to the next column
// without any of these is counted apart, because a compiler unrolls it and keeps several steps in flight.
// What it does not see: which value an address was computed from. It goes by the role of the array alone.
#pragma once

enum Role { STRUCTURE, COLUMNS, VECTOR, VALUES, WORKSPACE, OUTPUT };  // as in model.py

static inline int depth_of(int role) {
    return role == VECTOR ? 3 : role == COLUMNS ? 2 : role == STRUCTURE || role == WORKSPACE ? 1 : 0;
}

static inline void end_chain(Thread* thread) { thread->depth = 0, thread->looped = false; }

static inline void follow(Thread* thread, int role, int kind, bool early) {
    if (kind != SIM_READ) return end_chain(thread);
    int depth = depth_of(role);
    // Values hide behind the columns beside them, unless they are all that can be read before the wait.
    if (early && role == VALUES && !thread->depth) depth = 1;
    if (depth > thread->depth) {
        if (!thread->looped) (early ? thread->early_trips : thread->trips)++;
        thread->depth = (uint8_t)depth;
    } else if (depth && thread->depth == 3 && depth < 3) {
        thread->loops++;
        thread->looped = true;
        thread->depth = (uint8_t)depth;
    }
}

static inline void keep_longest(uint32_t* longest, uint32_t mine) {
    if (mine > *longest) *longest = mine;
}

static void trips_block_begins() {
    for (uint32_t i = 0; i < request->block; i++) {
        Thread* t = threads + i;
        end_chain(t);
        t->trips = t->early_trips = t->loops = t->serial_shared = 0;
    }
}

static void trips_block_ends() {
    for (uint32_t i = 0; i < request->block; i++) {
        const Thread* t = threads + i;
        keep_longest(counts + TRIPS, t->trips);
        keep_longest(counts + EARLY_TRIPS, t->early_trips);
        keep_longest(counts + LOOPS, t->loops);
        keep_longest(counts + SERIAL_SHARED, t->serial_shared);
    }
}
