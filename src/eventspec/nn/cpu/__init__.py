"""Inference on a CPU: layouts of weights, oneDNN's packed products, draft trees in machine code where there is a compiler."""
