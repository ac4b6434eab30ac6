"""How the model of a fit was chosen, for people."""

from collections.abc import Iterator

from directgp.estimators.reports.plain_text import count, figure, item, table, with_errors
from directgp.estimators.reports.record import ChosenPath


def reason_for_choice(path: ChosenPath) -> str:
    """Why the chosen candidate was taken."""
    what = f"by {path.loss} on {path.validation}"
    if len(path.points) == 1:
        return "the only candidate that could be trained"
    chosen = path.points[path.chosen]
    number = count(len(path.points), "candidate")
    if chosen.difference <= 0:
        return f"the best of {number} {what}"
    (gap,) = with_errors([chosen.difference], [chosen.difference_error])
    return f"the safest of {number} that cannot be told from the best {what} ({gap} above it)"


def choice_sections(path: ChosenPath) -> Iterator[str]:
    """Models, candidates and failures, each where there is something to tell."""
    if len(path.models) > 1:
        yield _models(path)
    if path.points:
        yield _candidates(path)
    if path.failed:
        yield "\n".join(["Could not be trained", *map(item, path.failed)])


def _models(path: ChosenPath) -> str:
    """Kernels and likelihoods, the best first."""
    best = max(model.evidence for model in path.models)
    ranked = sorted(path.models, key=lambda model: -model.evidence)
    rows = [
        ("→" if i == 0 else "", model.name, figure(best - model.evidence) if i else "best")
        for i, model in enumerate(ranked)
    ]
    header = "", "model", "log evidence, below the best"
    return "Models compared\n" + table(header, rows, left=(0, 1))


def _candidates(path: ChosenPath) -> str:
    """The β path, from the most to the least regularised."""
    points = path.points
    losses = with_errors(
        [point.validation_loss for point in points], [point.validation_error for point in points]
    )
    gaps = with_errors(
        [point.difference for point in points], [point.difference_error for point in points]
    )
    rows = [
        (
            "→" if i == path.chosen else "",
            f"{point.beta:.3g}",
            point.hyperparameters,
            losses[i],
            gaps[i] if point.difference > 0 else "best",
            point.status,
        )
        for i, point in enumerate(points)
    ]
    header = "", "β", "mode", "validation loss", "above the best", "training"
    return f"Candidates compared, {path.loss}\n" + table(header, rows, left=(0, 2, 5))
