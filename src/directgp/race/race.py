"""Race candidates: advance them, compare, drop the beaten, add neighbours of the leading one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Literal, final

from directgp.race.candidates import Candidate, Choices
from directgp.race.entrants import FIRST_STEPS, Entrant, Trainers
from directgp.race.weights import EntrantForecasts, Weights
from directgp.text import number
from directgp.training.result import INTERRUPTED
from directgp.training.trainer import without_steps
from directgp.training.validation import Split, for_rows_of

Combine = Literal["mixture", "best"]
"""What a fit returns: a mixture of candidates, or the best one."""

MOST_MEMBERS = 4
"""Largest number of members of a mixture: six predict no better, over 24 splits of tables."""

_MANY_STEPS = 200
"""Steps after which a step has to pay twice as much as the first one."""

_MOST_STEPS = 3200
"""Largest number of steps of an entrant; a limit of the recipe holds for each run."""

_AHEAD = 2.0
"""A candidate goes on if it overtakes the result within that many times its steps."""

_CHALLENGE = 400
"""So do the best one of the other features and the best collapsed one within at least that many
steps: on smooth tables those without trees start far behind."""

_STEPS_PER_DOUBLING = 30
"""Steps for which twice as many inducing inputs have to pay."""


@final
@dataclass(frozen=True)
class Effort:
    """How much a race spends on a choice."""

    tolerance: float
    """Fall of the mean validation loss that pays for one step with 100 inducing inputs."""

    portfolio: int
    """Number of candidates to start with."""

    leaders: int
    """Number of leading candidates whose neighbours are tried; without any, no candidate starts
    only to show whether more inducing inputs pay."""

    rows: int
    """Training examples of a candidate before the last ones are left."""

    most_inducing: int
    """Largest number of inducing inputs."""

    rows_per_inducing: int
    """Smallest number of training examples for each inducing input."""


EFFORTS = {
    "fast": Effort(1e-3, 3, 0, 2000, 200, 5),
    "default": Effort(2e-4, 5, 2, 5000, 2000, 2),
    "thorough": Effort(2e-5, 8, 2, 20_000, 4000, 1),
}
"""Efforts by name: more effort means more candidates and steps."""


def weights_of(pool: EntrantForecasts, combine: Combine) -> Weights:
    """Return the weights of the mixture with the lowest validation loss, or 1 for the best."""
    return pool.weights(MOST_MEMBERS) if combine == "mixture" else pool.best()


def shares(entrants: Sequence[Entrant], weights: Weights, combine: Combine) -> list[float]:
    """Return by how much the loss of the result falls where that of an entrant falls by 1.

    In a mixture it is the weight. The best one may yet be any that it does not clearly beat.
    """
    if combine == "mixture":
        return weights.tolist()
    best = min(entrants, key=lambda entrant: entrant.loss)
    return [0.0 if entrant.is_beaten(best) else 1.0 for entrant in entrants]


def next_steps(entrant: Entrant, share: float, effort: Effort) -> int:
    """Return the number of further steps that pay; 0 if none do."""
    if entrant.steps == 0:
        return FIRST_STEPS
    pays = effort.tolerance * (1 + entrant.steps * entrant.cost / _MANY_STEPS)
    left = max(0, _MOST_STEPS - entrant.steps)
    return min(max(FIRST_STEPS, entrant.steps), left) if share * entrant.rate >= pays else 0


def overtakes(entrant: Entrant, gap: float, effort: Effort, within: int = 0) -> bool:
    """Return whether an entrant at its rate closes a gap, and pays for its steps, within a while.

    Candidates that end best may start slowly. `within` is the least number of steps of the while.
    """
    if not math.isfinite(gap) or entrant.steps == 0:
        return False
    steps = max(within, _AHEAD * entrant.steps)
    return (entrant.rate - effort.tolerance) * entrant.cost * steps >= gap


def price(entrant: Entrant, steps: int, effort: Effort) -> float:
    """Return the fall of the loss for which an entrant takes that many steps."""
    return steps * effort.tolerance * entrant.cost


def _decision(candidate: Candidate, fall: float, cost: float) -> str:
    """Return whether a neighbour is kept, and why."""
    if fall <= 0:
        return f"Not kept: {candidate.label}. It does not lower the loss."
    lowers = f"{candidate.label}. It lowers the loss by {number(fall, 2)}"
    if fall >= cost:
        return f"Kept: {lowers}; its steps cost {number(cost, 2)}."
    return f"Not kept: {lowers}, less than the {number(cost, 2)} that its steps cost."


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
    _refused: set[tuple[bool, int]] = field(default_factory=set, init=False)
    """Features and numbers of inducing inputs that did not pay."""
    _grows: bool = field(default=False, init=False)
    """Whether more inducing inputs have paid for a candidate whose q(u) has a closed form."""

    @property
    def weights(self) -> Weights:
        """Weights of the entrants in the result."""
        return weights_of(self.trainers.pool(self.entrants), self.combine)

    def _loss(self, entrants: Sequence[Entrant]) -> float:
        """Return the validation loss of the result of these entrants."""
        pool = self.trainers.pool(entrants)
        return pool.mean(weights_of(pool, self.combine))

    def run(self) -> None:
        """Race until no further step and no further candidate pays, or until the race is ended."""
        try:
            self._race()
        except KeyboardInterrupt:
            # Between two runs; during a run Ctrl-C ends the run.
            if self.trainers.last is None:
                raise
            self.trainers.end = without_steps("race", *astuple(INTERRUPTED))
        if self.trainers.end is not None:
            self.untried.append("further candidates and steps")

    def _race(self) -> None:
        if not self.entrants:
            self._open()
        while self.entrants and self.trainers.end is None:
            going = self._going()
            if going:
                self._advance(going)
            elif not self._expand():
                return

    def _open(self) -> None:
        """Train the starting candidates for their first steps."""
        portfolio = self.choices.portfolio(self.effort.portfolio)
        if self.effort.leaders > 0:
            portfolio = list(dict.fromkeys([*portfolio, *self.choices.collapsed()]))
        ard = self._ard()
        if ard is not None:
            portfolio = [replace(candidate, ard=ard) for candidate in portfolio]
            starts = [self._start(each) for each in portfolio]
            first = [(start, FIRST_STEPS) for start in starts if start is not None]
            self.entrants = [each for each in self.trainers.advanced(first) if each.steps]
        self._tried = {each.candidate for each in self.entrants}
        if self.trainers.end is not None:
            self.untried += [each.label for each in portfolio if each not in self._tried]

    def _start(self, candidate: Candidate) -> Entrant | None:
        """Return a starting candidate; None if it could not be trained.

        A collapsed one starts from its own untrained model: another kernel's lengthscales may lead
        it into a worse optimum.
        """
        if candidate.mode == "elbo" and candidate.likelihood in self.choices.conjugate:
            return self.trainers.begun(candidate)
        base = self.trainers.base(candidate, self._first_of(candidate))
        return None if base is None else self.trainers.start(candidate, base)

    def _ard(self) -> bool | None:
        """Return whether each feature gets a lengthscale; None if no model could be trained.

        The preferred choice stays unless the other one is clearly better.
        """
        first = self.choices.first()
        if first.stacked and len(self.choices.stacked) > 1:
            first = self.choices.plain()
        tried = [
            self.trainers.base(replace(first, ard=ard), first.likelihood)
            for ard in self.choices.ard
        ]
        found = [base for base in tried if base is not None]
        if len(found) < 2:
            return found[0].candidate.ard if found else None
        preferred, other = found
        changed = preferred.is_beaten(other)
        chosen = other if changed else preferred
        rest = preferred if changed else other
        names = "a lengthscale for each feature", "one lengthscale for all features"
        this, that = names if chosen.candidate.ard else names[::-1]
        gap = self.trainers.fall(rest.loss, chosen.loss)
        higher = f"higher by {number(gap, 2)}" if gap > 0 else "not clearly lower"
        self.decisions.append(f"{this.capitalize()}: with {that}, the loss is {higher}.")
        return chosen.candidate.ard

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
        pool = self.trainers.pool(self.entrants)
        weights = weights_of(pool, self.combine)
        result = pool.mean(weights)
        falls = shares(self.entrants, weights, self.combine)
        _, *others = self._leaders(weights)
        collapsed = self._collapsed()
        challengers = [*others, *collapsed]
        steps = []
        for entrant, share in zip(self.entrants, falls, strict=True):
            gap = self.trainers.fall(entrant.loss, result)
            within = _CHALLENGE if any(entrant is each for each in challengers) else 0
            grows = self._grows and any(entrant is each for each in collapsed)
            goes_on = grows or overtakes(entrant, gap, self.effort, within)
            steps.append(next_steps(entrant, 1.0 if goes_on else share, self.effort))
        return [(i, number) for i, number in enumerate(steps) if number]

    def _advance(self, going: Sequence[tuple[int, int]]) -> None:
        """Train these entrants further."""
        further = self.trainers.advanced([(self.entrants[i], steps) for i, steps in going])
        for (i, _), entrant in zip(going, further, strict=True):
            self.entrants[i] = entrant

    def _leaders(self, weights: Weights) -> list[Entrant]:
        """Return the heaviest entrant, and the best of those with the other features."""
        first = self.entrants[int(weights.argmax())]
        others = [
            each for each in self.entrants if each.candidate.stacked != first.candidate.stacked
        ]
        return [first, *sorted(others, key=lambda entrant: entrant.loss)[:1]]

    def _collapsed(self) -> list[Entrant]:
        """Return the best entrant whose q(u) has a closed form, if there is one."""
        collapsed = [each for each in self.entrants if each.collapsed]
        return sorted(collapsed, key=lambda entrant: entrant.loss)[:1]

    def _expand(self) -> bool:
        """Add the neighbours of the leading entrants; return whether there are new ones.

        A larger number of inducing inputs is first tried where q(u) has a closed form. Where it
        pays, the smaller one first goes on while its steps pay: they are cheaper, and lead to
        better hyperparameters to grow from.
        """
        for entrant in self._collapsed() if self.effort.leaders > 0 else []:
            for candidate in self.choices.doubled(entrant.candidate):
                if self._try(entrant, candidate):
                    return True
        added = False
        for leader in self._leaders(self.weights)[: self.effort.leaders]:
            if leader.candidate in self._expanded:
                continue
            self._expanded.add(leader.candidate)
            likelihoods = {candidate.likelihood for candidate in self._tried}
            for candidate in self.choices.neighbours(leader.candidate, likelihoods):
                is_kept = self._try(leader, candidate)
                added |= is_kept
                if is_kept and candidate.num_inducing > leader.candidate.num_inducing:
                    break
        return added

    def _try(self, leader: Entrant, candidate: Candidate) -> bool:
        """Add a neighbour that was not tried before; return whether it is kept."""
        size = candidate.stacked, candidate.num_inducing
        if candidate in self._tried or size in self._refused:
            return False
        if self.trainers.end is not None:
            self.untried.append(candidate.label)
            return False
        self._tried.add(candidate)
        return self._add(leader, candidate)

    def _add(self, leader: Entrant, candidate: Candidate) -> bool:
        """Train a neighbour for its first steps, and keep it if that pays."""
        trainers = self.trainers
        start = trainers.changed(leader, candidate)
        if start is None:
            return False
        start = replace(start, losses=start.losses + math.inf)
        (entrant,) = trainers.advanced([(start, FIRST_STEPS)])
        if not math.isfinite(entrant.loss):
            if trainers.end is not None:
                self.untried.append(candidate.label)
            else:
                said = f"Not kept: {candidate.label}. Its loss is not finite."
                self.decisions.append(said)
            return False
        grown = candidate.num_inducing > leader.candidate.num_inducing
        others = [each for each in self.entrants if not (grown and each is leader)]
        result = self._loss(self.entrants)
        fall = trainers.fall(result, self._loss([*others, entrant]))
        own = trainers.fall(leader.loss, entrant.loss) if grown else 0.0
        if grown:
            # More inducing inputs are further training: it is judged as further steps are.
            catches_up = leader.collapsed and _AHEAD * own >= trainers.fall(entrant.loss, result)
            share = 1.0 if catches_up else float(self.weights[self.entrants.index(leader)])
            fall = max(fall, share * own)
        steps = _STEPS_PER_DOUBLING if grown else FIRST_STEPS
        wanted = price(entrant, steps, self.effort)
        pays = fall >= wanted
        if pays and grown and leader.collapsed and not self._grows:
            self._grows = True
            if next_steps(leader, 1.0, self.effort):
                # Train the smaller one first, and grow again after that.
                self._tried.remove(candidate)
                return True
        self.decisions.append(_decision(candidate, fall, wanted))
        if pays and grown:
            self.entrants[self.entrants.index(leader)] = entrant
        elif pays:
            self.entrants.append(entrant)
        elif grown and not (leader.collapsed and own >= wanted):
            self._refused.add((candidate.stacked, candidate.num_inducing))
        return pays

    def widen(self, whole: Mapping[bool, Sequence[Split]]) -> None:
        """Go on with the best entrants on all examples of the splits."""
        kept = [self.entrants[i] for i in self.weights.nonzero()[:, 0].tolist()]
        self.trainers.splits = whole
        self.entrants = []
        for entrant in kept:
            parts = whole[entrant.candidate.stacked]
            results, base = (
                tuple(
                    replace(each, likelihood=for_rows_of(each.likelihood, part.likelihood))
                    for each, part in zip(models, parts, strict=True)
                )
                for models in (entrant.results, entrant.base or entrant.results)
            )
            self.entrants.append(
                replace(entrant, results=results, base=base, rate=math.inf, learnt=())
            )
        self._expanded.clear()
        self._refused.clear()
        self._tried = {each.candidate for each in self.entrants}
