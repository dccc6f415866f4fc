"""Video: the clip record, decoding of files and image folders, and the choice of frames. It knows nothing about events."""

from eventspec.video.clip import VideoClip, VideoFile
from eventspec.video.decode import decode_frames, open_video
from eventspec.video.images import read_image_folder
from eventspec.video.sampling import uniform_indices

__all__ = ["VideoClip", "VideoFile", "decode_frames", "open_video", "read_image_folder", "uniform_indices"]
