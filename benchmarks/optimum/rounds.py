"""Time to the optimum of every library, in rounds with different splits and starts."""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.optimum.descent import NEAR, Descent, best_of, run
from benchmarks.optimum.jobs import Given, Settings
from benchmarks.optimum.problems import Problem, given_of, parts_of, settings_of

Row = dict[str, object]


@dataclass(frozen=True)
class Limits:
    """Time limits of the peers, in multiples of the time of our whole run."""

    screening: float
    """For each way to train, in the first round."""

    patience: float
    """For the best way, in every round."""

    least: float = 3.0
    """Seconds that any run may take."""

    most: float = 120.0
    longer: float = 0.0
    """Seconds for the best way at least, whatever the other limits say: for peers that are late."""

    def screening_seconds(self, ours: float) -> float:
        """Return the time limit of one trial setting."""
        return min(self.most, max(self.least, self.screening * ours))

    def patient_seconds(self, ours: float) -> float:
        """Return the time limit of the best setting."""
        return max(self.longer, min(self.most, max(self.least, self.patience * ours)))


@dataclass(frozen=True)
class Round:
    """Results of every library on one problem from one start."""

    problem: Problem
    seed: int
    num_data: int
    descents: list[Descent]
    """One of each library that has the objective."""

    @property
    def target(self) -> float:
        """Return the objective that counts as reached."""
        return best_of(self.descents) + NEAR

    def seconds(self, library: str) -> tuple[float, bool] | None:
        """Return the time to the target and True, or the time limit and False."""
        descent = next((d for d in self.descents if d.library == library), None)
        if descent is None:
            return None
        reached = descent.reached(self.target)
        return (descent.total, False) if reached is None else (reached, True)

    def to_dict(self) -> Row:
        """Return the values for the result file."""
        found = [_kept(descent, self.target) for descent in self.descents]
        about = {"n": self.num_data, "seed": self.seed, "target": self.target}
        return {**asdict(self.problem), **about, "libraries": found}


def _kept(descent: Descent, target: float) -> Row:
    trace = list(zip(descent.seconds.tolist(), descent.objectives.tolist(), strict=True))
    thin = max(1, len(trace) // 60)
    return {
        "library": descent.library,
        "settings": "defaults" if descent.library == "directgp" else descent.settings.name,
        "objective": descent.best,
        "gap": descent.best - (target - NEAR),
        "reached": descent.reached(target),
        "total": descent.total,
        "steps": descent.steps,
        "trace": [[round(t, 4), round(value, 6)] for t, value in [*trace[::thin], trace[-1]]],
    }


class ProblemRounds:
    """One problem: the first round finds the best way of each peer; the next use it.

    Parameters
    ----------
    pythons : mapping
        The interpreter of each library.
    """

    def __init__(self, problem: Problem, pythons: Mapping[str, Path], limits: Limits) -> None:
        self.problem, self._pythons, self._limits = problem, pythons, limits
        self._ways: dict[str, Settings] = {}
        self.screened: list[Row] = []

    def round(self, data: Path, seed: int, rows: int | None = None) -> Round:
        """Run every library once from the same start."""
        training = parts_of(data, self.problem.data, seed, rows).training
        given = given_of(self.problem, training, seed)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            ours = self._run("directgp", given, [Settings(self._limits.most, seed=seed)], folder)[0]
            seconds = self._limits.patient_seconds(ours.total)
            descents = [ours]
            for peer in self._peers():
                if way := self._way(peer, given, ours, seed, folder):
                    patient = replace(way, seconds=seconds, seed=seed)
                    descents += self._run(peer, given, [patient], folder)
        return Round(self.problem, seed, len(given.y), descents)

    def _peers(self) -> list[str]:
        """Return all peers in the first round; later the one that has every objective."""
        peers = [name for name in self._pythons if name != "directgp"]
        return [name for name in peers if name == "gpytorch"] if self._ways else peers

    def _way(
        self, peer: str, given: Given, ours: Descent, seed: int, folder: Path
    ) -> Settings | None:
        """Return the peer's best setting: the lowest objective after a short time."""
        if peer not in self._ways:
            seconds = self._limits.screening_seconds(ours.total)
            ways = settings_of(peer, self.problem, seconds, seed)
            if not ways:
                return None
            found = self._run(peer, given, ways, folder)
            self.screened += [
                {**asdict(self.problem), "library": peer, "settings": d.settings.name}
                | {"best": d.best, "seconds": d.total, "steps": d.steps}
                for d in found
            ]
            self._ways[peer] = min(found, key=lambda d: d.best).settings
        return self._ways[peer]

    def _run(
        self, library: str, given: Given, ways: Sequence[Settings], folder: Path
    ) -> list[Descent]:
        return run(library, self._pythons[library], given, ways, folder)


def ratio(rounds: Sequence[Round], peer: str) -> str:
    """Return the time ratio peer / ours, median (min to max); bounds if one missed the target."""
    pairs = [(r.seconds(peer), r.seconds("directgp")) for r in rounds]
    known = [(theirs, ours) for theirs, ours in pairs if theirs is not None and ours is not None]
    if not known:
        return "–"
    ratios = [theirs[0] / ours[0] for theirs, ours in known]
    late = not all(theirs[1] for theirs, _ in known)
    lost = not all(ours[1] for _, ours in known)
    # A lower bound of the peer's time gives a lower bound of the ratio; of ours, an upper bound.
    sign = {(False, False): "", (True, False): "≥ ", (False, True): "≤ "}.get((late, lost), "? ")
    return f"{sign}{statistics.median(ratios):.2g}{_between(ratios)}"


def _between(ratios: Sequence[float]) -> str:
    """Describe minimum and maximum of several values."""
    return f" ({min(ratios):.2g} to {max(ratios):.2g})" if len(ratios) > 1 else ""


def time_text(rounds: Sequence[Round], library: str) -> str:
    """Describe the seconds to the target, or the remaining gap."""
    found = [(r, next((d for d in r.descents if d.library == library), None)) for r in rounds]
    known = [(r, d) for r, d in found if d is not None]
    if not known:
        return "has no such objective"
    times = [d.reached(r.target) for r, d in known]
    there = [t for t in times if t is not None]
    gaps = [d.best - best_of(r.descents) for r, d in known]
    if len(there) == len(times):
        return f"{statistics.median(there):.3g} s"
    total = statistics.median(d.total for _, d in known)
    share = f"{len(there)} of {len(times)}" if there else "not"
    return f"{share} within {total:.3g} s; gap {max(gaps):.1g}"
