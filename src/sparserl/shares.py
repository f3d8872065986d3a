"""Work in pieces: the share of one of several processes ('I/N' is every N-th piece from the I-th on), and its end."""

from __future__ import annotations

from sparserl.errors import SparseRLError

TIME_IS_UP = "the time is up; call again to go on"
"""the last line of a call whose --budget is spent; scripts look for it"""


def share_of(text: str) -> tuple[int, int]:
    """(I, N) of 'I/N'."""
    which, _, shares = text.partition("/")
    if which.isdecimal() and shares.isdecimal() and int(which) < int(shares):
        return int(which), int(shares)
    raise SparseRLError(f"The '--share' must be I/N with 0 <= I < N, such as 0/4. Got {text!r}.")
