"""Files in and out: cubes, masks, measurements."""
