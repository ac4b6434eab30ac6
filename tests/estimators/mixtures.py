"""Fitted models of several members, made by hand from models of one member each."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from directgp.estimators.members import Member, set_members
from directgp.estimators.preprocessing import ColumnScaling
from directgp.stack import fit_stack, sources_of
from directgp.stack.scales import Link
from tests.estimators.fitted_models import HELD

SINGLE = {**HELD, "combine": "best", "stack": None}
"""Settings of a light model of one member."""


def mixture_of(models: Sequence[Any], weights: Sequence[float]) -> Any:
    """The first model, with the members of all as a mixture; all have the same scalings."""
    first = copy.deepcopy(models[0])
    for other in models[1:]:
        np.testing.assert_array_equal(other.scalings_.inputs.scale, first.scalings_.inputs.scale)
        np.testing.assert_array_equal(other.scalings_.targets.scale, first.scalings_.targets.scale)
    set_members(first, [copy.deepcopy(model.members_[0]) for model in models], weights)
    return first


def with_stacked(base: Any, X: Any, y: Any, weight: float, **fit: Any) -> Any:
    """The model with one more member, that of the features and of a column of trees.

    The weights of the other members are scaled down.
    """
    mixed = copy.deepcopy(base)
    d = X.shape[1]
    scaled = base.scalings_.scaled_inputs(X)
    labels = base._task == "classification"
    target = np.searchsorted(base.classes_, y).astype(float) if labels else np.asarray(y, float)
    link: Link = "log" if base._task == "count" else "identity"
    stack, columns = fit_stack(
        sources_of("trees", base._task, "test"), scaled, target, task=base._task, seed=0, link=link
    )
    settings = {**SINGLE, "kernel": "rbf", "ard": True}
    wide = type(base)(**settings).fit(np.column_stack([X, columns]), y, **fit)
    scaling = wide.scalings_.inputs
    np.testing.assert_array_equal(scaling.scale[:d], base.scalings_.inputs.scale)
    member: Member = replace(wide.members_[0], stacked=True)
    set_members(
        mixed, [*mixed.members_, member], [*(1 - weight) * np.array(mixed.weights_), weight]
    )
    mixed.stack_ = stack
    mixed.scalings_ = replace(
        mixed.scalings_, sources=ColumnScaling(scaling.shift[d:], scaling.scale[d:])
    )
    return mixed


@cache
def _by_name(make: Any, names: tuple[str, ...], weights: tuple[float, ...]) -> Any:
    return mixture_of([make(name, **SINGLE) for name in names], weights)


def mixed(make: Any, names: Sequence[str], weights: Sequence[float]) -> Any:
    """A mixture of models of these likelihoods, of the data of `fitted_models`."""
    return copy.deepcopy(_by_name(make, tuple(names), tuple(weights)))
