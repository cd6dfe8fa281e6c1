"""The camera as a frame shows it: log evidence, place of the mask, bands, and spectral grid."""
