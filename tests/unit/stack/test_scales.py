"""The scales of features."""

import math
from typing import Any

import numpy as np
import pytest

from directgp.stack.scales import Scale


def test_values_are_clipped_before_the_link() -> None:
    values = np.array([[-1.0], [0.25], [2.0]])
    assert Scale().forward(values).tolist() == values.tolist()
    np.testing.assert_allclose(Scale("log", 0.5).forward(values)[:, 0], np.log([0.5, 0.5, 2.0]))
    logits = Scale("logit", 0.1, 0.9).forward(values)[:, 0]
    np.testing.assert_allclose(logits, np.log([1 / 9, 1 / 3, 9]))


@pytest.mark.parametrize(
    "arguments",
    [
        *[("log",), ("log", 0.0), ("log", math.nan)],
        *[("logit", 0.1), ("logit", 0.1, 1.0), ("logit", 0.6, 0.4), ("logit", 0.1, math.nan)],
        *[("identity", 1.0, 0.0), ("identity", math.nan)],
    ],
)
def test_ends_without_a_link_are_refused(arguments: Any) -> None:
    with pytest.raises(ValueError, match="cannot be taken"):
        Scale(*arguments)
