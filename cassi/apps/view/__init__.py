"""The package of cassi-view: command, web server, state of a tab, jobs, and lists of results."""
