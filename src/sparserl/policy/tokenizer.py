"""Text ↔ token ids: byte-level BPE whose tokens never cross a newline, a punctuation mark or an identifier.

A text is first cut into units (`UNITS`, one regular expression), and a token lies inside one unit:

- a newline with the blanks that indent the next line (a carriage return is not part of it);
- an identifier or word, with at most one space before it;
- one to three digits, never with a space: the `128` of a header and that of a body are the same token, and any number
  can be put together;
- an operator of `OPERATORS`, or any other ASCII punctuation mark by itself, with at most one space before it;
- a run of blanks; any other character (control or outside ASCII) by itself.

The rule is read so: blanks may stand before what they lead up to, because they separate and say nothing; nothing else
is joined. Every byte is a token too, so any text and any bytes come back exactly:

- `encode`/`decode`: any Python string. A lone surrogate goes in as its three bytes of generalised UTF-8 and comes back.
- `encode_bytes`/`decode_bytes`: any bytes. `decode` shows ids that spell no UTF-8 with U+FFFD.

`encode` never yields a special token, whatever the text spells; `decode` spells those that it is given.
`encode_program` sets special tokens in place of the `// layout: ` … `// launch: ` of a canonical program. Not covered:
several ways to cut one text (BPE dropout), offsets of tokens in the text. `train/tokens.py` makes the shipped file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

import tokenizers

from sparserl.errors import ProgramError, SparseRLError, StoreError
from sparserl.program import parse, render
from sparserl.store import write_atomic

NAMED = (
    "pad", "bos", "eos", "program", "layout", "bake", "workspace", "launch", "code", "fim_prefix", "fim_middle",
    "fim_suffix", "feedback",
)  # fmt: skip
SPECIALS: tuple[str, ...] = tuple(f"<{name}>" for name in NAMED) + tuple(f"<spare_{i}>" for i in range(32 - len(NAMED)))
"""ids 0..31; a spare one can be given a meaning without a new vocabulary"""

OPERATORS = (
    "<<<", ">>>", "<<=", ">>=", "...", "->*", "//", "/*", "*/", "##", "::", "->", "++", "--", "<<", ">>", "<=", ">=",
    "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=",
)  # fmt: skip
"""the longest first: a regular expression takes the first that fits"""

UNITS = (
    r"\n[ \t]*| ?[A-Za-z_][A-Za-z0-9_]*|[0-9]{1,3}"
    rf"| ?(?:{'|'.join(map(re.escape, OPERATORS))})"
    r"| ?[!-/:-@\[-`{-~]|[ \t]+|[\s\S]"
)
"""means the same to Python's `re` and to the tokenizers library: classes are ASCII, [\\s\\S] is one character"""

_STRAY = re.compile("([\udc80-\udcff]+)")
_HEADER_LINE = re.compile(r"// (layout|bake|workspace|launch): (.*\n)")
_CACHED_UNITS = 1 << 18


