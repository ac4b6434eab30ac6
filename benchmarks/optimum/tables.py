"""Markdown tables of the results."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.optimum.problems import LIBRARIES
from benchmarks.optimum.rounds import Round, ratio, time_text
from benchmarks.optimum.selection import Choice

Row = dict[str, str]


def optimum_rows(problems: Sequence[Sequence[Round]], peers: Sequence[str]) -> list[Row]:
    """Return one row per problem: the time of each library and its ratio to ours."""
    return [_optimum_row(rounds, peers) for rounds in problems if rounds]


def _optimum_row(rounds: Sequence[Round], peers: Sequence[str]) -> Row:
    first = rounds[0]
    row = {
        "data": f"{first.problem.data}, n = {first.num_data}",
        "objective": first.problem.name,
        "directgp": time_text(rounds, "directgp"),
    }
    for peer in (name for name in LIBRARIES[1:] if name in peers):
        row |= {peer: time_text(rounds, peer), f"{peer} / directgp": ratio(rounds, peer)}
    return row


def selection_rows(choices: dict[tuple[str, int], Sequence[Choice]]) -> list[Row]:
    """Return one row per library and data set, with the rounds side by side."""
    rows: list[Row] = []
    for data in dict.fromkeys(name for name, _ in choices):
        rounds = [found for (name, _), found in choices.items() if name == data]
        rows += [_selection_row(data, list(same)) for same in zip(*rounds, strict=True)]
        for row, same in zip(rows[-len(rounds[0]) :], zip(*rounds, strict=True), strict=True):
            ratios = [
                choice.seconds / found[0].seconds
                for choice, found in zip(same, rounds, strict=True)
            ]
            row["time / ours"] = " to ".join(f"{r:.2g}" for r in sorted({min(ratios), max(ratios)}))
    return rows


def _selection_row(data: str, same: list[Choice]) -> Row:
    whole = all(choice.finished == same[0].finished == 15 for choice in same)
    fits = "" if whole else f" ({same[0].finished} fits, the rest in proportion)"
    return {
        "data": data,
        "library": same[0].library,
        "seconds": "; ".join(f"{choice.seconds:.3g}" for choice in same) + fits,
        "chosen β": "; ".join(f"{choice.beta:.3g}" for choice in same),
        "test NLL": "; ".join(f"{choice.nll:.4f}" for choice in same),
    }


def markdown(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table."""
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += ["| " + " | ".join(row[head] for head in heads) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Print a table and write it to a file."""
    text = markdown(rows)
    print("\n" + text, flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
