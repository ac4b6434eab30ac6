"""Experiments: cells, the store that keeps them, the engine that runs them, and what they say."""
