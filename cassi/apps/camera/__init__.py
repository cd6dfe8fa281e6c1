"""What a camera is: its file, and the system that its values describe."""
