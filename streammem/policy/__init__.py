"""Policies that remember: what a robot saw, in what it does."""
