"""The few blocks we own because they are the hot path: a Llama decoder, a CLIP vision transformer, a projector, a static
KV cache."""

from eventspec.nn.cache import KVCache
from eventspec.nn.clip_vit import ClipConfig, ClipViT
from eventspec.nn.linear import Projector
from eventspec.nn.llama import Llama, LlamaConfig

__all__ = ["ClipConfig", "ClipViT", "KVCache", "Llama", "LlamaConfig", "Projector"]
