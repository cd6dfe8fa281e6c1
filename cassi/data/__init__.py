"""Read and write files, correct raw frames, simulate measurements, serve scenes, keep records."""
