"""`python -m zlaunch`."""

from zlaunch.cli import main

if __name__ == "__main__":
    main()
