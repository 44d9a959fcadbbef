"""Metrics of a run: speed and goodput, as JSON lines, for Prometheus and for TensorBoard."""
