"""python -m minifer"""

import sys

if __name__ == "__main__":
    try:
        from .cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:  # in the first moments, before the commands watch for it
        print("minifer: interrupted", file=sys.stderr)
        sys.exit(130)
