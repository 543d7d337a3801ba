"""`python -m fairbits`: the command line."""

from fairbits.cli import main

if __name__ == "__main__":
    main()
