// Races. A conflicting pair of accesses that are not both atomic is a race unless something orders it: a barrier within
// the block, a warp operation that both lanes took part in (for shared memory only __syncwarp(): shuffles and votes promise
// nothing about stores, but behind a fence they may tell other lanes of global ones), or, for global memory, a fence and an atomic on either side
// with the same counter. Each 4-byte word remembers its last write and two readers; blocks run one at a time, so the order
// in which accesses come is one that the machine might choose, and the question is only whether it must.
// What it may miss: a third reader, and a writer of other bytes of the same word in between.
#pragma once

// Who touched a word, and when by the block's barriers and the warp's operations. `block` counts blocks as they ran.
struct Touch { uint32_t block, barrier, operations; uint16_t thread; uint8_t bytes; bool atomic; };
struct Cell { Touch write, read[2]; };

// An atomic on a counter between blocks, with what its thread had synchronised with by then.
struct Sync { uint64_t counter; uint32_t barrier, operations, last_op, last_mask, last_full; uint16_t thread; bool released, acquired; int next; };

static Cell static_cells[SHARED_LIMIT / 4], dynamic_cells[SHARED_LIMIT / 4];
static uint32_t block_stamp, launch_stamp, barriers; // blocks run so far, of earlier launches, barriers of this block
static Sync* syncs;
static int sync_count, sync_capacity;
static int* sync_heads;  // by block of this launch, as they ran: its last Sync, or -1
static uint32_t heads_capacity;

static bool ordered_in_block(const Touch* earlier, uint32_t thread, uint32_t barrier, uint32_t last_op, uint32_t last_mask, uint32_t last_full) {
    if (earlier->thread == thread || earlier->barrier < barrier) return true;
    if (earlier->thread / WARP != thread / WARP) return false;
    return last_full > earlier->operations || (last_op > earlier->operations && (last_mask >> (earlier->thread % WARP) & 1));
}

static bool acquired_by_me(uint64_t counter, int after) {
    const Thread* self = threads + current;
    for (int i = sync_heads[block_stamp - launch_stamp - 1]; i > after; i = syncs[i].next) {
        if (syncs[i].counter != counter || !syncs[i].acquired) continue;
        const Touch there = {block_stamp, syncs[i].barrier, syncs[i].operations, syncs[i].thread, 0, true};
        if (ordered_in_block(&there, (uint32_t)current, barriers, self->last_op, self->last_mask, self->last_full)) return true;
    }
    return false;
}

static bool ordered_by_counter(const Touch* earlier) {
    for (int i = sync_heads[earlier->block - launch_stamp - 1]; i >= 0; i = syncs[i].next) {
        const Sync* s = syncs + i;
        if (!s->released) continue;
        if (earlier->thread == s->thread ? earlier->barrier > s->barrier || earlier->operations > s->operations
                                         : !ordered_in_block(earlier, s->thread, s->barrier, s->last_op, s->last_mask, s->last_full)) continue;
        if (acquired_by_me(s->counter, i)) return true;
    }
    return false;
}

static bool ordered(const Touch* earlier, bool shared) {
    if (earlier->block <= launch_stamp) return true;  // nobody, or an earlier launch
    if (shared && earlier->block != block_stamp) return true;  // another block's shared memory was another memory
    const Thread* self = threads + current;
    if (shared) return ordered_in_block(earlier, (uint32_t)current, barriers, self->sync_op, self->sync_mask, self->sync_full);
    if (earlier->block == block_stamp &&
        ordered_in_block(earlier, (uint32_t)current, barriers, self->last_op, self->last_mask, self->last_full)) return true;
    return ordered_by_counter(earlier);
}

[[noreturn]] static void race(const Touch* earlier, const char* what, const char* name, uint64_t offset, bool write) {
    char where[64] = "of the same block";
    if (earlier->block != block_stamp) snprintf(where, sizeof where, "of another block, with no fence and atomic between them");
    fail("races on byte %llu of %s: it %s what thread %u %s %s", (unsigned long long)offset, name,
         write ? "writes" : "reads", earlier->thread, what, where);
}

static inline void check_cell(Cell* cell, uint8_t bytes, int kind, const char* name, uint64_t offset, bool shared) {
    const bool atomic = kind == SIM_ATOMIC, write = kind != SIM_READ;
    const Touch now = {block_stamp, barriers, warps[current / WARP].operations, (uint16_t)current, bytes, atomic};
    if ((cell->write.bytes & bytes) && !(atomic && cell->write.atomic) && !ordered(&cell->write, shared)) race(&cell->write, "wrote", name, offset, write);
    if (!write) {
        Touch* first = cell->read;
        Touch* slot = first->thread == now.thread && first->block == now.block ? first : ordered(first, shared) ? first : first + 1;
        *slot = now;
        return;
    }
    for (int r = 0; r < 2; r++)
        if ((cell->read[r].bytes & bytes) && !ordered(&cell->read[r], shared)) race(&cell->read[r], "reads", name, offset, true);
    cell->write = now;
}

static inline void check_race(Cell* cells, uint64_t offset, size_t size, int kind, const char* name, bool shared) {
    for (uint64_t at = offset; at < offset + size;) {
        const uint64_t end = (at / 4 + 1) * 4 < offset + size ? (at / 4 + 1) * 4 : offset + size;
        const uint8_t bytes = (uint8_t)((0xfu << (at % 4)) & (0xfu >> (3 - (end - 1) % 4)));
        check_cell(cells + at / 4, bytes, kind, name, at, shared);
        at = end;
    }
}

static void note_sync(uint64_t counter) {
    Thread* self = threads + current;
    if (sync_count == sync_capacity) {
        const int wanted = sync_capacity ? 2 * sync_capacity : 1024;
        grow(syncs, (size_t)wanted);
        sync_capacity = wanted;
    }
    int* head = sync_heads + (block_stamp - launch_stamp - 1);
    syncs[sync_count] = {counter, barriers, warps[current / WARP].operations, self->last_op, self->last_mask, self->last_full,
                         (uint16_t)current, self->fenced, false, *head};
    *head = sync_count++;
}

// A fence: what this thread wrote is out, and what its atomics saw is in.
static void note_fence() {
    threads[current].fenced = true;
    for (int i = sync_heads[block_stamp - launch_stamp - 1]; i >= 0; i = syncs[i].next)
        if (syncs[i].thread == current) syncs[i].acquired = true;
}

static void races_launch_begins() {
    launch_stamp = block_stamp;
    sync_count = 0;
    if (request->grid > heads_capacity) {
        grow(sync_heads, request->grid);
        heads_capacity = request->grid;
    }
    for (uint32_t i = 0; i < request->grid; i++) sync_heads[i] = -1;
}
