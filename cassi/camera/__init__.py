"""Estimate a camera from a frame: log evidence, place of the mask, band offsets, spectral grid."""
