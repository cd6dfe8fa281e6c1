"""`python -m cassi.apps.calibrate`, for torchrun."""

from cassi.apps.calibrate import main

if __name__ == "__main__":
    main()
