"""`python -m cassi.apps.evaluate`, for torchrun."""

from cassi.apps.evaluate import main

if __name__ == "__main__":
    main()
