"""`python -m cassi.apps.reconstruct`, for torchrun."""

from cassi.apps.reconstruct import main

if __name__ == "__main__":
    main()
