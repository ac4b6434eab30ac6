"""Attacks that directgp has to withstand, run in pieces: ``python -m campaign NAME``."""
