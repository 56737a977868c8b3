"""``python -m llmc2py``."""

from llmc2py.cli import main

if __name__ == "__main__":
    main()
