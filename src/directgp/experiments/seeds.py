"""Randomness of a cell, from the numbers that name it."""

import numpy as np
import torch


def seed_of(*numbers: int) -> int:
    """A seed; other numbers give another, independent one."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def generator_of(*numbers: int) -> torch.Generator:
    """A generator of the CPU, so seeded."""
    return torch.Generator().manual_seed(seed_of(*numbers))
