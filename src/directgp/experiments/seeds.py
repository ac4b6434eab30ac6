"""Randomness of a cell, from the numbers that name it."""

import numpy as np
import torch


def generator_of(*numbers: int) -> torch.Generator:
    """A generator of the CPU; other numbers give another, independent one."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    return torch.Generator().manual_seed(seed)
