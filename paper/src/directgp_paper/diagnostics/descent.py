"""Run the descent of the convergence corollaries on m and V of q(u), with its constants."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import root
from torch import Tensor

from directgp.errors import NumericalError, UnsupportedError, require
from directgp.likelihoods import Likelihood
from directgp.log_expectations import BiasedMonteCarlo, Rule, at_step, resolve_rule
from directgp.posteriors import SparsePosterior
from directgp.shapes import Inputs, Marginals, Row, Targets
from directgp_paper.diagnostics.bounds import tight_bounds
from directgp_paper.diagnostics.schedules import (
    Difficulty,
    SampleSchedule,
    StepSize,
    bmc_schedule,
    difficulty,
    harmonic_step_size,
    smooth_bmc_schedules,
)

Slopes = tuple[Row, Row, Row]
"""log E φ of each example or an estimate of it, and its slopes in the mean and the variance."""


class Moments(NamedTuple):
    """Mean m and covariance V of q(u), whitened so that p(u) = N(0, I); or a gradient in them."""

    mean: Float[Tensor, " m"]
    cov: Float[Tensor, "m m"]

    def plus(self, scale: float, addend: "Moments") -> "Moments":
        """Return this + scale · addend."""
        return Moments(self.mean + scale * addend.mean, self.cov + scale * addend.cov)

    def dot(self, addend: "Moments") -> float:
        """Return the inner product of vectors and matrices; ‖·‖ is its norm."""
        return float((self.mean * addend.mean).sum() + (self.cov * addend.cov).sum())

    @property
    def norm(self) -> float:
        """√(‖m‖² + ‖V‖²), with the Frobenius norm of V."""
        return math.sqrt(self.dot(self))


@dataclass(frozen=True)
class DescentProblem:
    """h(m, V) = −(1/n) Σ_i log E_q(f_i)[φ_i] + (β/n) KL(q‖p) with all hyperparameters held.

    q(f_i) = N(a_iᵀm + b_i, a_iᵀV a_i + c_i) is linear in m and V, as in the paper's section on
    convergence.
    """

    likelihood: Likelihood
    """The likelihood, whose parameters are held."""

    y: Row
    """Targets."""

    A: Float[Tensor, "m n"]
    """a_i as columns: L_uu⁻¹ K_uf."""

    offset: Row
    """b_i: prior mean of f_i."""

    residual: Row
    """c_i: variance of f_i given u."""

    beta: float = 1.0

    @classmethod
    def of(
        cls,
        posterior: SparsePosterior,
        likelihood: Likelihood,
        X: Inputs,
        y: Targets,
        beta: float = 1.0,
    ) -> "DescentProblem":
        """Return the problem of a posterior's hyperparameters and inducing inputs, in float64."""
        require(beta > 0, "beta", "above 0", beta)
        likelihood.check_targets(y)
        A, residual, mean = (part.double() for part in posterior.features(X))
        return cls(likelihood.frozen(), y.double(), A, mean, residual, beta)

    @property
    def start(self) -> Moments:
        """Return q(u) = p(u)."""
        M = len(self.A)
        return Moments(self.A.new_zeros(M), torch.eye(M, dtype=self.A.dtype))

    @property
    def squared_norms(self) -> Row:
        """‖a_i‖²."""
        return self.A.square().sum(0)

    def marginals(self, at: Moments) -> Marginals:
        """Return q(f_i) of each example."""
        variance = self.residual + (self.A * (at.cov @ self.A)).sum(0)
        return Marginals(self.offset + at.mean @ self.A, variance)

    def slopes(
        self, rule: Rule, marginals: Marginals, generator: torch.Generator | None = None
    ) -> Slopes:
        """Return a rule's log E φ of each example, and its slopes in the mean and the variance."""
        mean, variance = (x.detach().requires_grad_() for x in (marginals.mean, marginals.variance))
        with torch.enable_grad():
            value = rule(self.likelihood, self.y, mean, variance, generator=generator)
            by_mean, by_variance = torch.autograd.grad(value.sum(), (mean, variance))
        return value.detach(), by_mean, by_variance

    def exact_slopes(self, marginals: Marginals) -> Slopes:
        """Return `slopes` of the closed form or of quadrature."""
        return self.slopes(resolve_rule("auto", self.likelihood), marginals)

    def value(self, at: Moments, slopes: Slopes) -> float:
        """Return −(1/n) Σ_i value_i + (β/n) KL, KL = ½(tr V + ‖m‖² − M − log|V|)."""
        trace = torch.trace(at.cov)
        log_det = torch.logdet(at.cov)
        kl = 0.5 * (trace + at.mean.square().sum() - len(at.mean) - log_det)
        return float(-slopes[0].mean() + self.beta / len(self.y) * kl)

    def gradient(self, at: Moments, slopes: Slopes) -> Moments:
        """Return the gradient in (m, V) for given slopes of the examples' terms.

        ∇_m = −(1/n) Σ s_i a_i + (β/n) m and ∇_V = −(1/n) Σ s′_i a_i a_iᵀ + (β/2n)(I − V⁻¹).
        """
        n = len(self.y)
        A = self.A
        eye = torch.eye(len(at.mean), dtype=at.mean.dtype)
        cov = self.beta / 2 * (eye - torch.linalg.inv(at.cov)) - (A * slopes[2]) @ A.T
        return Moments((self.beta * at.mean - A @ slopes[1]) / n, (cov + cov.T) / (2 * n))

    def exact(self, at: Moments) -> tuple[float, Moments]:
        """Return h and ∇h."""
        slopes = self.exact_slopes(self.marginals(at))
        return self.value(at, slopes), self.gradient(at, slopes)


