"""What a cubin says of itself. It is an ELF file; its section `.nv.info` lists attributes of kernels.

The compiler's log would say the same, but about one log in seventy comes without the line.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

HEADER, SECTION = struct.Struct("<40xQ10xHHH"), struct.Struct("<I20xQQ24x")
"""of an ELF file: where its table of sections is, an entry's size, how many there are and which holds their names; of a
section: where its name is, where it begins and how long it is"""
SIZED, REGISTERS = 4, 0x2F
"""a form of attribute, with as many bytes as it says; the attribute that is (symbol, registers)"""


def registers(code: bytes) -> int:
    """The most that one of its kernels uses; 0 where it doesn't say."""
    try:
        return max(_registers(_section(code, b".nv.info")), default=0)
    except (struct.error, ValueError):  # cut short, or no ELF file
        return 0


def _section(code: bytes, wanted: bytes) -> bytes:
    """The first section of this name."""
    table, step, count, named_by = HEADER.unpack_from(code)
    sections = [SECTION.unpack_from(code, table + step * at) for at in range(count)]
    names = sections[named_by][1] if named_by < count else len(code)
    for name, begin, size in sections:
        if code[names + name : code.index(b"\0", names + name)] == wanted:
            return code[begin : begin + size]
    return b""


def _registers(attributes: bytes) -> Iterator[int]:
    at = 0
    while at < len(attributes):
        form, attribute, size = struct.unpack_from("<BBH", attributes, at)
        if form == SIZED and attribute == REGISTERS:
            yield struct.unpack_from("<I", attributes, at + 8)[0]
        at += 4 + (size if form == SIZED else 0)
