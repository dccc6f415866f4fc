"""The features of events and of frames: how far apart they lie, and when one may stand for the other."""
