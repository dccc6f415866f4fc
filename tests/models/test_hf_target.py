"""transformers' own classes as targets: tiny random checkpoints, and transformers' own `generate` as the judge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2VLImageProcessorPil

from eventspec.cli import run
from eventspec.core import BadCheckpoint, BadInput, Budget, Proposal, Request, Sampling, Trace, Verdict
from eventspec.engine.tree import BadProposal
from eventspec.models.folder import describe, load_folder
from eventspec.models.loading import Loading, VisionLanguage
from eventspec.pairs import Pair, generate, load_folders
from eventspec.pairs.pair import DATA
from eventspec.recordings import Recording
from eventspec.video.clip import VideoClip

MARKS = ("<pad>", "<s>", "</s>", "<image>", "<video>", "<|begin|>", "<|end|>")
PAD, BOS, EOS, IMAGE, VIDEO, BEGIN, END = range(256, 263)
ROWS = 270
IDS = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
MEDIA = {"image_token_id": IMAGE, "video_token_id": VIDEO}
TEXT = dict(vocab_size=ROWS, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, **IDS)
TEXT |= dict(num_key_value_heads=2, max_position_embeddings=512, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
CLIP = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14)
QUESTION = "is the car on the way"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% for c in m.content %}{% if c.type == 'image' %}@{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endfor %} answer:"
)
SHARED = Path(__file__).parents[2].parent / "shared/goldens"


# --------------------------------------------------------------------------------------------------------- tiny checkpoints
def _llava(text: Any) -> Any:
    vision = hf.CLIPVisionConfig(**CLIP)
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, image_seq_length=4)
    return hf.LlavaForConditionalGeneration(config)


def _onevision() -> Any:
    parts = {"vision_config": hf.SiglipVisionConfig(**CLIP), "text_config": hf.Qwen2Config(**TEXT)}
    ids = {"image_token_index": IMAGE, "video_token_index": VIDEO}
    return hf.LlavaOnevisionForConditionalGeneration(
        hf.LlavaOnevisionConfig(**parts, **ids, image_grid_pinpoints=[[28, 28], [56, 28]])
    )


def _qwen() -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    vision = dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=32, patch_size=14)
    vision |= dict(window_size=56, fullatt_block_indexes=[1])
    special = {**MEDIA, "vision_start_token_id": BEGIN, "vision_end_token_id": END}
    config = hf.Qwen2_5_VLConfig(text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, **special)
    return hf.Qwen2_5_VLForConditionalGeneration(config)


def _kinds() -> dict[str, tuple[Callable[[], Any], Any, dict[str, Any], str]]:
    """Model, image processor, fields of processor_config.json, and what stands for a picture in the template."""
    small = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    clip = hf.CLIPImageProcessorPil(**small)
    llava = {"processor_class": "LlavaProcessor", "patch_size": 14, "vision_feature_select_strategy": "default"}
    llava["num_additional_image_tokens"] = 1
    several = hf.LlavaOnevisionImageProcessorPil(size={"height": 28, "width": 28}, image_grid_pinpoints=[[28, 28], [56, 28]])
    one = {"processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 4, "vision_feature_select_strategy": "full"}
    qwen = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=56 * 56)
    around = "<|begin|><image><|end|>"
    window = hf.MistralConfig(**TEXT, sliding_window=12)
    return {
        "llava": (lambda: _llava(hf.LlamaConfig(**TEXT)), clip, llava, "<image>"),
        "onevision": (_onevision, several, one, "<image>"),
        "qwen": (_qwen, qwen, {"processor_class": "Qwen2_5_VLProcessor"}, around),
        "window": (lambda: _llava(window), clip, llava, "<image>"),
    }


def written(folder: Path, kind: str, seed: int = 5) -> Path:
    make, pictures, settings, place = _kinds()[kind]
    model = make().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.requires_grad_(False).named_parameters():
        weight.normal_(0.0, 0.3 if "language" in name or "head" in name else 0.15, generator=generator)
        if "norm" in name and not name.endswith("bias"):
            weight.add_(1.0)
    model.generation_config = hf.GenerationConfig(**{**IDS, "eos_token_id": [EOS, END]})
    model.save_pretrained(folder)
    pictures.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "image_token": "<image>", "video_token": "<video>"}
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("@", place))
    return folder
