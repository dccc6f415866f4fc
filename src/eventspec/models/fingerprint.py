"""A model's identity by its weights."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from eventspec.nn.llama import LanguageEnds

_SAMPLED = 64


def fingerprint(model: nn.Module) -> str:
    """A digest of evenly spaced weights of every tensor, rounded to bfloat16 (16 hex digits): reading all would read a mapped
    checkpoint of 7 B from end to end. Loading in another dtype does not change it, if both hold the stored numbers."""
    model = model.whole if isinstance(model, LanguageEnds) else model
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        places = torch.linspace(0, len(flat) - 1, min(_SAMPLED, len(flat)), dtype=torch.float64).long().to(flat.device)
        values = flat[places].to(torch.bfloat16).view(torch.int16).cpu().numpy()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + values.tobytes())
    return digest.hexdigest()[:16]
