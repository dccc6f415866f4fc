"""How much memory loading takes: a random Video-LLaVA checkpoint of about 1 GB, loaded in a process of its own.

    python benchmarks/loading_memory.py [--gigabytes 1.0] [--folder DIR]

Prints one JSON object: the checkpoint's bytes, the peak resident memory before and after loading, and what loading added.
The limit is the checkpoint's own size and 1 GB; exit 1 when it is exceeded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from memory import peak_bytes
from safetensors.torch import save_file

from eventspec.models import configuration
from eventspec.models.video_llava import VideoLlava, load_video_llava, sources, video_llava_config

ALLOWED = 1 << 30


def write(folder: Path, gigabytes: float) -> int:
    """A checkpoint with the 7B model's widths and fewer layers, in shards of two layers; its size in bytes."""
    width, inner, rows = 4096, 11008, 32064
    layer = 2 * (4 * width * width + 3 * width * inner)
    layers = max(1, round((gigabytes * 1e9 - 4 * rows * width) / layer))
    vision = {"hidden_size": 64, "intermediate_size": 64}
    data = {
        "model_type": "video_llava",
        "text_config": {"num_hidden_layers": layers, "vocab_size": rows, "max_position_embeddings": 4096},
        "vision_config": {**vision, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 14},
    }
    (folder / "config.json").write_text(configuration.pretty(data))
    config = video_llava_config(data)
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in VideoLlava(config).named_parameters()}
    shard: dict[str, torch.Tensor] = {}
    table: dict[str, str] = {}
    number = 0

    def flush() -> None:
        nonlocal number
        number += 1
        save_file(shard, folder / f"model-{number:05d}.safetensors")
        table.update(dict.fromkeys(shard, f"model-{number:05d}.safetensors"))
        shard.clear()

    for name, parts in sources(config).items():
        for part, count in parts:
            shard[part] = torch.randn(count or shapes[name][0], *shapes[name][1:]).to(torch.bfloat16)
        if sum(tensor.nbytes for tensor in shard.values()) > 4e8:
            flush()
    flush()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def measure(folder: Path) -> dict[str, float | int]:
    """Load, then touch every weight: mapped memory counts only once it was read."""
    before, began = peak_bytes(), time.perf_counter()
    model = load_video_llava(folder, None)
    seconds = time.perf_counter() - began
    loaded = peak_bytes()
    for parameter in model.parameters():
        parameter.sum()
    return {"before": before, "loaded": loaded, "touched": peak_bytes(), "seconds": round(seconds, 3)}


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--gigabytes", type=float, default=1.0)
    words.add_argument("--folder", type=Path, help="Measure this folder, here and now.")
    options = words.parse_args()
    if options.folder is not None:
        print(json.dumps(measure(options.folder)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        size = write(Path(scratch), options.gigabytes)
        command = [sys.executable, __file__, "--folder", scratch]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    added = found["touched"] - found["before"]
    print(json.dumps({"checkpoint_bytes": size, **found, "added": added, "limit": size + ALLOWED}))
    return int(added > size + ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
