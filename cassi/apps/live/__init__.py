"""cassi-live: frames as they come, reconstructed and shown in the browser."""
