"""`python -m tilewright` and `tilewright`: the command line."""

from tilewright.runtime.process import startup


def main() -> None:
    """Runs the command line and exits."""
    startup.prepare()
    try:
        from tilewright.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    try:
        run()
    except SystemExit as end:
        startup.leave(end.code)
        raise
    finally:
        startup.finish()


if __name__ == "__main__":
    main()
