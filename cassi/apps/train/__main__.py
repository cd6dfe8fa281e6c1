"""`python -m cassi.apps.train`, for torchrun."""

from cassi.apps.train import main

if __name__ == "__main__":
    main()
