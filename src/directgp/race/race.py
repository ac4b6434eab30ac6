"""Race candidates: advance them, compare, drop the beaten, add neighbours of the leading one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final

import torch

from directgp.race.candidates import Candidate, Choices
from directgp.race.entrants import FIRST_STEPS, Entrant, Trainers
from directgp.race.weights import Weights, largest, mixed, mixture_weights
from directgp.text import number
from directgp.training.validation import Split, for_rows_of

Combine = Literal["mixture", "best"]
"""What a fit returns: a mixture of candidates, or the best one."""

MOST_MEMBERS = 6
"""Largest number of members of a mixture."""

_MANY_STEPS = 200
"""Steps after which a step has to pay twice as much as the first one."""

_MOST_STEPS = 3200
"""Steps of an entrant where the recipe has no limit."""

_LARGE = 1 / 3
"""Weight from which more inducing inputs are tried."""

_STEPS_PER_DOUBLING = 125
"""Steps for which twice as many inducing inputs have to pay."""


@final
@dataclass(frozen=True)
class Effort:
    """How much a race spends on a choice."""

    tolerance: float
    """Fall of the mean validation loss that pays for one step with 100 inducing inputs."""

    portfolio: int
    """Number of candidates to start with."""

    rows: int
    """Training examples of a candidate before the last ones are left."""

    most_inducing: int
    """Largest number of inducing inputs."""

    rows_per_inducing: int
    """Smallest number of training examples for each inducing input."""


EFFORTS = {
    "fast": Effort(1e-3, 3, 2000, 200, 5),
    "default": Effort(1e-4, 6, 5000, 2000, 2),
    "thorough": Effort(1e-5, 8, 20_000, 4000, 1),
}
"""Efforts by name: more effort means more candidates and steps."""


def weights_of(entrants: Sequence[Entrant], combine: Combine) -> Weights:
    """Return the weights of the mixture with the lowest validation loss, or 1 for the best."""
    if combine == "mixture":
        losses = torch.stack([entrant.losses for entrant in entrants])
        return largest(mixture_weights(losses, entrants[0].shares), MOST_MEMBERS)
    weights = torch.zeros(len(entrants), dtype=torch.float64)
    weights[min(range(len(entrants)), key=lambda i: entrants[i].loss)] = 1.0
    return weights


def result_loss(entrants: Sequence[Entrant], combine: Combine) -> float:
    """Return the validation loss of the mixture, or of the best one."""
    if combine == "best" or len(entrants) == 1:
        return min(entrant.loss for entrant in entrants)
    weights = weights_of(entrants, combine)
    members = [entrants[i] for i in weights.nonzero()[:, 0].tolist()]
    losses = torch.stack([entrant.losses for entrant in members]).double().cpu()
    rows, shares = mixed(losses, weights[weights > 0]), members[0].shares
    return float((rows if shares is None else shares.cpu() * rows).mean())


def shares(entrants: Sequence[Entrant], combine: Combine) -> list[float]:
    """Return by how much the loss of the result falls where that of an entrant falls by 1.

    In a mixture it is the weight. The best one may yet be any that it does not clearly beat.
    """
    if combine == "mixture":
        return weights_of(entrants, combine).tolist()
    best = min(entrants, key=lambda entrant: entrant.loss)
    return [0.0 if entrant.is_beaten(best) else 1.0 for entrant in entrants]


def next_steps(entrant: Entrant, share: float, effort: Effort) -> int:
    """Return the number of further steps that pay; 0 if none do."""
    if entrant.steps == 0:
        return FIRST_STEPS
    pays = effort.tolerance * (1 + entrant.steps * entrant.cost / _MANY_STEPS)
    left = _MOST_STEPS - entrant.steps
    return min(max(FIRST_STEPS, entrant.steps), left) if share * entrant.rate >= pays else 0


def price(entrant: Entrant, steps: int, effort: Effort) -> float:
    """Return the fall of the loss for which an entrant takes that many steps."""
    return steps * effort.tolerance * entrant.cost


@final
@dataclass
class Race:
    """Trains candidates and keeps those that make the best result together."""

    trainers: Trainers
    """Trains them."""

    choices: Choices
    """What is chosen."""

    effort: Effort
    """How much is spent."""

    combine: Combine
    """What the result is."""

    entrants: list[Entrant] = field(default_factory=list, init=False)
    """Candidates that were trained."""

    decisions: list[str] = field(default_factory=list, init=False)
    """What was decided and why, in sentences."""

    untried: list[str] = field(default_factory=list, init=False)
    """What was left out because the race was ended."""

    _tried: set[Candidate] = field(default_factory=set, init=False)
    _expanded: set[Candidate] = field(default_factory=set, init=False)

    def run(self) -> None:
        """Race until no further step and no further candidate pays."""
        if not self.entrants:
            self._open()
        while self.entrants and self.trainers.end is None:
            going = self._going()
            if going:
                self._advance(going)
            elif not self._expand():
                return
        if self.trainers.end is not None:
            self.untried.append("further candidates and steps")

    def _open(self) -> None:
        """Train the starting candidates for their first steps."""
        portfolio = self.choices.portfolio(self.effort.portfolio)
        ard = {stacked: self._ard(stacked) for stacked in self.choices.stacked}
        starts = list[tuple[Entrant, int]]()
        for candidate in portfolio:
            chosen = ard[candidate.stacked]
            if chosen is None or self.trainers.end is not None:
                self.untried.append(candidate.label)
                continue
            candidate = replace(candidate, ard=chosen)
            base = self.trainers.base(candidate, self._first_of(candidate))
            if base is not None:
                starts.append((self.trainers.start(candidate, base), FIRST_STEPS))
        self.entrants = [each for each in self.trainers.advanced(starts) if each.steps]
        self._tried = {each.candidate for each in self.entrants}

    def _ard(self, stacked: bool) -> bool | None:
        """Return whether a lengthscale for each feature gives the lower loss; None if neither."""
        first = replace(self.choices.first(), stacked=stacked)
        found = {}
        for ard in self.choices.ard:
            base = self.trainers.base(replace(first, ard=ard), first.likelihood)
            if base is not None:
                found[ard] = base
        if not found:
            return None
        best = min(found, key=lambda ard: found[ard].loss)
        if len(found) > 1:
            each = "a lengthscale for each feature" if best else "one lengthscale"
            gap = abs(found[True].loss - found[False].loss)
            where = " with the stack" if stacked else ""
            self.decisions.append(f"{each.capitalize()}{where}: lower by {number(gap, 3)}.")
        return best

    def _first_of(self, candidate: Candidate) -> str:
        """Return the first likelihood with the latent scale of a candidate's."""
        models = self.trainers.models
        scale = models.model(candidate).likelihood.latent_scale
        for name in self.choices.likelihoods:
            if models.model(replace(candidate, likelihood=name)).likelihood.latent_scale == scale:
                return name
        return candidate.likelihood

    def _going(self) -> list[tuple[int, int]]:
        """Return the places of entrants for which further steps pay, with their number."""
        pairs = zip(self.entrants, shares(self.entrants, self.combine), strict=True)
        steps = [next_steps(entrant, share, self.effort) for entrant, share in pairs]
        return [(i, number) for i, number in enumerate(steps) if number]

    def _advance(self, going: Sequence[tuple[int, int]]) -> None:
        """Train these entrants further."""
        further = self.trainers.advanced([(self.entrants[i], steps) for i, steps in going])
        for (i, _), entrant in zip(going, further, strict=True):
            self.entrants[i] = entrant

    def _expand(self) -> bool:
        """Add the neighbours of the heaviest entrant; return whether there are new ones."""
        weights = weights_of(self.entrants, self.combine)
        leader = self.entrants[int(weights.argmax())]
        if leader.candidate in self._expanded:
            return False
        self._expanded.add(leader.candidate)
        added = False
        likelihoods = {candidate.likelihood for candidate in self._tried}
        large = float(weights.max()) >= _LARGE
        for candidate in self.choices.neighbours(leader.candidate, likelihoods, large):
            if candidate in self._tried:
                continue
            if self.trainers.end is not None:
                self.untried.append(candidate.label)
                continue
            self._tried.add(candidate)
            added |= self._add(leader, candidate)
        return added

    def _add(self, leader: Entrant, candidate: Candidate) -> bool:
        """Train a neighbour for its first steps, and keep it if that pays."""
        trainers = self.trainers
        start = trainers.changed(leader, candidate)
        start = replace(start, losses=start.losses + math.inf)
        (entrant,) = trainers.advanced([(start, FIRST_STEPS)])
        if not math.isfinite(entrant.loss):
            return False
        grown = candidate.num_inducing > leader.candidate.num_inducing
        if grown:
            fall = trainers.fall(leader.loss, entrant.loss)
            wanted = price(entrant, _STEPS_PER_DOUBLING, self.effort)
        else:
            before = result_loss(self.entrants, self.combine)
            fall = trainers.fall(before, result_loss([*self.entrants, entrant], self.combine))
            wanted = price(entrant, FIRST_STEPS, self.effort)
        pays = fall >= wanted
        self.decisions.append(
            f"{'Kept' if pays else 'Not kept'}: {candidate.label}. The loss falls by "
            f"{number(fall, 2)}, and {number(wanted, 2)} are asked for."
        )
        if pays and grown:
            self.entrants[self.entrants.index(leader)] = entrant
        elif pays:
            self.entrants.append(entrant)
        return pays

    def widen(self, whole: dict[bool, Sequence[Split]]) -> None:
        """Go on with the best entrants on all examples of the splits."""
        weights = weights_of(self.entrants, self.combine)
        self.trainers.splits = whole
        kept = [self.entrants[i] for i in weights.nonzero()[:, 0].tolist()]
        self.entrants = []
        for entrant in kept:
            parts = whole[entrant.candidate.stacked]
            results = tuple(
                replace(each, likelihood=for_rows_of(each.likelihood, part.likelihood))
                for each, part in zip(entrant.results, parts, strict=True)
            )
            self.entrants.append(replace(entrant, results=results, rate=math.inf, learnt=()))
        self._expanded.clear()
        self._tried = {each.candidate for each in self.entrants}
