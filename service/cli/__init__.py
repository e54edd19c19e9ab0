"""The `asap` command: main.py chooses, one file per subcommand does the work, io.py reads and writes."""
