"""Additive effects: Additive, the orthogonal additive kernel."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import ClassVar, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import require
from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import ColumnName
from directgp.kernels.parts.base import (
    Evaluation,
    Link,
    Part,
    PartGradient,
    Values,
    VarianceEvaluation,
)
from directgp.numerics.arrays import Array, exp_in_place, library_of

# For one column with nodes s_j of weights ω_j, which stand for its values in training, and
# k(x, x′) = exp(−½(x − x′)²/ℓ²),
#
# H(x) = Σ ω_j k(x, s_j),     e = Σ ω_j H(s_j),     c = 1 − Σ ω_j H(s_j)²/e
# κ(x, x′) = (k(x, x′) − H(x) H(x′)/e)/c
#
# is the covariance of an effect with Σ ω_j f(s_j) = 0 and a mean variance of 1. The kernel is
# S₁ + w S₂ with S₁ = Σ v_d κ_d and S₂ = Σ_{d<d′} v_d v_d′ κ_d κ_d′ = ½(S₁² − Σ (v_d κ_d)²).
#
# For the gradient G in κ, with P = G H(b)/c and Q = Gᵀ H(a)/c:
#
# dk = G/c,     dH(a) = −P/e,     dH(b) = −Q/e,     de = PᵀH(a)/e²,     dc = −ΣG ∘ κ/c

_NODES = 32
"""Largest number of nodes of a column."""


class Effect(NamedTuple):
    """H, e and c of one column, and what their gradients need."""

    nodes: Array
    """The nodes s, of shape (J,)."""

    weights: Array
    """The weights ω, of shape (J,)."""

    lengthscale: Array
    """The lengthscale ℓ, of shape (*batch, 1)."""

    at_nodes: Array
    """H at the nodes, of shape (*batch, J)."""

    e: Array
    """Σ ω_j H(s_j), of shape (*batch, 1)."""

    c: Array
    """The mean of k(x, x) − H(x)²/e, of shape (*batch, 1)."""

    @classmethod
    def of(cls, nodes: Array, weights: Array, lengthscale: Array) -> "Effect":
        """Compute e and c; the lengthscale has shape (*batch, 1)."""
        at_nodes = _mean_covariance(nodes, nodes, weights, lengthscale)
        e = (weights * at_nodes).sum(-1)[..., None]
        c = 1 - (weights * at_nodes**2).sum(-1)[..., None] / e
        return cls(nodes, weights, lengthscale, at_nodes, e, c)

    def mean(self, x: Array) -> Array:
        """Return H(x)."""
        return _mean_covariance(x, self.nodes, self.weights, self.lengthscale)

    def through_mean(self, x: Array, g: Array) -> tuple[Array, Array]:
        """Return the gradients in x and in log ℓ from the gradient in H(x)."""
        gaps = (x[..., :, None] - self.nodes) / self.lengthscale[..., None]
        weighted = g[..., None] * self.weights * exp_in_place(-0.5 * gaps * gaps)
        by_x = -(weighted * gaps).sum(-1) / self.lengthscale
        return by_x, (weighted * gaps * gaps).sum(-1).sum(-1)[..., None]

    def through_constants(self, by_e: Array, by_c: Array) -> Array:
        """Return the gradient in log ℓ from the gradients in e and c."""
        H = self.at_nodes
        squares = (self.weights * H * H).sum(-1)[..., None]
        by_e = by_e + by_c * squares / self.e**2
        by_nodes = self.weights * (by_e - 2 * by_c * H / self.e)
        return self.through_mean(self.nodes, by_nodes)[1]


def _mean_covariance(x: Array, nodes: Array, weights: Array, lengthscale: Array) -> Array:
    """Return Σ ω_j k(x, s_j)."""
    gaps = (x[..., :, None] - nodes) / lengthscale[..., None]
    return (weights * library_of(gaps).exp(-0.5 * gaps * gaps)).sum(-1)


class _PairEvaluation(NamedTuple):
    """κ of one column, and the function from its gradient to those in a and log ℓ."""

    value: Array
    backward: Callable[[Array], tuple[Array, Array]]


@final
class Additive(Part):
    """A sum of effects of single columns, with ``order=2`` also of all pairs of columns.

    Each effect has the mean 0 over the values of its column in training, so an effect of two
    columns does not contain effects of one. Which column matters is a variance for each.
    """

    parameters: ClassVar[Mapping[str, Link]] = {
        "lengthscale": "positive",
        "variance": "positive",
        "pairs": "positive",
    }
    constants: ClassVar[tuple[str, ...]] = ("nodes", "weights")
    unit_variance: ClassVar[bool] = False

    def __init__(self, *columns: ColumnName, order: int = 1) -> None:
        super().__init__(*columns)
        require(order in (1, 2), "order of Additive", "1 or 2", repr(order))
        self.order = order

    @property
    @override
    def trained(self) -> tuple[str, ...]:
        names = ("lengthscale", "variance")
        return (*names, "pairs") if self.order == 2 else names

    @override
    def start(
        self, X: Float[Tensor, "n k"], columns: Sequence[ColumnFacts]
    ) -> dict[str, Float[Tensor, "..."]]:
        spread = X.std(0, correction=0)
        d = X.shape[-1]
        nodes, weights = zip(*map(_nodes, X.unbind(-1)), strict=True)
        start = {
            "lengthscale": torch.where(spread > 0, 1.5 * spread, 1.0),
            "variance": X.new_full((d,), 1 / d),
            "nodes": torch.stack(nodes),
            "weights": torch.stack(weights),
        }
        return start | ({"pairs": X.new_ones(1)} if self.order == 2 else {})

    @override
    def covariance(
        self, a: Float[Tensor, "*#batch m k"], b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch m n"]:
        effects = []
        for j, effect in enumerate(self.effects(values)):
            gaps = (a[..., :, j, None] - b[..., None, :, j]) / effect.lengthscale[..., None]
            product = effect.mean(a[..., j])[..., :, None] * effect.mean(b[..., j])[..., None, :]
            covariance = torch.exp(-0.5 * gaps.square()) - product / effect.e[..., None]
            variance = values["variance"][..., j, None]
            effects.append(variance * covariance / effect.c[..., None])
        covariance_of_all: Tensor = self._summed(effects, values)
        return covariance_of_all

    @override
    def variance(
        self, b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch n"]:
        effects = []
        for j, effect in enumerate(self.effects(values)):
            own = (1 - effect.mean(b[..., j]).square() / effect.e) / effect.c
            effects.append(values["variance"][..., 0, j, None] * own)
        pairs = {name: value[..., 0] for name, value in values.items() if name == "pairs"}
        variance: Tensor = self._summed(effects, pairs)
        return variance

    def effects(self, values: Values) -> list[Effect]:
        """Return H, e and c of each column."""
        nodes, weights = values["nodes"], values["weights"]
        lengthscale = values["lengthscale"]
        return [
            Effect.of(nodes[j], weights[j], lengthscale[..., j])
            for j in range(lengthscale.shape[-1])
        ]

    def _summed(self, effects: Sequence[Array], values: Values) -> Array:
        """Return S₁ + w S₂."""
        total = reduce(add, effects)
        if self.order == 1:
            return total
        squares = reduce(add, (effect * effect for effect in effects))
        return total + 0.5 * values["pairs"] * (total * total - squares)

    @override
    def evaluate(self, a: Array, b: Array, values: Values, exact: bool) -> Evaluation:
        xp = library_of(b)
        variance = values["variance"]
        pairs = [
            _pairs(effect, a[..., j], b[..., j]) for j, effect in enumerate(self.effects(values))
        ]
        scaled = [variance[..., j, None] * pair.value for j, pair in enumerate(pairs)]
        total = reduce(add, scaled)
        K = self._summed(scaled, values)

        def backward(G: Array) -> PartGradient:
            inputs, by_log, by_variance = [], [], []
            for j, pair in enumerate(pairs):
                g = G
                if self.order == 2:
                    g = G * (1 + values["pairs"] * (total - scaled[j]))
                by_variance.append((g * pair.value).sum(-1).sum(-1)[..., None])
                by_a, by_l = pair.backward(variance[..., j, None] * g)
                inputs.append(by_a)
                by_log.append(by_l)
            gradients = {
                "lengthscale": xp.stack(by_log, -1) / values["lengthscale"],
                "variance": xp.stack(by_variance, -1),
            }
            if self.order == 2:
                squares = reduce(add, (effect * effect for effect in scaled))
                by_pairs = (G * (total * total - squares)).sum(-1).sum(-1)
                gradients["pairs"] = 0.5 * by_pairs[..., None, None]
            return PartGradient(xp.stack(inputs, -1), gradients)

        return Evaluation(K, backward)

    @override
    def evaluate_variance(self, b: Array, values: Values) -> VarianceEvaluation:
        xp = library_of(b)
        effects = self.effects(values)
        variance = values["variance"][..., 0, :]
        means = [effect.mean(b[..., j]) for j, effect in enumerate(effects)]
        own = [(1 - H * H / each.e) / each.c for H, each in zip(means, effects, strict=True)]
        scaled = [variance[..., j, None] * value for j, value in enumerate(own)]
        total = reduce(add, scaled)
        share = {name: value[..., 0] for name, value in values.items() if name == "pairs"}

        def backward(g: Array) -> dict[str, Array]:
            by_log, by_variance = [], []
            for j, (effect, H) in enumerate(zip(effects, means, strict=True)):
                by_own = g
                if self.order == 2:
                    by_own = g * (1 + share["pairs"] * (total - scaled[j]))
                by_variance.append((by_own * own[j]).sum(-1)[..., None])
                by_own = variance[..., j, None] * by_own
                by_mean = -2 * by_own * H / (effect.e * effect.c)
                by_e = (by_own * H * H).sum(-1)[..., None] / (effect.e**2 * effect.c)
                by_c = -(by_own * own[j]).sum(-1)[..., None] / effect.c
                through_mean = effect.through_mean(b[..., j], by_mean)[1]
                by_log.append(through_mean + effect.through_constants(by_e, by_c))
            gradients = {
                "lengthscale": xp.stack(by_log, -1) / values["lengthscale"],
                "variance": xp.stack(by_variance, -1),
            }
            if self.order == 2:
                squares = reduce(add, (value * value for value in scaled))
                by_pairs = (g * (total * total - squares)).sum(-1)
                gradients["pairs"] = 0.5 * by_pairs[..., None, None]
            return gradients

        return VarianceEvaluation(self._summed(scaled, share), backward)


def _pairs(effect: Effect, a: Array, b: Array) -> _PairEvaluation:
    """Return κ for each pair of values of one column."""
    xp = library_of(b)
    lengthscale, e, c = effect.lengthscale, effect.e, effect.c
    gaps = (a[..., :, None] - b[..., None, :]) / lengthscale[..., None]
    k = xp.exp(-0.5 * gaps * gaps)
    H_a, H_b = effect.mean(a), effect.mean(b)
    value = (k - H_a[..., :, None] * (H_b / e)[..., None, :]) / c[..., None]

    def backward(G: Array) -> tuple[Array, Array]:
        W = G / c[..., None]
        P = xp.matmul(W, H_b[..., None])[..., 0]
        Q = xp.matmul(H_a[..., None, :], W)[..., 0, :]
        by_e = (P * H_a).sum(-1)[..., None] / e**2
        by_c = -(G * value).sum(-1).sum(-1)[..., None] / c
        W = W * k * gaps
        by_a, log_a = effect.through_mean(a, -P / e)
        _, log_b = effect.through_mean(b, -Q / e)
        by_a = by_a - W.sum(-1) / lengthscale
        by_log = log_a + log_b + (W * gaps).sum(-1).sum(-1)[..., None]
        return by_a, by_log + effect.through_constants(by_e, by_c)

    return _PairEvaluation(value, backward)


def _nodes(column: Float[Tensor, " n"]) -> tuple[Float[Tensor, " j"], Float[Tensor, " j"]]:
    """Return nodes and weights that stand for the distribution of a column.

    They are the values themselves if these are few, else quantiles in the middle of as many equal
    shares of the rows. Unused nodes have the weight 0.
    """
    values, counts = column.unique(return_counts=True)
    weights = column.new_zeros(_NODES)
    if len(values) <= _NODES:
        weights[: len(values)] = counts / len(column)
        nodes = values[-1:].repeat(_NODES)
        nodes[: len(values)] = values
        return nodes, weights
    ordered = column.sort().values
    places = (torch.arange(_NODES, device=column.device) + 0.5) / _NODES * len(column)
    return ordered[places.floor().long()], weights + 1 / _NODES
