"""Mutations of programs, by kind. Each takes a Draft and a random.Random, changes the draft in place and says whether
it could; one that doesn't apply, or isn't sure, leaves nothing behind (throw the draft away).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from sparserl.train.mutations import (
    access,
    batching,
    cooperation,
    dependent,
    fusing,
    header,
    placing,
    reduction,
    splitting,
    staging,
    sums,
    tiling,
    unrolling,
)
from sparserl.train.mutations.draft import Draft

__all__ = ["KINDS", "Draft", "Mutation"]

Mutation = Callable[[Draft, random.Random], bool]

KINDS: Mapping[str, Mutation] = {
    "unroll": unrolling.unroll,
    "depth": unrolling.depth,
    "batch": batching.batch,
    "early": batching.early,
    "pipeline": batching.pipeline,
    "accumulators": sums.accumulators,
    "backwards": sums.backwards,
    "pairwise": sums.pairwise,
    "lanes": reduction.lanes,
    "block_sum": reduction.blocks,
    "butterfly": reduction.butterflies,
    "threads": splitting.threads,
    "persistent": splitting.persistent,
    "coarsen": splitting.coarsen,
    "reverse": splitting.reverse,
    "load_way": access.load_way,
    "store_way": access.store_way,
    "pdl": dependent.switch,
    "trigger": dependent.trigger,
    "window": staging.window,
    "descriptors": staging.descriptors,
    "packing": header.packing,
    "baked": header.baked,
    "registers": header.registers,
    "sink": placing.sink,
    "fuse": fusing.fuse,
    "vector": cooperation.vector,
    "broadcast": cooperation.broadcast,
    "tile_order": tiling.tile_order,
    "tiles_apart": tiling.tiles_apart,
}
"""every kind but the crossover, which needs a second parent"""
