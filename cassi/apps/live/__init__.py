"""The package of cassi-live: command, sources of frames, live reconstruction and page."""
