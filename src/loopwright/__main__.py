"""`python -m loopwright` is `loopwright`."""

import os
import sys

if __name__ == "__main__":
    # Unlike `loopwright`, `python -m` looks for modules in the current directory first, which may
    # be a run directory that came from someone else.
    if not sys.flags.safe_path and sys.path[:1] in ([os.getcwd()], [""]):
        del sys.path[0]

    from loopwright.cli.main import main

    main()
