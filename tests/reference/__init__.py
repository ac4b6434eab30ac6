"""Slow and sure references that the tests compare with."""
