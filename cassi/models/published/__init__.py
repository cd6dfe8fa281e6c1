"""Published networks, one per file, each with the layers that only it uses."""
