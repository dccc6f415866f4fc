"""What cannot go together is named in one line, exit 2, before torch is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.support.probe import check_refused_early

from eventspec.pairs.pair_file import DATA, PairFile
from eventspec.recordings import Recording, write_native
from eventspec.video.clip import VideoClip

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

PAIR = DATA / "pairs/nano"
ASK = ("generate", "--recording", "example:street", "--prompt", "hi")
COMPARE = ("bench", "compare", "--out", "rows.jsonl", "--questions")
ADAPTED = ("--method", "skip-encode", "--adapter")
LINES: tuple[tuple[tuple[str, ...], str], ...] = (
    ((*ASK, "--event-offset", "soon"), "--event-offset soon cannot be read: give whole microseconds"),
    ((*ASK, "--event-offset", "1.5"), "--event-offset 1.5 cannot be read"),
    ((*ASK, "--event-offset", "9" * 19), "cannot be read"),
    ((*ASK, "--method", "aligned", "--adapter", "features-linear"), "adapter features-linear is for method event-eagle"),
    ((*ASK, *ADAPTED, "features-linear"), "is for method event-eagle"),
    ((*ASK, *ADAPTED, "fresh"), "adapter fresh was not calibrated"),
    ((*ASK, "--method", "aligned", "--adapter", "{nano}/heads/eagle"), "is the folder of a head, and of no adapter"),
    ((*ASK, "--method", "compressed-target", "--compress", "packer:3"), "no trained packer of scale 3, there is 2"),
    (
        (*COMPARE, "qa.jsonl", "--method", "autoregressive", "--compress", "packer:9"),
        "no trained packer of scale 9",
    ),
    ((*ASK, "--method", "compressed-target", "--compress", "grid:9"), "grid:9 is more than a frame has: its grid is 8 x 8"),
    ((*ASK, "--method", "compressed-target", "--compress", "pool:\u0663"), "cannot be read: give KIND:SIZE, such as pool:3"),
    ((*ASK, "--method", "eagle", "--head", ""), "no head '': give the folder of a head, or one of concat"),
    ((*ASK, "--method", "aligned", "--adapter", ""), "no adapter '': give the folder of an adapter, or one of attention"),
    ((*ASK, "--method", "eagle", "--head", "eagle:pruned"), "tree policy 'pruned' is unknown for head eagle"),
    ((*ASK, "--method", "eagle", "--head", "massv:static"), "tree policy 'static' is unknown for head massv"),
    ((*ASK, "--method", "eagle", "--head", "{nano}/adapters/attention"), "is the folder of an adapter, and of no head"),
    ((*ASK, "--method", "specvlm", "--head", "specvlm:pool:prune"), "--head specvlm:pool:prune names two branches: give NAME"),
    ((*ASK, "--method", "specvlm", "--head", "specvlm:chain:static"), "names two trees: give NAME"),
    ((*ASK, "--method", "specvlm", "--head", "specvlm:chain:pool:x"), "names two trees: give NAME"),
    ((*ASK, "--method", "specvlm", "--head", "specvlm::pool"), "--head specvlm::pool has an empty part: give NAME"),
    ((*ASK, "--method", "specvlm", "--head", "specvlm:nope"), "'nope' is unknown for head specvlm: choose one of dynamic"),
    ((*COMPARE, "qa.jsonl", "--method", "autoregressive", "--head", "eagle", "--head", "eagle"), "--head eagle is there twice"),
    (
        (*COMPARE, "qa.jsonl", "--method", "skip-encode", "--decide", "cosine:0.8", "--decide", "cosine:0.80 "),
        "--decide cosine:0.8 is there twice",
    ),
    ((*ASK, "--method", "eagle", "--head", "{nano}/heads"), "it holds others: give one of them, such as"),
    ((*ASK, "--method", "eagle", "--head", "{nano}/target"), "is the folder of a checkpoint, and of no head"),
    (
        (*ASK, "--target", "{video}", "--method", "eagle", "--head", "{nano}/heads/eagle"),
        "the head was trained for targets",
    ),
    ((*ASK, "--method", "prior", "--learn"), "--learn is not used by method prior: it is for --method"),
    ((*ASK, "--method", "eagle", "--learned", "new"), "--learned new: nothing learns without --learn"),
    ((*ASK, "--method", "eagle", "--learn", "--learned", "{nano}"), "exists and is not an empty folder"),
    ((*ASK, "--method", "eagle", "--learn", "--head", "dream"), "head dream has several decoder layers: --learn is for"),
    ((*ASK, "--method", "eagle", "--learn", "--head", "massv:pruned"), "head massv:pruned has several decoder layers"),
    ((*COMPARE, "qa.jsonl", "--method", "cross-modal", "--learn"), "--learn is not used by method cross-modal"),
    ((*COMPARE, "qa.jsonl", "--method", "eagle", "--learn", "--head", "dream"), "head dream has several decoder layers"),
    (
        ("bench", "compare", "--out", "old.jsonl", "--questions", "deaf.jsonl", "--method", "eagle", "--resume", "--learn"),
        "--resume goes on with rows, and heads that learn would begin anew",
    ),
    ((*ASK, "--method", "cross-modal", "--drafter", "{nano}/heads/eagle"), "is the folder of a head, and of no drafter"),
    ((*ASK, "--method", "cross-modal", "--drafter", "fine:same"), "the tokenizers of fine and nano differ: id"),
    ((*ASK, "--target", "{video}", "--drafter", "{video}"), "sees frames: the drafter of method cross-modal must see events"),
    ((*ASK, "--target", "{video}", "--device", "gpu"), "device 'gpu' cannot be used (there is no such kind of device)"),
    ((*ASK, "--target", "{video}", "--dtype", "nf4"), "dtype nf4 is for checkpoints that transformers opens"),
    ((*ASK, "--target", "other", "--dtype", "int8"), "dtype int8 needs a CUDA device, here is cpu"),
    (("generate", "--prompt", "hi", "--recording", "drive.npz"), "drive has no RGB frames: method auto needs them"),
    (("generate", "--prompt", "hi", "--recording", "frames", "--method", "cross-modal"), "frames has no events: method"),
    (("live", "--prompt", "hi", "--recording", "frames", "--method", "cross-modal"), "frames has no events: method"),
    ((*ASK, "--pair", "bare", "--method", "eagle"), "the method needs a head: eventspec train heads"),
    (("chat", "drive.npz"), "drive has no RGB frames"),
    ((*COMPARE, "qa.jsonl", "--method", "autoregressive"), "qa.jsonl, line 2: drive has no RGB frames"),
    ((*COMPARE, "deaf.jsonl", "--method", "cross-modal"), "deaf.jsonl, line 1: frames has no events"),
    (
        (*COMPARE, "qa.jsonl", "--method", "cross-modal", "--events", "drive.npz"),
        "recordings are named by the lines of --qu",
    ),
    (
        ("bench", "compare", "--out", "old.jsonl", "--questions", "deaf.jsonl", "--method", "eagle", "--resume", "--seed", "3"),
        "old.jsonl was measured with seed 0, not 3",
    ),
    (
        ("train", "embedded", "--preset", "cpu-tune", "--out", "new"),
        "goes on from a pair's weights",
    ),
    (("train", "heads", "--preset", "cpu-tune", "--out", "new"), "goes on from a pair's weights"),
    (("train", "packer", "--scale", "7", "--out", "new"), "packer scale 7 does not divide the 8 x 8 patches of a frame"),
    (
        ("train", "heads", "--target", "{video}", "--questions", "deaf.jsonl", "--device", "gpu", "--out", "new"),
        "device 'gpu' cannot be used",
    ),
    (
        ("train", "heads", "--target", "{video}", "--questions", "qa.jsonl", "--out", "new"),
        "qa.jsonl, line 2: drive has no RGB frames",
    ),
    (("models", "export-head", "eagle", "--layout", "speculators", "--out", "new"), "choose layout safeailab"),
    (("train", "prior", "--pair", "{video}", "--out", "new"), "make a pair of it (eventspec models pair --target"),
    (("bench", "run", "reuse", "--pair", "{video}"), "make a pair of it (eventspec models pair --target"),
    (("train", "heads", "--begin-with", "{video}", "--out", "new"), "make a pair of it (eventspec models pair --target"),
)


def test_what_cannot_go_together_is_named_before_torch_is_loaded(folders: Folders, tmp_path: Path) -> None:
    row = {
        "method": "eagle",
        "question_id": "0",
        "settings": {"pair": "nano", "max_new_tokens": 256, "temperature": 0.0, "seed": 0},
    }
    (tmp_path / "old.jsonl").write_text(json.dumps(row) + "\n")
    columns = {"x": [1, 2, 3], "y": [1, 2, 3], "t": [10, 20, 30], "p": [0, 1, 1], "width": 32, "height": 32}
    np.savez(tmp_path / "drive.npz", **{name: np.asarray(value) for name, value in columns.items()})
    video = VideoClip(np.zeros((8, 32, 32, 3), np.uint8), np.arange(8, dtype=np.int64) * 1000)
    write_native(tmp_path / "frames", Recording("frames", None, video))
    asked = [json.dumps({"recording": name, "question": "What?", "answer": "?"}) for name in ("frames", "drive.npz")]
    (tmp_path / "qa.jsonl").write_text("\n".join(asked))
    (tmp_path / "deaf.jsonl").write_text(asked[0])
    fresh = shutil.copytree(PAIR / "adapters/attention", tmp_path / "fresh")
    (fresh / "acceptance.json").unlink()
    shutil.copytree(PAIR, tmp_path / "bare")
    PairFile.read(tmp_path / "bare").with_table("heads", {}).write()
    other = shutil.copytree(folders.video_llava, tmp_path / "other")
    (other / "config.json").write_text(json.dumps({**json.loads((other / "config.json").read_text()), "model_type": "llava"}))
    places = {"nano": PAIR, "video": folders.video_llava}
    lines = [([word.format(**places) for word in words], says) for words, says in LINES]
    before = sorted(tmp_path.iterdir())
    check_refused_early(lines, tmp_path, "What is ahead?\n")
    assert sorted(tmp_path.iterdir()) == before
