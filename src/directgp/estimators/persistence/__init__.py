"""Fitted models as files: tensors and a checked manifest, rebuilt from fixed tables of classes."""

from directgp.estimators.persistence.model_files import load_model, save_model
from directgp.estimators.persistence.state import ModelState

__all__ = ["ModelState", "load_model", "save_model"]
