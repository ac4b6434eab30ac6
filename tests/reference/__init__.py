"""Slow and simple references that the tests compare with."""
