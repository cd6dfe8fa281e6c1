"""`python -m cassi.apps.train`: the same as cassi-train, for torchrun, which starts modules."""

from cassi.apps.train import main

if __name__ == "__main__":
    main()
