"""Arrays that are kept: the same memory for the same name, shape and dtype."""

import torch

from directgp.numerics.linalg import Workspace


def test_a_name_keeps_its_array_while_shape_and_dtype_last() -> None:
    workspace, like = Workspace(), torch.zeros(1)
    first = workspace.take("A", (3, 4), like)
    assert first.shape == (3, 4) and first.dtype == torch.float32
    assert workspace.take("A", (3, 4), like).data_ptr() == first.data_ptr()
    assert workspace.take("B", (3, 4), like).data_ptr() != first.data_ptr()
    assert workspace.take("A", (4, 3), like).shape == (4, 3)
    assert workspace.take("A", (4, 3), like.double()).dtype == torch.float64
    # Steps of another size in between let nothing go that a recorded step writes to.
    assert workspace.take("A", (3, 4), like).data_ptr() == first.data_ptr()


def test_the_identity_is_made_once() -> None:
    workspace, like = Workspace(), torch.zeros(1, dtype=torch.float64)
    identity = workspace.identity(3, like)
    assert torch.equal(identity, torch.eye(3, dtype=torch.float64))
    assert workspace.identity(3, like) is identity
    assert workspace.identity(2, like).shape == (2, 2)
