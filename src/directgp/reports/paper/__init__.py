"""The report of the paper's experiments: every claim with its verdict, every figure."""
