"""What a run tells of itself: speed and goodput, as JSON lines, for Prometheus and for TensorBoard."""
