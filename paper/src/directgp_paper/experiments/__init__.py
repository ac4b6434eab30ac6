"""The experiments of the paper: cells, what runs them, and its claims."""
