"""``python -m eventspec`` is the command ``eventspec``."""

from eventspec.cli import main

if __name__ == "__main__":
    main()
