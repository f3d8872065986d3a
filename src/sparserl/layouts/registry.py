"""All layouts, by name."""

from __future__ import annotations

from sparserl.layouts.bins import Bins
from sparserl.layouts.blocks import Blocks
from sparserl.layouts.blockslices import Blockslices
from sparserl.layouts.chunks import Chunks
from sparserl.layouts.colblocks import Colblocks
from sparserl.layouts.diagonals import Diagonals
from sparserl.layouts.filled import Filled
from sparserl.layouts.hybrid import Hybrid
from sparserl.layouts.layout import Layout
from sparserl.layouts.merge import Merge
from sparserl.layouts.nonempty import Nonempty
from sparserl.layouts.rows import Rows
from sparserl.layouts.slices import Ell, Slices
from sparserl.layouts.split import Split
from sparserl.layouts.tiles import Tiles

_ALL: tuple[Layout, ...] = (
    Rows(),
    Nonempty(),
    Filled(),
    Slices(),
    Ell(),
    Split(),
    Hybrid(),
    Bins(),
    Tiles(),
    Merge(),
    Chunks(),
    Blocks(),
    Blockslices(),
    Diagonals(),
    Colblocks(),
)
LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in _ALL}
