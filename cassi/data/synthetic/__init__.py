"""Simulated cameras with defects, and synthetic scenes."""