class Tokenizer:
    """A vocabulary with its merges. `special` has the ids of the special tokens; the named ones are attributes too."""

    special: dict[str, int] = {each: i for i, each in enumerate(SPECIALS)}  # noqa: RUF012  # a constant
    pad, bos, eos, program, layout, bake, workspace, launch, code = range(9)
    fim_prefix, fim_middle, fim_suffix, feedback = range(9, len(NAMED))
    size: int
    """tokens in all, the special ones among them"""

    def __init__(self, text: str, source: str = "this text") -> None:
        """From the JSON of the tokenizers library; `source` is what an error calls it."""
        try:
            content = json.loads(text)
            vocabulary: dict[str, int] = content["model"]["vocab"]
            self._units = re.compile(content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"])
            self._library = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exceptions; none of its own classes can be named
            raise StoreError(f"{source} is no tokenizer of this project ({error}). {_REMEDY}") from error
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise StoreError(f"The ids in {source} have gaps. {_REMEDY}")
        self._library.encode_special_tokens = True  # their spelling in a text is text
        self.size = len(vocabulary)
        spelled = sorted(vocabulary, key=vocabulary.__getitem__)
        if tuple(spelled[: len(SPECIALS)]) != SPECIALS:
            raise StoreError(f"The special tokens in {source} are not the {len(SPECIALS)} of this version. {_REMEDY}")
        byte_of = _byte_of()
        try:
            pieces = [bytes(byte_of[character] for character in each) for each in spelled[len(SPECIALS) :]]
            self._byte_ids = [vocabulary[character] for character in sorted(byte_of, key=byte_of.__getitem__)]
        except KeyError as error:
            raise StoreError(f"The vocabulary in {source} is not byte-level: {error} is wrong. {_REMEDY}") from error
        self._pieces = [each.encode() for each in SPECIALS] + pieces
        self._header_pieces = list(self._pieces)
        for name in ("layout", "bake", "workspace", "launch"):
            self._header_pieces[self.special[f"<{name}>"]] = f"// {name}: ".encode()
        self._known: dict[str, list[int]] = {}
        self._json = text

    @classmethod
    def load(cls, path: Path | None = None) -> Tokenizer:
        """A stored tokenizer; without a path the shipped one."""
        if path is None:
            shipped = resources.files("sparserl.policy").joinpath("tokenizer.json")
            return cls(shipped.read_text(encoding="utf-8"), "the shipped tokenizer.json")
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"The tokenizer {path} can't be read ({error}). {_REMEDY}") from error

    def save(self, path: Path) -> None:
        """Write the file that `load` reads."""
        write_atomic(path, self._json.encode())

    # ── Any text, any bytes ───────────────────────────────────────────────────

    def encode(self, text: str) -> list[int]:
        """The ids of a text; never a special token."""
        if text.isascii():
            return self._encode_clean(text)
        return self.encode_bytes(text.encode("utf-8", "surrogatepass"))

    def encode_bytes(self, data: bytes) -> list[int]:
        """The ids of any bytes. Those that are no UTF-8 become a token each."""
        ids: list[int] = []
        for number, part in enumerate(_STRAY.split(data.decode("utf-8", "surrogateescape"))):
            ids += [self._byte_ids[ord(each) - 0xDC00] for each in part] if number % 2 else self._encode_clean(part)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens as they are spelled. Undoes `encode`."""
        return _text(self._join(ids, self._pieces))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids. Undoes `encode_bytes`."""
        return self._join(ids, self._pieces)

    def piece(self, token: int) -> bytes:
        """What one token stands for."""
        return self._join([token], self._pieces)

    # ── Programs ──────────────────────────────────────────────────────────────

    def encode_program(self, text: str) -> list[int]:
        """<program>, a special token and the rest of the line for every header line, <code>, the body, <eos>."""
        if render(parse(text)) != text:
            raise ProgramError(
                "Only a program in canonical form can be encoded as one. Pass sparserl.program.render(parse(text)); "
                f"got a header that is written otherwise: {text.partition(chr(10))[0]!r} …"
            )
        ids, at = [self.program], 0
        while match := _HEADER_LINE.match(text, at):
            ids.append(self.special[f"<{match[1]}>"])
            ids += self.encode(match[2])
            at = match.end()
        ids.append(self.code)
        ids += self.encode(text[at:])
        ids.append(self.eos)
        return ids

    def decode_program(self, ids: Sequence[int]) -> str:
        """The text up to <eos>, or all of it where there is none. Undoes `encode_program`.

        A special token out of place stands in the text as it is spelled: such a program is refused later, not mended.
        """
        ids = list(ids)
        end = ids.index(self.eos) if self.eos in ids else len(ids)
        ids = ids[1:end] if ids[:1] == [self.program] else ids[:end]
        body = ids.index(self.code) if self.code in ids else len(ids)
        return _text(self._join(ids[:body], self._header_pieces) + self._join(ids[body + 1 :], self._pieces))

    # ── Inside ────────────────────────────────────────────────────────────────

    def _encode_clean(self, text: str) -> list[int]:
        """Text without surrogates. Units repeat, so a table is five times as fast as the library on every text."""
        known, ids = self._known, []
        for unit in self._units.findall(text):
            found = known.get(unit)
            if found is None:
                if len(known) >= _CACHED_UNITS:
                    known.clear()
                found = known[unit] = self._library.encode(unit, add_special_tokens=False).ids
            ids += found
        return ids

    def _join(self, ids: Iterable[int], pieces: list[bytes]) -> bytes:
        ids = list(ids)
        if ids and not (min(ids) >= 0 and max(ids) < self.size):
            wrong = next(each for each in ids if not 0 <= each < self.size)
            raise SparseRLError(f"A token id of this tokenizer is 0..{self.size - 1}. Got {wrong}; is it another's?")
        return b"".join([pieces[each] for each in ids])


_REMEDY = "Make one with `sparserl train tokenizer`, or load the shipped one."


def _byte_of() -> dict[str, int]:
    """The library spells a byte as one printable character: its own in Latin-1, or one from U+0100 on."""
    table: dict[str, int] = {}
    moved = 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or (byte >= 0xA1 and byte != 0xAD):
            table[chr(byte)] = byte
        else:
            table[chr(moved)] = byte
            moved += 1
    return table


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")
