"""config.json of an EAGLE-3 head in the layout of `speculators` 0.9, read and written; the tensors are `checkpoint`'s.

Layers are counted as here: 0 is the embedding, i the output of the i-th layer, before the target's final norm. The layout
has no EAGLE-1: the package dropped it. Checked against the package itself (tests/drafters/test_speculators.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from eventspec.models import configuration as fields
from eventspec.nn import LlamaConfig

KIND = "speculators_model_type"
TAPS = "eagle_aux_hidden_state_layer_ids"
SWITCHES = ("norm_before_fc", "fc_norm", "norm_output")
"""Norms that later EAGLE-3 heads have and ours has not."""
_KEPT = ("draft_vocab_size", "norm_before_residual", *SWITCHES, "target_hidden_size", TAPS, "eventspec")
_VERSION, _DRAFTS = "0.9.0", 3  # drafts a round: what the package's own converter writes, a server may override it


@dataclass(frozen=True)
class Verifier:
    """The target as others load it: a hub name or a folder, and its `architectures`."""

    name_or_path: str
    architectures: tuple[str, ...]


def flattened(data: fields.Fields) -> fields.Fields:
    """The fields under a plain head's names; BadField for a type of head or of layer that is not ours.

    A missing `norm_before_residual` stays missing, which is false: so the package reads it (vLLM would take it as true).
    """
    fields.require(data, KIND, data[KIND] == "eagle3", "'eagle3': of speculators' heads only these can be read")
    layer = fields.part(data, "transformer_layer_config", {})
    only = "'llama': other layers of speculators cannot be read"  # without the field the package takes qwen3
    fields.require(layer, "model_type", layer.get("model_type") == "llama", only)
    kinds = layer.get("layer_types")
    fields.require(layer, "layer_types", kinds in (None, [], ["full_attention"]), "['full_attention']: no window slides here")
    return {**layer, **{name: data[name] for name in _KEPT if name in data}}


def described(
    language: LlamaConfig, taps: tuple[int, ...], own: fields.Fields, verifier: Verifier, dtype: str
) -> fields.Fields:
    """A whole config.json of a head with layers of these sizes; `own`: its draft vocabulary and where its norm stands. What
    vLLM and the package take for granted differs, so nothing is left to them."""
    sizes = replace(language, num_hidden_layers=1, tie_word_embeddings=False)
    rope = {"rope_type": "default", "rope_theta": sizes.rope_theta}
    layer = {"model_type": "llama", **fields.llama_json(sizes), "head_dim": sizes.head_dim, "rope_parameters": rope}
    greedy = {"proposal_type": "greedy", "speculative_tokens": _DRAFTS, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["Eagle3Speculator"],
        KIND: "eagle3",
        "speculators_version": _VERSION,
        "dtype": dtype,
        **own,
        **dict.fromkeys(SWITCHES, False),
        "embed_requires_grad": False,
        "target_hidden_size": sizes.hidden_size,
        TAPS: list(taps),
        "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"name_or_path": verifier.name_or_path, "architectures": list(verifier.architectures)},
        },
        "transformer_layer_config": layer,
    }
