"""`python -m cassi.apps.calibrate`."""

from cassi.apps.calibrate import main

if __name__ == "__main__":
    main()
