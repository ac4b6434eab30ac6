"""All numbers that verdicts hang on, fixed before anything was run, each with its reason."""

from directgp.experiments.standings import SIGNIFICANT

LEVEL = 1 - SIGNIFICANT
"""Of the intervals: an interval leaves out 0 where the test of the same level is passed."""

NLL_MARGIN = 0.01
"""Nats within which two test NLLs of labels or counts count as equal.

The paper calls such curves comparable: 0.01 is a width of line of its plots, and a probability
that is 1 % off on average. "No significant difference" between rules has the same margin.
"""

RECOVERY_MARGIN = 0.05
"""Nats of the normalised target within which bMC recovers exact gradients in regression.

Regression NLLs of the paper's four sets spread over more than 1 nat; 0.05 is a width of line there.
"""

AIRLINE_MARGIN = 0.002
"""Nats within which a rule recovers the exact curve on airline.

ELBO and DLM, which the paper tells apart, differ by about 0.01 there: a fifth of it is small.
"""

ERROR_MARGIN = 0.01
"""Share of wrong labels that would not count as sacrificed: ten of the paper's 1,000 test rows."""

MRE_MARGIN = 0.01
"""Mean relative error that would still count as competitive: one percent of the count."""

SMALL_SIZE = 691
"""Training rows of the paper's plot of β on cadata."""

SMALL_FACTOR = 2.0
"""Sizes further from 691 than by this factor are another experiment."""

LARGE_SIZE = 2000
"""Training rows of cadata from which a sample counts as large: three times the small one."""

FIRST_EPOCH = 0.999
"""Airline is judged from the end of the first epoch on; before, curves show their start.

A little below 1, for epochs that are counted in steps of full batches.
"""

FIRST_STEPS = 50
"""Steps of Adam after which "an initial set of learning iterations" is over."""

REJECTIONS = (1.0, 3.0)
"""Rejected draws that count as "approximately 2"."""

VECTORISED = 0.6
"""Share of the time that vectorising must leave at most; the paper says 0.5, and clocks vary."""

SAME_ERRORS, SAME_SHARE = 3.0, 0.05
"""Standard errors, and share, within which two numbers of proposals are the same.

Theory says they are equal: three errors leave room for the many looks, and the share keeps a
difference that nobody would notice from being called one.
"""

SLOWER = 3.0
"""Times that count as "significantly slower in practice"."""
