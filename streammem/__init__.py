"""Streaming online learning of 3D and robotics state."""
