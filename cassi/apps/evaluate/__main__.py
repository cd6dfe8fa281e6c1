"""`python -m cassi.apps.evaluate`: the command."""

from cassi.apps.evaluate import main

if __name__ == "__main__":
    main()
