// Warp operations: shuffles, votes, matches and reductions. Each lane leaves its value and stops; the last to come works
// out every lane's result and sets them all free, so nobody can overwrite a value that another has yet to read.
#pragma once

static const char* name_of(int op) {
    return op == SIM_SHUFFLE ? "a shuffle" : op == SIM_SYNCWARP ? "__syncwarp()" : op == SIM_ACTIVE ? "__activemask()" : "a vote";
}

static inline void become(int thread) {
    current = thread;
    sim_thread.x = (unsigned)thread;
}

// What every lane gets from a vote or a reduction.
static uint64_t common_result(const Thread* lane0, uint32_t lanes, int op) {
    if (op == SIM_ACTIVE) return lanes;
    uint32_t out = 0;
    if (op == SIM_BALLOT) {
        for (uint32_t m = lanes; m; m &= m - 1) out |= (uint32_t)lane0[__builtin_ctz(m)].value << __builtin_ctz(m);
        return out;
    }
    out = (uint32_t)lane0[__builtin_ctz(lanes)].value;
    for (uint32_t m = lanes & (lanes - 1); m; m &= m - 1) {
        const uint32_t v = (uint32_t)lane0[__builtin_ctz(m)].value;
        switch (op) {
        case SIM_ADD: out += v; break;
        case SIM_MIN: out = (int32_t)v < (int32_t)out ? v : out; break;
        case SIM_MAX: out = (int32_t)v > (int32_t)out ? v : out; break;
        case SIM_UMIN: out = v < out ? v : out; break;
        case SIM_UMAX: out = v > out ? v : out; break;
        case SIM_AND: out &= v; break;
        case SIM_OR: out |= v; break;
        case SIM_XOR: out ^= v; break;
        }
    }
    return out;
}

static void complete(Warp* warp, int first, Group* group) {
    const uint32_t lanes = group->arrived;
    const int op = group->op;
    Thread* lane0 = threads + first;
    const uint64_t all = op == SIM_SHUFFLE || op == SIM_MATCH || op == SIM_SYNCWARP ? 0 : common_result(lane0, lanes, op);
    for (uint32_t m = lanes; m; m &= m - 1) {
        const int lane = __builtin_ctz(m);
        Thread* thread = lane0 + lane;
        if (op == SIM_SHUFFLE) {
            if (!(lanes >> thread->source & 1)) {
                become(first + lane);
                fail("a shuffle reads lane %d, which %s", thread->source,
                     group->mask >> thread->source & 1 ? "has ended or does not exist" : "is not in its mask");
            }
            thread->result = lane0[thread->source].value;
        } else if (op == SIM_MATCH) {
            uint32_t same = 0;
            for (uint32_t o = lanes; o; o &= o - 1)
                if (lane0[__builtin_ctz(o)].value == thread->value) same |= o & (0u - o);
            thread->result = same;
        } else {
            thread->result = all;
        }
    }
    warp->ready |= lanes;
    *group = warp->group[--warp->groups];
    if (op != SIM_ACTIVE) watch_warp_op(warp, lanes, op == SIM_SYNCWARP);
}

// A warp operation is complete when every lane of its mask that still lives has come.
static bool try_complete(Warp* warp, int first, Group* group) {
    if (group->op == SIM_ACTIVE || (group->mask & warp->live()) != group->arrived) return false;
    complete(warp, first, group);
    return true;
}
