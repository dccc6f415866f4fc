"""The features of events and of frames: how far apart they lie."""
