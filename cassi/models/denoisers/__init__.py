"""Networks that remove noise from images, and one that renders them."""
