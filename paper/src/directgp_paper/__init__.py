"""Reproduction of the paper "Direct Loss Minimization for Sparse Gaussian Processes"."""

__version__ = "0.1.0"
