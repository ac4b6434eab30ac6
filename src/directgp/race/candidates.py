"""Define the candidates of a race, those it starts with, and the neighbours of a candidate."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import final

from directgp.training.beta_path import nearest_one

_SMALL_BETA = 0.1
"""β of starting candidates that fit the targets more closely."""

_PORTFOLIO = (
    (True, 1, 1, 0),
    (False, 1, 0, 1),
    (True, 2, 0, 2),
    (False, 0, 2, 0),
    (False, 1, 0, 2),
    (True, 1, 2, 1),
    (False, 1, 1, 1),
    (True, 0, 1, 1),
)
"""Starting candidates: with the stack or not, and places of likelihood, kernel and objective."""


@final
@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model, and the objective that it is trained for."""

    kernel: str
    """Name of the kernel, or the class of a kernel of the user."""

    ard: bool
    """Whether each feature has a lengthscale."""

    likelihood: str
    """Name of the likelihood, or the class of a likelihood of the user."""

    num_inducing: int
    """Number of inducing inputs."""

    mode: str = "joint"
    """"joint", "fixed", or "elbo" for the plain ELBO solution."""

    beta: float = 1.0
    """Weight of the KL term."""

    stacked: bool = False
    """Whether the columns of the stack are features."""

    own_kernels: bool = False
    """Whether latents of one kind have a kernel each."""

    @property
    def structured(self) -> bool:
        """Whether the kernel is an expression."""
        return "(" in self.kernel

    @property
    def label(self) -> str:
        """The candidate in words."""
        kernel = f"{self.kernel} ARD" if self.ard and not self.structured else self.kernel
        parts = [f"{kernel} for each latent" if self.own_kernels else kernel, self.likelihood]
        parts += ["ELBO"] if self.mode == "elbo" else [self.mode, f"β = {self.beta:.3g}"]
        parts += [f"{self.num_inducing} inducing inputs"]
        return ", ".join([*parts, "with stack"] if self.stacked else parts)


@final
@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the settings of a fit leave open; the first of each is preferred."""

    kernels: tuple[str, ...]
    """Names of kernels."""

    ard: tuple[bool, ...]
    """Whether each feature may have a lengthscale."""

    structures: tuple[str, ...] = ()
    """Expressions of kernels, which candidates without the stack have in place of names."""

    likelihoods: tuple[str, ...]
    """Names of likelihoods."""

    modes: tuple[str, ...]
    """Some of "elbo", "joint" and "fixed"."""

    betas: tuple[float, ...]
    """Values of β, falling."""

    stacked: tuple[bool, ...]
    """Whether the columns of the stack may be features."""

    num_inducing: int
    """Number of inducing inputs at the start."""

    most_inducing: int
    """Largest number of inducing inputs."""

    own_kernels: bool = False
    """Whether latents of one kind may have a kernel each."""

    by_elbo: tuple[str, ...] = ()
    """Likelihoods that are trained by the ELBO alone."""

    conjugate: tuple[str, ...] = ()
    """Likelihoods for which the q(u) of the ELBO has a closed form."""

    @property
    def objectives(self) -> tuple[tuple[str, float], ...]:
        """Modes with β: near 1, smaller, and the plain ELBO."""
        middle = self.betas[nearest_one(self.betas)]
        small = min(self.betas, key=lambda beta: abs(math.log(max(beta, 1e-300) / _SMALL_BETA)))
        trained = [mode for mode in self.modes if mode != "elbo"]
        pairs = [(mode, beta) for beta in (middle, small) for mode in trained]
        return (*dict.fromkeys(pairs), *([("elbo", 1.0)] if "elbo" in self.modes else []))

    @property
    def single(self) -> bool:
        """Whether there is one candidate."""
        parts = self._kernels(False), self.ard, self.likelihoods, self.modes, self.stacked
        one_beta = len(self.betas) == 1 or self.modes == ("elbo",)
        return all(len(part) == 1 for part in parts) and one_beta

    def _kernels(self, stacked: bool) -> tuple[str, ...]:
        """Return the kernels of candidates with or without the stack."""
        return self.kernels if stacked or not self.structures else self.structures

    def first(self) -> Candidate:
        """Return the preferred candidate."""
        mode, beta = self.objectives[0]
        return Candidate(
            kernel=self._kernels(self.stacked[0])[0],
            ard=self.ard[0],
            likelihood=self.likelihoods[0],
            num_inducing=self.num_inducing,
            mode=mode,
            beta=beta,
            stacked=self.stacked[0],
        )

    def plain(self) -> Candidate:
        """Return the preferred candidate without the stack."""
        return replace(self.first(), kernel=self._kernels(False)[0], stacked=False)

    def portfolio(self, number: int) -> list[Candidate]:
        """Return the candidates to start with, at most that many."""
        first, objectives = self.first(), self.objectives
        chosen: dict[Candidate, None] = {}
        for stacked, likelihood, kernel, objective in _PORTFOLIO:
            mode, beta = objectives[min(objective, len(objectives) - 1)]
            stacked = stacked if len(self.stacked) > 1 else self.stacked[0]
            kernels = self._kernels(stacked)
            candidate = replace(
                first,
                kernel=kernels[min(kernel, len(kernels) - 1)],
                likelihood=self.likelihoods[min(likelihood, len(self.likelihoods) - 1)],
                mode=mode,
                beta=beta,
                stacked=stacked,
            )
            chosen[self._allowed(candidate)] = None
        return list(chosen)[:number]

    def collapsed(self) -> Iterator[Candidate]:
        """Yield the candidate whose q(u) has a closed form, without the stack if possible.

        Its steps change hyperparameters alone, so a few show whether more inducing inputs pay.
        """
        if self.conjugate and "elbo" in self.modes:
            stacked = all(self.stacked)
            kernels = self._kernels(stacked)
            yield replace(
                self.first(),
                kernel="rbf" if "rbf" in kernels else kernels[0],
                likelihood=self.conjugate[0],
                mode="elbo",
                beta=1.0,
                stacked=stacked,
            )

    def _allowed(self, candidate: Candidate) -> Candidate:
        if candidate.likelihood in self.by_elbo:
            return replace(candidate, mode="elbo", beta=1.0)
        return candidate

    def doubled(self, of: Candidate) -> Iterator[Candidate]:
        """Yield the candidate with twice the inducing inputs, unless those are too many."""
        if 2 * of.num_inducing <= self.most_inducing:
            yield replace(of, num_inducing=2 * of.num_inducing)

    def neighbours(self, of: Candidate, tried: Collection[str]) -> Iterator[Candidate]:
        """Yield candidates that differ in one choice: number of inducing inputs, β, likelihood.

        Likelihoods are those not `tried` yet.
        """
        yield from self.doubled(of)
        if of.mode != "elbo":
            place = self.betas.index(of.beta)
            after, before = self.betas[place + 1 : place + 2], self.betas[max(place - 1, 0) : place]
            for beta in (*after, *before):
                yield replace(of, beta=beta)
        elif len(self.modes) > 1 and of.likelihood not in self.by_elbo:
            mode, beta = self.objectives[0]
            yield replace(of, mode=mode, beta=beta)
        for likelihood in self.likelihoods:
            if likelihood not in tried:
                yield self._allowed(replace(of, likelihood=likelihood))
        if self.own_kernels and not of.own_kernels:
            yield replace(of, own_kernels=True)
