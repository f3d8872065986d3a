"""Pages from the records of a benchmark: one self-contained HTML file, and the short view of an operator."""
