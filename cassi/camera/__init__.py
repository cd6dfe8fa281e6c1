"""Questions to the camera: how probable is a frame under it?"""
