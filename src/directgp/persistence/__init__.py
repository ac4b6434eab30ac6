"""Fitted models as files: tensors and a checked manifest, rebuilt from fixed tables of classes."""

from directgp.persistence.models import load_model, save_model
from directgp.persistence.parts import ModelState

__all__ = ["ModelState", "load_model", "save_model"]
