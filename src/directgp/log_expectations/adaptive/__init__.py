"""Integrals over q for likelihoods of which nothing is known but log p(y given f)."""
