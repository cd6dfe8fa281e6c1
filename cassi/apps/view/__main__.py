"""`python -m cassi.apps.view`."""

from cassi.apps.view.command import main

if __name__ == "__main__":
    main()
