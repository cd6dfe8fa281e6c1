"""`python -m cassi.apps.export` is `cassi-export`."""

from cassi.apps.export import main

main()