@dataclass(frozen=True)
class Region:
    """The compact convex set ‖m‖ ≤ radius, lower·I ⪯ V ⪯ upper·I."""

    radius: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        require(self.radius > 0, "radius", "above 0", self.radius)
        bounds = f"{self.lower} and {self.upper}"
        require(0 < self.lower < self.upper, "lower and upper", "0 < lower < upper", bounds)

    def project(self, at: Moments) -> tuple[Moments, bool]:
        """Return the nearest point of the region, and whether the point was moved."""
        if not math.isfinite(at.norm):
            raise NumericalError("m or V is not finite. Use smaller steps.")
        size = float(at.mean.norm())
        values, vectors = torch.linalg.eigh(at.cov)
        clipped = values.clamp(self.lower, self.upper)
        if size <= self.radius and torch.equal(clipped, values):
            return at, False
        shrink = self.radius / max(self.radius, size)
        return Moments(shrink * at.mean, (vectors * clipped) @ vectors.T), True


@dataclass(frozen=True)
class ConvergenceConstants:
    """The constants of the corollaries over a region.

    All are upper bounds (ζ the attained minimum) for every point of the region. They are computed
    in floating point: B, B′ and B″ by a search good to 1e-12, E φ by quadrature good to 1e-10.
    """

    density: float
    """B = sup φ, over all examples and every f."""

    slope: float
    """B′ = sup abs(φ′), over all examples and every f."""

    curvature: float
    """B″ = sup abs(φ″), over all examples and every f."""

    zeta: float
    """ζ = min E φ over all examples and the region."""

    size: float
    """A = (1/n) Σ √(‖a_i‖² + ¼‖a_i‖⁴), the factor from errors of the ratios to one of the step."""

    lipschitz: float
    """Λ with ‖∇h(r) − ∇h(r′)‖ ≤ Λ‖r − r′‖ in the region."""

    difficulty: Difficulty
    """The terms of L_t at the least favourable marginals of each example, in the absolute form."""

    c1: float = 1.0
    """Constant of condition (i), where s_t = −∇h."""

    c2: float = 1.0
    """Constant of condition (ii), where s_t = −∇h."""

    @property
    def c3(self) -> float:
        """Of ‖w_t‖ ≤ γ_t c₃ with the theory's L_t: c₃ = 2A(1 + max{B′, B″})/ζ, for both rules.

        If D̂ is within αζ of D = E φ and N̂ within α of N, the expectation of φ′ or φ″, with
        α ≤ ½, then N̂/D̂ is within α(1 + abs(N))/(D(1−α)) of N/D.
        """
        return 2 * self.size * (1 + max(self.slope, self.curvature)) / self.zeta

    @property
    def q(self) -> float:
        """Of E‖w_t‖² ≤ (γ_t q)² for smooth-bMC: q² = c₃² + (2A max{B′, B″}/ζ)²."""
        return math.hypot(self.c3, 2 * self.size * max(self.slope, self.curvature) / self.zeta)


