"""python -m minifer"""

import sys

if __name__ == "__main__":
    try:
        from .cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:  # in the first moments, before the commands watch for it
        if sys.stderr is not None:  # print() would take stdout in its place
            print("minifer: interrupted", file=sys.stderr)
        sys.exit(130)
