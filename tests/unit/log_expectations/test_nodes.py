"""How examples are shared out among numbers of nodes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from directgp.log_expectations.quadrature import blocks_by_nodes, trapezoid_step


def assert_partition(needed: Tensor) -> None:
    """Every example is in exactly one block, with as many nodes as it needs."""
    seen = torch.zeros(len(needed), dtype=torch.int64)
    most = needed.max().item() if len(needed) else 0.0
    for number, index in blocks_by_nodes(needed):
        seen[index] += 1
        assert bool((needed[index] <= number).all())
        assert number <= max(16, math.ceil(most))
    assert torch.equal(seen, torch.ones_like(seen))


@given(st.lists(st.floats(1e-3, 4000.0), max_size=200))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_blocks_are_a_partition(needed: list[float]) -> None:
    assert_partition(torch.tensor(needed, dtype=torch.float64))


@pytest.mark.parametrize("number", [1, 10, 10_000])
def test_blocks_of_many_alike_and_of_many_kinds(number: int) -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.exp(7 * torch.rand(number, generator=generator, dtype=torch.float64))
    assert_partition(wide)
    assert_partition(torch.full((number,), 30.0, dtype=torch.float64))


def test_more_nodes_than_there_are_serve_the_widest() -> None:
    ((number, index),) = blocks_by_nodes(torch.tensor([1e9], dtype=torch.float64))
    assert number >= 1024 and index.tolist() == [0]


@pytest.mark.parametrize("width", [0.01, 1.0, 30.0])
def test_the_trapezoid_step_is_fine_enough(width: float) -> None:
    """The sum over a Gaussian peak of that width is right to rounding."""
    step = trapezoid_step(torch.tensor([width], dtype=torch.float64), math.pi).item()
    reach = math.ceil(40 * width / step)
    nodes = torch.arange(-reach, reach, dtype=torch.float64) * step + 0.3 * step
    total = step * torch.exp(-0.5 * (nodes / width) ** 2).sum() / (width * math.sqrt(2 * math.pi))
    assert total.item() == pytest.approx(1, abs=1e-11)
