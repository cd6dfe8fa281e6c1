"""What is drawn in place of what was taken: cameras with defects, and scenes."""
