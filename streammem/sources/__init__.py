"""Streams of frames: recorded, made up, or handed in by the user."""
