"""`python -m meshplan`: the command, where its script is not on the path."""

from meshplan.planner.cli.main import main

if __name__ == "__main__":
    main()
