"""Exact draws from the product density q̃(f) ∝ q(f)·p(y given f), one sampler a file.

Every sampler works on flat batches of examples, in float64, and returns draws minus the mean of
q, shape (k, n). None loops over examples.
"""
