"""The page of a tab: one section a file."""
