"""``python -m cassi.apps.live``."""

from cassi.apps.live.command import main

main()
