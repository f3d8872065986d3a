"""What a simulator worker gives up before it runs model-written code as host code. Linux; each part where there is one.

In order: no new privileges, limits on memory, file size, open files and core dumps, a Landlock domain that leaves no
file writable outside the worker's own folder, and a seccomp filter that refuses new processes, sockets, signals to
others, tracing and kernel interfaces. The screen's allow-list stands before all this; this is the second wall.

Not covered: reading files (Python needs that to import), and anything on an operating system other than Linux or a
processor other than x86_64 and aarch64: `lockdown` says what it applied, and the doctor prints it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import struct
import sys

MEMORY_BYTES = 32 << 30
FILE_BYTES = 256 << 20
OPEN_FILES = 256

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38
_CLONE_THREAD = 0x00010000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# (x86_64, aarch64); -1 where the machine has no such call
_REFUSED: dict[str, tuple[int, int]] = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, -1),
    "vfork": (58, -1),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "accept": (43, 202),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "mount": (165, 40),
    "umount2": (166, 39),
    "setns": (308, 268),
    "unshare": (272, 97),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "reboot": (169, 142),
}
_CLONE, _CLONE3, _TGKILL = (56, 220), (435, 435), (234, 131)

_LANDLOCK_CREATE, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_WRITES = 0x1FF2  # write, remove and make rights of the first version: all but execute, read file, read folder
_LANDLOCK_REFER, _LANDLOCK_TRUNCATE = 1 << 13, 1 << 14


def lockdown(writable: str) -> str:
    """Give up what a kernel doesn't need, for good. Returns what was applied and what this machine doesn't offer."""
    if sys.platform != "linux":
        return f"limits: none; seccomp: none; landlock: none (not offered on {sys.platform})"
    libc = ctypes.CDLL(None, use_errno=True)
    privileges = "on" if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 else "refused"
    parts = [f"no new privileges: {privileges}", f"limits: {_limit()}", f"landlock: {_landlock(libc, writable)}"]
    return "; ".join([*parts, f"seccomp: {_seccomp(libc)}"])


def _limit() -> str:
    with open("/proc/self/statm", encoding="ascii") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    wanted = {
        "memory": (resource.RLIMIT_AS, in_use + MEMORY_BYTES),
        "file size": (resource.RLIMIT_FSIZE, FILE_BYTES),
        "open files": (resource.RLIMIT_NOFILE, OPEN_FILES),
        "core dump": (resource.RLIMIT_CORE, 0),
    }
    applied = []
    for name, (which, value) in wanted.items():
        hard = resource.getrlimit(which)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (limit, limit))
            applied.append(name)
    return ", ".join(applied) or "none"


def _landlock(libc: ctypes.CDLL, writable: str) -> str:
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return "none (not in this kernel)"
    handled = _LANDLOCK_WRITES | (_LANDLOCK_REFER if version >= 2 else 0) | (_LANDLOCK_TRUNCATE if version >= 3 else 0)
    attributes = ctypes.c_uint64(handled)
    ruleset = libc.syscall(_LANDLOCK_CREATE, ctypes.byref(attributes), ctypes.c_size_t(8), ctypes.c_uint32(0))
    if ruleset < 0:
        return f"none (errno {ctypes.get_errno()})"
    folder = os.open(writable, os.O_PATH | os.O_CLOEXEC)
    rule = ctypes.create_string_buffer(struct.pack("=Qi", handled, folder))
    try:
        added = libc.syscall(_LANDLOCK_ADD_RULE, ruleset, ctypes.c_int(1), rule, ctypes.c_uint32(0))
        if added or libc.syscall(_LANDLOCK_RESTRICT, ruleset, ctypes.c_uint32(0)):
            return f"none (errno {ctypes.get_errno()})"
    finally:
        os.close(folder)
        os.close(ruleset)
    return f"version {version}, writes only in the worker's folder"


def _seccomp(libc: ctypes.CDLL) -> str:
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        return f"none (no table for {machine})"
    program = _filter(machine)
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    header = Program(len(program) // 8, ctypes.cast(code, ctypes.c_void_p))
    if libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(header), 0, 0):
        return f"none (errno {ctypes.get_errno()})"
    return f"{len(_REFUSED) + 3} calls refused"


def _filter(machine: str) -> bytes:
    """The classic BPF program: load the call's number, compare, answer. Jumps count instructions to skip."""
    column = 0 if machine == "x86_64" else 1

    def load(offset: int) -> bytes:
        return struct.pack("=HBBI", 0x20, 0, 0, offset)

    def unless_equal_skip(value: int, skip: int) -> bytes:
        return struct.pack("=HBBI", 0x15, 0, skip, value)

    def answer(value: int) -> bytes:
        return struct.pack("=HBBI", 0x06, 0, 0, value)

    out = [load(4), struct.pack("=HBBI", 0x15, 1, 0, _AUDIT_ARCH[machine]), answer(_KILL), load(0)]
    if machine == "x86_64":  # the x32 table has other numbers for the same calls
        out += [struct.pack("=HBBI", 0x35, 0, 1, 0x40000000), answer(_ERRNO | _EPERM)]
    for numbers in _REFUSED.values():
        if numbers[column] >= 0:
            out += [unless_equal_skip(numbers[column], 1), answer(_ERRNO | _EPERM)]
    # ENOSYS makes the C library fall back to clone, whose flags can be read here
    out += [unless_equal_skip(_CLONE3[column], 1), answer(_ERRNO | _ENOSYS)]
    # clone: threads only (argument 0 holds the flags)
    out += [unless_equal_skip(_CLONE[column], 4), load(16), struct.pack("=HBBI", 0x45, 0, 1, _CLONE_THREAD)]
    out += [answer(_ALLOW), answer(_ERRNO | _EPERM)]
    # tgkill: only to itself, for abort()
    out += [unless_equal_skip(_TGKILL[column], 4), load(16), unless_equal_skip(os.getpid(), 1)]
    out += [answer(_ALLOW), answer(_ERRNO | _EPERM), answer(_ALLOW)]
    return b"".join(out)
