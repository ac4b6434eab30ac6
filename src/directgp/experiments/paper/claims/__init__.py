"""The claims of the paper, each judged by results."""
