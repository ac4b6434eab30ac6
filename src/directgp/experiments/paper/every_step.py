"""A stopping rule for trainings that are looked at after given numbers of steps."""

from typing import final

from typing_extensions import override

from directgp.training.monitors import Monitor
from directgp.training.result import Progress


@final
class EveryStep(Monitor):
    """Lets every step be taken, whether or not the training has converged."""

    @override
    def __call__(self, progress: Progress) -> None:
        """Go on."""

    @override
    def reset(self) -> None:
        """Nothing is remembered."""
