"""`python -m cassi.apps.reconstruct`: the command."""

from cassi.apps.reconstruct import main

if __name__ == "__main__":
    main()
