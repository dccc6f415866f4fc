"""EventGPT's instruction JSON: conversations about event files, each of which is a recording of its own without frames. Those
that were cut from DSEC have its frames by `joining`."""

from __future__ import annotations

from eventspec.recordings.conversations import Instructions
from eventspec.recordings.layout import Layout

NAME = "eventgpt"
NO_FRAMES = (
    "the event files have no frames: a video model, and with it `bench compare`, cannot answer about them; with --dsec FOLDER "
    "questions are about the DSEC sequences that they were cut from"
)
TREE = """\
EventGPT/
  <name>.json                        a list of {"id", "event_data": "<sequence>/000069.npy", "conversations":
                                     [{"from": "human", "value": "<event>\\n..."}, {"from": "gpt", "value": "..."}, ...]}
  <sequence>/000069.npy              the events, or in event_npy/, event_data/, events/. Elsewhere: --recordings FOLDER"""
KIND = Instructions(
    owner="EventGPT",
    fields=("event_data",),
    what="event file",
    counted="event_files",
    folders=(".", "event_npy", "event_data", "events"),
    marks=("<event>",),
    needed=True,
    note=NO_FRAMES,
)
LAYOUT = Layout(NAME, "EventGPT instructions", TREE, KIND.files, KIND.inspect, KIND.questions, KIND.recordings)
