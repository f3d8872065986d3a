// The words that the kernel's header and the runtime share.
#pragma once

enum SimWarpOp {
    SIM_SHUFFLE, SIM_BALLOT, SIM_SYNCWARP, SIM_ACTIVE, SIM_MATCH,
    SIM_ADD, SIM_MIN, SIM_MAX, SIM_UMIN, SIM_UMAX, SIM_AND, SIM_OR, SIM_XOR
};
enum SimAccess { SIM_READ, SIM_WRITE, SIM_ATOMIC, SIM_READ_ONLY };
