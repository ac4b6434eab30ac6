"""What one store has and another lacks, taken over."""

import json
from dataclasses import dataclass
from typing import Any, final

from directgp.experiments.paper.store_file import StoreFile

_RESULT = "select * from results where key = ?"
_TAKE = "insert into results values (?, ?, ?, ?, ?, ?)"
_FAILURES = "select * from failures order by key"
_TAKE_FAILURE = "insert or ignore into failures values (?, ?, ?, ?, ?)"
_SETTLED = "delete from failures where key in (select key from results)"
_OUTCOME, _ARRAYS = 2, 5


@final
@dataclass(frozen=True)
class Merged:
    """What came of taking over the results of another store."""

    added: int
    """Results that this one did not have."""

    known: int
    """Results that both have; ours are kept."""

    differing: int
    """Of the known, those that are not the same but for times."""


def merge_into(ours: StoreFile, theirs: StoreFile) -> Merged:
    """Results that we lack; failures where neither has a result."""
    keys = [key for (key,) in theirs.rows("select key from results order by key")]
    added = known = differing = 0
    with ours.writing():
        for key in keys:
            (their_row,), our_rows = theirs.rows(_RESULT, key), ours.rows(_RESULT, key)
            if our_rows:
                known += 1
                differing += not _same(our_rows[0], their_row)
            else:
                added += 1
                ours.rows(_TAKE, *their_row)
        for failure in theirs.rows(_FAILURES):
            ours.rows(_TAKE_FAILURE, *failure)
        ours.rows(_SETTLED)
    return Merged(added, known, differing)


def _same(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    outcomes = (_without_times(json.loads(row[_OUTCOME])) for row in (ours, theirs))
    # As text: NaN is not equal to itself.
    return len({json.dumps(each) for each in outcomes}) == 1 and ours[_ARRAYS] == theirs[_ARRAYS]


def _without_times(facts: Any) -> Any:
    """Facts without those that are called seconds, however deep."""
    if isinstance(facts, list):
        return [_without_times(each) for each in facts]
    if isinstance(facts, dict):
        kept = (name for name in facts if not name.endswith("seconds"))
        return {name: _without_times(facts[name]) for name in kept}
    return facts
