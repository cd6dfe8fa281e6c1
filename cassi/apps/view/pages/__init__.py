"""The page of a tab of cassi-view. Each section of the page has its own file."""
