"""Hydra configuration groups of the commands."""
