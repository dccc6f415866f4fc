"""Video: the clip record, decoding of files and image folders, and the choice of frames. It knows nothing about events."""

from eventspec.video.clip import VideoClip, VideoFile, uniform_indices
from eventspec.video.decode import open_video
from eventspec.video.images import read_image_folder

__all__ = ["VideoClip", "VideoFile", "open_video", "read_image_folder", "uniform_indices"]
