"""Features for a GP: out-of-fold predictions of other models."""

from directgp.stack.sources import check_stack, sources_of
from directgp.stack.stack import Stack, fit_stack
from directgp.stack.trees import Trees

__all__ = ["Stack", "Trees", "check_stack", "fit_stack", "sources_of"]
