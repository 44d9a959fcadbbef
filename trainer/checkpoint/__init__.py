"""Checkpoints: written beside the training, whole or not at all, and read back at any world size."""
