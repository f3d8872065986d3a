"""CUDA source as highlighted HTML: a comment is `<i>`, a keyword `<b>`, a type, built-in variable or intrinsic `<u>`, a
number, string or directive `<s>`, a primitive of the preamble `<em>`. The words are those of `vocabulary`. Tags are
short, because a page holds hundreds of kernels; its style sheet gives them colours. Text that is not CUDA, or breaks
off in the middle, comes out escaped and whole.
"""

from __future__ import annotations

import re
from html import escape

from sparserl.vocabulary import BUILTINS, INTRINSICS, KEYWORDS, PRIMITIVES, TYPES

TOKEN = re.compile(
    r"""
      (?P<i>//[^\n]*|/\*.*?(?:\*/|\Z))
    | (?P<s>"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|\#[^\n]*|(?<![\w.])\.?\d(?:[eEpP][+-]|[\w.])*)
    | (?P<name>[A-Za-z_]\w*)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
TAGS = {
    **dict.fromkeys(TYPES | BUILTINS | INTRINSICS, "u"),
    **dict.fromkeys(KEYWORDS, "b"),
    **dict.fromkeys(PRIMITIVES, "em"),
}


def highlight(text: str) -> str:
    """HTML for the inside of a `<pre>`."""
    made, end = [], 0
    for found in TOKEN.finditer(text):
        made.append(escape(text[end : found.start()], quote=False))
        words = escape(found.group(), quote=False)
        tag = TAGS.get(found.group(), "") if found.lastgroup == "name" else found.lastgroup
        made.append(f"<{tag}>{words}</{tag}>" if tag else words)
        end = found.end()
    made.append(escape(text[end:], quote=False))
    return "".join(made)
