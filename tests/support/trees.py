"""Miniature trees of every data set, for tests: generated, never a line of the real data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import encoders
import numpy as np
from PIL import Image

START_US = 51_836_000_000
EVENTS = encoders.street(400, 640, 480, longest_step_us=2000)  # about 400 ms
EVENTS["t"] = EVENTS["t"] + START_US
FRAME_US = 50_000


def images(folder: Path, count: int, size: tuple[int, int] = (24, 18)) -> None:
    folder.mkdir(parents=True)
    for index in range(count):
        Image.new("RGB", size, (index * 20, 40, 90)).save(folder / f"{index:06d}.png")


def times(path: Path, count: int, start_us: int = START_US) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{start_us + index * FRAME_US}\n" for index in range(count)))


def dsec_sequence(folder: Path, frames: int = 4, **packing: Any) -> Path:
    """A sequence as the archives unpack into one folder, with parts that are not read."""
    (folder / "events/left").mkdir(parents=True)
    (folder / "events/left/events.h5").write_bytes(encoders.dsec(**EVENTS, offset_us=START_US, **packing))
    (folder / "events/left/rectify_map.h5").write_bytes(b"not read")
    images(folder / "images/left/rectified", frames)
    times(folder / "images/timestamps.txt", frames)
    images(folder / "disparity/image", 1)
    return folder


def dsec(root: Path) -> Path:
    dsec_sequence(root / "train/interlaken_00_c")
    dsec_sequence(root / "test/thun_01_a", frames=3)
    return root


def mvsec(root: Path) -> Path:
    events = {**encoders.street(300, 346, 260, longest_step_us=400)}
    events["t"] = events["t"] + 1_504_645_177_000_000
    (root / "indoor_flying").mkdir(parents=True)
    (root / "indoor_flying/indoor_flying1_data.hdf5").write_bytes(encoders.mvsec(**events, frames=3))
    (root / "outdoor_day1_data.hdf5").write_bytes(encoders.mvsec(**events, frames=2))
    (root / "outdoor_day1_gt.hdf5").write_bytes(encoders.native(**events))  # HDF5 of another kind
    return root


def video(path: Path, frames: int = 4) -> Path:
    """A tiny film of a square that moves."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for index in range(frames):
            picture = np.full((32, 32, 3), 40, np.uint8)
            picture[8:20, 4 + 3 * index : 14 + 3 * index] = 220
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def activitynet_qa(root: Path) -> Path:
    """Two videos of three, five questions; the answers are in another order than the questions."""
    ids = ["abcdefghijk", "v_underscor", "-missing-01"]
    asked = [(ids[place], number) for place, number in ((0, 1), (0, 2), (1, 1), (2, 1), (1, 2))]
    questions = [
        {"video_name": name, "question": f"what is shown {number}", "question_id": f"v_{name}_{number}"}
        for name, number in asked
    ]
    answers = [
        {"question_id": record["question_id"], "answer": f"answer {index}", "type": index}
        for index, record in enumerate(questions)
    ]
    root.mkdir(parents=True, exist_ok=True)
    (root / "test_q.json").write_text(json.dumps(questions))
    (root / "test_a.json").write_text(json.dumps(answers[::-1]))
    video(root / "all_test/v_abcdefghijk.mp4")
    video(root / "all_test/v_v_underscor.mp4")
    return root


def eventgpt(root: Path) -> Path:
    """Three records: one with two turns, one whose event file is missing."""

    def says(*values: str) -> list[dict[str, str]]:
        return [{"from": ("human", "gpt")[index % 2], "value": value} for index, value in enumerate(values)]

    records = [
        {"id": "a", "event_data": "interlaken_00_a/000000.npy", "conversations": says("<event>\nWhat is there?", "A road.")},
        {
            "id": "b",
            "event_data": "interlaken_00_a/000001.npy",
            "conversations": says("What moves?\n<event>", "A car.", "Where to?", "To the left."),
        },
        {"id": "c", "event_data": "thun_00_a/000000.npy", "conversations": says("<event>\nAnd here?", "Nothing.")},
    ]
    (root / "interlaken_00_a").mkdir(parents=True)
    (root / "instructions.json").write_text(json.dumps(records))
    for name in ("000000", "000001"):
        (root / f"interlaken_00_a/{name}.npy").write_bytes(encoders.eventgpt_npy(**encoders.street(50, 640, 480)))
    return root


def event_file(path: Path, start_us: int, end_us: int, shift_us: int = 0) -> Path:
    """What EventGPT cuts of the sequences here, as half-open windows; `shift_us` later than on the sequence's clock."""
    kept = (EVENTS["t"] >= start_us) & (EVENTS["t"] < end_us)
    columns = {name: column[kept] for name, column in EVENTS.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoders.eventgpt_npy(**{**columns, "t": columns["t"] + shift_us}))
    return path


def cut_of_dsec(root: Path) -> Path:
    """Event files of 50 ms of the sequences in `dsec`, one of them by a clock of its own, and two that belong to none."""
    for index in range(3):
        begin = START_US + index * FRAME_US
        event_file(root / f"interlaken_00_c/{index:06d}.npy", begin, begin + FRAME_US, -begin if index == 1 else 0)
    event_file(root / "thun_01_a/000000.npy", START_US, START_US + FRAME_US, 7)
    (root / "thun_01_a/000001.npy").write_bytes(encoders.eventgpt_npy(**encoders.street(50, 640, 480)))
    event_file(root / "zurich_city_04_a/000000.npy", START_US, START_US + FRAME_US)
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.npy"))
    said = [{"from": "human", "value": "<event>\nWhat is there?"}, {"from": "gpt", "value": "A road."}]
    records = [{"id": number, "event_data": file, "conversations": said} for number, file in enumerate(files)]
    (root / "instructions.json").write_text(json.dumps(records))
    return root


def llava(root: Path) -> Path:
    """Records about two images and a video that are there, about one that is not, about two at once and about none."""

    def about(*values: str, **what: Any) -> dict[str, Any]:
        said = [{"from": ("human", "gpt")[index % 2], "value": value} for index, value in enumerate(values)]
        return {"id": f"{len(values)}", **what, "conversations": said}

    records = [
        about("<image>\nWhat is there?", "A road.", "And left?", "A car.", image="coco/000000.png"),
        about("What colour?\n<image>", "Blue.", image=["coco/000001.png"]),
        about("<video>\nWhat moves?", "A square.", video="clips/one.mp4"),
        about("<image>\nAnd here?", "Nothing.", image="coco/gone.png"),
        about("<image><image>\nThe same?", "Yes.", image=["coco/000000.png", "coco/000001.png"]),
        about("Who are you?", "A model."),
    ]
    images(root / "coco", 2)
    video(root / "videos/clips/one.mp4")
    (root / "mix.json").write_text(json.dumps(records))
    return root


TREES = {"dsec": dsec, "mvsec": mvsec, "activitynet-qa": activitynet_qa, "eventgpt": eventgpt, "llava": llava}
