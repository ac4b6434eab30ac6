"""Data sets made by formula: the same numbers each time."""
