"""Cameras of the commands: read a camera's file, and build the system that it describes."""
