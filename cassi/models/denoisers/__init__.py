"""Networks that remove noise from images."""