def convergence_constants(problem: DescentProblem, region: Region) -> ConvergenceConstants:
    """Compute the constants of the corollaries over a region, for a log-concave likelihood.

    E φ(μ + s·ε) is log-concave in (μ, s) if φ is in f (Prékopa), so that its minimum over an
    interval of means and one of standard deviations is at one of four corners.

    With D = E φ and N_k the expectation of the k-th derivative of φ, the second derivatives of
    −log D in (μ, v) are (N₁/D)² − N₂/D, ½(N₁N₂/D² − N₃/D) and ¼((N₂/D)² − N₄/D). By Stein's
    identity N₃ = E[φ″ε]/√v and N₄ = E[φ″(ε²−1)]/v: at most B″√(2/πv) and 4B″/(v√(2πe)) in size.
    The KL term adds (β/n) max{1, 1/(2·lower²)}.
    """
    if not problem.likelihood.integration.log_concave:
        raise UnsupportedError(
            f"convergence_constants needs a log-concave likelihood. "
            f"Got {type(problem.likelihood).__name__}."
        )
    squares = problem.squared_norms
    n = len(problem.y)
    norms = torch.sqrt(squares)
    least = problem.residual + region.lower * squares
    corners = Marginals(
        problem.offset + region.radius * norms * torch.tensor([[-1.0], [-1.0], [1.0], [1.0]]),
        torch.stack([least, problem.residual + region.upper * squares]).repeat(2, 1),
    )
    exact = resolve_rule("auto", problem.likelihood)
    values = exact(problem.likelihood, problem.y, corners.mean, corners.variance)
    worst = values.argmin(0, keepdim=True)
    hardest = Marginals(*(x.gather(0, worst)[0] for x in (corners.mean, corners.variance)))
    hard = difficulty(problem.likelihood, problem.y, hardest, form="absolute")
    D = torch.exp(hard.log_density)
    bounds = tight_bounds(problem.likelihood, problem.y)
    first = torch.maximum(bounds.slope_upper, -bounds.slope_lower)
    second = torch.maximum(bounds.curvature_upper, -bounds.curvature_lower)
    third = second * torch.sqrt(2 / (math.pi * least))
    fourth = 4 * second / (math.sqrt(2 * math.pi * math.e) * least)
    mean_mean = (first / D) ** 2 + second / D
    mean_var = (first * second / D**2 + third / D) / 2
    var_var = ((second / D) ** 2 + fourth / D) / 4
    entries = [mean_mean * squares, mean_var * squares * norms, mean_var * squares * norms]
    blocks = torch.stack([*entries, var_var * squares**2], -1).reshape(n, 2, 2)
    prior = problem.beta / n * max(1.0, 0.5 / region.lower**2)
    return ConvergenceConstants(
        density=float(bounds.density_upper.max()),
        slope=float(first.max()),
        curvature=float(second.max()),
        zeta=hard.zeta,
        size=float(torch.sqrt(squares + squares**2 / 4).mean()),
        lipschitz=float(torch.linalg.matrix_norm(blocks, 2).mean()) + prior,
        difficulty=hard,
    )


def convergence_rule(
    constants: ConvergenceConstants,
    *,
    smooth: bool = False,
    step_size: StepSize = harmonic_step_size,
    delta: float = 0.05,
    cap: int | None = None,
) -> BiasedMonteCarlo:
    """Return bMC, or smooth-bMC, with the L_t and ν_t of its corollary and the V-gradient by φ″.

    `delta` is the probability with which bMC may fail. With a `cap` on L_t the corollary holds
    only up to the first step where it is effective.
    """
    if smooth:
        samples, nu = smooth_bmc_schedules(constants.difficulty, step_size=step_size, cap=cap)
        return BiasedMonteCarlo(samples, nu, "second_derivative")
    samples = bmc_schedule(constants.difficulty, delta=delta, step_size=step_size, cap=cap)
    return BiasedMonteCarlo(samples, gradient="second_derivative")


@dataclass(frozen=True)
class DescentPath:
    """A run of `descend`, evaluated exactly after some numbers of steps."""

    steps: list[int] = field(default_factory=list)
    """Numbers of steps done; 0 is the start."""

    points: list[Moments] = field(default_factory=list)
    """m and V after these numbers of steps."""

    objective: list[float] = field(default_factory=list)
    """h, by the closed form or quadrature."""

    gradient_norm: list[float] = field(default_factory=list)
    """‖∇h‖, by the closed form or quadrature."""

    num_samples: list[int] = field(default_factory=list)
    """Samples for each example so far; 0 for exact gradients."""

    projected: list[int] = field(default_factory=list)
    """Steps, counted from 0, whose result was outside the region and was projected."""

    capped: list[int] = field(default_factory=list)
    """Steps with fewer samples than the corollary requires."""


