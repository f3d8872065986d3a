"""What is worked out about cuSPARSE's formats without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from sparserl.backends.cusparse import _sampled_fill
from sparserl.matrix import Pattern


@pytest.mark.parametrize("b", [2, 3, 4, 6, 8])
@pytest.mark.parametrize(("blocks", "sample"), [(500, 2000), (500, 40)], ids=["all rows", "a sample"])
def test_the_fill_of_blocks_is_that_of_scipys_blocks(b: int, blocks: int, sample: int) -> None:
    coarse = sp.random(blocks, blocks, 0.01, "csr", random_state=b)
    fine = sp.csr_array(sp.kron(coarse, np.ones((b, b))))
    fine.data[np.random.default_rng(b).random(fine.nnz) < 0.3] = 0
    fine.eliminate_zeros()
    fine.sort_indices()
    seen = np.unique(np.linspace(0, blocks - 1, min(sample, blocks)).astype(int))
    rows = fine[(seen[:, None] * b + np.arange(b)).ravel()]
    pattern = Pattern(*fine.shape, fine.indptr.astype(np.int32), fine.indices.astype(np.int32))
    assert _sampled_fill(pattern, b, sample) == pytest.approx(rows.nnz / rows.tobsr((b, b)).data.size)


def test_a_matrix_without_entries_has_no_fill() -> None:
    assert _sampled_fill(Pattern(4, 4, np.zeros(5, np.int32), np.zeros(0, np.int32)), 2, 100) == 0.0
