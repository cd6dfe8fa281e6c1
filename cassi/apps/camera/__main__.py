"""`python -m cassi.apps.camera`."""

from cassi.apps.camera.command import main

if __name__ == "__main__":
    main()
