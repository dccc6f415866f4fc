"""Inference on a GPU."""
