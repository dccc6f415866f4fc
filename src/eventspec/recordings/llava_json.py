"""LLaVA's instruction JSON, which Video-LLaVA's is too: conversations about an image or a video, which is a recording without
events; an image is one of a single frame."""

from __future__ import annotations

from eventspec.recordings.conversations import Instructions
from eventspec.recordings.layout import Layout

NAME = "llava"
TREE = """\
LLaVA/
  <name>.json                        a list of {"id", "image" or "video": "<folder>/<file>", "conversations":
                                     [{"from": "human", "value": "<image>\\n..."}, {"from": "gpt", "value": "..."}, ...]}
  <folder>/<file>                    what they are about, or in images/, videos/. Elsewhere: --recordings FOLDER"""
KIND = Instructions(
    owner="LLaVA",
    fields=("image", "video"),
    what="image or video",
    counted="files",
    folders=(".", "images", "videos"),
    marks=("<image>", "<video>"),
    needed=False,
    note="images and videos have no events: they train what drafts from frames and text, such as heads",
)
LAYOUT = Layout(NAME, "LLaVA instructions", TREE, KIND.files, KIND.inspect, KIND.questions, KIND.recordings)
