"""A disk without room: every writer of recordings, rows and weights says so in one line and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import io, json, resource, sys
from pathlib import Path
import torch
import eventspec as es
from eventspec.events.formats import dsec_h5
from eventspec.experiments.rows import RowFile
from eventspec.files import write_whole
from eventspec.models import weights
from eventspec.recordings import write_native
from eventspec.train.loop import StageState

folder, room = Path(sys.argv[1]), int(sys.argv[2])
street, model = es.Recording.open("example:street"), torch.nn.Linear(200, 200)
resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
writers = {
    "native": lambda: write_native(folder / "native", street),
    "h5": lambda: write_whole(folder / "e.h5", lambda part: dsec_h5.write(part, street.events)),
    "weights": lambda: weights.save(model, folder / "w.safetensors", weights.own_names(model)),
    "stage": lambda: StageState(folder, "stage").save(model, None, 1.0, 1),
    "rows": lambda: RowFile(folder / "r.jsonl").add({"method": "a", "question_id": "b", "text": "c" * 30_000}),
}
told = {}
for name, write in writers.items():
    try:
        write()
    except es.BadInput as error:
        told[name] = str(error)
print(json.dumps(told))
"""


@pytest.mark.parametrize("room", [pytest.param(100, marks=pytest.mark.long), 20_000])
def test_a_full_disk_is_told_and_nothing_stays(tmp_path: Path, room: int) -> None:
    words = [sys.executable, "-c", PROGRAM, str(tmp_path), str(room)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.keys() == {"native", "h5", "weights", "stage", "rows"}
    assert all("cannot be written (" in words and str(tmp_path) in words and "\n" not in words for words in told.values())
    assert list(tmp_path.iterdir()) == []