def descend(
    problem: DescentProblem,
    region: Region,
    steps: int,
    *,
    rule: BiasedMonteCarlo | None = None,
    step_size: StepSize = harmonic_step_size,
    start: Moments | None = None,
    generator: torch.Generator | None = None,
    evaluate_at: Sequence[int] | None = None,
) -> DescentPath:
    """Run r_{t+1} = project(r_t − γ_t ĝ_t) on r = (m, V), with the gradients ĝ_t of bMC.

    Parameters
    ----------
    problem, region
        The objective, and the set that contains every r_t.
    steps : int
        Number of steps.
    rule : BiasedMonteCarlo, optional
        For instance of `convergence_rule`; without one the gradients are exact.
    step_size : callable
        Step → γ_t.
    start : Moments, optional
        The first point; the prior by default. It is projected.
    generator : torch.Generator, optional
        Source of the samples.
    evaluate_at : sequence of int, optional
        Numbers of steps after which h and ∇h are computed; by default 20 for each power of 10.
    """
    require(steps >= 1, "steps", "at least 1", steps)
    chosen = {*evaluate_at} if evaluate_at is not None else log_spaced(steps)
    last = max(chosen, default=0)
    require(last <= steps, "evaluate_at", f"at most {steps}", last)
    at, _ = region.project(start or problem.start)
    path = DescentPath()
    drawn = 0
    for step in range(steps + 1):
        if step in chosen:
            objective, gradient = problem.exact(at)
            path.steps.append(step)
            path.points.append(at)
            path.objective.append(objective)
            path.gradient_norm.append(gradient.norm)
            path.num_samples.append(drawn)
        if step == steps:
            break
        marginals = problem.marginals(at)
        if rule is None:
            slopes = problem.exact_slopes(marginals)
        else:
            drawn += int(at_step(rule.num_samples, step))
            slopes = _sampled_slopes(rule, problem, marginals, generator, step)
            schedule = rule.num_samples
            if isinstance(schedule, SampleSchedule) and schedule.at(step).capped:
                path.capped.append(step)
        at, moved = region.project(at.plus(-step_size(step), problem.gradient(at, slopes)))
        if moved:
            path.projected.append(step)
    return path


def log_spaced(steps: int, per_decade: int = 20) -> set[int]:
    """Return 0, 1, …, steps, thinned to some for each power of 10."""
    last = math.ceil(per_decade * math.log10(steps))
    return {0, steps, *(min(steps, round(10 ** (k / per_decade))) for k in range(last + 1))}


_BLOCK_ELEMENTS = 80_000
"""Samples of all examples that are drawn at once: the arrays stay in the cache."""


def _sampled_slopes(
    rule: BiasedMonteCarlo,
    problem: DescentProblem,
    marginals: Marginals,
    generator: torch.Generator | None,
    step: int,
) -> Slopes:
    """Return the slopes of bMC for any number of samples, drawn in blocks.

    The ratio Σφ′/Σφ over all samples is the mean of the blocks' ratios, weighted by their Σφ.
    """
    total = int(at_step(rule.num_samples, step))
    nu = float(at_step(rule.nu, step))
    block = max(1, _BLOCK_ELEMENTS // len(problem.y))
    counts = [min(block, total - first) for first in range(0, total, block)]
    parts = [
        problem.slopes(replace(rule, num_samples=count, nu=0.0), marginals, generator)
        for count in counts
    ]
    values, by_mean, by_variance = (torch.stack(column) for column in zip(*parts, strict=True))
    sums = values + torch.log(torch.tensor(counts, dtype=values.dtype))[:, None]
    share = torch.softmax(sums, 0)
    value = torch.logsumexp(sums, 0) - math.log(total)
    slopes = (share * by_mean).sum(0), (share * by_variance).sum(0)
    if nu == 0:
        return value, *slopes
    smoothed = torch.logaddexp(value, torch.full_like(value, math.log(nu)))
    weight = torch.exp(value - smoothed)
    return smoothed, weight * slopes[0], weight * slopes[1]


_TOLERANCE = 1e-8
"""Largest norm of the gradient at a zero."""


def stationary_point(
    problem: DescentProblem,
    region: Region,
    slopes: Callable[[Marginals], Slopes] | None = None,
    *,
    steps: int = 100,
) -> Moments:
    """Return the zero of the gradient for given slopes; by default the minimum of h.

    A descent in the region with γ = ½ finds the basin, and Powell's hybrid method the zero.
    `NumericalError` if the zero is not inside the region.
    """
    slopes_at = slopes or problem.exact_slopes
    at = problem.start
    outside = False

    def gradient(point: Moments) -> Moments:
        return problem.gradient(point, slopes_at(problem.marginals(point)))

    for _ in range(steps):
        at, outside = region.project(at.plus(-0.5, gradient(at)))
    if outside:
        raise NumericalError("The gradient has no zero in the region: the descent left it.")
    M = len(at.mean)
    upper = tuple(torch.triu_indices(*at.cov.shape))

    def packed(point: Moments) -> NDArray[np.float64]:
        return torch.cat([point.mean, point.cov[upper]]).numpy()

    def unpacked(x: NDArray[np.float64]) -> Moments:
        vector = torch.as_tensor(x)
        cov = torch.zeros_like(at.cov)
        cov[upper] = vector[M:]
        return Moments(vector[:M], cov + torch.triu(cov, 1).T)

    solution = unpacked(root(lambda x: packed(gradient(unpacked(x))), packed(at), tol=1e-13).x)
    rest = gradient(solution).norm
    if region.project(solution)[1] or not rest < _TOLERANCE:
        raise NumericalError(f"The zero of the gradient was not found: its norm is {rest:.1e}.")
    return solution
