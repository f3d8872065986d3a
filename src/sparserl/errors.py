"""The errors a user can meet. Each message names the value, its owner, the valid choices and the way out.

A candidate program that fails is a value (`records.Outcome`), never one of these.
"""


TRY_AGAIN = 75
"""the exit code of a call that ended because its --budget was spent: call it again (EX_TEMPFAIL of sysexits.h)"""


class SparseRLError(Exception):
    """Base of every error that is the user's to read: the CLI prints it as one line and exits with code 2."""


class MatrixError(SparseRLError):
    """The matrix can't be read or isn't one we can multiply by."""


class LayoutError(SparseRLError):
    """A layout line names a layout, parameter or codec that doesn't exist, or one that refuses this matrix."""


class ProgramError(SparseRLError):
    """A program's text can't be read: header, signature, launch expression or bake name."""


class ScreenError(ProgramError):
    """A program's text is readable but holds something that may not be in a program: which rule, and why."""

    def __init__(self, rule: str, reason: str = "") -> None:
        super().__init__(rule, reason)
        self.rule = rule
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason} (screen rule '{self.rule}')" if self.reason else self.rule


class CompileError(SparseRLError):
    """The compiler refused the source. `log` is what it said."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class BackendError(SparseRLError):
    """A backend isn't available here, or the machine under it stopped working."""


class NoRoomError(BackendError):
    """The machine has no memory left for something. It is well otherwise."""


class OperatorError(SparseRLError):
    """An operator was called with something it can't multiply, or its file can't be loaded."""


class StoreError(SparseRLError):
    """A run folder or cache entry is broken or belongs to another version."""
