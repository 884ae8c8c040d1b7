"""Reconstruction from a colour camera alone: a recurrent state of tokens, read and written once a frame."""
