"""`metadr` and `python -m metadr`: the command line.

Imported where it is run: a worker that a command starts imports what started it too, and needs none of the rest.
"""


def main() -> None:
    from metadr.cli import main as command

    command()


if __name__ == "__main__":
    main()
