"""SparseRL: a sparse matrix goes in; a verified, measured CUDA operator made for that matrix comes out."""
