"""Simulated cameras with defects, and drawn scenes."""
